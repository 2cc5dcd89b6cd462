"""What the commit point makes of the batches that Spark shows it: stored once, in order, or not at all."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pytest

import penstock as ps
from penstock.flow import history, plan
from penstock.flow.commit import Committer, Diverged, Planned
from penstock.flow.offset import Offset, Point, at_rest, moved
from penstock.flow.output import BATCHES, HISTORY, Output
from penstock.flow.plan import Scan
from penstock.flow.query import place_of

START = datetime(2026, 11, 1, 10, 0, tzinfo=UTC)


class Driven:
    """A query without Spark: batches are planned, committed, and read again as the source does it."""

    def __init__(self, log: ps.Log, *, checkpoint: str = "checkpoint-0") -> None:
        self.log, self.checkpoint = log, checkpoint
        columns = pa.schema([("due", pa.timestamp("us", "UTC"))])
        output = Output("closed", "stream", (), columns, final_by="due")
        for name, schema in (("closed", output.schema), (f"closed{BATCHES}", HISTORY)):
            log.create_topic(name, schema.arrow, if_missing=True)
        self.committer = Committer(
            log.producer("flow.test.closed"), query="totals", identity="x", checkpoint=checkpoint,
            outputs={"closed": output}, lateness_us=0, late_table=lambda _: {},
        )  # fmt: skip
        self.computed = 0

    def batch(self, number: int, batch: Offset, *due_s: int, evicted_s: int = 0) -> None:
        """Spark runs a batch, and windows that are due at these seconds come out."""

        def run() -> None:
            self.computed += 1

        times = pa.array([START + timedelta(seconds=s) for s in due_s], pa.timestamp("us", "UTC"))
        evicted_ms = round(START.timestamp() + evicted_s) * 1_000
        self.committer.commit(
            number, Planned(batch, evicted_ms), lambda: {"closed": pa.table({"due": times})}, run
        )

    @property
    def said(self) -> list[int]:
        rows = [row for batch in self.log.topic("closed").read() for row in batch.to_pylist()]
        return [round((row["due"] - START).total_seconds()) for row in rows]

    def next(self, start: Point) -> Offset:
        past = history.batches(self.log, f"closed{BATCHES}")
        return history.chunk(past, start, rows_max=100) or planned(self.log, start)


def planned(log: ps.Log, start: Point, *, rows_max: int = 100) -> Offset:
    return plan.next_batch(log, Scan(("events",), rows_max=rows_max), start, now_us=1)[0]


@pytest.fixture
def beginning(log: ps.Log) -> Point:
    log.create_topic("events", "n BIGINT")
    return plan.beginning(log, Scan(("events",)))


def three_batches(driven: Driven, start: Point) -> Offset:
    """Spark's numbers are 0, 2 and 4: in between it closes windows. Returns the last."""
    for number in range(3):
        driven.log.topic("events").append({"n": number})
        batch = planned(driven.log, start)
        driven.batch(2 * number, batch, evicted_s=10 * number)
        driven.batch(2 * number + 1, batch, 10 * number + 10, evicted_s=10 * number + 10)
        start = batch.end
    return batch


def test_a_batch_is_stored_once_however_often_it_runs(log: ps.Log, beginning: Point) -> None:
    last = three_batches(Driven(log), beginning)
    again = Driven(log)
    again.batch(5, last, 30, evicted_s=30)
    assert (again.said, again.computed) == ([10, 20, 30], 1)


@pytest.mark.parametrize("number", [3, 4])
def test_a_checkpoint_that_is_behind_the_log_is_not_gone_on_with(
    number: int, log: ps.Log, beginning: Point
) -> None:
    last = three_batches(Driven(log), beginning)
    with pytest.raises(Diverged):
        Driven(log).batch(number, last, 30, evicted_s=30)


