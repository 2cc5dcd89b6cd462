"""From an append to a row in the store, and the proof that it is right: the shortest way through."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

import penstock as ps
from penstock.app import reading
from penstock.app.graph import Graph
from penstock.app.runner import Runner
from penstock.app.verify import verify

START = datetime(2026, 11, 1, 10, 0, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def test_events_become_rows_late_ones_are_kept_and_verify_agrees(home: Path, spark: SparkSession) -> None:
    app = ps.App("shop", home=home)
    views = app.topic("views", "page STRING, at TIMESTAMP", event_time="at", lateness="5 seconds")

    @app.view(key=["page", "window"])
    def per_minute() -> DataFrame:
        return ps.aggregate(views.stream(), by="page", window=ps.tumbling("1 minute"), views=ps.count())

    for seconds in (0, 30, 61, 70, 130):
        views.append({"page": "/", "at": at(seconds)})
    views.append({"page": "/late", "at": at(1)})
    graph = Graph(app, spark).analyse()
    Runner(app, graph).once()
    rows = [(row["window_start"], row["views"], row["final"]) for row in app.read("per_minute")]
    assert rows == [(at(0), 2, True), (at(60), 2, True), (at(120), 1, False)]
    assert [row["row"]["page"] for row in reading.late(app, "per_minute")] == ["/late"]
    assert verify(app, graph, "per_minute").verdict == "equal"

    held = app.log.port.groups_store().holds("views", 0)  # type: ignore[attr-defined]
    assert [(offset, reason) for _, offset, reason in held] == [(6, '"per_minute" has read up to here')]

    views.append({"page": "/", "at": at(125)})
    Runner(app, graph).once()
    assert app.read("per_minute", where={"window_start": at(120)})[0]["views"] == 2
    assert verify(app, graph, "per_minute").verdict == "equal"
