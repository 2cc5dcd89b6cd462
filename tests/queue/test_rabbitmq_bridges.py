"""Bridges to and from a real RabbitMQ: at least once, and the same message has the same id."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.command import Command
from tests.servers import RabbitMQ

import penstock as ps


@pytest.fixture
def queue(rabbitmq: RabbitMQ) -> Iterator[ps.Queue]:
    with ps.open_queues(rabbitmq.url) as queues:
        made = queues.queue(f"work-{uuid.uuid4().hex}")
        yield made
        made.delete()


class Died(Exception):
    """Between two steps."""


def dying_at(step: str) -> object:
    def watch(reached: str) -> None:
        if reached == step:
            raise Died

    return watch


def test_a_bridge_from_rabbitmq_that_dies_before_its_ack_repeats_and_loses_nothing(
    log: ps.Log, queue: ps.Queue
) -> None:
    topic = log.create_topic("work", "id BIGINT")
    queue.publish_many([{"id": number} for number in range(10)])
    with ps.bridge(queue, topic, batch=4, watch=dying_at("appended")) as bridge:  # type: ignore[arg-type]
        assert not bridge.exactly_once
        with pytest.raises(Died):
            bridge.step(timeout_s=20)
    with ps.bridge(queue, topic, batch=4) as bridge:
        while bridge.step(timeout_s=2):
            pass
    found = [row["id"] for row in topic.rows()]
    assert set(found) == set(range(10))
    assert len(found) > 10


def test_a_bridge_to_rabbitmq_that_dies_after_the_confirm_repeats_under_the_same_id(
    log: ps.Log, queue: ps.Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = log.create_topic("work", "id BIGINT")
    topic.append([{"id": number} for number in range(6)])
    bridge = ps.bridge(topic, queue, batch=3)
    with monkeypatch.context() as patched:
        patched.setattr(ps.AtomicProducer, "append", lambda *_, **__: (_ for _ in ()).throw(Died()))
        with pytest.raises(Died):
            bridge.step()
    bridge.close()
    with ps.bridge(topic, queue, batch=3) as bridge:
        bridge.run(once=True)
    deliveries = []
    while delivery := queue.get(timeout=2):
        deliveries.append((delivery.json()["id"], delivery.id))
        delivery.ack()
    assert sorted({number for number, _ in deliveries}) == list(range(6))
    assert len(deliveries) == 9
    assert len({id for _, id in deliveries}) == 6


def test_of_a_batch_that_has_no_room_what_was_stored_is_not_published_again(
    log: ps.Log, rabbitmq: RabbitMQ
) -> None:
    topic = log.create_topic("work", "id BIGINT")
    topic.append([{"id": number} for number in range(10)])
    with ps.open_queues(rabbitmq.url) as queues:
        queue = queues.queue(f"work-{uuid.uuid4().hex}", max_length=4, max_priority=1)
        found, deadline = [], time.monotonic() + 60
        with ps.bridge(topic, queue) as bridge:
            while bridge.moved < 10 and time.monotonic() < deadline:
                try:
                    bridge.step()
                except ps.QueueFull as full:
                    assert f"{len(full.stored)} of" in full.message or not full.stored
                    found += [each.json()["id"] for each in _taken(queue)]
        found += [each.json()["id"] for each in _taken(queue)]
        queue.delete()
    assert sorted(found) == list(range(10))


def _taken(queue: ps.Queue) -> list[ps.Delivery]:
    found = queue.get_many(10)
    for delivery in found:
        delivery.ack()
    return found


def test_the_command_line_works_on_a_rabbitmq(home: Path, rabbitmq: RabbitMQ, queue: ps.Queue) -> None:
    cli = Command(home)
    at = ("--home", rabbitmq.url)
    assert cli("queue", "publish", queue.name, "--body", '{"id": 7}', *at).exit_code == 0
    (line,) = cli.lines(
        "queue", "get", queue.name, "--wait", "20 s", "--then", "reject", "--reason", "no", *at
    )
    assert json.loads(line["body"]) == {"id": 7}
    assert cli.json("queue", "show", queue.name, *at)["messages"]["dead"] == 1
    assert cli.json("queue", "redrive", queue.name, "--set", "id=8", *at)["redriven"] == 1
    cli("topic", "create", "done", "--schema", "id BIGINT")
    moved = cli.json("queue", "bridge", queue.name, "--to-topic", "done", "--queues", rabbitmq.url, "--once")
    assert (moved["moved"], moved["exactly_once"]) == (1, False)
    assert cli("queue", "list", *at).exit_code == 2
