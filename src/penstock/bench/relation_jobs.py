"""The jobs of `bench joins` and `bench patterns`, on Penstock and in the way that plain Spark offers."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

import penstock as ps
from penstock.app.graph import Graph
from penstock.app.runner import Runner
from penstock.bench.flow_jobs import DDL, FlowBench, Job

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import DataFrame

_RANGE = "200 milliseconds"
_FAILED = 20.0  # of 100: an event below this is a failure
_WITHIN = "5 minutes"
_WITHIN_S = 300
_WORDS = 20_000
_TEXT_WORDS = 20


def _joined(app: ps.App, topic: Any) -> None:
    @app.stream()
    def joined() -> DataFrame:
        stream = topic.stream()
        left, right = (
            stream.filter("ms < 50").drop("ms"),
            stream.filter("ms >= 50").select("page", "ms", "at"),
        )
        return ps.join_within(left, right, on="page", after=_RANGE)


def _plain_joined(stream: DataFrame) -> tuple[DataFrame, str]:
    from pyspark.sql import functions as F

    left = stream.filter("ms < 50").drop("ms")
    right = stream.filter("ms >= 50").select(
        F.col("page").alias("its_page"), "ms", F.col("at").alias("its_at")
    )
    near = F.expr(f"page = its_page AND its_at >= at AND its_at <= at + INTERVAL {_RANGE}")
    return left.join(right, near), "append"


def _enriched(keys: int) -> Callable[[ps.App, Any], None]:
    def define(app: ps.App, topic: Any) -> None:
        pages = app.table(
            "pages", "page BIGINT, name STRING, since TIMESTAMP", key="page", event_time="since",
            durability="os",
        )  # fmt: skip
        for first in range(0, keys, 50_000):
            numbers = range(first, min(first + 50_000, keys))
            ever = pa.nulls(len(numbers), pa.timestamp("us", "UTC"))
            pages.append(pa.table({"page": list(numbers), "name": [f"p{n}" for n in numbers], "since": ever}))

        @app.stream()
        def named() -> DataFrame:
            return ps.enrich(topic.stream(), pages, on="page")

    return define


def _plain_enriched(keys: int) -> Callable[[DataFrame], tuple[DataFrame, str]]:
    """With a table that never changes: Spark has no join as of a time."""

    def plain(stream: DataFrame) -> tuple[DataFrame, str]:
        pages = stream.sparkSession.range(keys).selectExpr("id AS page", "concat('p', id) AS name")
        return stream.join(pages, "page", "left"), "append"

    return plain


def _three_failures(app: ps.App, topic: Any) -> None:
    @app.stream()
    def failures() -> DataFrame:
        failed = ps.pattern(by="page").first("failed", topic.stream(), where=ps.step("failed").ms < _FAILED)
        return failed.times(3).within(_WITHIN).emit(since=ps.step("failed").first().at)


def _plain_three_failures(stream: DataFrame) -> tuple[DataFrame, str]:
    """Key by key in Python, as Spark's guide does it. (Self-joins would make every triple.)"""
    failed = stream.filter(f"ms < {_FAILED}")
    found = failed.groupBy("page").applyInPandasWithState(
        _counted, "page BIGINT, since DOUBLE", "one DOUBLE, two DOUBLE", "append", "NoTimeout"
    )
    return found, "append"


def _counted(key: Any, frames: Iterator[pd.DataFrame], state: Any) -> Iterator[pd.DataFrame]:
    import pandas as pd

    known = [at for at in state.get if at is not None] if state.exists else []
    found = []
    for at in sorted(at.timestamp() for frame in frames for at in frame["at"]):
        known = [*(one for one in known if at - one <= _WITHIN_S), at]
        if len(known) == 3:
            found.append(known[0])
            known = []
    state.update((*known, None, None)[:2])
    if found:
        yield pd.DataFrame({"page": [key[0]] * len(found), "since": found})


