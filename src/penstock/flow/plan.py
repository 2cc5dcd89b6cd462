"""What the next batch reads: admission by one append-time cut over all partitions and topics.

Ending every partition at the same append time keeps the batches of a replay in the order in which the log was
written. (Row limits per partition would read a busy partition's past together with a quiet one's present, and
call the former late.)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from penstock.errors import Contended, UnknownTopic
from penstock.flow import offset as offsets
from penstock.flow.offset import NEVER_US, Ends, Offset, Point
from penstock.flow.times import Bools, Ints, Steps, event_times, micros, steps_of
from penstock.log.log import Log
from penstock.log.topic import WATERMARKS

_TICK_US = 1_000_000
_LAST_US = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Scan:
    """What a query reads, and how it counts time there."""

    topics: tuple[str, ...]
    clock: str = "event"
    rows_max: int = 1_000_000
    settle_us: int = 0  # an idle clock stops when it is this far past the last event

    def lateness_us(self, log: Log) -> int:
        """One query has one lateness: the largest of its topics; none where time is the append's."""
        if self.clock != "event":
            return 0
        return max(log.port.settings(topic).lateness_ms for topic in self.topics) * 1_000

    def is_timeless(self, log: Log, topic: str) -> bool:
        """Whether its records do not move the watermark.

        Where some topics have an event time, the append times of another say nothing about theirs: a table
        of today may be met by events of last year.
        """
        timed = [log.port.settings(each).event_time is not None for each in self.topics]
        return self.clock == "event" and any(timed) and not timed[self.topics.index(topic)]


def column_of(group: int, name: str) -> str:
    """What a column is called where groups of topics are read together."""
    return f"{group}_{name}"


@dataclass(frozen=True, slots=True)
class Times:
    """Append and event times of the records between two points, and of declared watermarks among them.

    Records that were appended together met the same watermark: one entry stands for all of them.
    """

    appended: Ints
    highest: Ints  # event time; NEVER_US where none is usable
    lowest: Ints
    rows: int
    unusable: int
    declared_at: Ints
    declared: Ints  # as the event time that would move the watermark so far
    declared_in: Ints  # number of the topic

    def declared_up_to(self, cut_us: int | None) -> Times:
        """Without what was declared after `cut_us`: what came before it is not read yet."""
        if cut_us is None:
            return self
        known = self.declared_at <= cut_us
        return replace(
            self,
            declared_at=self.declared_at[known],
            declared=self.declared[known],
            declared_in=self.declared_in[known],
        )

    def steps(self, *, lateness_us: int, clock_us: int | None) -> Steps:
        return steps_of(
            np.concatenate([self.appended, self.declared_at]),
            np.concatenate([self.highest, self.declared]),
            lateness_us=lateness_us,
            clock_us=clock_us,
        )


def beginning(log: Log, scan: Scan) -> Point:
    """The oldest records there are."""
    return Point({topic: _bounds(log, topic, 0) for topic in scan.topics})


def newest(log: Log, scan: Scan) -> Ends:
    return {topic: _bounds(log, topic, 1) for topic in scan.topics}


def everything(log: Log, scan: Scan) -> Offset:
    """All there is now as one batch, in which nothing is late."""
    start, ends = beginning(log, scan), newest(log, scan)
    return Offset(start, Point(ends), rows=_distance(start.ends, ends), lenient=True)


def next_batch(
    log: Log, scan: Scan, start: Point, *, until: Ends | None = None, now_us: int = 0, ticks: bool = False
) -> tuple[Offset, Steps | None]:
    """The batch after `start`: what is admitted up to `until`, or a tick of an idle clock, or nothing.

    And the watermarks in it, where it reads something.
    """
    begun = start  # as the batch before ended: with it, recorded batches follow on one another
    start = _grown(log, start)
    newest_ends = newest(log, scan) if until is None else _wider(until, start)
    _check_goes_on(start, newest_ends)
    ends = _admitted(log, scan, start, newest_ends, now_us)
    times = read_times(log, scan, [start], ends)
    # Asked again: what was appended before a declaration may have come after we looked.
    times = times.declared_up_to(None if ends == newest(log, scan) else int(times.appended.max(initial=0)))
    if ends == start.ends and not len(times.declared):
        return (_tick(log, scan, begun, now_us) if ticks else offsets.at_rest(begun)), None
    seen = _highest(start.seen_us, times.highest[times.highest != NEVER_US])
    end = Point(
        ends,
        seen,
        clock_us=_highest(_later(start.clock_us, seen), times.declared),
        cut_us=_highest(start.cut_us, times.appended) or 0,
        declared={
            topic: start.declared.get(topic, 0) + int(np.count_nonzero(times.declared_in == number))
            for number, topic in enumerate(scan.topics)
        },
    )
    steps = times.steps(lateness_us=scan.lateness_us(log), clock_us=start.clock_us)
    odd = bool(times.unusable) or bool(np.any(times.lowest <= steps.met_by(times.appended)))
    return Offset(begun, end, now_us, odd, times.rows, unusable=times.unusable), steps


