"""Where records go, in which order they stay, and what an append returns."""

from __future__ import annotations

import threading
from collections import Counter

import pyarrow as pa
import pytest

from penstock.errors import BadOption
from penstock.log.log import Log
from penstock.log.port import Position
from penstock.log.topic import Topic
from penstock.testing.log_contract.backend import Backend, column, counted, fresh, numbers

# From the tests of Kafka's own partitioner: what org.apache.kafka.common.utils.Utils.murmur2 returns.
_MURMUR2 = {
    "21": -973932308,
    "foobar": -790332482,
    "a-little-bit-long-string": -985981536,
    "a-little-bit-longer-string": -1486304829,
    "lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    "abc": 479470107,
}


def _between(topic: Topic, position: Position) -> list[int]:
    """What lies where an append says it put its records."""
    return [
        n
        for partition, end in position.ends.items()
        for n in column(topic, partition=partition, start=position.firsts[partition], end=end)
    ]


class Appends(Backend):
    def test_one_record_is_where_its_position_says(self, log: Log) -> None:
        topic = numbers(log, partitions=3)
        topic.append(counted(1, 2))
        position = topic.append({"n": 7})
        (event,) = topic.events(partition=position.partition, start=position.offset, end=position.offset + 1)
        assert event["n"] == 7
        assert position.ends[event.partition] > event.offset

    @pytest.mark.parametrize("form", ["rows", "iterator", "batch", "table"])
    def test_many_records_are_where_their_position_says(self, log: Log, form: str) -> None:
        topic = numbers(log, key="n", partitions=3)
        topic.append(counted(-1))
        rows = counted(*range(100))
        table = pa.table({"n": pa.array(range(100), pa.int64())})
        given = {"rows": rows, "iterator": iter(rows), "batch": table.to_batches()[0], "table": table}
        position = topic.append(given[form])
        assert position.topic == topic.name
        assert set(position.ends) == {0, 1, 2}
        assert sorted(_between(topic, position)) == list(range(100))

    def test_an_append_of_nothing_stores_nothing(self, log: Log) -> None:
        topic = numbers(log)
        assert topic.append([]).ends == {}
        assert column(topic) == []

    @pytest.mark.parametrize("partitions", [2, 7])
    def test_a_key_goes_to_the_partition_that_kafka_would_choose(self, log: Log, partitions: int) -> None:
        topic = log.create_topic(fresh("keyed"), "id STRING", key="id", partitions=partitions)
        topic.append([{"id": key} for key in _MURMUR2])
        found = {event["id"]: event.partition for event in topic.events()}
        assert found == {key: (hashed & 0x7FFFFFFF) % partitions for key, hashed in _MURMUR2.items()}

    def test_a_number_as_key_goes_where_its_text_goes(self, log: Log) -> None:
        topic = numbers(log, key="n", partitions=7)
        assert topic.append(counted(21)).partition == (_MURMUR2["21"] & 0x7FFFFFFF) % 7

    def test_bytes_as_key_go_where_kafka_would_put_them(self, log: Log) -> None:
        topic = log.create_topic(fresh("bytes"), partitions=7)
        assert topic.append({"key": b"foobar"}).partition == (_MURMUR2["foobar"] & 0x7FFFFFFF) % 7

    def test_a_record_goes_to_the_partition_asked_for(self, log: Log) -> None:
        topic = numbers(log, key="n", partitions=4)
        for partition in range(4):
            topic.append(counted(21), partition=partition)
        assert [event.partition for event in topic.events()] == [0, 1, 2, 3]

    def test_a_partition_that_is_not_there_is_refused(self, log: Log) -> None:
        topic = numbers(log, partitions=2)
        with pytest.raises(BadOption):
            topic.append(counted(1), partition=2)
        with pytest.raises(BadOption):
            topic.append(counted(1), partition=-1)

    def test_records_without_a_key_spread_evenly(self, log: Log) -> None:
        topic = numbers(log, partitions=4)
        for n in range(40):
            topic.append(counted(n))
        assert Counter(event.partition for event in topic.events()) == {0: 10, 1: 10, 2: 10, 3: 10}

    def test_a_large_append_without_a_key_spreads_evenly(self, log: Log) -> None:
        topic = numbers(log, partitions=4)
        topic.append(pa.table({"n": pa.array(range(40_000), pa.int64())}))
        assert Counter(event.partition for event in topic.events()) == dict.fromkeys(range(4), 10_000)

    def test_order_holds_within_a_partition(self, log: Log) -> None:
        topic = numbers(log)
        for first in range(0, 100, 10):
            topic.append(counted(*range(first, first + 10)))
        events = list(topic.events())
        assert [event["n"] for event in events] == list(range(100))
        offsets = [event.offset for event in events]
        assert offsets == sorted(set(offsets))

    def test_order_holds_within_a_key(self, log: Log) -> None:
        topic = log.create_topic(fresh("keyed"), "user STRING, n BIGINT", key="user", partitions=3)
        for n in range(20):
            topic.append([{"user": user, "n": n} for user in ("ann", "bob", "eve", "joe")])
        for user in ("ann", "bob", "eve", "joe"):
            assert [row["n"] for row in topic.rows() if row["user"] == user] == list(range(20))

    def test_clients_that_append_at_once_keep_each_their_order(self, log: Log, other: Log) -> None:
        topic = log.create_topic(fresh("shared"), "client STRING, n BIGINT")
        self.until(lambda: topic.name in other.topics())

        def append_all(client: str, handle: Topic) -> None:
            for n in range(0, 50, 2):
                handle.append([{"client": client, "n": n}, {"client": client, "n": n + 1}])

        handles = {"a": topic, "b": other.topic(topic.name)}
        threads = [threading.Thread(target=append_all, args=pair) for pair in handles.items()]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for client in handles:
            assert [row["n"] for row in topic.rows() if row["client"] == client] == list(range(50))

    def test_an_append_through_one_client_is_read_through_another(self, log: Log, other: Log) -> None:
        topic = numbers(log)
        topic.append(counted(1, 2, 3))
        self.until(lambda: topic.name in other.topics())
        assert column(other.topic(topic.name)) == [1, 2, 3]
