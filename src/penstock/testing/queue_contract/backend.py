"""What a backend's test class provides, and what all chapters of the contract share."""

from __future__ import annotations

import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import pytest

from penstock.queue.consumer import QueueConsumer
from penstock.queue.delivery import Delivery
from penstock.queue.queue import Queue
from penstock.queue.queues import Queues

T = TypeVar("T")
_PAUSE_S = 0.005


class Backend(ABC):
    """A test class has a fixture `queues`, which may hold queues of other tests. And these:"""

    patience_s: float = 30.0
    """How long what happens eventually may take: a redelivery, a dead letter."""

    moment_s: float = 0.3
    """A lease, a delay or a time to live that tests let pass."""

    @abstractmethod
    def reopen(self, queues: Queues) -> Queues:
        """Another client of the same queues, as another process would open them."""

    @abstractmethod
    def crash(self, queues: Queues) -> None:
        """End a client as `kill -9` would: without a word."""

    @abstractmethod
    def pass_time(self, queues: Queues, seconds: float) -> None:
        """Let so much time pass, by the clock that the backend goes by."""

    @pytest.fixture
    def other(self, queues: Queues) -> Iterator[Queues]:
        with self.reopen(queues) as opened:
            yield opened

    def until(self, condition: Callable[[], T]) -> T:
        """What `condition` returns as soon as that is true; fails when patience is over."""
        deadline = time.monotonic() + self.patience_s
        while not (found := condition()):
            assert time.monotonic() < deadline, f"not within {self.patience_s:g} s"
            time.sleep(_PAUSE_S)
        return found

    def next(self, consumer: QueueConsumer | Queue) -> Delivery:
        """The next delivery, which has to come."""
        found = self.until(lambda: consumer.get(timeout=1))
        assert found is not None
        return found

    def bodies(self, consumer: QueueConsumer | Queue, count: int) -> list[str]:
        """The texts of the next `count` messages, which are acked."""
        found = []
        for _ in range(count):
            delivery = self.next(consumer)
            found.append(delivery.text)
            delivery.ack()
        return found

    def is_empty(self, queue: Queue) -> bool:
        """Nothing waits now; a moment later is another question."""
        return queue.stats().ready == 0


def fresh(word: str) -> str:
    """A name that no other test has."""
    return f"{word}-{uuid.uuid4().hex[:8]}"


def new_queue(queues: Queues, **options: Any) -> Queue:
    return queues.queue(fresh("queue"), **options)
