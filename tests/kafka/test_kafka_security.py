"""SASL, TLS and rights, with a broker that has them; and that no password gets where it could be read."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import cast
from uuid import uuid4

import pytest
from confluent_kafka.admin import AclOperation, ResourceType
from pyspark.sql import DataFrame, SparkSession
from tests.cli.command import Command
from tests.kafka import secured as secured_broker
from tests.kafka.secured import PASSWORDS, Secured
from tests.waiting import wait_until

import penstock as ps
from penstock.app.graph import Graph
from penstock.app.runner import Runner
from penstock.app.verify import verify
from penstock.kafka.address import Address
from penstock.kafka.cluster import State
from penstock.opening import open_log


@pytest.fixture(scope="module")
def secured(kafka: State) -> Iterator[Secured]:
    """`kafka`: where that cannot be had, neither can this."""
    with tempfile.TemporaryDirectory(prefix="penstock-kafka-") as folder:
        cluster, found = secured_broker.start(Path(folder))
        try:
            yield found
        finally:
            cluster.down()


def fresh(word: str) -> str:
    return f"{word}-{uuid4().hex[:8]}"


@pytest.mark.parametrize("listener", [Secured.sasl, Secured.tls])
def test_a_user_with_a_password_does_everything(secured: Secured, listener: Callable[..., str]) -> None:
    with open_log(listener(secured, "ann")) as log:
        topic, job = log.create_topic(fresh("orders"), "id BIGINT", key="id"), fresh("job")
        topic.append({"id": 1})
        producer = log.producer(job)
        producer.append({topic: [{"id": 2}]}, position=b"2")
        assert log.producer(job).position() == b"2"
        with topic.consume(group=fresh("group"), follow=False) as consumer:
            assert [event["id"] for event in consumer] == [1, 2]


def test_a_wrong_password_is_refused_and_not_told(secured: Secured) -> None:
    for url in (secured.sasl("ann", "wr0ng"), secured.tls("ann", "wr0ng")):
        with pytest.raises(ps.NotAllowed) as refused:
            open_log(url)
        assert "uthentication failed" in refused.value.message
        assert "password" in refused.value.hint
        assert "wr0ng" not in f"{refused.value!r} {refused.value} {refused.value.__cause__!r}"


def test_a_certificate_that_nobody_vouches_for_is_refused(secured: Secured) -> None:
    with pytest.raises(ps.NotAllowed) as refused:
        open_log(secured.tls("ann").partition("&ssl")[0])
    assert "certificate" in refused.value.message
    assert "ssl.ca.location" in refused.value.hint


def test_tls_where_there_is_none_says_so(secured: Secured) -> None:
    with pytest.raises(ps.Unreachable) as refused:
        open_log(f"{secured.plain}?security.protocol=SSL")
    assert "this may be a listener without TLS" in refused.value.message
    assert "security.protocol" in refused.value.hint


def test_what_a_user_may_not_do_is_refused_and_loses_nothing(secured: Secured) -> None:
    may_read, may_write, job = fresh("readable"), fresh("writable"), fresh("job")
    topic, write, read = ResourceType.TOPIC, AclOperation.WRITE, AclOperation.READ
    with open_log(secured.plain) as log:
        for name in (may_read, may_write):
            log.create_topic(name, "id BIGINT").append({"id": 1})
        log.producer(fresh("first"))  # there is a ledger
    rights = [(topic, "_penstock_", operation) for operation in (read, write)]
    producers = (ResourceType.TRANSACTIONAL_ID, "penstock.", write)
    secured.grant("eve", *rights, (topic, may_read, read), (topic, may_write, write), producers)
    with open_log(secured.sasl("eve")) as log:
        wait_until(lambda: {may_read, may_write} <= set(log.topics()), what="rights to be known")
        readable, writable = log.topic(may_read), log.topic(may_write)
        producer = log.producer(job)
        attempts: dict[str, Callable[[], object]] = {
            may_read: lambda: readable.append({"id": 2}),
            may_write: lambda: list(writable.rows()),
            "group": lambda: next(iter(readable.consume(group=fresh("group")))),
            "fresh": lambda: log.create_topic(fresh("fresh"), "id BIGINT"),
            f"{may_write}, {may_read}": lambda: producer.append(
                {writable: [{"id": 3}], readable: [{"id": 3}]}, position=b"3"
            ),
        }
        for word, attempt in attempts.items():
            with pytest.raises(ps.NotAllowed) as refused:
                attempt()
            assert "uthorization failed" in refused.value.message
            assert word in refused.value.message
            assert "kafka-acls" in refused.value.hint
        assert [row["id"] for row in readable.rows()] == [1]
        secured.grant("eve", (topic, may_read, write))
        again = log.producer(job)
        assert again.position() is None
        wait_until(lambda: _appends(readable), what="the right to write")
        again.append({writable: [{"id": 3}], readable: [{"id": 3}]}, position=b"3")
    with open_log(secured.plain) as log:
        assert [row["id"] for row in log.topic(may_write).rows()] == [1, 3]
        assert [row["id"] for row in log.topic(may_read).rows()] == [1, 2, 3]
        assert not any(name.startswith("fresh") for name in log.topics())


def _appends(topic: ps.Topic) -> bool:
    try:
        topic.append({"id": 2})
    except ps.NotAllowed:
        return False
    return True


def test_the_command_line_shows_no_password(secured: Secured) -> None:
    cli = Command(cast(Path, secured.sasl("ann")))  # which stands where a folder would
    assert cli.json("topic", "list")["home"] == f"kafka://127.0.0.1:{secured.sasl_port}"
    for said in (cli("topic", "list"), cli("topic", "show", "none"), cli("group", "list")):
        assert PASSWORDS["ann"] not in said.output


def test_no_password_is_left_where_an_app_ran(
    home: Path, secured: Secured, spark: SparkSession, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "penstock")
    url, name = secured.sasl("ann"), fresh("orders")
    app = ps.App("shop", home=home, log=url)
    orders = app.topic(name, "id BIGINT, at TIMESTAMP", event_time="at")
    plans: list[str] = []

    @app.view(key="id", name=f"{name}.counted")
    def counted() -> DataFrame:
        plans.append(orders.stream()._jdf.queryExecution().toString())
        return ps.aggregate(orders.stream(), by="id", n=ps.count())

    orders.append({"id": 1, "at": datetime(2026, 11, 1, tzinfo=UTC)})
    graph = Graph(app, spark).analyse()
    runner = Runner(app, graph)
    runner.start()
    wait_until(lambda: list(app.read(f"{name}.counted")), timeout_s=60, what="a row")
    (query,) = [supervised.query for supervised in runner.supervised]
    assert query.running is not None
    progress = str(query.running.lastProgress)
    explained = query.running._jsq.explainInternal(True)
    runner.stop()
    assert verify(app, graph, f"{name}.counted").verdict == "equal"
    files = [path for path in home.rglob("*") if path.is_file()]
    assert any("offsets" in path.parts for path in files)
    read = {str(path): path.read_bytes().decode(errors="replace") for path in files}
    said = {"plan": "".join(plans), "progress": progress, "explained": explained, "log": caplog.text}
    shown = {"repr": f"{app!r} {app.log!r} {app.log.port!r} {Address.parse(url)!r} {Address.parse(url)}"}
    app.close()
    told = {where for where, text in {**read, **said, **shown}.items() if PASSWORDS["ann"] in text}
    assert told == set()
