"""Sliding windows: one row for every event, over the time up to it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession
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
    run,
    some_rows,
    stream_of,
    table,
    thorough,
)

from penstock.errors import BadOption
from penstock.flow import aggregates as ag
from penstock.flow.sliding import Sliding, sliding, sliding_batch

_AGGREGATES = {
    "events": ag.count(),
    "total": ag.sum("x"),
    "least": ag.min("y"),
    "opened": ag.first("x"),
    "all": ag.collect("x"),
}


def _naive(rows: list[Row], event: Row, size: int) -> Row:
    reach = [each for each in rows if each["user"] == event["user"]]
    reach = sorted((each for each in reach if event["at"] - size < each["at"] <= event["at"]), key=in_time)
    xs = [each["x"] for each in reach if each["x"] is not None]
    return {
        "user": event["user"],
        "at": event["at"],
        "_partition": event["_partition"],
        "_offset": event["_offset"],
        "events": len(reach),
        "total": sum(xs) if xs else None,
        "least": min((each["y"] for each in reach if each["y"] is not None), default=None),
        "opened": reach[0]["x"],
        "all": xs,
    }


@thorough
@given(found=batches(), size=st.integers(1, 80))
def test_every_event_gets_its_row_once_however_the_batches_are_cut(found: list[Batch], size: int) -> None:
    slide = Sliding(("user",), "at", size, tuple(_AGGREGATES.items()), SCHEMA)
    emitted = plain(list(outputs(slide.step, found)))
    every = [row for batch in found for row in batch.rows]
    wanted = [_naive(every, row, size) for row in every if row["at"] <= found[-1].watermark]
    assert sorted(emitted, key=_offset) == sorted(wanted, key=_offset)


def _offset(row: Row) -> Any:
    return row["_offset"]


@thorough
@given(found=batches(), size=st.integers(1, 80))
def test_the_state_holds_what_can_still_matter_and_no_more(found: list[Batch], size: int) -> None:
    slide = Sliding(("user",), "at", size, tuple(_AGGREGATES.items()), SCHEMA)
    state = None
    for batch in found:
        stepped = slide.step(state, table(batch.rows), batch.watermark)
        state = stepped.state
        assert all(row["at"] > batch.watermark - size for row in plain([state]))
    if stepped.wake_us is not None:
        beyond = 10**6
        assert len(slide.step(state, table([]), beyond).state) == 0


_ALL = {
    **_AGGREGATES,
    "mean": ag.mean("y"),
    "p90": ag.percentile("y", 0.9),
    "rate": ag.rate("1 second"),
    "closed": ag.last("y"),
    "different": ag.approx_distinct("x", error=0.01),
}


def test_a_stream_gives_what_plain_spark_sql_gives(spark: SparkSession, tmp_path: Path) -> None:
    rows = some_rows(600, users=15, disorder_us=40_000, seed=3)
    options: dict[str, Any] = {"by": ["user"], "time": "at", "size_us": 100_000, "aggregates": _ALL}
    df = stream_of(spark, tmp_path / "in", rows, files=5, delay="50 milliseconds")
    streamed = run(sliding(df, **options), tmp_path / "checkpoint")
    batch = sliding_batch(spark.createDataFrame(table(rows)), **options, watermark_us=streamed.watermark_us)
    got, wanted = sorted(streamed.rows, key=_offset), sorted(collected(batch), key=_offset)
    assert 300 < len(got) < 600
    assert close(got, wanted)
    assert streamed.batches[0].schema.names == batch.columns


def test_names_that_clash_and_columns_that_are_not_there_are_refused(spark: SparkSession) -> None:
    df = spark.createDataFrame(table([]))
    with pytest.raises(BadOption, match="twice"):
        sliding(df, by=["user"], time="at", size_us=5, aggregates={"at": ag.count()})
    with pytest.raises(BadOption, match='"usr"'):
        sliding(df, by=["usr"], time="at", size_us=5, aggregates={"n": ag.count()})
    with pytest.raises(BadOption, match="too short"):
        sliding(df, by=["user"], time="at", size_us=0, aggregates={"n": ag.count()})
