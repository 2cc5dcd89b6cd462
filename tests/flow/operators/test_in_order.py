"""Events in the order of their time."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from tests.flow.operators.events import (
    SCHEMA,
    Batch,
    batches,
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
from penstock.flow.buckets import BUCKETS
from penstock.flow.in_order import in_order, in_order_batch, step

_STEP = partial(step, time="at")


@thorough
@given(batches())
def test_all_events_that_the_watermark_passed_come_once_and_in_order(found: list[Batch]) -> None:
    emitted = plain(list(outputs(_STEP, found)))
    every = [each for batch in found for each in batch.rows if each["at"] <= found[-1].watermark]
    assert emitted == sorted(every, key=in_time)


@thorough
@given(batches())
def test_nothing_comes_before_the_watermark_has_passed_it(found: list[Batch]) -> None:
    state = None
    for batch in found:
        stepped = _STEP(state, table(batch.rows), batch.watermark)
        state = stepped.state
        assert all(each["at"] <= batch.watermark for each in plain([stepped.output]))
        assert all(each["at"] > batch.watermark for each in plain([state]))


def test_a_stream_comes_in_order_and_is_what_the_batch_gives(spark: SparkSession, tmp_path: Path) -> None:
    rows = some_rows(600, users=20, disorder_us=40_000, seed=1)
    df = stream_of(spark, tmp_path / "in", rows, files=5, delay="50 milliseconds")
    streamed = run(in_order(df, time="at"), tmp_path / "checkpoint")
    batch = in_order_batch(spark.createDataFrame(table(rows)), time="at", watermark_us=streamed.watermark_us)
    assert streamed.rows == collected(batch)
    assert 300 < len(streamed.rows) < 600
    assert sum(len(each) > 0 for each in streamed.batches) >= 4, "they came as the watermark moved"
    assert streamed.batches[0].schema.names == SCHEMA.names


def test_with_a_key_the_order_holds_for_each_of_them(spark: SparkSession, tmp_path: Path) -> None:
    rows = some_rows(400, users=20, disorder_us=40_000, seed=2)
    df = stream_of(spark, tmp_path / "in", rows, files=3, delay="50 milliseconds")
    streamed = run(in_order(df, time="at", by=["user"]), tmp_path / "checkpoint")
    passed = sorted((each for each in rows if each["at"] <= streamed.watermark_us), key=in_time)
    for user in {each["user"] for each in rows}:
        assert [each for each in streamed.rows if each["user"] == user] == [
            each for each in passed if each["user"] == user
        ]


def test_an_event_comes_when_the_watermark_is_exactly_at_it_without_another_of_its_bucket(
    spark: SparkSession, tmp_path: Path
) -> None:
    rows = [row(0, "user-1", 10_000_000), row(1, "user-2", 10_050_000), row(2, "user-2", 10_050_001)]
    df = stream_of(spark, tmp_path / "in", rows, files=3, delay="50 milliseconds")
    users = spark.createDataFrame([("user-1",), ("user-2",)], "user STRING")
    buckets = {each[0] for each in users.select(F.pmod(F.hash("user"), F.lit(BUCKETS))).collect()}
    assert len(buckets) == 2
    streamed = run(in_order(df, time="at", by=["user"]), tmp_path / "checkpoint")
    assert streamed.watermark_us == 10_000_000
    assert streamed.rows == rows[:1]


def test_a_time_that_is_not_there_is_refused(spark: SparkSession) -> None:
    with pytest.raises(BadOption, match='"att"'):
        in_order(spark.createDataFrame(table([])), time="att")
