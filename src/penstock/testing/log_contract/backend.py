"""What a backend's test class provides, and what all chapters of the contract share."""

from __future__ import annotations

import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import pytest

from penstock.log.consumer import Consumer
from penstock.log.log import Log
from penstock.log.port import LogPort
from penstock.log.topic import Topic

T = TypeVar("T")

_PAUSE_S = 0.005
_CALM_LEASE_S = 30.0  # for tests in which no lease should run out


class Backend(ABC):
    """A test class has a fixture `port`: a log, which may hold topics of other tests. And these:"""

    lease_s: float = 0.5
    """The shortest lease that the backend can keep."""

    patience_s: float = 10.0
    """How long what happens eventually may take: a takeover, a change seen by another client."""

    @abstractmethod
    def reopen(self, port: LogPort) -> LogPort:
        """A second client of the same log, as another process would open it.

        Closing it ends its group members as a crash would: without leaving.
        """

    @abstractmethod
    def expire(self, port: LogPort, topic: str, partition: int) -> None:
        """Make retention take at least the first record of a partition, but not the last one."""

    @pytest.fixture
    def log(self, port: LogPort) -> Log:
        return Log(port)

    @pytest.fixture
    def other(self, port: LogPort) -> Iterator[Log]:
        """Another client of the same log."""
        with Log(self.reopen(port)) as log:
            yield log

    def until(self, condition: Callable[[], T]) -> T:
        """What `condition` returns as soon as that is true; fails when patience is over."""
        deadline = time.monotonic() + self.patience_s
        while not (found := condition()):
            assert time.monotonic() < deadline, f"not within {self.patience_s:g} s"
            time.sleep(_PAUSE_S)
        return found


def fresh(word: str) -> str:
    """A name that no other test has."""
    return f"{word}-{uuid.uuid4().hex[:8]}"


def numbers(log: Log, **options: Any) -> Topic:
    """A new topic of plain numbers."""
    return log.create_topic(fresh("numbers"), "n BIGINT", **options)


def counted(*values: int) -> list[dict[str, int]]:
    return [{"n": value} for value in values]


def column(topic: Topic, name: str = "n", **where: Any) -> list[Any]:
    """That column of all records, partition after partition."""
    return [row[name] for row in topic.rows(**where)]


def member_of(topic: Topic, group: str, **options: Any) -> Consumer:
    return topic.consume(group=group, **{"lease": _CALM_LEASE_S, **options})
