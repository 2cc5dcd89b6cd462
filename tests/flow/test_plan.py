"""Which records make a batch, and which watermark each of them met: against the oracle, without Spark."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.flow import oracle

import penstock as ps
from penstock.clock import ManualClock
from penstock.flow import plan, slices
from penstock.flow.offset import NEVER_US, Offset, at_rest
from penstock.flow.plan import Scan
from penstock.flow.source import source_schema
from penstock.flow.times import event_times
from penstock.log.embedded import EmbeddedLog
from penstock.log.log import Log

START = datetime(2026, 11, 1, 10, 0, tzinfo=UTC)
START_US = round(START.timestamp()) * 1_000_000
SECOND = 1_000_000
LATENESS_S = 2


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


@dataclass
class Written:
    """A topic under a clock of our own, and what was written there."""

    log: Log
    clock: ManualClock
    records: list[oracle.Record] = field(default_factory=list)
    declared: list[oracle.Declared] = field(default_factory=list)

    @property
    def topic(self) -> ps.Topic:
        return self.log.topic("events")

    def append(self, partition: int, times: Sequence[float | None]) -> None:
        rows = [{"at": None if time is None else at(time)} for time in times]
        self.topic.append(rows, partition=partition)
        self._note(partition, times)

    def _note(self, partition: int, times: Sequence[float | None]) -> None:
        first = sum(r.partition == partition for r in self.records)
        newest = max((r.appended for r in self.records if r.partition == partition), default=0)
        for number, time in enumerate(times):
            moment = None if time is None else START_US + round(time * SECOND)
            appended = max(newest, self.clock.now_us())
            self.records.append(oracle.Record(partition, first + number, appended, moment, ()))

    def declare(self, seconds: float) -> None:
        self.topic.watermark(at(seconds))
        appended = max([self.clock.now_us(), *(d.appended for d in self.declared)])
        self.declared.append(oracle.Declared(appended, START_US + round(seconds * SECOND)))

    def scan(self, rows_max: int = 1_000_000) -> Scan:
        return Scan(("events",), rows_max=rows_max, settle_us=60 * SECOND)

    def next(self, start: Offset, *, rows_max: int = 1_000_000, ticks: bool = False) -> Offset:
        now_us = self.clock.now_us()
        return plan.next_batch(self.log, self.scan(rows_max), start.end, now_us=now_us, ticks=ticks)[0]

    def begin(self) -> Offset:
        return at_rest(plan.beginning(self.log, self.scan()))

    def drain(self, start: Offset, *, rows_max: int) -> list[Offset]:
        found: list[Offset] = []
        while (batch := self.next(found[-1] if found else start, rows_max=rows_max)).start != batch.end:
            found.append(batch)
        return found

    def met(self, past: Sequence[Offset]) -> dict[tuple[int, int], int | None]:
        """The watermark of every record of these batches, read as Spark's tasks read them."""
        columns = ("_partition", "_offset", "_watermark")
        whole = source_schema(self.log, self.scan())
        schema = pa.schema([whole.field(name) for name in columns])
        found: dict[tuple[int, int], int | None] = {}
        for piece in slices.slices_of(self.log, self.scan(), past, tasks=2):
            for odd in (False, True):
                for batch in slices.read_slice(self.log, piece, schema, odd=odd):
                    times = batch.column(2).cast(pa.int64()).to_pylist()
                    for p, o, time in zip(*(batch.column(i).to_pylist() for i in (0, 1)), times, strict=True):
                        found[p, o] = None if time == NEVER_US else time
        return found

    def model(self, past: Sequence[Offset]) -> oracle.Model:
        return oracle.Model(
            self.records, [cut_of(batch) for batch in past], LATENESS_S * SECOND, declared=self.declared
        )


def cut_of(batch: Offset) -> oracle.Cut:
    (ends,) = batch.end.ends.values()
    tick = batch.end.clock_us if batch.start.ends == batch.end.ends else None
    return oracle.Cut(tuple(ends), sum(batch.end.declared.values()), tick)


@contextmanager
def written(partitions: int = 3) -> Iterator[Written]:
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        clock = ManualClock(START_US)
        with Log(EmbeddedLog(Path(folder) / "home", clock=clock)) as log:
            log.create_topic(
                "events", "at TIMESTAMP", event_time="at", partitions=partitions, durability="os",
                lateness=f"{LATENESS_S} seconds", idle_after="10 seconds",
            )  # fmt: skip
            yield Written(log, clock)


@pytest.fixture
def topic() -> Iterator[Written]:
    with written() as found:
        yield found


# Behind the append time by up to 8 s, ahead of it by 2 s, nowhere, or a day in the future.
DELAYS = st.one_of(st.floats(-8, 2).map(lambda s: round(s, 3)), st.sampled_from([None, 86_400.0]))
# Ten records go to partition 0 where one goes to the others; often several appends at one moment.
APPENDS = st.tuples(
    st.sampled_from([0] * 10 + [1, 2]),
    st.lists(DELAYS, min_size=1, max_size=4),
    st.sampled_from([0, 0, 0.05, 1, 7]),
)


