"""A place in a topic as people and programs write it: earliest, latest, an offset or a time."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from penstock.clock import duration_ms
from penstock.errors import BadOption, OffsetOutOfRange

if TYPE_CHECKING:
    from penstock.log.topic import Topic

Place = int | str | datetime

_DIGITS_MAX = 19
_AGO = re.compile(r"-\s*(?P<minus>\d.*)|(?P<ago>\d.*?)\s+ago", re.IGNORECASE)
HELP = 'earliest, latest, an offset, or a time: 2026-01-31T12:00Z, -5m, "10 minutes ago"'


def parse_place(text: str, *, now: datetime) -> Place:
    """What `text` means at `now`. A time without a zone is UTC.

    >>> noon = datetime(2026, 1, 31, 12, tzinfo=UTC)
    >>> parse_place("latest", now=noon), parse_place("42", now=noon)
    ('latest', 42)
    >>> parse_place("-5m", now=noon) == parse_place("5 minutes ago", now=noon)
    True
    """
    word = text.strip()
    if word.lower() in ("earliest", "latest"):
        return word.lower()
    if word.isascii() and word.isdecimal() and len(word) <= _DIGITS_MAX:
        return int(word)
    if ago := _AGO.fullmatch(word):
        try:
            return now - timedelta(milliseconds=duration_ms(ago["minus"] or ago["ago"]))
        except OverflowError:
            raise BadOption(f"{text[:80]!r} is before all time.", hint="write earliest") from None
    try:
        found = datetime.fromisoformat(word)
    except ValueError:
        raise BadOption(f"{text[:80]!r} is no place in a topic.", hint=f"write {HELP}") from None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def offsets_of(topic: Topic, place: Place, partition: int | None = None) -> dict[int, int]:
    """The offset that `place` means in each partition, or in the one asked for."""
    bounds = topic.bounds()
    if partition is not None and partition not in bounds:
        raise BadOption(
            f'topic "{topic.name}" has no partition {partition}.', hint=f"choose 0 to {len(bounds) - 1}"
        )
    numbers = bounds if partition is None else [partition]
    found = {number: topic.offset_of(number, place) for number in numbers}
    for number, offset in found.items():
        start, end = bounds[number]
        # While we ask, appends go on: only an offset that was written down can be out of range.
        if isinstance(place, int) and not start <= offset <= end:
            raise OffsetOutOfRange(topic.name, number, offset, start=start, end=end)
    return found
