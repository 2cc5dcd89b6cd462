"""The log as a Spark data source, for whoever has a session of their own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import penstock as ps

DDL = "user STRING, n BIGINT, at TIMESTAMP"


@pytest.fixture
def written(home: Path, spark: SparkSession) -> Iterator[ps.Log]:
    """Two topics that look alike, the first with two partitions; no record has an event time."""
    spark.dataSource.register(ps.LogSource)
    with ps.open_log(home) as log:
        for name, partitions in (("clicks", 2), ("taps", 1)):
            log.create_topic(name, DDL, key="user", event_time="at", partitions=partitions)
        for n in range(20):
            log.topic("clicks").append({"user": f"user {n % 5}", "n": n, "at": None})
        log.topic("taps").append({"user": "ann", "n": 100, "at": None})
        yield log


def read(spark: SparkSession, home: Path, topics: str) -> DataFrame:
    return spark.read.format("penstock").option("home", str(home)).option("topics", topics).load()


def places(log: ps.Log, topic: str) -> set[tuple[str, int, int, int]]:
    return {(topic, event.partition, event.offset, event["n"]) for event in log.topic(topic).events()}


def found(rows: DataFrame) -> set[tuple[Any, ...]]:
    return {tuple(row) for row in rows.select("_topic", "_partition", "_offset", "n").collect()}


def test_a_batch_read_is_of_everything_with_its_exact_places(
    written: ps.Log, home: Path, spark: SparkSession
) -> None:
    clicks = read(spark, home, "clicks")
    assert clicks.columns == ["user", "n", "at", "_topic", "_partition", "_offset", "_timestamp"]
    assert found(clicks) == places(written, "clicks")
    assert {place[1] for place in found(clicks)} == {0, 1}
    both = read(spark, home, "clicks, taps")
    assert found(both) == places(written, "clicks") | places(written, "taps")
    appended = {event["n"]: event.timestamp for event in written.topic("clicks").events()}
    shown = clicks.selectExpr("n", "unix_micros(_timestamp) AS us").collect()
    assert {row["n"]: row["us"] for row in shown} == {
        n: round(time.timestamp() * 1_000_000) for n, time in appended.items()
    }


def test_a_stream_takes_so_many_at_a_time_and_goes_on_where_it_was(
    written: ps.Log, home: Path, spark: SparkSession, tmp_path: Path
) -> None:
    batches: list[set[tuple[Any, ...]]] = []

    def run() -> None:
        options = {"home": str(home), "topics": "clicks", "rows_max": "8"}
        stream = spark.readStream.format("penstock").options(**options).load()
        writer = stream.writeStream.foreachBatch(lambda rows, _: batches.append(found(rows)))
        checkpoint = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        checkpoint.trigger(availableNow=True).start().awaitTermination()

    run()
    assert [len(batch) for batch in batches] == [8, 8, 4]
    assert set.union(*batches) == places(written, "clicks")
    seen = len(batches)
    written.topic("clicks").append({"user": "bob", "n": 21, "at": None})
    run()
    assert [{place[3] for place in batch} for batch in batches[seen:]] == [{21}]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({}, "which topics?"),
        ({"topics": "click"}, 'did you mean "clicks"?'),
        ({"topics": "clicks", "home": "/nowhere"}, "there is no log under /nowhere"),
        ({"topics": "clicks", "rows_max": "many"}, "rows_max=many is no number of records"),
        ({"topics": "clicks,other"}, 'topics "clicks" and "other" have other columns'),
    ],
)
def test_options_that_are_wrong_say_what_to_do(
    written: ps.Log, home: Path, spark: SparkSession, options: dict[str, str], told: str
) -> None:
    written.create_topic("other", "x BIGINT")
    with pytest.raises(PySparkException) as error:
        spark.read.format("penstock").options(**{"home": str(home), **options}).load().collect()
    assert told in str(error.value)
