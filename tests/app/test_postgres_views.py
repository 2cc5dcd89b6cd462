"""A whole app whose views are kept in PostgreSQL: run, read, verify, and a server that was away."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from tests.follow.backends import PostgresBackend
from tests.servers import Postgres
from tests.waiting import wait_until

import penstock as ps
from penstock.app.graph import Graph
from penstock.app.runner import Runner
from penstock.app.verify import verify

START = datetime(2026, 11, 1, 10, 0, tzinfo=UTC)


@pytest.fixture
def database(postgres: Postgres) -> Iterator[PostgresBackend]:
    made = PostgresBackend.create(postgres.dsn)
    yield made
    made.close()


def test_an_app_keeps_its_views_in_postgresql(
    home: Path, database: PostgresBackend, spark: SparkSession
) -> None:
    app = ps.App("shop", home=home, views=database.url)
    views = app.topic("views", "page STRING, at TIMESTAMP", event_time="at", lateness="5 seconds")

    @app.view(key=["page", "window"])
    def per_minute() -> DataFrame:
        return ps.aggregate(views.stream(), by="page", window=ps.tumbling("1 minute"), views=ps.count())

    def append(*seconds: float) -> ps.Position:
        return [views.append({"page": "/", "at": START + timedelta(seconds=s)}) for s in seconds][-1]

    def served() -> list[int]:
        rows = database.query("SELECT views FROM per_minute ORDER BY window_start")
        return [row[0] for row in rows]

    graph = Graph(app, spark).analyse()
    runner = Runner(app, graph)
    runner.start()
    try:
        shown = app.read("per_minute", after=append(0, 30, 70), timeout="100 seconds")
        assert [row["views"] for row in shown] == served() == [2, 1]
        with database.down():
            append(75, 80, 1)
            wait_until(lambda: runner.followers["per_minute"].last_error, timeout_s=60, what="an error")
        wait_until(lambda: served() == [2, 3], timeout_s=60, what="the store to catch up")
    finally:
        runner.stop()
    found = verify(app, graph, "per_minute")
    assert (found.verdict, found.rows, found.left_out) == ("equal", 2, 1)
    database.query("UPDATE per_minute SET views = 7 WHERE views = 3")
    found = verify(app, graph, "per_minute")
    assert (found.verdict, found.differing) == ("different", 1)
    app.close()
