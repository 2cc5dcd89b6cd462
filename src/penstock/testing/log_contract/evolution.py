"""Schemas that change under records that stay."""

from __future__ import annotations

import pytest

from penstock.errors import IncompatibleSchema
from penstock.log.log import Log
from penstock.log.topic import Topic
from penstock.testing.log_contract.backend import Backend, fresh

_WIDER = "id BIGINT NOT NULL, price DOUBLE, note STRING"


def _orders(log: Log) -> Topic:
    return log.create_topic(fresh("orders"), "id INT NOT NULL, price FLOAT")


class Evolution(Backend):
    def test_old_records_are_read_under_the_new_schema(self, log: Log) -> None:
        topic = _orders(log)
        topic.append({"id": 1, "price": 1.5})
        log.alter_topic(topic.name, schema=_WIDER)
        topic.append({"id": 2**40, "price": 0.1, "note": "new"})
        assert list(topic.rows()) == [
            {"id": 1, "price": 1.5, "note": None},
            {"id": 2**40, "price": 0.1, "note": "new"},
        ]

    def test_a_column_that_moved_in_the_declaration_stays_where_it_was(self, log: Log) -> None:
        topic = _orders(log)
        altered = log.alter_topic(topic.name, schema="note STRING, price FLOAT, id INT NOT NULL")
        assert altered.schema.names == ("id", "price", "note")

    def test_another_client_reads_and_writes_under_the_new_schema(self, log: Log, other: Log) -> None:
        topic = _orders(log)
        topic.append({"id": 1, "price": 1.0})
        theirs = other.topic(topic.name)
        log.alter_topic(topic.name, schema=_WIDER)
        self.until(lambda: "note" in theirs.schema.names)
        theirs.append({"id": 2, "price": None, "note": "theirs"})
        assert [row["note"] for row in theirs.rows()] == [None, "theirs"]

    def test_a_client_that_has_not_heard_of_the_change_can_go_on_writing(self, log: Log, other: Log) -> None:
        topic = _orders(log)
        theirs = other.topic(topic.name)
        log.alter_topic(topic.name, schema=_WIDER)
        theirs.append({"id": 1, "price": 2.5})
        assert list(topic.rows()) == [{"id": 1, "price": 2.5, "note": None}]

    @pytest.mark.parametrize(
        ("schema", "wrong"),
        [
            ("id INT NOT NULL", "price"),
            ("id SMALLINT NOT NULL, price FLOAT", "id"),
            ("id STRING NOT NULL, price FLOAT", "id"),
            ("id INT NOT NULL, price FLOAT NOT NULL", "price"),
            ("id INT NOT NULL, price FLOAT, note STRING NOT NULL", "note"),
        ],
        ids=["removed", "narrower", "another-type", "no-more-nulls", "new-not-null"],
    )
    def test_a_change_that_would_lose_records_is_refused(self, log: Log, schema: str, wrong: str) -> None:
        topic = _orders(log)
        with pytest.raises(IncompatibleSchema) as refused:
            log.alter_topic(topic.name, schema=schema)
        assert refused.value.column == wrong
        assert topic.schema.ddl == "id INT NOT NULL, price FLOAT"
