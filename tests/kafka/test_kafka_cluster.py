"""`penstock kafka`: brokers that come and go, and one that is killed while others write."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient
from tests.cli.command import Command, error_of
from tests.waiting import wait_until

import penstock as ps
from penstock.kafka.address import Address
from penstock.kafka.cluster import Cluster, State
from penstock.opening import open_log

WRITERS, BEFORE, AFTER = 4, 20, 20


def test_a_kafka_is_started_looked_at_and_stopped(kafka: State, tmp_path: Path) -> None:
    """`kafka` is asked for only because where it cannot be had, neither can this."""
    cli = Command(tmp_path / "home")
    assert cli.json("kafka", "status", code=1) == {
        "url": None,
        "folder": str(tmp_path / "home" / "kafka"),
        "brokers": [],
    }
    up = cli.json("kafka", "up", "--port", 0)
    try:
        (broker,) = up["brokers"]
        assert broker["runs"]
        with open_log(up["url"]) as log:
            log.create_topic("kept", "n BIGINT").append({"n": 1})
        remote = Command(up["url"])
        assert [topic["topic"] for topic in remote.json("topic", "list")["topics"]] == ["kept"]
        assert [line["value"]["n"] for line in remote.lines("consume", "kept")] == [1]
        assert cli.json("kafka", "up")["brokers"] == up["brokers"]
        assert error_of(cli("kafka", "up", "--brokers", 3, "--json"))["type"] == "BadOption"
        assert cli.json("kafka", "down") == {"stopped": True, "deleted": False}
        assert cli("kafka", "status").exit_code == 1
        again = cli.json("kafka", "up")
        assert again["url"] == up["url"]
        with open_log(again["url"]) as log:
            assert [row["n"] for row in log.topic("kept").rows()] == [1]
    finally:
        assert cli.json("kafka", "down", "--delete", "--yes") == {"stopped": True, "deleted": True}
    assert not (tmp_path / "home" / "kafka").exists()


@pytest.mark.timeout(400)
def test_a_leader_that_is_killed_loses_nothing_that_was_acknowledged(
    three_brokers: Cluster, report: Callable[[str], None]
) -> None:
    state = three_brokers.state()
    assert state is not None
    with open_log(state.url) as log:
        topic = log.create_topic("orders", "writer INT, n INT", partitions=1)
        acknowledged: list[tuple[int, int]] = []
        failed: list[ps.PenstockError] = []
        killed = threading.Event()

        def write(writer: int) -> None:
            with open_log(state.url) as own:
                orders, n, left = own.topic("orders"), 0, AFTER
                while left:
                    try:
                        orders.append({"writer": writer, "n": n})
                    except ps.StorageError as error:  # it may be stored or not: it was not acknowledged
                        failed.append(error)
                    else:
                        acknowledged.append((writer, n))
                        left -= killed.is_set()
                    n += 1

        threads = [threading.Thread(target=write, args=(number,)) for number in range(WRITERS)]
        for thread in threads:
            thread.start()
        wait_until(lambda: len(acknowledged) >= WRITERS * BEFORE, timeout_s=100, what="writers at work")
        leader = _leader(state, "orders")
        (node,) = (node for node in state.nodes if node.number == leader)
        three_brokers.kill(node)
        before = len(acknowledged)
        killed.set()
        for thread in threads:
            thread.join(timeout=200)
        stored = [(row["writer"], row["n"]) for row in topic.rows()]
    after = len(acknowledged) - before
    report(f"leader killed: {before} acknowledged before, {after} after, {len(failed)} failed")
    assert set(acknowledged) <= set(stored)
    assert len(stored) == len(set(stored))
    assert after >= WRITERS * (AFTER - 1)
    for writer in range(WRITERS):
        mine = [n for who, n in stored if who == writer]
        assert mine == sorted(mine)


def _leader(state: State, topic: str) -> int:
    admin = AdminClient(Address.parse(state.url).client())
    found = admin.list_topics(topic, timeout=30).topics[topic].partitions[0]
    assert len(found.replicas) == 3
    return int(found.leader)
