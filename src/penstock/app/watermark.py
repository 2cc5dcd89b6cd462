"""How far event time is for a query, and what keeps it from going on.

The watermark is the newest event time read, less the lateness; a slow partition does not hold it back. So
what it waits for is always one of four things: anything at all, records that nobody has read yet, a newer
event, or enough silence for the clock to go on by itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Literal

from penstock.flow.offset import Ends, Point
from penstock.flow.plan import Scan, appended_us, newest
from penstock.flow.times import event_times
from penstock.log.newest import last_record

if TYPE_CHECKING:
    from penstock.log.log import Log

Kind = Literal["nothing read", "unread", "idle", "newer event"]
_PARTITIONS_MAX = 64  # that are looked at for the newest event


@dataclass(frozen=True, slots=True)
class Held:
    """What the watermark waits for. `topic` and `partition`: where the event that it stands at came from."""

    kind: Kind
    text: str
    topic: str | None = None
    partition: int | None = None


@dataclass(frozen=True, slots=True)
class Backlog:
    """What a query has not read."""

    records: int
    oldest_us: int | None  # append time of the oldest of them
    topics: tuple[str, ...]


def utc(time_us: int) -> str:
    """To the millisecond, where that is not 0."""
    found = datetime.fromtimestamp(time_us // 1_000_000, UTC).replace(microsecond=time_us % 1_000_000)
    exact = "milliseconds" if time_us % 1_000_000 else "seconds"
    return found.isoformat(sep=" ", timespec=exact).replace("+00:00", "Z")


def backlog(log: Log, ends: Ends) -> Backlog:
    """What lies past `ends`; a part of it may have been removed by retention."""
    scan = Scan(tuple(ends))
    records, oldest, topics = 0, [], []
    for topic, last in newest(log, scan).items():
        for partition, end in enumerate(last):
            read = ends[topic][partition] if partition < len(ends[topic]) else 0
            start = max(read, log.port.bounds(topic, partition)[0])
            first_us = appended_us(log, topic, partition, start) if start < end else None
            if first_us is not None:  # else the end lies past the last record
                records += end - start
                oldest.append(first_us)
                topics.append(topic)
    return Backlog(records, min(oldest, default=None), tuple(dict.fromkeys(topics)))


def held_back(log: Log, scan: Scan, point: Point, *, unread: Backlog, now_us: int) -> Held:
    """Why the watermark at `point` is not further."""
    if unread.records:
        return Held("unread", f"{unread.records:,} records of {', '.join(unread.topics)} are not read yet")
    if point.seen_us is None or point.clock_us is None:
        return Held("nothing read", f"nothing read yet from {', '.join(scan.topics)}")
    topic, partition = _newest_place(log, scan, point)
    idle_after_us = max(log.port.settings(name).idle_after_ms for name in scan.topics) * 1_000
    if point.clock_us > point.seen_us and now_us - point.cut_us >= idle_after_us:
        return Held("idle", f"idle since {utc(point.cut_us)}: the clock goes on by itself", topic, partition)
    where = f"{topic}[{partition}]" if topic is not None else ", ".join(scan.topics)
    text = f"waits for an event after {utc(point.clock_us)}, the newest of {where}"
    return Held("newer event", text, topic, partition)


def _newest_place(log: Log, scan: Scan, point: Point) -> tuple[str | None, int | None]:
    """The partition whose last record is the newest event; none if that was an earlier record."""
    places = [(topic, p, end) for topic, ends in point.ends.items() for p, end in enumerate(ends)]
    found: list[tuple[str, int]] = []
    for topic, partition, end in places[:_PARTITIONS_MAX]:
        newest = last_record(log.port, topic, partition, until=end)
        if newest is not None:
            times, usable = event_times(log.port.settings(topic), newest, scan.clock)
            found += [(topic, partition) for t in times[usable] if t == point.seen_us]
    return found[0] if found else (None, None)
