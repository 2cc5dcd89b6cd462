"""The compacted topics that are read as mappings: nothing in them is missed, whatever happens on the way."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import uuid4

import pytest
from confluent_kafka import Consumer, KafkaError, Message
from tests.waiting import wait_until

import penstock as ps
from penstock.kafka.address import Address
from penstock.kafka.clients import Clients
from penstock.kafka.cluster import State
from penstock.kafka.records import Codec, Outgoing
from penstock.kafka.table import Table
from penstock.kafka.writing import Writing


@pytest.fixture
def clients(kafka: State) -> Iterator[Clients]:
    made = Clients(Address.parse(kafka.url))
    yield made
    made.close()


class Failing:
    """A consumer whose first message is followed by an error, in the midst of others."""

    def __init__(self, real: Consumer) -> None:
        self._real = real
        self.errors = [KafkaError(KafkaError._AUTO_OFFSET_RESET)]

    def __getattr__(self, name: str) -> object:
        return getattr(self._real, name)

    def consume(self, many: int, *, timeout: float) -> list[Message]:
        found = self._real.consume(many, timeout=timeout)
        return [*(Message(partition=0, error=self.errors.pop()) for _ in self.errors[:]), *found]


def test_what_came_with_an_error_is_kept(clients: Clients) -> None:
    table = Table(clients, f"table-{uuid4().hex[:8]}", partitions=1)
    writing = Writing(clients, Codec())
    try:
        table.read()
        table._consumer = failing = Failing(table._consumer)  # type: ignore[assignment]
        entries = [(0, Outgoing(str(n).encode(), b"x")) for n in range(10)]
        writing.send(table.topic, iter(entries))

        def fails() -> bool:
            with pytest.raises(ps.PenstockError):
                table.read()
            return not failing.errors

        wait_until(fails, what="the error to be met")
        writing.send(table.topic, iter([(0, Outgoing(b"10", b"x"))]))
        assert sorted(map(int, table.read())) == list(range(11))
    finally:
        writing.close()
        table.close()