def read_times(
    log: Log, scan: Scan, starts: Sequence[Point], ends: Ends, *, declared: Mapping[str, int] | None = None
) -> Times:
    """Of consecutive batches that begin at `starts`.

    `declared`: how many declared watermarks of each topic are known at the end; None for all there are.
    """
    entries = [(_NONE, _NONE, _NONE)]
    rows = unusable = 0
    for topic in scan.topics:
        settings, timeless = log.port.settings(topic), scan.is_timeless(log, topic)
        cuts = [Cuts.of(starts, topic, partition) for partition in range(len(ends[topic]))]
        for partition, batch in _batches(log, topic, starts[0], ends[topic]):
            times, usable = event_times(settings, batch, scan.clock)
            moving = np.zeros_like(usable) if timeless else usable
            entries.append(_entries(cuts[partition].appended(batch), times, moving))
            rows += len(usable)
            unusable += len(usable) - int(np.count_nonzero(usable))
    found = [_declarations(log, scan, topic, starts, declared) for topic in scan.topics]
    appended, highest, lowest = (np.concatenate(column) for column in zip(*entries, strict=True))
    return Times(
        appended,
        highest,
        lowest,
        rows=rows,
        unusable=unusable,
        declared_at=np.concatenate([at for at, _ in found]),
        declared=np.concatenate([moving for _, moving in found]),
        declared_in=np.repeat(np.arange(len(found)), [len(moving) for _, moving in found]),
    )


def _entries(appended: Ints, times: Ints, usable: Bools) -> tuple[Ints, Ints, Ints]:
    """Append times, and the highest and lowest usable event time at each."""
    if len(appended) and appended[0] == appended[-1]:  # one append, as large ones are
        known = times if usable.all() else times[usable]
        bounds = (known.max(), known.min()) if len(known) else (NEVER_US, _LAST_US)
        return appended[:1], np.array(bounds[:1], np.int64), np.array(bounds[1:], np.int64)
    return appended, np.where(usable, times, NEVER_US), np.where(usable, times, _LAST_US)


@dataclass(frozen=True, slots=True)
class Cuts:
    """Of one partition: where batches began, and the newest append time that was read before each.

    The machine's clock may have been set back. A record then has an earlier append time than some that were
    read before it; it counts as appended no earlier than those, or a second look at several batches at once
    would put it before them.
    """

    begins: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, starts: Sequence[Point], topic: str, partition: int) -> Cuts:
        return cls(tuple((begin_of(start, topic, partition), start.cut_us) for start in starts))

    def appended(self, batch: pa.RecordBatch) -> Ints:
        """The append times by which records are put in order."""
        return _not_before(
            micros(batch.column("_timestamp")), np.asarray(batch.column("_offset")), self.begins
        )


def _not_before(appended: Ints, numbers: Ints, begins: Sequence[tuple[int, int]]) -> Ints:
    if len(begins) == 1:
        return np.maximum(appended, begins[0][1])
    firsts, cuts = np.array(begins, np.int64).T
    index = np.maximum(np.searchsorted(firsts, numbers, side="right") - 1, 0)
    later: Ints = np.maximum(appended, cuts[index])
    return later


def begin_of(start: Point, topic: str, partition: int) -> int:
    known = start.ends[topic]
    return known[partition] if partition < len(known) else 0


_NONE: Ints = np.zeros(0, np.int64)


def _batches(
    log: Log, topic: str, start: Point, ends: tuple[int, ...]
) -> Iterator[tuple[int, pa.RecordBatch]]:
    for partition, end in enumerate(ends):
        begin = max(begin_of(start, topic, partition), log.port.bounds(topic, partition)[0])
        if begin < end:
            for batch in log.port.read(topic, partition, begin, until=end):
                yield partition, batch


def _admitted(log: Log, scan: Scan, start: Point, ends: Ends, now_us: int) -> Ends:
    """`ends`, or where all partitions end at one append time that admits about `rows_max` records."""
    if _distance(start.ends, ends) <= scan.rows_max:
        return ends
    firsts = [
        appended_us(log, topic, partition, begin)
        for topic in scan.topics
        for partition, (begin, end) in enumerate(zip(start.ends[topic], ends[topic], strict=True))
        if begin < end
    ]
    low = min((first for first in firsts if first is not None), default=now_us)
    high = max(now_us, low + 1)
    while _distance(start.ends, _cut(log, start.ends, ends, high)) <= scan.rows_max:
        high += max(high - low, 1)
    while high - low > 1:
        middle = (low + high) // 2
        fits = _distance(start.ends, _cut(log, start.ends, ends, middle)) <= scan.rows_max
        low, high = (middle, high) if fits else (low, middle)
    found = _cut(log, start.ends, ends, low)
    # Append times that go back (another program's, on Kafka) may leave nothing below any limit.
    return found if _distance(start.ends, found) else _cut(log, start.ends, ends, high)


