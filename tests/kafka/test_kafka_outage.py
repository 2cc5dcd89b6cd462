"""The broker goes away while apps run: what they say, who goes on by itself, who gives up."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from tests.waiting import wait_until

import penstock as ps
from penstock.app import failures
from penstock.app.graph import Graph
from penstock.app.runner import Runner
from penstock.app.status import Watch
from penstock.app.verify import verify
from penstock.kafka.cluster import Cluster

START = datetime(2026, 11, 1, 10, 0, tzinfo=UTC)


class Running:
    """An app in a thread."""

    def __init__(self, app: ps.App, spark: SparkSession, *, failures_max: int) -> None:
        self.app, self.graph = app, Graph(app, spark).analyse()
        self.runner = Runner(app, self.graph, failures_max=failures_max)
        self.watch = Watch(self.runner)
        self.error: Exception | None = None
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        try:
            self.runner.run()
        except Exception as error:
            self.error = error

    def stop(self) -> None:
        self.runner.stopping.set()
        self.thread.join(timeout=100)


def patient(home: Path, url: str) -> ps.App:
    app = ps.App("patient", home=home, log=url)
    events = app.topic("events", "n BIGINT, at TIMESTAMP", event_time="at", lateness="5 seconds")

    @app.view(key="window")
    def per_minute() -> DataFrame:
        return ps.aggregate(events.stream(), window=ps.tumbling("1 minute"), events=ps.count())

    return app


def hasty(home: Path, url: str) -> ps.App:
    app = ps.App("hasty", home=home, log=url)
    events = app.topic("events", "n BIGINT, at TIMESTAMP", event_time="at", lateness="5 seconds")

    @app.stream()
    def copied() -> DataFrame:
        return events.stream()

    return app


@pytest.mark.timeout(600)
def test_apps_outlive_their_broker_or_say_that_they_gave_up(
    home: Path, cluster: Cluster, spark: SparkSession
) -> None:
    state = cluster.state()
    assert state is not None
    lasting = Running(patient(home, state.url), spark, failures_max=100)
    giving_up = Running(hasty(home, state.url), spark, failures_max=1)
    app = lasting.app

    def append(*numbers: int) -> ps.Position:
        rows = [{"n": n, "at": START + timedelta(seconds=10 * n)} for n in numbers]
        return app.topics["events"].append(rows)

    def counted(position: ps.Position) -> list[int]:
        return [row["events"] for row in app.read("per_minute", after=position, timeout="200 seconds")]

    try:
        assert counted(append(0, 1, 2)) == [3]
        wait_until(lambda: copies(giving_up.app) == 3, timeout_s=200, what="the copies")
        (node,) = state.nodes
        cluster.kill(node)
        wait_until(lambda: failures.last(app, "per_minute"), timeout_s=200, what="the failure to be told")
        giving_up.thread.join(timeout=200)
        told = failures.last(app, "per_minute")
        assert told is not None
        assert f"{state.url} does not answer" in told.error
        assert not told.given_up
        assert isinstance(giving_up.error, ps.QueryFailed)
        assert f"{state.url} does not answer" in str(giving_up.error)
        assert state.url in (lasting.watch.look().log_error or "")
        cluster.start(node.number)
        assert counted(append(3, 4, 10)) == [5, 1]
        (supervised,) = lasting.runner.supervised
        assert supervised.restarts >= 1
        assert supervised.rebuilt == 0
        wait_until(lambda: failures.last(app, "per_minute") is None, timeout_s=60, what="the end of it")
        assert lasting.watch.look().log_error is None
    finally:
        for running in (lasting, giving_up):
            running.stop()
    assert lasting.error is None
    assert verify(app, lasting.graph, "per_minute").verdict == "equal"
    Runner(giving_up.app, giving_up.graph).once()
    assert copies(giving_up.app) == 6
    assert verify(giving_up.app, giving_up.graph, "copied").verdict == "equal"
    for running in (lasting, giving_up):
        running.app.close()


def copies(app: ps.App) -> int:
    return sum(1 for _ in app.log.topic("copied").rows())
