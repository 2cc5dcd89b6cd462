"""Topics that Penstock has not made."""

from __future__ import annotations

from uuid import uuid4

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from penstock.kafka.address import Address
from penstock.kafka.cluster import State


def fresh(word: str) -> str:
    return f"{word}-{uuid4().hex[:8]}"


def by_another_program(kafka: State, *values: bytes | None, partitions: int = 1) -> str:
    """A topic that Penstock has never heard of, with these messages."""
    name, settings = fresh("foreign"), Address.parse(kafka.url).client()
    admin = AdminClient(settings)
    for made in admin.create_topics([NewTopic(name, partitions, 1)]).values():
        made.result(30)
    producer = Producer(settings)
    for value in values:
        producer.produce(name, value, b"key", partition=0)
    assert producer.flush(30) == 0
    return name
