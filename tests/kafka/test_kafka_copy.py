"""`penstock copy`: a log that has been lived in moves to Kafka, and everything goes on there."""

from __future__ import annotations

from collections import defaultdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import uuid4

import numpy as np
from pyspark.sql import DataFrame, SparkSession
from tests.cli.command import Command, error_of

import penstock as ps
from penstock.app.graph import Graph
from penstock.app.moving import Copied, Runs
from penstock.app.runner import Runner
from penstock.app.verify import verify
from penstock.kafka.cluster import State

START = datetime(2026, 11, 1, 10, 0, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def declare(home: Path, names: str, log: str | None = None) -> ps.App:
    app = ps.App(f"shop{names}", home=home, log=log)
    views = app.topic(
        f"views{names}", "user BIGINT, n BIGINT, at TIMESTAMP", key="user", event_time="at",
        lateness="5 seconds", partitions=3,
    )  # fmt: skip

    @app.view(key=["user", "window"], name=f"counted{names}")
    def counted() -> DataFrame:
        return ps.aggregate(views.stream(), by="user", window=ps.tumbling("1 minute"), views=ps.count())

    return app


def append(app: ps.App, names: str, numbers: range) -> None:
    for n in numbers:
        late = 200 if n % 10 == 9 else 0
        app.topics[f"views{names}"].append({"user": n % 4, "n": n, "at": at(3 * n - late)})


def test_a_log_moves_to_kafka_and_its_app_goes_on(home: Path, kafka: State, spark: SparkSession) -> None:
    names = uuid4().hex[:8]
    app = declare(home, names)
    app.topics[f"views{names}"].watermark(at(-1_000))
    append(app, names, range(60))
    Runner(app, Graph(app, spark).analyse(), rows_max=25).once()
    append(app, names, range(60, 80))
    with app.topics[f"views{names}"].consume(group=f"mailer{names}", follow=False) as consumer:
        read = [next(consumer)["n"] for _ in range(30)]
        consumer.commit()
    times = {event["n"]: event.timestamp for event in app.topics[f"views{names}"].events()}
    app.close()

    told = Command(home).json("copy", home, kafka.url)
    assert told["records"][f"views{names}"] == 80
    assert all(pairs in ([[0, 0]], []) for pairs in told["offsets"][f"views{names}"].values())
    assert error_of(Command(home)("copy", home, kafka.url, "--json"))["type"] == "BadOption"

    moved = declare(home, names, kafka.url)
    views = moved.topics[f"views{names}"]
    assert {event["n"]: event.timestamp for event in views.events()} == times
    with views.consume(group=f"mailer{names}", follow=False) as consumer:
        assert sorted(read + [event["n"] for event in consumer]) == list(range(80))
    append(moved, names, range(80, 100))
    graph = Graph(moved, spark).analyse()
    Runner(moved, graph).once()
    found = verify(moved, graph, f"counted{names}")
    assert (found.verdict, found.left_out > 5) == ("equal", True), found
    order: dict[int, list[int]] = defaultdict(list)
    for row in views.rows():
        order[row["user"]].append(row["n"])
    assert order == {user: list(range(user, 100, 4)) for user in range(4)}
    moved.close()


def test_offsets_with_gaps_are_translated() -> None:
    runs = Runs()
    runs.note(np.array([5, 6, 9]), 0)
    runs.note(np.array([10, 20]), 3)
    copied = Copied({}, 0, 0, {"t": [runs]})
    assert copied.offsets() == {"t": {0: [(5, 0), (9, 2), (20, 4)]}}
    assert [runs.new(old) for old in (0, 5, 6, 7, 8, 9, 10, 11, 19, 20, 21, 99)] == [
        0, 0, 1, 2, 2, 2, 3, 4, 4, 4, 5, 5,
    ]  # fmt: skip


def test_offsets_that_retention_took_are_known_to_be_gone() -> None:
    runs = Runs(kept=5)
    runs.note(np.array([5, 6]), 0)
    assert [runs.new(old) for old in (0, 4, 5, 7)] == [-1, -1, 0, 2]


def test_what_cannot_be_copied_is_refused(home: Path) -> None:
    cli = Command(home)
    assert error_of(cli("copy", home, "somewhere", "--json"))["hint"] == "name one as kafka://host:port"
    assert error_of(cli("copy", home, "kafka://127.0.0.1:1", "--json"))["type"] == "NoLog"
