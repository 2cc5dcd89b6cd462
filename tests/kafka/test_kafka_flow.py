"""The same app on Kafka: windows, late pairs, a derived stream, verify, rebuild, going on."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import uuid4

from confluent_kafka import ConsumerGroupTopicPartitions
from confluent_kafka.admin import AdminClient
from pyspark.sql import DataFrame, SparkSession
from tests.kafka.foreign import by_another_program

import penstock as ps
from penstock.app import reading, rebuild
from penstock.app.graph import Graph
from penstock.app.runner import Runner
from penstock.app.status import Watch
from penstock.app.verify import verify
from penstock.kafka.address import Address
from penstock.kafka.cluster import State

START = datetime(2026, 11, 1, 10, 0, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def declare(home: Path, kafka: State, names: str) -> ps.App:
    """Topics of a shared cluster have names of their own."""
    app = ps.App(f"shop{names}", home=home, log=kafka.url)
    views = app.topic(
        f"views{names}", "page STRING, ms DOUBLE, at TIMESTAMP", event_time="at", lateness="5 seconds",
        partitions=2, key="page",
    )  # fmt: skip

    @app.stream(name=f"slow{names}")
    def slow() -> DataFrame:
        return views.stream().where("ms > 10")

    @app.view(key=["page", "window"], name=f"per_minute{names}")
    def per_minute() -> DataFrame:
        return ps.aggregate(views.stream(), by="page", window=ps.tumbling("1 minute"), views=ps.count())

    @app.view(key="page", name=f"slowest{names}")
    def slowest() -> DataFrame:
        return ps.aggregate(slow.stream(), by="page", worst=ps.max("ms"))

    return app


def test_an_app_runs_on_kafka_as_it_does_on_the_embedded_log(
    home: Path, kafka: State, spark: SparkSession
) -> None:
    names = uuid4().hex[:8]
    app = declare(home, kafka, names)
    views = app.topics[f"views{names}"]

    def run() -> Graph:
        graph = Graph(app, spark).analyse()
        Runner(app, graph).once()
        return graph

    for seconds, page, ms in (
        (0, "/a", 20.0),
        (30, "/b", 1.0),
        (61, "/a", 5.0),
        (130, "/a", 30.0),
        (1, "/b", 9.0),
    ):
        views.append({"page": page, "ms": ms, "at": at(seconds)})
    run()
    rows = {(row["page"], row["window_start"]): row for row in app.read(f"per_minute{names}")}
    assert {key: row["views"] for key, row in rows.items()} == {
        ("/a", at(0)): 1,
        ("/b", at(0)): 1,
        ("/a", at(60)): 1,
        ("/a", at(120)): 1,
    }
    assert rows["/a", at(0)]["final"]
    assert not rows["/a", at(120)]["final"]
    (late,) = reading.late(app, f"per_minute{names}")
    assert late["row"]["ms"] == 9.0
    assert [row["worst"] for row in app.read(f"slowest{names}")] == [30.0]

    position = views.append({"page": "/a", "ms": 50.0, "at": at(131)})
    graph = run()
    assert [row["worst"] for row in app.read(f"slowest{names}")] == [50.0]
    assert app.read(f"per_minute{names}", after=position, where={"page": "/a"})[2]["views"] == 2
    for name in graph.analysed:
        found = verify(app, graph, name)
        assert found.verdict == "equal", found
    rebuilt = rebuild.prepare(app, graph, f"per_minute{names}")
    assert rebuilt.difference.verdict == "equal"
    rebuilt.swap()
    runner = Runner(app, Graph(app, spark).analyse())
    watch = Watch(runner)
    runner.once()
    told = {query.name: query for query in watch.look().queries}
    assert {query.lag_records for query in told.values()} == {0}
    assert told[f"per_minute{names}"].late == 1
    app.close()


def test_records_of_another_schema_are_put_aside_and_a_view_goes_on(
    home: Path, kafka: State, spark: SparkSession
) -> None:
    name = by_another_program(kafka, b'{"id": 1}', b'{"id": "text"}', b"no json", b'{"id": 1}')
    app = ps.App(name, home=home, log=kafka.url)
    orders = app.topic(name, "id BIGINT NOT NULL", key="id")

    @app.view(key="id", name=f"{name}.counted")
    def counted() -> DataFrame:
        return ps.aggregate(orders.stream(), by="id", n=ps.count())

    graph = Graph(app, spark).analyse()
    Runner(app, graph).once()
    assert [(row["id"], row["n"]) for row in app.read(f"{name}.counted")] == [(1, 2)]
    aside = app.log.topic(f"{name}.poison").latest()
    assert {place: row["offset"] for place, row in aside.items()} == {"0:1": 1, "0:2": 2}
    assert verify(app, graph, f"{name}.counted").verdict == "equal"
    app.close()


def test_kafkas_tools_see_how_far_a_query_is(home: Path, kafka: State, spark: SparkSession) -> None:
    names = uuid4().hex[:8]
    app = declare(home, kafka, names)
    end = app.topics[f"views{names}"].append({"page": "/a", "ms": 20.0, "at": at(0)})
    Runner(app, Graph(app, spark).analyse()).once()
    group = f"flow.shop{names}.per_minute{names}"
    admin = AdminClient(Address.parse(kafka.url).client())
    (listed,) = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)]).values()
    found = {place.partition: place.offset for place in listed.result(30).topic_partitions}
    assert found[end.partition] == end.ends[end.partition]
    app.close()
