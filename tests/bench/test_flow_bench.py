"""The flow bench: what it measures, and one job at a size that takes seconds. Its form, not its numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from penstock.bench import flow, flow_latency
from penstock.bench.flow import Sizes
from penstock.bench.flow_jobs import COUNT, FlowBench, events
from penstock.bench.report import Result

TINY = Sizes(2_000, 500, 1, 1, ("0 seconds",))


def quiet(_: str) -> None:
    pass


class Pretended:
    """Jobs that take as long as they have batches."""

    def ours(self, job: Any, batches: list[Any], **_: Any) -> float:
        return len(batches) / 1_000

    def plain(self, job: Any, batches: list[Any]) -> float:
        return len(batches) / 250


def test_everything_that_is_promised_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        flow_latency, "measure", lambda bench, kind, **_: iter([Result(f"latency, {kind}", 1.0, "ms")])
    )
    monkeypatch.setattr(flow_latency, "first_result", lambda bench: Result("first", 1.0, "s").at_most(20))
    bench: Any = Pretended()
    found = {result.name: result for result in flow.measured(bench, flow.FULL, quiet)}
    jobs = [
        "stateless copy", "tumbling count, drop", "tumbling count, divert", "hopping count", "session count",
        "tumbling count, drop, 100 k keys", "tumbling count, divert, 100 k keys", "sliding count",
    ]  # fmt: skip
    for name in jobs:
        assert found[name].peer == "plain Spark on JSON files"
        assert found[name].ratio == pytest.approx(4.0)
    assert len([name for name in found if name.startswith("tumbling count, divert, every ")]) == 4
    assert {"latency, stateless", "latency, windowed", "first"} <= set(found)
    aims = {name: result.aim for name, result in found.items() if result.aim is not None}
    assert aims == {
        "tumbling count, drop": 1_500_000.0,
        "tumbling count, divert": 1_000_000.0,
        "tumbling count, drop: times plain Spark": 3.0,
        "tumbling count, divert: times plain Spark": 3.0,
        "first": 20,
    }


def test_a_job_runs_on_both_and_leaves_its_events_alone(spark: SparkSession, tmp_path: Path) -> None:
    bench = FlowBench(spark, tmp_path)
    some = events(TINY.native_events, keys=5)
    assert bench.ours(COUNT, some) > 0
    assert bench.plain(COUNT, some) > 0
    (files,) = tmp_path.glob("json-*")
    written = sum(len(file.read_text().splitlines()) for file in files.iterdir())
    counted = spark.read.parquet(str(tmp_path / "plain" / "out" / "*")).selectExpr("sum(count)").collect()
    assert (written, counted[0][0]) == (2_000, 2_000)
