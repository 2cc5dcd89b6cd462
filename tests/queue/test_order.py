"""What redelivery does to order, what a lost ack does, and what keeps order: on both backends."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.servers import RabbitMQ
from tests.waiting import wait_until

from penstock.queue.consumer import QueueConsumer
from penstock.queue.delivery import Delivery
from penstock.queue.embedded import EmbeddedQueues
from penstock.queue.queues import Queues
from penstock.queue.rabbitmq import RabbitQueues
from penstock.testing.queue_contract.backend import fresh

Opening = Callable[[], Queues]


@pytest.fixture(params=["file", "rabbitmq"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Opening]:
    """Opens the same queues again and again, each time as another process would."""
    all_opened: list[Queues] = []
    url = None
    if request.param == "rabbitmq":
        server: RabbitMQ = request.getfixturevalue("rabbitmq")
        url = server.url

    def again() -> Queues:
        all_opened.append(Queues(RabbitQueues(url) if url else EmbeddedQueues(tmp_path / "queues")))
        return all_opened[-1]

    yield again
    for queues in all_opened:
        queues.close()


def _next(consumer: QueueConsumer) -> Delivery:
    found: list[Delivery] = []

    def came() -> bool:
        delivery = consumer.get(timeout=1)
        found.extend([delivery] if delivery else [])
        return bool(found)

    wait_until(came, timeout_s=60, what="a delivery")
    return found[0]


def _die(queues: Queues) -> None:
    """As `kill -9` would."""
    assert isinstance(queues.port, EmbeddedQueues | RabbitQueues)
    queues.port.abandon()


def test_a_consumer_dies_holding_m3_and_m4_overtakes_it(opened: Opening) -> None:
    queues, doomed = opened(), opened()
    queue = queues.queue(fresh("orders"))
    queue.publish_many(["m1", "m2", "m3"])
    handled = []
    first = doomed.open_queue(queue.name).consume(prefetch=1)
    for _ in range(2):
        delivery = _next(first)
        handled.append(delivery.text)
        delivery.ack()
    assert _next(first).text == "m3"  # and it dies before it is done
    queue.publish("m4")
    with queue.consume(prefetch=1) as second:
        fourth = _next(second)
        _die(doomed)
        handled.append(fourth.text)
        fourth.ack()
        again = _next(second)
        handled.append(again.text)
        again.ack()
    assert (handled, again.redelivered) == (["m1", "m2", "m4", "m3"], True)


def test_a_lost_ack_is_a_duplicate(opened: Opening) -> None:
    queues, doomed = opened(), opened()
    queue = queues.queue(fresh("payments"))
    queue.publish("pay 5", id="payment-1")
    paid = []
    delivery = _next(doomed.open_queue(queue.name).consume())
    paid.append(delivery.id)  # the work is done, and its ack never leaves the process
    _die(doomed)
    with queue.consume() as consumer:
        again = _next(consumer)
        paid.append(again.id)
        again.ack()
    assert paid == ["payment-1", "payment-1"]  # so handlers go by the id
    assert again.redelivered


def test_one_active_consumer_keeps_order_through_the_death_of_another(opened: Opening) -> None:
    queues, doomed = opened(), opened()
    queue = queues.queue(fresh("orders"), single_active_consumer=True)
    queue.publish_many([f"m{n}" for n in range(1, 9)])
    handled = []
    first = doomed.open_queue(queue.name).consume(prefetch=1)
    for _ in range(2):
        delivery = _next(first)
        handled.append(delivery.text)
        delivery.ack()
    with queue.consume() as second:
        assert _next(first).text == "m3"
        assert second.get(timeout=0.2) is None  # m4 does not overtake it
        _die(doomed)
        while len(handled) < 8:
            delivery = _next(second)
            handled.append(delivery.text)
            delivery.ack()
    assert handled == [f"m{n}" for n in range(1, 9)]
