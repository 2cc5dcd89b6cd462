"""A place in a topic as clients keep it: the next offset of each partition, as `0:15,1:20`."""

from __future__ import annotations

import re
from collections.abc import Mapping

from penstock.errors import BadOption

_FORM = re.compile(r"\d{1,5}:\d{1,18}(,\d{1,5}:\d{1,18})*")
LENGTH_MAX = 16_000  # of what goes into a header or an address


def written(places: Mapping[int, int]) -> str:
    """
    >>> written({1: 20, 0: 15})
    '0:15,1:20'
    """
    if len(places) == 1:
        ((number, offset),) = places.items()
        return f"{number}:{offset}"
    return ",".join(f"{number}:{places[number]}" for number in sorted(places))


def is_one(text: str) -> bool:
    return len(text) <= LENGTH_MAX and _FORM.fullmatch(text) is not None


def read(text: str) -> dict[int, int]:
    """Raises BadOption for what is none."""
    if not is_one(text):
        raise BadOption(
            f"{text[:80]!r} is no place in a topic.", hint="give back what an answer called `next`"
        )
    pairs = (part.split(":") for part in text.split(","))
    return {int(number): int(offset) for number, offset in pairs}
