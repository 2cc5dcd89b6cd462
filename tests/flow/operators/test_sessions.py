"""Live sessions: growing, merging, closing, and corrected."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from tests.flow.operators.events import (
    SCHEMA,
    Batch,
    Row,
    batches,
    close,
    collected,
    in_time,
    outputs,
    plain,
    row,
    run,
    some_rows,
    stream_of,
    table,
    thorough,
)

from penstock.errors import BadOption
from penstock.flow import aggregates as ag
from penstock.flow.aggregate_columns import named
from penstock.flow.sessions import Sessions, sessions

_AGGREGATES = {"events": ag.count(), "total": ag.sum("x"), "closed": ag.last("x"), "all": ag.collect("x")}
Name = tuple[Any, int, int]


def _sessions(gap: int, correct: int = 0) -> Sessions:
    return Sessions(("user",), "at", gap, correct, tuple(_AGGREGATES.items()), SCHEMA)


def _naive(rows: list[Row], gap: int) -> dict[Name, Row]:
    open_ones: dict[Any, list[list[Row]]] = {}
    for each in sorted(rows, key=in_time):
        of_user = open_ones.setdefault(each["user"], [])
        if not of_user or each["at"] - of_user[-1][-1]["at"] > gap:
            of_user.append([])
        of_user[-1].append(each)
    found = {}
    for user, spans in open_ones.items():
        for span in spans:
            xs = [each["x"] for each in span if each["x"] is not None]
            found[user, span[0]["at"], span[-1]["at"] + gap] = {
                "events": len(span), "total": sum(xs) if xs else None, "closed": span[-1]["x"], "all": xs,
            }  # fmt: skip
    return found


class _View:
    """A table that follows the changes, and refuses those that make no sense."""

    def __init__(self) -> None:
        self.rows: dict[Name, Row] = {}

    def follow(self, changes: list[Row]) -> None:
        said = set()
        for change in changes:
            name = (change["user"], change["window_start"], change["window_end"])
            assert name not in said, "a window is said twice in one batch"
            said.add(name)
            if change["_op"] == "d":
                del self.rows[name]  # there, or this is an error
                continue
            assert change["_op"] == "u"
            known = self.rows.get(name)
            if known is not None and known["_final"]:
                assert change["_revision"] > known["_revision"], "what is final changes by revision"
            self.rows[name] = change

    def values(self) -> dict[Name, Row]:
        return {name: {each: change[each] for each in _AGGREGATES} for name, change in self.rows.items()}


@thorough
@given(found=batches(), gap=st.integers(1, 30))
def test_the_view_ends_as_what_a_batch_would_give(found: list[Batch], gap: int) -> None:
    _follows(_sessions(gap), found, gap)


@thorough
@given(found=batches(late_by=40), gap=st.integers(1, 30))
def test_a_corrected_view_does_too_with_rows_that_come_after_the_end(found: list[Batch], gap: int) -> None:
    _follows(_sessions(gap, correct=40), found, gap)


def _follows(live: Sessions, found: list[Batch], gap: int) -> None:
    view = _View()
    for changes in outputs(live.step, found):
        view.follow(plain([changes]))
    assert view.values() == _naive([each for batch in found for each in batch.rows], gap)
    for (_, _, end), change in view.rows.items():
        assert change["_final"] == (end <= found[-1].watermark)


def _changes(
    live: Sessions, state: pa.Table | None, rows: list[Row], watermark: int
) -> tuple[Any, list[Any]]:
    stepped = live.step(state, table(rows), watermark)
    keys = ("_op", "window_start", "window_end", "events", "_final", "_revision")
    return stepped, [tuple(change[key] for key in keys) for change in plain([stepped.output])]


def test_a_session_grows_merges_and_closes() -> None:
    live = _sessions(gap=10)
    first, said = _changes(live, None, [row(0, "a", 100), row(1, "a", 125)], 0)
    assert said == [("u", 100, 110, 1, False, 0), ("u", 125, 135, 1, False, 0)]
    merged, said = _changes(live, first.state, [row(2, "a", 110), row(3, "a", 115)], 0)
    assert said == [
        ("d", 100, 110, None, False, 0),
        ("d", 125, 135, None, False, 0),
        ("u", 100, 135, 4, False, 0),
    ]
    assert merged.wake_us == 135
    inside, said = _changes(live, merged.state, [row(4, "a", 112)], 105)
    assert said == [("u", 100, 135, 5, False, 0)], "the window is the same, so nothing is taken back"
    closed, said = _changes(live, inside.state, [], 135)
    assert said == [("u", 100, 135, 5, True, 0)]
    assert len(closed.state) == 0


def test_events_that_touch_are_in_one_session_and_one_later_is_not() -> None:
    _, said = _changes(_sessions(gap=10), None, [row(0, "a", 100), row(1, "a", 110), row(2, "b", 100)], 0)
    assert [each[1:4] for each in said] == [(100, 120, 2), (100, 110, 1)]
    _, said = _changes(_sessions(gap=10), None, [row(0, "a", 100), row(1, "a", 111)], 0)
    assert [each[1:4] for each in said] == [(100, 110, 1), (111, 121, 1)]


def test_a_closed_session_is_corrected_by_the_next_revision_and_forgotten_in_the_end() -> None:
    live = _sessions(gap=10, correct=50)
    closed, said = _changes(live, None, [row(0, "a", 100)], 110)
    assert said == [("u", 100, 110, 1, True, 0)]
    assert closed.wake_us == 160
    again, said = _changes(live, closed.state, [row(1, "a", 105)], 120)
    assert said == [("d", 100, 110, None, False, 0), ("u", 100, 115, 2, True, 1)]
    twice, said = _changes(live, again.state, [row(2, "a", 104)], 120)
    assert said == [("u", 100, 115, 3, True, 2)]
    opened, said = _changes(live, twice.state, [row(3, "a", 112), row(4, "a", 121)], 121)
    assert said == [("d", 100, 115, None, False, 2), ("u", 100, 131, 5, False, 3)]
    shut, said = _changes(live, opened.state, [], 131)
    assert said == [("u", 100, 131, 5, True, 3)]
    gone, said = _changes(live, shut.state, [], 181)
    assert said == []
    assert len(gone.state) == 0


def _by_spark(
    df: DataFrame, *, by: Sequence[str], time: str, gap_us: int, aggregates: Mapping[str, ag.Aggregate]
) -> DataFrame:
    """All sessions of a batch DataFrame by Spark's own `session_window`: `by`, the window, the aggregates."""
    window = F.session_window(named(time), f"{gap_us} microseconds")
    # Named before it is grouped by, so that `rate` can ask for the length of the window.
    start, end = F.col("session_window.start"), F.col("session_window.end")
    length_us = F.unix_micros(end) - F.unix_micros(start)
    columns = [each.to_column(time, length_us=length_us).alias(name) for name, each in aggregates.items()]
    grouped = df.groupBy(*map(named, by), window).agg(*columns)
    return grouped.select(
        *map(named, by), start.alias("window_start"), end.alias("window_end"), *map(named, aggregates)
    )


