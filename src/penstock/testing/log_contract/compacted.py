"""Compacted topics: the newest record of each key, and deletes."""

from __future__ import annotations

from datetime import date
from typing import Any

import pytest

from penstock.errors import BadOption, BadRecord, NotSupported
from penstock.log.log import Log
from penstock.log.topic import Topic
from penstock.testing.log_contract.backend import Backend, column, counted, fresh, numbers

_FRIDAY, _SATURDAY = date(2026, 11, 13), date(2026, 11, 14)


def _prices(log: Log, **options: Any) -> Topic:
    schema = "item STRING NOT NULL, price BIGINT NOT NULL"
    return log.create_topic(fresh("prices"), schema, key="item", cleanup="compact", **options)


class Compacted(Backend):
    def test_the_latest_record_of_each_key_is_the_state(self, log: Log) -> None:
        topic = _prices(log, partitions=2)
        topic.append([{"item": "a", "price": 1}, {"item": "b", "price": 2}, {"item": "a", "price": 3}])
        assert topic.latest() == {"a": {"item": "a", "price": 3}, "b": {"item": "b", "price": 2}}

    def test_a_deleted_key_is_not_in_the_state(self, log: Log) -> None:
        topic = _prices(log)
        topic.append([{"item": "a", "price": 1}, {"item": "b", "price": 2}])
        topic.delete({"item": "a"})
        assert set(topic.latest()) == {"b"}

    def test_a_key_can_come_back(self, log: Log) -> None:
        topic = _prices(log)
        topic.append({"item": "a", "price": 1})
        topic.delete({"item": "a"})
        topic.append({"item": "a", "price": 2})
        assert topic.latest() == {"a": {"item": "a", "price": 2}}

    def test_readers_see_a_delete_with_its_key(self, log: Log) -> None:
        topic = _prices(log)
        topic.append({"item": "a", "price": 1})
        position = topic.delete({"item": "a"})
        (event,) = topic.events(start=position.offset)
        assert event.deleted
        assert (event["item"], event["price"]) == ("a", None)

    def test_deletes_of_keys_of_several_columns_of_several_types(self, log: Log) -> None:
        schema, key = "day DATE, seat INT, guest STRING", ("day", "seat")
        topic = log.create_topic(fresh("seats"), schema, key=key, cleanup="compact", partitions=2)
        rows = [{"day": day, "seat": seat, "guest": "g"} for day in (_FRIDAY, _SATURDAY) for seat in (1, 2)]
        topic.append(rows)
        topic.delete({"day": _FRIDAY, "seat": 2})
        assert set(topic.latest()) == {(_FRIDAY, 1), (_SATURDAY, 1), (_SATURDAY, 2)}

    def test_a_deleted_null_is_not_the_same_as_a_record_of_nulls(self, log: Log) -> None:
        topic = log.create_topic(fresh("notes"), "id INT, note STRING", key="id", cleanup="compact")
        topic.append({"id": 1, "note": None})
        assert topic.latest() == {1: {"id": 1, "note": None}}

    def test_a_record_without_its_key_is_refused(self, log: Log) -> None:
        topic = log.create_topic(fresh("notes"), "id INT, note STRING", key="id", cleanup="compact")
        with pytest.raises(BadRecord):
            topic.append({"note": "whose?"})

    def test_a_topic_without_a_key_cannot_be_compacted(self, log: Log) -> None:
        with pytest.raises(BadOption):
            numbers(log, cleanup="compact")

    def test_a_topic_that_keeps_everything_has_no_deletes(self, log: Log) -> None:
        with pytest.raises(NotSupported):
            numbers(log, key="n").delete({"n": 1})

    def test_the_state_of_a_topic_without_a_key_is_not_known(self, log: Log) -> None:
        with pytest.raises(NotSupported):
            numbers(log).latest()

    def test_compaction_leaves_the_state_and_the_offsets_as_they_are(self, log: Log) -> None:
        topic = _prices(log, segment_bytes=1)
        seen = {}
        for n in range(30):
            position = topic.append({"item": f"i{n % 3}", "price": n})
            seen[position.offset] = n
        assert {key: row["price"] for key, row in topic.latest().items()} == {"i0": 27, "i1": 28, "i2": 29}
        left = {event.offset: event["price"] for event in topic.events()}
        assert left.items() <= seen.items()
        assert list(left) == sorted(left)

    def test_records_and_deletes_are_appended_atomically_with_a_position(self, log: Log) -> None:
        topic, producer = _prices(log), log.producer(fresh("job"))
        producer.append({topic: [{"item": "a", "price": 1}, {"item": "b", "price": 2}]}, position=b"1")
        self.until(lambda: set(topic.latest()) == {"a", "b"})
        topic.delete({"item": "a"})
        self.until(lambda: set(topic.latest()) == {"b"})

    def test_the_latest_record_is_known_of_topics_that_keep_everything_too(self, log: Log) -> None:
        topic = numbers(log, key="n", partitions=2)
        topic.append(counted(1, 2, 1))
        assert set(topic.latest()) == {1, 2}
        assert len(column(topic)) == 3
