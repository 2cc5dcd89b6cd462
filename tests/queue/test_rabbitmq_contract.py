"""Queues on a real RabbitMQ keep the contract."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from tests.servers import RabbitMQ

from penstock.queue.queues import Queues
from penstock.queue.rabbitmq import RabbitQueues
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
