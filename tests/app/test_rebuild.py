"""A view built anew beside the old one: with the late decisions of then, without, by a new definition."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

import penstock as ps
from penstock.app import reading, rebuild
from penstock.app.graph import Graph
from penstock.app.runner import Runner
from penstock.app.verify import verify

START = datetime(2026, 11, 1, 10, 0, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def shop(home: Path, *, doubled: bool = False) -> ps.App:
    app = ps.App("shop", home=home)
    views = app.topic("views", "page STRING, at TIMESTAMP", event_time="at", lateness="5 seconds")

    @app.view(key=["page", "window"])
    def per_minute() -> DataFrame:
        counted = ps.aggregate(views.stream(), by="page", window=ps.tumbling("1 minute"), n=ps.count())
        return counted.withColumn("n", counted.n * 2) if doubled else counted

    return app


def counts(app: ps.App) -> dict[datetime, int]:
    return {row["window_start"]: row["n"] for row in app.read("per_minute")}


def test_a_view_is_rebuilt_with_late_rows_and_by_a_new_definition(home: Path, spark: SparkSession) -> None:
    app = shop(home)
    views = app.topics["views"]
    for seconds in (0, 30, 61, 130, 1):
        views.append({"page": "/", "at": at(seconds)})
    graph = Graph(app, spark).analyse()
    Runner(app, graph).once()
    assert counts(app) == {at(0): 2, at(60): 1, at(120): 1}
    assert [row["offset"] for row in reading.late(app, "per_minute")] == [4]

    same = rebuild.prepare(app, graph, "per_minute")
    assert same.difference.verdict == "equal"
    same.discard()
    assert not [topic for topic in app.log.topics() if "rebuild" in topic]

    whole = rebuild.prepare(app, graph, "per_minute", include_late=True)
    assert [
        (d.live["n"], d.recomputed["n"]) for d in whole.difference.differences if d.live and d.recomputed
    ] == [(2, 3)]
    before = datetime.now(UTC)
    whole.swap()
    views.append({"page": "/", "at": at(131)})
    Runner(app, graph).once()
    assert counts(app) == {at(0): 3, at(60): 1, at(120): 2}
    assert not reading.late(app, "per_minute"), "it is in the view now"
    assert verify(app, graph, "per_minute").verdict == "equal"
    assert {row["window_start"]: row["n"] for row in app.read("per_minute", as_of=before)}[at(0)] == 2

    changed = shop(home, doubled=True)
    again = Graph(changed, spark).analyse()
    with pytest.raises(ps.DefinitionChanged, match="penstock rebuild"):
        Runner(changed, again).once()
    newer = rebuild.prepare(changed, again, "per_minute")
    assert newer.difference.differing == 3
    newer.swap()
    views.append({"page": "/", "at": at(2)})
    Runner(changed, again).once()
    assert counts(changed) == {at(0): 6, at(60): 2, at(120): 4}
    assert verify(changed, again, "per_minute").verdict == "equal"
    assert [row["offset"] for row in reading.late(changed, "per_minute")] == [6]
    rebuild.prepare(changed, again, "per_minute").swap()
    assert [row["offset"] for row in reading.late(changed, "per_minute")] == [6]
    assert verify(changed, again, "per_minute").left_out == 1
