"""What all operators share: state in buckets, on disk between runs, and rows that lose nothing on the way."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from tests.flow.operators.events import collected, in_time, row, run, some_rows, stream_of, table, write

from penstock.errors import BadOption
from penstock.flow import aggregates as ag
from penstock.flow.in_order import in_order
from penstock.flow.sliding import sliding, sliding_batch

_DDL = (
    "at TIMESTAMP, big BIGINT, small TINYINT, part FLOAT, exact DECIMAL(20, 3), day DATE, raw BINARY,"
    " yes BOOLEAN, local TIMESTAMP_NTZ, many ARRAY<BIGINT>, nested STRUCT<a: BIGINT, b: ARRAY<STRING>>,"
    " named MAP<STRING, INT>, `a.b` STRING, _timestamp TIMESTAMP, _partition INT, _offset BIGINT"
)


def test_a_query_goes_on_where_it_stopped(spark: SparkSession, tmp_path: Path) -> None:
    rows = some_rows(400, users=15, disorder_us=40_000, seed=8)
    options: dict[str, Any] = {"by": ["user"], "time": "at", "size_us": 100_000}
    options["aggregates"] = {"events": ag.count(), "total": ag.sum("x")}
    df = stream_of(spark, tmp_path / "in", rows[:200], files=2, delay="50 milliseconds")
    before = run(sliding(df, **options), tmp_path / "checkpoint")
    write(tmp_path / "in", rows[200:], files=2, begin=2)
    after = run(sliding(df, **options), tmp_path / "checkpoint")
    wanted = sliding_batch(spark.createDataFrame(table(rows)), **options, watermark_us=after.watermark_us)
    got = before.rows + after.rows
    assert len(before.rows) > 50
    assert len(after.rows) > 50
    assert sorted(got, key=lambda each: each["_offset"]) == sorted(
        collected(wanted), key=lambda each: each["_offset"]
    )


def test_rows_of_every_type_come_out_as_they_went_in(spark: SparkSession, tmp_path: Path) -> None:
    moment = dt.datetime(2020, 1, 1, 0, 0, 0, 123_456, tzinfo=dt.UTC)
    full = (
        moment, 2**60 + 1, 7, 0.5, Decimal("123.456"), dt.date(1500, 1, 1), b"\0\1", True,
        dt.datetime(3000, 1, 1, 0, 0, 0, 1), [1, None], (2**60 + 1, ["x", None]), {"k": 1, "n": None},
        "\u00e4", moment, 0, 0,
    )  # fmt: skip
    empty = (moment, *[None] * 12, moment, 0, 1)
    not_a_number = (moment, *[None] * 2, float("nan"), *[None] * 9, moment, 0, 2)
    later = (moment + dt.timedelta(seconds=1.001), *[None] * 12, moment, 0, 3)
    df = spark.createDataFrame([full, empty, not_a_number, later], _DDL)
    df.coalesce(1).write.parquet(str(tmp_path / "in"))
    stream = spark.readStream.schema(df.schema).parquet(str(tmp_path / "in")).withWatermark("at", "1 second")
    got = pa.concat_tables(run(in_order(stream, time="at"), tmp_path / "checkpoint").batches)
    wanted = df.limit(3).toArrow()
    assert repr(got.to_pylist()) == repr(wanted.to_pylist())  # NaN is itself in its repr
    assert got.schema == wanted.schema


def test_a_batch_larger_than_what_a_task_packs_comes_whole(spark: SparkSession, tmp_path: Path) -> None:
    rows = [row(number, f"user-{number % 7}", 10_000_000 + number) for number in range(150_000)]
    df = stream_of(spark, tmp_path / "in", rows, files=1, delay="0 seconds")
    streamed = run(in_order(df, time="at"), tmp_path / "checkpoint")
    passed = [each for each in rows if each["at"] <= streamed.watermark_us]
    assert len(passed) > 149_000
    assert streamed.rows == sorted(passed, key=in_time)


def test_no_buckets_are_refused(spark: SparkSession) -> None:
    with pytest.raises(BadOption, match="too few"):
        in_order(spark.createDataFrame(table([])), time="at", buckets=0)
