"""Real-time mode from a real Kafka to itself: at least once through a kill, and what it refuses."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession
from tests.kafka.realtime import declare
from tests.waiting import wait_until

import penstock as ps
from penstock.app.explain import explain
from penstock.app.graph import Graph
from penstock.kafka.cluster import State
from penstock.kafka.jars import connector

AT = datetime(2026, 11, 16, 12, 30, tzinfo=UTC)
ROOT = Path(__file__).parents[2]


@contextmanager
def running(home: Path, url: str, *options: str) -> Iterator[None]:
    """The app in a process of its own, which ends by kill -9, with Spark."""
    with home.with_name("realtime.txt").open("ab") as into:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.kafka.realtime", str(home), url, *options],
            stdout=into, stderr=into, cwd=ROOT, start_new_session=True,
        )  # fmt: skip
        try:
            yield
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def orders(numbers: range) -> list[dict[str, object]]:
    return [{"id": n, "page": f"/{n % 3}", "price": Decimal(n % 20), "at": AT} for n in numbers]


def dear(app: ps.App) -> set[int]:
    return {row["id"] for row in app.log.topic("dear").rows()}


def counts(app: ps.App) -> dict[str, int]:
    """The newest of each page."""
    return {row["page"]: row["count"] for row in app.log.topic("counted").rows()}


def aside(app: ps.App) -> list[bytes]:
    return [row["value"] for row in app.log.topic("purchases.poison").rows()]


def expected(numbers: range) -> tuple[set[int], dict[str, int]]:
    rows = orders(numbers)
    pages = [str(row["page"]) for row in rows]
    found = {n for n in numbers if n % 20 > 10}
    return found, {page: pages.count(page) for page in set(pages)}


def test_every_order_arrives_through_a_kill_and_what_is_none_is_put_aside(
    kafka: State, home: Path, spark: SparkSession
) -> None:
    app = declare(home, kafka.url)
    topic = app.topics["purchases"]
    topic.append(orders(range(100)))

    def arrived(until: int) -> bool:
        return (dear(app), counts(app)) == expected(range(until))

    with running(home, kafka.url):
        wait_until(
            lambda: {"dear", "counted"} <= set(app.log.topics()), timeout_s=240, what="the app to start"
        )
        wait_until(lambda: arrived(100), timeout_s=240, what="what was there before")
        producer = Producer({"bootstrap.servers": kafka.url.removeprefix("kafka://")})
        producer.produce("purchases", b"no order", partition=1)
        producer.flush()
        topic.append(orders(range(100, 150)))
        wait_until(lambda: arrived(150), timeout_s=60, what="more")
        wait_until(lambda: b"no order" in aside(app), timeout_s=60, what="the message that is no order")
        groups = {("flow.realtime.dear", "purchases"), ("flow.realtime.counted", "purchases")}
        wait_until(lambda: groups <= set(app.log.groups()), timeout_s=60, what="the groups")
    topic.append(orders(range(150, 200)))
    # It goes on by its notes, and with what the topic has got since.
    shutil.rmtree(home / "flow" / "realtime" / "dear")
    app.close()
    app = declare(home, kafka.url, wider=True)
    topic = app.topics["purchases"]
    topic.append([{**order, "note": "wider"} for order in orders(range(200, 220))])
    subprocess.run(
        [sys.executable, "-m", "tests.kafka.realtime", str(home), kafka.url, "wider", "once"],
        capture_output=True, cwd=ROOT, timeout=200, check=True,
    )  # fmt: skip
    assert arrived(220)
    topic.append(orders(range(220, 250)))
    with running(home, kafka.url, "wider"):
        wait_until(lambda: arrived(250), timeout_s=240, what="what came meanwhile")
        dropped_when_late(app)
    found = explain(app, "dear", now_us=0)
    assert found.flows
    assert "real-time and at least once" in found.reasons[-1].text
    # The session of the tests was started without the connector, and says so.
    with pytest.raises(ps.PenstockError, match="no Kafka connector"):
        Graph(app, spark).analyse()
    app.close()


def dropped_when_late(app: ps.App) -> None:
    """Once one of Spark's batches has ended, a day later, what is from before is dropped, and counted."""
    day = timedelta(days=1)

    def notes() -> list[int]:
        return [row["late"] for row in app.log.topic("counted.batches").rows()]

    def order(number: int, page: str, at: datetime) -> None:
        app.topics["purchases"].append({"id": number, "page": page, "price": Decimal(1), "at": at})

    order(1_000, "/new", AT + day)
    wait_until(lambda: "/new" in counts(app), timeout_s=60, what="the order of another day")
    known = len(notes())
    wait_until(lambda: len(notes()) > known + 1, timeout_s=60, what="a batch to end")
    assert sum(notes()) == 0
    order(1_001, "/late", AT)
    order(1_002, "/in-time", AT + day)
    wait_until(lambda: "/in-time" in counts(app), timeout_s=60, what="an order in time")
    wait_until(lambda: sum(notes()) == 1, timeout_s=60, what="the late one to be counted")
    assert "/late" not in counts(app)


def test_what_it_cannot_do_is_refused_with_the_reason(kafka: State, home: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.kafka.realtime", str(home), kafka.url, "refused"],
        capture_output=True, text=True, cwd=ROOT, timeout=300, check=True,
    )  # fmt: skip
    told = json.loads(done.stdout.splitlines()[-1])
    assert "real-time mode has no ps.tumbling" in told["ours"]
    assert "real-time mode has no Python in it" in told["python"]
    assert "real-time mode has no Python in it" in told["pandas"]
    assert "real-time mode has no session windows" in told["session"]
    assert 'topic "kept" is compacted' in told["compacted"]
    assert "a row of it replaces the one before" in told["without a key"]
    assert all("realtime.py:" in text and "Hint" in text for text in told.values())


def test_on_the_embedded_log_it_is_refused(home: Path, spark: SparkSession) -> None:
    app = ps.App("here", home=home)
    events = app.topic("events", "k BIGINT")
    app.stream(latency="realtime", name="fast")(lambda: events.stream().select("k"))
    with pytest.raises(ps.BadDefinition, match="reads and writes Kafka, and this app's log is a folder"):
        Graph(app, spark).analyse()
    app.close()
    with pytest.raises(ps.BadOption, match="latency='fast'"):
        app.stream(latency="fast")


def test_a_folder_of_jars_counts_and_one_without_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_SPARK_KAFKA_JARS", str(tmp_path))
    with pytest.raises(ps.PenstockError, match=r"(?s)holds no jars.*spark-sql-kafka"):
        connector()
    (tmp_path / "one.jar").touch()
    assert connector() == tmp_path
