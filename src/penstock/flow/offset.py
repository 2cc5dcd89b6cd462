"""How far a query has read: the offset that Spark keeps in its checkpoint, and we in the log.

An offset says everything about the batch that ends there: where it began, what event time had been seen by
then, how far the log's clock was. So a batch can be planned, repeated or judged (what was late?) from its
offset alone, and a replay comes out the same whatever the wall clock says.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

Ends = Mapping[str, tuple[int, ...]]
"""By topic: for each partition, the offset after the last record that was read."""

STEP_US = 100_000
"""Watermarks move in steps: a log's watermarks over an hour are then few numbers, not one per record."""

NEVER_US = -62_135_596_800_000_000
"""The year 1: a watermark that nothing is behind."""


@dataclass(frozen=True, slots=True)
class Point:
    """A place in the input: what has been read, and what time it is there."""

    ends: Ends
    seen_us: int | None = None  # highest event time read
    clock_us: int | None = None  # the same, moved on by declared watermarks and by idleness
    cut_us: int = 0  # append time of the newest record read
    declared: Mapping[str, int] = field(default_factory=dict)  # by topic: how many watermarks were read

    def watermark_us(self, lateness_us: int) -> int:
        """Nothing at or before this is expected any more."""
        return NEVER_US if self.clock_us is None else floored(self.clock_us) - lateness_us


@dataclass(frozen=True, slots=True)
class Offset:
    """The end of a batch, and where the batch began."""

    start: Point
    end: Point
    processed_us: int = 0  # when it was planned: the event time of clock="processing"
    odd: bool = False  # some row came behind the watermark, or has no usable event time
    rows: int = field(default=0, compare=False)
    lenient: bool = False  # nothing in it is late: a rebuild took in what had been
    unusable: int = field(default=0, compare=False)  # rows without a usable event time

    def to_json(self) -> dict[str, Any]:
        return {
            "start": _plain(self.start),
            "end": _plain(self.end),
            "processed_us": self.processed_us,
            "odd": self.odd,
            "rows": self.rows,
            "lenient": self.lenient,
            "unusable": self.unusable,
        }

    @classmethod
    def from_json(cls, plain: Mapping[str, Any]) -> Offset:
        return cls(**{**plain, "start": _point(plain["start"]), "end": _point(plain["end"])})


def at_rest(point: Point) -> Offset:
    """The offset of a query that has read nothing since `point`."""
    return Offset(point, point)


def floored(time_us: int) -> int:
    return time_us // STEP_US * STEP_US


def _plain(point: Point) -> dict[str, Any]:
    return {
        "ends": {topic: list(ends) for topic, ends in point.ends.items()},
        "seen_us": point.seen_us,
        "clock_us": point.clock_us,
        "cut_us": point.cut_us,
        "declared": dict(point.declared),
    }


def _point(plain: Mapping[str, Any]) -> Point:
    ends = {topic: tuple(numbers) for topic, numbers in plain["ends"].items()}
    return Point(ends, plain["seen_us"], plain["clock_us"], plain["cut_us"], plain["declared"])


def within(one: Ends, other: Ends) -> bool:
    """Whether `one` is nowhere past `other`, which may know of more partitions."""
    return all(
        len(one[topic]) <= len(ends) and all(a <= b for a, b in zip(one[topic], ends, strict=False))
        for topic, ends in other.items()
    )


def moved(point: Point, **changes: Any) -> Point:
    return replace(point, **changes)