def _cut(log: Log, starts: Ends, ends: Ends, cut_us: int) -> Ends:
    """The ends of what was appended up to and including `cut_us`."""
    return {
        topic: tuple(
            max(starts[topic][p], min(end, log.port.offset_at(topic, p, cut_us + 1)))
            for p, end in enumerate(numbers)
        )
        for topic, numbers in ends.items()
    }


def appended_us(log: Log, topic: str, partition: int, offset: int) -> int | None:
    """When the first record at `offset` or after it was appended, if there is one."""
    kept = max(offset, log.port.bounds(topic, partition)[0])
    batch = next(iter(log.port.read(topic, partition, kept)), None)
    return None if batch is None else int(micros(batch.column("_timestamp").slice(0, 1))[0])


def _declarations(
    log: Log, scan: Scan, topic: str, starts: Sequence[Point], until: Mapping[str, int] | None
) -> tuple[Ints, Ints]:
    """The watermarks declared for a topic: when, and as event times that would move the watermark so far."""
    if scan.clock != "event":
        return _NONE, _NONE
    name, known = f"{topic}{WATERMARKS}", starts[0].declared.get(topic, 0)
    try:
        end = log.port.bounds(name, 0)[1]
    except UnknownTopic:
        return _NONE, _NONE
    end = end if until is None else min(end, until.get(topic, 0))
    if end <= known:
        return _NONE, _NONE
    table = pa.Table.from_batches(log.port.read(name, 0, known, until=end)).combine_chunks()
    appended = np.concatenate([_NONE, *(micros(c) for c in table.column("_timestamp").chunks)])
    # The watermark is an event time less the lateness, and moves in steps: round up to the next one.
    declared = np.concatenate([_NONE, *(micros(c) for c in table.column("until").chunks)])
    moving = -(-(declared + scan.lateness_us(log)) // offsets.STEP_US) * offsets.STEP_US
    begins = [(start.declared.get(topic, 0), start.cut_us) for start in starts]
    return _not_before(appended, known + np.arange(len(moving)), begins), moving


def _tick(log: Log, scan: Scan, start: Point, now_us: int) -> Offset:
    """While nothing is appended, the clock goes on with wall time, until every window must have closed."""
    if start.seen_us is None or start.clock_us is None:
        return offsets.at_rest(start)
    idle_us = now_us - start.cut_us
    idle_after_us = max(log.port.settings(topic).idle_after_ms for topic in scan.topics) * 1_000
    clock = min(start.seen_us + idle_us, start.seen_us + scan.settle_us)
    step = max(_TICK_US, idle_us // 10)
    due = clock >= start.clock_us + step or clock == start.seen_us + scan.settle_us
    if idle_us < idle_after_us or not due or clock <= start.clock_us:
        return offsets.at_rest(start)
    return Offset(start, offsets.moved(start, clock_us=clock), now_us)


def _grown(log: Log, start: Point) -> Point:
    """Partitions that were added since begin at their beginning."""
    ends = {
        topic: numbers
        + tuple(
            log.port.bounds(topic, p)[0] for p in range(len(numbers), log.port.settings(topic).partitions)
        )
        for topic, numbers in start.ends.items()
    }
    return start if ends == start.ends else offsets.moved(start, ends=ends)


def _wider(ends: Ends, start: Point) -> Ends:
    """`ends` with as many partitions as `start`: what it does not know, it does not go past."""
    return {t: tuple(numbers) + start.ends[t][len(numbers) :] for t, numbers in ends.items()}


def _check_goes_on(start: Point, newest_ends: Ends) -> None:
    """A batch that ends before it begins would be read again: Kafka may show less after a partition moved."""
    for topic, ends in newest_ends.items():
        for partition, (begin, end) in enumerate(zip(start.ends[topic], ends, strict=True)):
            if end < begin:
                raise Contended(
                    f'topic "{topic}" partition {partition} ends at offset {end}, and had reached {begin} '
                    "before.",
                    hint="it may have moved and not be whole yet; if this stays, the cluster has lost "
                    "records: rebuild from what is there",
                )


def _bounds(log: Log, topic: str, side: int) -> tuple[int, ...]:
    return tuple(log.port.bounds(topic, p)[side] for p in range(log.port.settings(topic).partitions))


def _distance(starts: Ends, ends: Ends) -> int:
    return sum(e - s for topic in ends for s, e in zip(starts[topic], ends[topic], strict=True))


def _highest(known: int | None, more: Ints) -> int | None:
    return _later(known, int(more.max())) if len(more) else known


def _later(one: int | None, other: int | None) -> int | None:
    known = [time for time in (one, other) if time is not None]
    return max(known) if known else None