def test_a_stream_ends_as_sparks_own_session_window_in_batch(spark: SparkSession, tmp_path: Path) -> None:
    rows = some_rows(500, users=60, disorder_us=30_000, seed=5)
    found = {**_AGGREGATES, "rate": ag.rate("1 second"), "p": ag.percentile("y", 0.5)}
    options: dict[str, Any] = {"by": ["user"], "time": "at", "gap_us": 40_000, "aggregates": found}
    df = stream_of(spark, tmp_path / "in", rows, files=5, delay="35 milliseconds")
    streamed = run(sessions(df, **options), tmp_path / "checkpoint")
    view = _View()
    for batch in streamed.batches:
        view.follow(plain([batch]))  # partitions come in any order, but the rows of a bucket in theirs
    by_name = lambda each: (each["user"], each["window_start"])  # noqa: E731
    batch_rows = sorted(collected(_by_spark(spark.createDataFrame(table(rows)), **options)), key=by_name)
    got = sorted(view.rows.values(), key=by_name)
    assert close([{name: each[name] for name in batch_rows[0]} for each in got], batch_rows)
    assert all(each["_final"] == (each["window_end"] <= streamed.watermark_us) for each in got)
    assert 100 < sum(each["_final"] for each in got) < len(got)


def test_rows_behind_the_watermark_reach_a_stream_that_corrects(spark: SparkSession, tmp_path: Path) -> None:
    # A session closes in the batch after the one that moved the watermark: some rows are later than that.
    rows = some_rows(150, users=6, disorder_us=60_000, seed=6)
    options: dict[str, Any] = {"by": ["user"], "time": "at", "gap_us": 5_000, "aggregates": _AGGREGATES}
    df = stream_of(spark, tmp_path / "in", rows, files=10, delay="0 seconds")
    streamed = run(sessions(df, **options, correct_us=100_000), tmp_path / "checkpoint")
    view = _View()
    for batch in streamed.batches:
        view.follow(plain([batch]))
    assert view.values() == _naive(rows, 5_000)
    assert max(each["_revision"] for each in view.rows.values()) > 0


def test_touching_is_what_spark_makes_of_it(spark: SparkSession) -> None:
    rows = [row(0, "a", 100), row(1, "a", 110), row(2, "a", 121)]
    batch = _by_spark(
        spark.createDataFrame(table(rows)), by=["user"], time="at", gap_us=10, aggregates={"n": ag.count()}
    )
    got = sorted((each["window_start"], each["window_end"], each["n"]) for each in collected(batch))
    assert got == [(100, 120, 2), (121, 131, 1)]


def test_names_that_clash_are_refused(spark: SparkSession) -> None:
    df = spark.createDataFrame(table([]))
    with pytest.raises(BadOption, match="twice"):
        sessions(df, by=["user"], time="at", gap_us=5, aggregates={"window_end": ag.count()})
    with pytest.raises(BadOption, match="gap"):
        sessions(df, by=["user"], time="at", gap_us=0, aggregates={"n": ag.count()})
