"""Kafka keeps the log contract: a real broker, started for these tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from penstock.kafka.address import Address
from penstock.kafka.cluster import State
from penstock.kafka.log import KafkaLog
from penstock.kafka.membership import LEASE_S_MIN
from penstock.log.port import LogPort
from penstock.testing.log_contract import LogContract


@pytest.fixture(scope="module")
def shared(kafka: State) -> Iterator[KafkaLog]:
    """One client for all tests, as a program has."""
    port = KafkaLog(kafka.url)
    yield port
    port.close()


class TestKafkaLog(LogContract):
    lease_s = LEASE_S_MIN
    patience_s = 40.0

    @pytest.fixture
    def port(self, shared: KafkaLog) -> LogPort:
        return shared

    def reopen(self, port: LogPort) -> LogPort:
        assert isinstance(port, KafkaLog)
        return KafkaLog(port.url)

    def expire(self, port: LogPort, topic: str, partition: int) -> None:
        """As Kafka's retention does, without waiting for it."""
        assert isinstance(port, KafkaLog)
        _, end = port.bounds(topic, partition)
        admin = AdminClient(Address.parse(port.url).client())
        for asked in admin.delete_records([TopicPartition(topic, partition, end - 1)]).values():
            asked.result(30)