def write(topic: Written, appends: Sequence[tuple[int, list[float | None], float]]) -> None:
    for partition, delays, pause in appends:
        now = (topic.clock.now_us() - START_US) / SECOND
        topic.append(partition, [None if d is None else now + d for d in delays])
        topic.clock.advance(pause)


# ---- where batches end ---------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(appends=st.lists(APPENDS, min_size=1, max_size=25), rows_max=st.integers(1, 12))
def test_batches_end_at_one_append_time_and_read_everything_once(
    appends: list[tuple[int, list[float | None], float]], rows_max: int
) -> None:
    with written() as topic:
        write(topic, appends)
        batches = topic.drain(topic.begin(), rows_max=rows_max)
    places: list[tuple[int, int]] = []
    for batch in batches:
        (start,), (end,) = batch.start.ends.values(), batch.end.ends.values()
        read = [r for r in topic.records if start[r.partition] <= r.offset < end[r.partition]]
        left = [r for r in topic.records if r.offset >= end[r.partition]]
        assert read, "a batch without records"
        assert batch.rows == len(read)
        assert batch.end.cut_us == max(r.appended for r in read)
        assert all(r.appended > batch.end.cut_us for r in left), "an append time was cut in two"
        moments = len({r.appended for r in read})
        assert len(read) <= rows_max or moments == 1, "more than was admitted, and not for one append's sake"
        places += [r.place for r in read]
    assert sorted(places) == sorted(r.place for r in topic.records)


@settings(max_examples=60, deadline=None)
@given(appends=st.lists(APPENDS, min_size=1, max_size=25), one=st.integers(1, 12), other=st.integers(1, 12))
def test_a_watermark_is_a_property_of_the_log_and_not_of_its_batches(
    appends: list[tuple[int, list[float | None], float]], one: int, other: int
) -> None:
    with written() as topic:
        write(topic, appends)
        small, large = (topic.drain(topic.begin(), rows_max=rows) for rows in (one, other))
        by_batch: dict[tuple[int, int], int | None] = {}
        for batch in small:
            by_batch |= topic.met([batch])
        assert by_batch == topic.met(large)
        assert by_batch == topic.model(small).met == topic.model(large).met


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_live_watermarks_are_the_oracles_and_a_second_look_finds_them_again(data: st.DataObject) -> None:
    """Appends, batches of any size, declared watermarks and idle ticks in any order."""
    with written() as topic:
        past: list[Offset] = []
        live: dict[tuple[int, int], int | None] = {}
        for _ in range(data.draw(st.integers(1, 8))):
            write(topic, data.draw(st.lists(APPENDS, max_size=6)))
            if data.draw(st.booleans()) and topic.records:
                topic.declare(data.draw(st.integers(-5_000, 60_000).map(lambda ms: ms / 1_000)))
                topic.clock.advance(data.draw(st.sampled_from([0, 0.5])))
            if data.draw(st.booleans()):
                topic.clock.advance(data.draw(st.sampled_from([-3, 5, 15, 100])))
            for _ in range(data.draw(st.integers(0, 3))):
                rows_max = data.draw(st.integers(1, 20))
                batch = topic.next(past[-1] if past else topic.begin(), rows_max=rows_max, ticks=True)
                if batch.start != batch.end:
                    past.append(batch)
                    live |= topic.met([batch])
        if past:
            model = topic.model(past)
            assert live == model.met
            assert topic.met(past) == live, "read again as one, the watermarks are others"
            assert past[-1].end.clock_us == model.clock


def test_a_clock_that_went_back_does_not_change_what_was_in_time(topic: Written) -> None:
    topic.clock.advance(5)
    topic.append(0, [0.0])
    first = topic.next(topic.begin())
    topic.clock.advance(-3)  # set by an operator or by NTP
    topic.append(1, [4.0])
    second = topic.next(first)
    live = topic.met([first]) | topic.met([second])
    assert live[0, 0] is None
    assert topic.met([first, second]) == live


# ---- what moves the watermark -------------------------------------------------------------------------


def test_records_appended_before_a_declaration_are_not_late_by_it(topic: Written) -> None:
    topic.append(0, [1.0])
    until = plan.newest(topic.log, topic.scan())  # a run to the end begins here
    topic.clock.advance(1)
    topic.append(0, [3.0])
    topic.clock.advance(1)
    topic.declare(10)
    first, _ = plan.next_batch(topic.log, topic.scan(), topic.begin().end, until=until)
    second = topic.next(first)
    assert topic.met([second]) == {(0, 1): START_US - 1 * SECOND}
    assert second.end.watermark_us(LATENESS_S * SECOND) == START_US + 10 * SECOND


def test_a_batch_knows_whether_it_needs_a_second_look(topic: Written) -> None:
    topic.append(0, [10.0])
    first = topic.next(topic.begin())
    topic.clock.advance(1)
    topic.append(0, [9.0, 9.5])
    in_time = topic.next(first)
    topic.clock.advance(1)
    topic.append(0, [9.0, 1.0])
    late = topic.next(in_time)
    topic.clock.advance(1)
    topic.append(0, [11.0, None])
    without_time = topic.next(late)
    assert [batch.odd for batch in (first, in_time, late, without_time)] == [False, False, True, True]
    assert [batch.unusable for batch in (first, in_time, late, without_time)] == [0, 0, 0, 1]


