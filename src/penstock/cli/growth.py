"""What added partitions mean for order per key, in words."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock.cli import words

if TYPE_CHECKING:
    from penstock.log.settings import PartitionsAdded, TopicSettings

_LINES_MAX = 16


def keeps_order(added: PartitionsAdded) -> bool:
    """With a multiple of the old count, each new partition takes its keys from a single old one."""
    return added.after % added.before == 0


def as_object(added: PartitionsAdded) -> dict[str, object]:
    return {
        "before": added.before,
        "after": added.after,
        "at": words.iso(added.at_us),
        "ends": list(added.ends),
        "groups_keep_order_per_key": keeps_order(added),
    }


def sentences(settings: TopicSettings, added: PartitionsAdded) -> list[str]:
    """What a reader of this topic has to know, one sentence each."""
    news = words.listed(range_of(added))
    if not settings.key:
        return [
            "The topic has no key, so there is no order per key to keep; records spread over all partitions."
        ]
    if not any(added.ends):
        return ["The topic was empty, so no key moved: order per key holds everywhere."]
    if keeps_order(added):
        return [
            f"Consumer groups keep order per key by themselves: partitions {news} are held back until "
            "a group has committed past the ends below.",
            f"Plain readers find a key that moved in partitions {news} from offset 0 on, and its older "
            "records in:",
            *_each(
                added,
                lambda old, end: (
                    f"  partition {old} before offset {end:,} (its moved keys are now in "
                    f"{words.listed(range(old + added.before, added.after, added.before))})"
                ),
            ),
        ]
    return [
        f"{added.after} is no multiple of {added.before}, so keys moved between old partitions too: "
        "order per key does not hold across this change by itself.",
        "To keep it, read all of this before anything newer:",
        *_each(added, lambda old, end: f"  partition {old} before offset {end:,}"),
    ]


def _each(added: PartitionsAdded, told: Callable[[int, int], str]) -> list[str]:
    """One line for every old partition that had records, up to a bound."""
    lines = [told(old, end) for old, end in enumerate(added.ends) if end]
    more = len(lines) - _LINES_MAX
    return (
        lines
        if more <= 0
        else [*lines[:_LINES_MAX], f"  … and {more} more (all of them with: topic show --json)"]
    )


def range_of(added: PartitionsAdded) -> range:
    return range(added.before, added.after)
