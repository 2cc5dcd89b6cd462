"""Topics that a Debezium server fills, on a real Kafka, as a source."""

from __future__ import annotations

import json
import uuid
from decimal import Decimal
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from tests.capture.world import caught_up, ops, rows_in_log

import penstock as ps
from penstock.capture.source import Source
from penstock.errors import BadOption, RecordsLost
from penstock.kafka.cluster import State

_FIELDS: list[dict[str, Any]] = [
    {"type": "int32", "optional": False, "field": "id"},
    {
        "type": "bytes", "optional": True, "name": "org.apache.kafka.connect.data.Decimal",
        "parameters": {"scale": "2", "connect.decimal.precision": "10"}, "field": "amount",
    },
]  # fmt: skip
_VALUE = {
    "type": "struct",
    "fields": [
        {"type": "struct", "fields": _FIELDS, "optional": True, "field": "before"},
        {"type": "struct", "fields": _FIELDS, "optional": True, "field": "after"},
        {"type": "string", "field": "op"},
    ],
}
_KEY = {"type": "struct", "fields": _FIELDS[:1]}


class Server:
    """Writes as a Debezium server does, to topics of a prefix of its own."""

    def __init__(self, kafka: State) -> None:
        self.prefix = f"t{uuid.uuid4().hex[:8]}."
        there: dict[str, Any] = {"bootstrap.servers": kafka.url.removeprefix("kafka://")}
        self._admin, self._producer = AdminClient(there), Producer(there)

    def topic(self, name: str, *, partitions: int = 1) -> str:
        made = self._admin.create_topics([NewTopic(f"{self.prefix}{name}", partitions)])
        for future in made.values():
            future.result(30)
        return f"{self.prefix}{name}"

    def write(self, topic: str, key: Any, value: Any, partition: int = 0) -> None:
        told = None if value is None else json.dumps(value).encode()
        self._producer.produce(topic, told, json.dumps(key).encode(), partition)

    def whole(self, topic: str, key: int, op: str, amount: str | None, partition: int = 0) -> None:
        """With its schemas, as by default; a delete with its tombstone."""
        row = None if amount is None else {"id": key, "amount": amount}
        told = {"before": {"id": key, "amount": None} if op == "d" else None, "after": row, "op": op}
        payload = {**told, "source": {"connector": "mysql", "ts_ms": 1_769_860_800_000}, "transaction": None}
        wrapped = {"schema": _KEY, "payload": {"id": key}}
        self.write(topic, wrapped, {"schema": _VALUE, "payload": payload}, partition)
        if op == "d":
            self.write(topic, wrapped, None, partition)

    def flush(self) -> None:
        assert self._producer.flush(30) == 0


@pytest.fixture
def server(kafka: State) -> Server:
    return Server(kafka)


def source(kafka: State, **options: Any) -> Source:
    return ps.capture.debezium_topics(kafka.url, **options).open("shop")


def test_topics_become_tables_and_go_on_where_they_were(log: ps.Log, kafka: State, server: Server) -> None:
    orders = server.topic("public.orders", partitions=2)
    for key in range(10):
        server.whole(orders, key, "r", "BNI=", key % 2)
    server.flush()
    caught_up(log, "shop", source(kafka, prefix=server.prefix))
    assert rows_in_log(log, "shop.orders") == [(key, Decimal("12.34")) for key in range(10)]

    server.whole(orders, 3, "u", "AA==", 1)
    server.whole(orders, 4, "d", None)
    server.whole(server.topic("sales.lines"), 1, "c", "AA==")
    server.flush()
    for _ in range(2):  # the second time there is nothing new
        caught_up(log, "shop", source(kafka, prefix=server.prefix))
    rows = dict(rows_in_log(log, "shop.orders"))
    assert (rows[3], 4 in rows, len(rows)) == (Decimal("0.00"), False, 9)
    assert sorted(ops(log, "shop.orders")) == ["d", *["r"] * 10, "u"]
    places = [row["position"] for row in log.topic("shop.orders.changes").rows()]
    assert len(set(places)) == len(places)
    assert rows_in_log(log, "shop.sales.lines") == [(1, Decimal("0.00"))]


def test_messages_without_schemas_are_read_by_the_columns_given(
    log: ps.Log, kafka: State, server: Server
) -> None:
    users, flat = server.topic("users"), server.topic("flat")
    columns = {"users": "id BIGINT NOT NULL, at TIMESTAMP", "flat": "id BIGINT NOT NULL, name STRING"}
    after = {"id": 1, "at": "2026-01-31T12:00:00Z"}
    server.write(users, {"id": 1}, {"op": "c", "before": None, "after": after, "source": {}})
    for key in (1, 2):
        server.write(flat, {"id": key}, {"id": key, "name": "x", "__op": "c"})
    server.write(flat, {"id": 1}, None)
    server.flush()
    with pytest.raises(BadOption, match="do not say what columns"):
        caught_up(log, "none", source(kafka, topics=[users]))
    caught_up(log, "shop", source(kafka, topics=[users], tables=columns))
    assert [row[1].isoformat() for row in rows_in_log(log, "shop.users")] == ["2026-01-31T12:00:00+00:00"]
    caught_up(log, "flat", source(kafka, topics=[flat], tables=columns, flat=True))
    assert rows_in_log(log, "flat.flat") == [(2, "x")]


def test_what_is_wrong_is_told(log: ps.Log, kafka: State, server: Server) -> None:
    orders = server.topic("public.orders")
    with pytest.raises(BadOption, match="one by one, or by a prefix"):
        source(kafka)
    with pytest.raises(BadOption, match="there is no topic"):
        caught_up(log, "shop", source(kafka, topics=[f"{orders}s"]))
    server.whole(orders, 1, "c", "AA==")
    server.flush()
    caught_up(log, "shop", source(kafka, topics=[orders]))
    for key in range(5):
        server.whole(orders, key, "c", "AA==")
    server.flush()
    _forget(server, orders, before=4)
    with pytest.raises(RecordsLost, match="3 records"):
        caught_up(log, "shop", source(kafka, topics=[orders]))


def _forget(server: Server, topic: str, *, before: int) -> None:
    from confluent_kafka import TopicPartition

    for future in server._admin.delete_records([TopicPartition(topic, 0, before)]).values():
        future.result(30)
