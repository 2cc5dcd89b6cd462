"""Events for the operators: made at random, cut into batches, and streamed through Spark."""

from __future__ import annotations

import math
import os
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession

from penstock.flow.buckets import SimpleStep

TIME = pa.timestamp("us", "UTC")
SCHEMA = pa.schema(
    [
        ("user", pa.string()),
        ("at", TIME),
        ("x", pa.int64()),
        ("y", pa.float64()),
        ("_timestamp", TIME),
        ("_partition", pa.int32()),
        ("_offset", pa.int64()),
    ]
)
Row = dict[str, Any]

thorough = settings(max_examples=300, deadline=None)  # a busy machine is no failure


def table(rows: list[Row]) -> pa.Table:
    columns = {name: [row[name] for row in rows] for name in SCHEMA.names}
    arrays = [
        pa.array(columns[each.name], pa.int64()).cast(TIME)
        if each.type == TIME
        else pa.array(columns[each.name], each.type)
        for each in SCHEMA
    ]
    return pa.Table.from_arrays(arrays, schema=SCHEMA)


def row(number: int, user: str | None, at: int, x: int | None = 1, y: float | None = None) -> Row:
    """Event `number` of the log; several arrive at one time, in two partitions."""
    return {
        "user": user, "at": at, "x": x, "y": y,
        "_timestamp": 1_000 + number // 3, "_partition": number % 2, "_offset": number,
    }  # fmt: skip


def arrival(event: Row) -> tuple[int, int, int]:
    return event["_timestamp"], event["_partition"], event["_offset"]


def in_time(event: Row) -> tuple[int, ...]:
    return (event["at"], *arrival(event))


@dataclass(frozen=True)
class Batch:
    """What one batch brings: rows, and the watermark it is processed with."""

    rows: list[Row]
    watermark: int


@st.composite
def batches(draw: st.DrawFn, *, late_by: int = 0, span: int = 60) -> list[Batch]:
    """Rows that are all later than the watermark of the batch before them less `late_by`."""
    found: list[Batch] = []
    watermark, number = 0, 0
    for _ in range(draw(st.integers(1, 5))):
        rows = []
        for _ in range(draw(st.integers(0, 8))):
            rows.append(
                row(
                    number,
                    draw(st.sampled_from(["a", "b", None])),
                    draw(st.integers(max(1, watermark - late_by + 1), watermark + span)),
                    draw(st.none() | st.integers(-5, 5)),
                    draw(st.none() | st.floats(-10, 10, allow_nan=False)),
                )
            )
            number += 1
        watermark += draw(st.integers(0, span))
        found.append(Batch(draw(st.permutations(rows)), watermark))
    return found


def outputs(step: SimpleStep, found: list[Batch]) -> Iterator[pa.Table]:
    """What a step emits, batch by batch, called as a bucket calls it."""
    state, wake = None, None
    for batch in found:
        if not batch.rows and (wake is None or wake > batch.watermark):
            continue  # Spark would not call
        stepped = step(state, table(batch.rows), batch.watermark)
        state, wake = stepped.state if len(stepped.state) else None, stepped.wake_us
        assert wake is None or wake > batch.watermark
        assert (state is None) == (wake is None), "state that nothing would ever clear"
        yield stepped.output


def plain(tables: list[pa.Table]) -> list[Row]:
    """All rows, with times as microseconds."""
    found = []
    for each in tables:
        whole = [pa.types.is_timestamp(field.type) for field in each.schema]
        fields = [
            field.with_type(pa.int64()) if is_time else field
            for field, is_time in zip(each.schema, whole, strict=True)
        ]
        found += each.cast(pa.schema(fields)).to_pylist()
    return found


def some_rows(many: int, *, users: int, disorder_us: int, seed: int) -> list[Row]:
    """Events a millisecond apart on average, out of order by less than `disorder_us`."""
    chance = random.Random(seed)
    return [
        row(
            number,
            f"user-{chance.randrange(users)}",
            10_000_000 + number * 1_000 + chance.randrange(disorder_us),
            chance.choice([None, *range(10)]),
            chance.choice([None, chance.uniform(-5, 5)]),
        )
        for number in range(many)
    ]


def write(folder: Path, rows: list[Row], *, files: int, begin: int = 0) -> None:
    """The rows as files that are read in this order, after those that are there already."""
    folder.mkdir(exist_ok=True)
    size = -(-len(rows) // files)
    for number in range(files):
        path = folder / f"{begin + number}.parquet"
        pq.write_table(table(rows[number * size : (number + 1) * size]), path)
        os.utime(path, (1_600_000_000 + begin + number,) * 2)


def stream_of(spark: SparkSession, folder: Path, rows: list[Row], *, files: int, delay: str) -> DataFrame:
    """The rows as a stream of so many batches."""
    write(folder, rows, files=files)
    reader = spark.readStream.schema(spark.read.parquet(str(folder)).schema)
    return reader.option("maxFilesPerTrigger", 1).parquet(str(folder)).withWatermark("at", delay)


@dataclass(frozen=True)
class Streamed:
    batches: list[pa.Table]
    watermark_us: int

    @property
    def rows(self) -> list[Row]:
        return plain(self.batches)


def run(df: DataFrame, checkpoint: Path) -> Streamed:
    """All there is, batch by batch, and the watermark at the end."""
    found: list[pa.Table] = []

    def keep(batch: DataFrame, number: int) -> None:
        found.append(batch.toArrow())

    query = df.writeStream.foreachBatch(keep).option("checkpointLocation", str(checkpoint))
    started = query.trigger(availableNow=True).start()
    try:
        assert started.awaitTermination(120)
        last = started.recentProgress[-1]["eventTime"]["watermark"]
    finally:
        started.stop()
    moment = pa.scalar(last).cast(pa.timestamp("ms", "UTC"))
    return Streamed(found, moment.cast(pa.int64()).as_py() * 1_000)


def collected(df: DataFrame) -> list[Row]:
    return plain([df.toArrow()])


def close(got: Any, wanted: Any) -> bool:
    """Equal, with doubles to 1e-12: Spark adds them up in another order."""
    if isinstance(wanted, float) and isinstance(got, float):
        return math.isclose(got, wanted, rel_tol=1e-12, abs_tol=1e-12) or (got != got and wanted != wanted)
    if isinstance(wanted, list) and isinstance(got, list):
        return len(got) == len(wanted) and all(map(close, got, wanted))
    if isinstance(wanted, dict) and isinstance(got, dict):
        return got.keys() == wanted.keys() and all(close(got[name], wanted[name]) for name in wanted)
    return bool(got == wanted)