def _then_without(app: ps.App, topic: Any) -> None:
    @app.stream()
    def alone() -> DataFrame:
        stream, low, high = topic.stream(), ps.step("low").ms < 10, ps.step("high").ms > 90
        return (
            ps.pattern(by="page")
            .first("low", stream, where=low)
            .then_not("high", stream, where=high)
            .within("1 second")
            .emit(since=ps.step("low").at)
        )


def _plain_then_without(stream: DataFrame) -> tuple[DataFrame, str]:
    from pyspark.sql import functions as F

    low = stream.filter("ms < 10").select("page", "at")
    high = stream.filter("ms > 90").select(F.col("page").alias("its_page"), F.col("at").alias("its_at"))
    near = F.expr("page = its_page AND its_at >= at AND its_at <= at + INTERVAL 1 SECOND")
    return low.join(high, near, "left_outer").filter("its_at IS NULL").select("page", "at"), "append"


_KEYS = (("10 k", 10_000), ("1 M", 1_000_000))
JOINS = tuple(
    Job(f"{name}, {said} keys", define, plain, keys=keys)
    for said, keys in _KEYS
    for name, define, plain in (
        ("interval join", _joined, _plain_joined),
        ("enrich", _enriched(keys), _plain_enriched(keys)),
    )
)
PATTERNS = tuple(
    Job(f"{name}, {said} keys", define, plain, keys=keys)
    for name, define, plain in (
        ("three failures", _three_failures, _plain_three_failures),
        ("one without another", _then_without, _plain_then_without),
    )
    for said, keys in _KEYS
)


@dataclass(frozen=True, slots=True)
class Ran:
    seconds: float
    state_bytes: int  # that Spark keeps, on disk


class RelationBench(FlowBench):
    def ran(self, define: Callable[[ps.App], None]) -> Ran:
        """An app whose `define` has declared and filled its topics, run to the end."""
        home = Path(tempfile.mkdtemp(dir=self.folder))
        app = ps.App("bench", home=home)
        define(app)
        runner = Runner(app, Graph(app, self.session).analyse())
        began = time.perf_counter()
        runner.once()
        took = time.perf_counter() - began
        runner.stop()
        kept = [file for file in app.checkpoints.rglob("*") if "state" in file.parts and file.is_file()]
        found = Ran(took, sum(file.stat().st_size for file in kept))
        app.close()
        shutil.rmtree(home)
        return found

    def job(self, job: Job, batches: list[pa.RecordBatch]) -> Ran:
        return self.ran(lambda app: job.define(app, filled(app, batches)))


def filled(app: ps.App, batches: list[pa.RecordBatch]) -> Any:
    topic = app.topic("events", DDL, event_time="at", lateness="5 seconds", partitions=2, durability="os")
    for number, batch in enumerate(batches):
        topic.append(batch, partition=number % 2)
    return topic


def searching(queries: int, events: int) -> Callable[[ps.App], None]:
    """Texts of twenty words, and searches for one, two or three of them, a prefix or a phrase."""
    chance = np.random.default_rng(7)
    words = np.array([f"w{number:x}{number % 97:x}" for number in range(_WORDS)])
    texts = [" ".join(row) for row in words[chance.integers(0, _WORDS, (events, _TEXT_WORDS))]]
    picked = words[chance.integers(0, _WORDS, (queries, 3))]
    forms = ("{0}", "{0} {1}", "{0} OR {1} OR {2}", '"{0} {1}"', "{0}* NOT {1}")

    def define(app: ps.App) -> None:
        topic = app.topic("texts", "text STRING", partitions=2, durability="os")
        saved = app.topic("saved", "id BIGINT, query STRING", key="id", cleanup="compact", durability="os")
        asked = [forms[number % len(forms)].format(*row) for number, row in enumerate(picked)]
        saved.append([{"id": number, "query": query} for number, query in enumerate(asked)])
        for first in range(0, events, 50_000):
            topic.append(pa.table({"text": texts[first : first + 50_000]}), partition=first // 50_000 % 2)

        @app.stream()
        def found() -> DataFrame:
            return ps.search(topic.stream(), queries=saved, fields=["text"])

    return define
