"""Each event once."""

from __future__ import annotations

import random
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from tests.flow.operators.events import (
    Batch,
    Row,
    arrival,
    batches,
    collected,
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
from penstock.flow.deduplicate import deduplicate, deduplicate_batch, step


def _naive(rows: list[Row], within: int) -> list[Row]:
    kept: list[Row] = []
    for each in sorted(rows, key=arrival):
        near = (one for one in kept if one["user"] == each["user"] and abs(one["at"] - each["at"]) <= within)
        if not any(near):
            kept.append(each)
    return kept


@thorough
@given(found=batches(), within=st.integers(0, 40))
def test_what_is_kept_does_not_depend_on_how_the_batches_are_cut(found: list[Batch], within: int) -> None:
    # Arrival goes on from batch to batch, as it does in a log.
    numbered = [
        Batch(
            [each | {"_timestamp": 1_000 * number + each["_timestamp"]} for each in batch.rows],
            batch.watermark,
        )
        for number, batch in enumerate(found)
    ]
    once = partial(step, id=("user",), time="at", within_us=within)
    emitted = plain(list(outputs(once, numbered)))
    assert emitted == _naive([each for batch in numbered for each in batch.rows], within)


def test_an_event_comes_at_once_and_its_repeats_do_not() -> None:
    once = partial(step, id=("user",), time="at", within_us=10)
    first = once(None, table([row(0, "a", 100), row(1, "a", 110), row(2, "b", 100)]), 0)
    assert [each["_offset"] for each in plain([first.output])] == [0, 2]
    again = once(first.state, table([row(3, "a", 90), row(4, "a", 111), row(5, "b", 89)]), 80)
    assert [each["_offset"] for each in plain([again.output])] == [4, 5]


def test_an_id_is_forgotten_when_nothing_close_to_it_can_come() -> None:
    once = partial(step, id=("user",), time="at", within_us=10)
    first = once(None, table([row(0, "a", 100)]), 0)
    assert first.wake_us == 111
    assert len(once(first.state, table([]), 110).state) == 1
    assert len(once(first.state, table([]), 111).state) == 0


def test_a_stream_keeps_what_the_batch_keeps(spark: SparkSession, tmp_path: Path) -> None:
    chance = random.Random(4)
    events = some_rows(500, users=60, disorder_us=30_000, seed=4)
    events[0]["x"] = 2**60 + 1  # a float would not hold it
    # Some are sent again a little later, a few with another time.
    rows = [
        {**each, **{name: again[name] for name in ("_timestamp", "_partition", "_offset")}}
        for again in (row(number, None, 0) for number in range(800))
        for each in [events[min(499, max(0, again["_offset"] * 5 // 8 - chance.randrange(20)))]]
    ]
    options = {"id": ["user"], "time": "at", "within_us": 100_000}
    df = stream_of(spark, tmp_path / "in", rows, files=5, delay="200 milliseconds")
    streamed = run(deduplicate(df, **options), tmp_path / "checkpoint")  # type: ignore[arg-type]
    batch = collected(deduplicate_batch(spark.createDataFrame(table(rows)), **options))  # type: ignore[arg-type]
    assert sorted(streamed.rows, key=arrival) == sorted(batch, key=arrival)
    assert sorted(batch, key=arrival) == _naive(rows, 100_000)
    assert 60 < len(batch) < 500
    assert len(streamed.batches[0]) > 0, "nothing waits for the watermark"


def test_an_id_that_is_not_there_is_refused(spark: SparkSession) -> None:
    df = spark.createDataFrame(table([]))
    with pytest.raises(BadOption, match='"usr"'):
        deduplicate(df, id=["usr"], time="at", within_us=1)
    with pytest.raises(BadOption, match="no id"):
        deduplicate(df, id=[], time="at", within_us=1)
    with pytest.raises(BadOption, match="never"):
        deduplicate(df, id=["user"], time="at", within_us=-1)
