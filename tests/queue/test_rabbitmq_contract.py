"""Queues on a real RabbitMQ keep the contract."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from tests.servers import RabbitMQ

from penstock.queue.queues import Queues
from penstock.queue.rabbit_topology import arguments_of, dead_arguments
from penstock.queue.rabbitmq import RabbitQueues
from penstock.queue.settings import QueueSettings
from penstock.testing.queue_contract import QueueContract


class TestQueuesOnRabbitMQ(QueueContract):
    patience_s = 60.0

    @pytest.fixture
    def queues(self, rabbitmq: RabbitMQ) -> Iterator[Queues]:
        self._url = rabbitmq.url
        with Queues(RabbitQueues(rabbitmq.url)) as opened:
            yield opened

    def reopen(self, queues: Queues) -> Queues:
        return Queues(RabbitQueues(self._url))

    def crash(self, queues: Queues) -> None:
        assert isinstance(queues.port, RabbitQueues)
        queues.port.abandon()

    def pass_time(self, queues: Queues, seconds: float) -> None:
        time.sleep(seconds)  # the broker has a clock of its own


def test_every_quorum_queue_that_is_read_says_how_often_a_message_may_be_delivered() -> None:
    """For a RabbitMQ 4 that is 20 otherwise, and what was delivered more often is gone."""
    for_ever, five = QueueSettings("jobs", max_attempts=None), QueueSettings("jobs", max_attempts=5)
    assert arguments_of(five)["x-delivery-limit"] == 4
    for arguments in (arguments_of(for_ever), dead_arguments()):
        assert arguments["x-delivery-limit"] > 1_000_000
