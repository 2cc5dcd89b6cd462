"""A compacted topic of our own as a mapping: the newest value of each key, as far as it was read."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition

from penstock.errors import Contended
from penstock.kafka.clients import ANSWER_S, Clients
from penstock.log import keys

_CONFIG = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0.1",
    "segment.ms": "600000",
    "delete.retention.ms": "86400000",
}
_PAUSE_S = 0.005
_LOOK_S = 0.2
_MANY = 10_000


class Table:
    """Thread-safe. Made by whoever comes first."""

    def __init__(self, clients: Clients, topic: str, *, partitions: int) -> None:
        self.topic, self.partitions = topic, partitions
        self._clients = clients
        self._mutex = threading.RLock()
        self._found: dict[str, bytes] = {}
        self._next = dict.fromkeys(range(partitions), 0)
        self._create()
        self._consumer: Consumer = clients.consumer()
        places = [TopicPartition(topic, number, OFFSET_BEGINNING) for number in range(self.partitions)]
        self._consumer.assign(places)

    def partition_of(self, key: str) -> int:
        return (keys.murmur2(key.encode()) & 0x7FFFFFFF) % self.partitions

    def known(self) -> Mapping[str, bytes]:
        """What has come in by now, without asking."""
        with self._mutex, self._clients.translating():
            self._take_in(0.0)
            return self._found

    def read(self, key: str | None = None, *, until: Mapping[int, int] | None = None) -> Mapping[str, bytes]:
        """Everything that is visible now, in the partition of `key` or in all of them; or up to `until`."""
        numbers = range(self.partitions) if key is None else [self.partition_of(key)]
        with self._mutex, self._clients.translating():
            if until is None:
                until = {n: self._clients.ends(self._consumer, self.topic, n)[1] for n in numbers}
            deadline = time.monotonic() + ANSWER_S
            while any(self._next[number] < end for number, end in until.items()):
                if time.monotonic() > deadline:
                    raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
                self._take_in(_LOOK_S)
            return self._found

    def settled(self, key: str) -> Mapping[str, bytes]:
        """What was written before this call, committed or ended: waits for transactions under way."""
        number = self.partition_of(key)
        written = self._written(number)
        deadline = time.monotonic() + ANSWER_S
        with self._clients.translating():
            while self._clients.ends(self._consumer, self.topic, number)[1] < written:
                if time.monotonic() > deadline:
                    raise Contended(
                        "a transaction of another producer is still open.",
                        hint="it ends by itself within a minute; try again then",
                    )
                time.sleep(_PAUSE_S)
        return self.read(key)

    def close(self) -> None:
        with self._mutex:
            self._consumer.close()

    def _written(self, number: int) -> int:
        """The end of a partition, transactions under way included."""
        from confluent_kafka import IsolationLevel
        from confluent_kafka.admin import OffsetSpec

        place = TopicPartition(self.topic, number)
        newest: Any = OffsetSpec
        asked = self._clients.admin.list_offsets(
            {place: newest.latest()}, isolation_level=IsolationLevel.READ_UNCOMMITTED
        )
        (found,) = self._clients.done(asked).values()
        return int(found.offset)

    def _take_in(self, timeout_s: float) -> None:
        first = self._consumer.poll(timeout_s)
        if first is None:
            return
        for message in [first, *self._consumer.consume(_MANY, timeout=0)]:
            number, offset = message.partition() or 0, message.offset() or 0
            error = message.error()
            if error is not None:
                if error.code() == KafkaError._PARTITION_EOF:
                    self._next[number] = max(self._next[number], offset)
                elif error.code() not in _PASSING:
                    raise KafkaException(error)
                continue
            self._next[number] = offset + 1
            key, value = (message.key() or b"").decode(), message.value()
            if value is None:
                self._found.pop(key, None)
            else:
                self._found[key] = value

    def _create(self) -> None:
        from confluent_kafka.admin import NewTopic

        wanted = NewTopic(self.topic, self.partitions, -1, config=_CONFIG)
        (made,) = self._clients.admin.create_topics([wanted]).values()
        with self._clients.translating():
            try:
                made.result(ANSWER_S)
            except KafkaException as failure:
                if failure.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                    raise
        self._await()

    def _await(self) -> None:
        """Until its partitions have leaders."""
        deadline = time.monotonic() + ANSWER_S
        while True:
            with self._clients.translating():
                found = self._clients.admin.list_topics(self.topic, timeout=ANSWER_S).topics[self.topic]
            if found.error is None and found.partitions:
                if len(found.partitions) != self.partitions:
                    self.partitions = len(found.partitions)
                    self._next = dict.fromkeys(range(self.partitions), 0)
                if all(each.leader >= 0 for each in found.partitions.values()):
                    return
            if time.monotonic() > deadline:
                raise Contended(f'topic "{self.topic}" did not come to be in time.', hint="try again")
            time.sleep(_PAUSE_S)


_PASSING = {KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError.UNKNOWN_TOPIC_OR_PART}