def test_a_checkpoint_that_is_ahead_of_the_log_is_not_gone_on_with(log: ps.Log, beginning: Point) -> None:
    last = three_batches(Driven(log), beginning)
    for number in (3, 4):
        log.topic("events").append({"n": number})
        last = planned(log, last.end)
    with pytest.raises(Diverged):
        Driven(log).batch(7, last, evicted_s=30)


def test_a_state_built_anew_says_only_what_was_not_said(log: ps.Log, beginning: Point) -> None:
    last = three_batches(Driven(log), beginning)
    anew = Driven(log, checkpoint="checkpoint-1")
    whole = anew.next(beginning)
    assert (whole.start, whole.end) == (beginning, last.end)
    anew.batch(0, whole)
    anew.batch(1, whole, 10, 20, 30, 40, evicted_s=40)  # 40 had not been closed
    log.topic("events").append({"n": 3})
    anew.batch(2, anew.next(whole.end), evicted_s=40)
    anew.batch(3, anew.next(whole.end), 50, evicted_s=50)
    assert (anew.said, anew.computed) == ([10, 20, 30, 40, 50], 1)


def test_a_query_that_had_read_nothing_goes_on_without_its_checkpoint(log: ps.Log, beginning: Point) -> None:
    Driven(log).batch(0, at_rest(beginning))
    log.topic("events").append({"n": 0})
    anew = Driven(log, checkpoint="checkpoint-1")
    first = anew.next(beginning)
    assert first.end.ends == {"events": (1,)}
    anew.batch(0, first, 10, evicted_s=10)
    assert (anew.said, anew.computed) == ([10], 0)


def test_what_a_rebuilt_state_stores_is_gone_on_with_and_can_be_built_anew_again(
    log: ps.Log, beginning: Point
) -> None:
    three_batches(Driven(log), beginning)
    for number in (1, 2):
        anew = Driven(log, checkpoint=f"checkpoint-{number}")
        whole = anew.next(beginning)
        anew.batch(0, whole)
        anew.batch(1, whole, 30 + 10 * number, evicted_s=30 + 10 * number)
        again = Driven(log, checkpoint=f"checkpoint-{number}")
        again.batch(1, whole, 30 + 10 * number, evicted_s=30 + 10 * number)
        assert again.computed == 1
    assert again.said == [10, 20, 30, 40, 50]
    past = history.batches(log, f"closed{BATCHES}")
    assert [len(past), *(a.end == b.start for a, b in pairwise(past))] == [3, True, True]


def test_a_replay_in_small_batches_ends_only_where_the_clock_was(log: ps.Log, beginning: Point) -> None:
    driven = Driven(log)
    last = three_batches(driven, beginning)
    idle = Offset(last.end, moved(last.end, clock_us=1))
    driven.batch(6, idle, evicted_s=30)
    anew = Driven(log, checkpoint="checkpoint-1")
    anew.batch(0, Offset(beginning, last.end), evicted_s=0)
    assert anew.committer.replaying
    anew.batch(1, idle, evicted_s=30)
    assert not anew.committer.replaying
    assert anew.said == [10, 20, 30]


def test_partitions_may_be_added_between_two_batches(log: ps.Log, beginning: Point) -> None:
    driven = Driven(log)
    last = three_batches(driven, beginning)
    log.alter_topic("events", partitions=2)
    log.topic("events").append({"n": 3}, partition=1)
    driven.batch(6, planned(log, last.end), evicted_s=30)
    anew = Driven(log, checkpoint="checkpoint-1")
    first = history.chunk(history.batches(log, f"closed{BATCHES}"), beginning, rows_max=3)
    assert first is not None and first.end == last.end
    anew.batch(0, first)
    anew.batch(1, anew.next(first.end))
    assert not anew.committer.replaying


def test_a_checkpoint_is_out_of_sight_before_it_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = place_of(str(tmp_path), tmp_path, "shop", "totals")
    (place.folder / "checkpoint-1" / "offsets").mkdir(parents=True)
    monkeypatch.setattr(shutil, "rmtree", lambda *_, **__: None)  # as if it was killed there
    place.clear()
    assert not place.folder.exists()