def test_a_declaration_alone_is_a_batch(topic: Written) -> None:
    topic.append(0, [1.0])
    first = topic.next(topic.begin())
    topic.declare(7.25)
    batch = topic.next(first)
    assert batch.rows == 0
    # Rounded up to the next step, never down: what was declared is final.
    assert batch.end.watermark_us(LATENESS_S * SECOND) == START_US + round(7.3 * SECOND)
    assert topic.next(batch).start == topic.next(batch).end


def test_a_watermark_declared_for_any_of_several_topics_counts(topic: Written) -> None:
    topic.log.create_topic("more", "at TIMESTAMP", event_time="at", lateness=LATENESS_S)
    scan = Scan(("events", "more"))
    topic.append(0, [1.0])
    first, _ = plan.next_batch(topic.log, scan, plan.beginning(topic.log, scan))
    topic.log.topic("more").watermark(at(7))
    second, _ = plan.next_batch(topic.log, scan, first.end)
    assert second.end.declared == {"events": 0, "more": 1}
    assert second.end.watermark_us(LATENESS_S * SECOND) == START_US + 7 * SECOND
    topic.declare(9)
    third, _ = plan.next_batch(topic.log, scan, second.end)
    assert third.end.watermark_us(LATENESS_S * SECOND) == START_US + 9 * SECOND
    assert plan.next_batch(topic.log, scan, third.end) == (at_rest(third.end), None)


def test_an_idle_topics_clock_goes_on_until_all_windows_must_have_closed(topic: Written) -> None:
    topic.append(0, [0.0])
    first = topic.next(topic.begin(), ticks=True)
    topic.clock.advance(9)
    assert topic.next(first, ticks=True).end == first.end, "not idle yet"
    topic.clock.advance(3)
    ticked = topic.next(first, ticks=True)
    assert ticked.end.clock_us == START_US + 12 * SECOND
    assert ticked.end.ends == first.end.ends
    assert topic.next(ticked, ticks=True).end == ticked.end, "a clock that stands still ticks once"
    topic.clock.advance(3_600)
    settled = topic.next(ticked, ticks=True)
    assert settled.end.clock_us == START_US + 60 * SECOND
    topic.clock.advance(3_600)
    assert topic.next(settled, ticks=True).end == settled.end, "it stops once nothing can be open"


def test_a_topic_that_is_not_asked_to_tick_stays_where_it_is(topic: Written) -> None:
    topic.append(0, [0.0])
    first = topic.next(topic.begin())
    topic.clock.advance(3_600)
    assert topic.next(first).end == first.end


def test_partitions_added_later_are_read_from_their_beginning(topic: Written) -> None:
    topic.append(0, [0.0])
    first = topic.next(topic.begin())
    topic.log.alter_topic("events", partitions=5)
    topic.clock.advance(1)
    topic.append(4, [1.0])
    batch = topic.next(first)
    assert batch.end.ends == {"events": (1, 0, 0, 0, 1)}
    assert topic.met([first, batch])[4, 0] == START_US - LATENESS_S * SECOND


def test_a_log_that_shows_less_than_was_read_is_an_error_and_no_smaller_batch(
    topic: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic.append(0, [0.0, 1.0, 2.0])
    first = topic.next(topic.begin())
    true_bounds = topic.log.port.bounds
    monkeypatch.setattr(topic.log.port, "bounds", lambda name, p: (true_bounds(name, p)[0], 0))
    with pytest.raises(ps.Contended, match="partition 0 ends at offset 0, and had reached 3 before"):
        topic.next(first)
    monkeypatch.undo()
    assert topic.next(first).end == first.end


@pytest.mark.parametrize(
    ("occurred", "sent", "received", "says"),
    [
        (10, 20, 3_620, 3_610),  # an hour slow
        (4_000, 4_000, 100, 100),  # an hour and more ahead
        (10, 90_000, 90_000, None),  # offline for more than a day
        (30, 20, 40, None),  # sent before it occurred
        (None, 20, 20, None),
        (10, None, 20, None),
        (10, 20, None, None),
        (10, 20, 10_000_000, None),  # received months ahead of the append
    ],
)
def test_a_corrected_time_is_what_the_clocks_tell_or_nothing(
    topic: Written, occurred: float | None, sent: float | None, received: float | None, says: float | None
) -> None:
    corrected = ps.corrected_time("occurred", "sent", "received", offline_max="1 day")
    devices = topic.log.create_topic(
        "devices", "occurred TIMESTAMP, sent TIMESTAMP, received TIMESTAMP", event_time=corrected
    )
    topic.clock.advance(100_000)
    values = {"occurred": occurred, "sent": sent, "received": received}
    devices.append({name: None if value is None else at(value) for name, value in values.items()})
    (batch,) = devices.read()
    times, usable = event_times(devices.settings, batch, "event")
    assert (times[0] - START_US if usable[0] else None) == (None if says is None else says * SECOND)
