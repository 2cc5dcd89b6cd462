"""Another program: confluent-kafka and fastavro, and nothing of ours."""

from __future__ import annotations

import io
import json
import time
from typing import Any
from uuid import uuid4

import fastavro
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from tests.kafka.registry import Running

from penstock.kafka.address import Address
from penstock.kafka.cluster import State


def fresh(word: str) -> str:
    return f"{word}-{uuid4().hex[:8]}"


class Elsewhere:
    def __init__(self, kafka: State, registry: Running) -> None:
        self.registry = registry
        self.settings = Address.parse(kafka.url).client()

    def topic(self, name: str) -> str:
        admin = AdminClient(self.settings)  # which must live until it has its answer
        for made in admin.create_topics([NewTopic(name, 1, 1)]).values():
            made.result(30)
        return name

    def write(self, topic: str, schema: Any, *rows: Any) -> int:
        """Under the schema, which is registered; returns its number."""
        number = self.registry.register(f"{topic}-value", schema)
        self.send(topic, *(self.encoded(number, schema, row) for row in rows))
        return number

    def encoded(self, number: int, schema: Any, row: Any) -> bytes:
        out = io.BytesIO()
        fastavro.schemaless_writer(out, fastavro.parse_schema(schema), row)
        return b"\x00" + number.to_bytes(4, "big") + out.getvalue()

    def send(self, topic: str, *values: bytes | None) -> None:
        producer = Producer(self.settings)
        for value in values:
            producer.produce(topic, value, b"key", partition=0)
        assert producer.flush(30) == 0

    def values(self, topic: str, count: int) -> list[tuple[bytes | None, bytes | None]]:
        consumer = Consumer({**self.settings, "group.id": fresh("cli")})
        consumer.assign([TopicPartition(topic, 0, 0)])
        deadline = time.monotonic() + 30
        found: list[tuple[bytes | None, bytes | None]] = []
        while len(found) < count and time.monotonic() < deadline:
            message = consumer.poll(0.5)
            if message is not None and message.error() is None:
                found.append((message.key(), message.value()))
        consumer.close()
        return found

    def rows(self, topic: str, count: int, reader: Any = None) -> list[Any]:
        """As records; `reader`: the schema that the program was built with."""
        return [self.decoded(value, reader) for _, value in self.values(topic, count)]

    def decoded(self, value: bytes | None, reader: Any) -> Any:
        assert value is not None
        assert value[0] == 0
        number = int.from_bytes(value[1:5], "big")
        writer = json.loads(self.registry.ask("GET", f"/schemas/ids/{number}")["schema"])
        return fastavro.schemaless_reader(io.BytesIO(value[5:]), writer, reader)


def record(*fields: Any, name: str = "Order") -> dict[str, Any]:
    columns = [{"name": column, "type": kind} for column, kind in fields]
    return {"type": "record", "name": name, "namespace": "com.example", "fields": columns}
