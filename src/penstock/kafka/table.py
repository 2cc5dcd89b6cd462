"""A compacted topic of our own as a mapping: the newest value of each key, as far as it was read."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, TopicPartition

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

Counts = Callable[[bytes, bytes], bool]
"""Whether a value may follow another one of the same key; one that may not is left out."""


class Table:
    """Thread-safe. Made by whoever comes first."""

    def __init__(
        self, clients: Clients, topic: str, *, partitions: int, counts: Counts | None = None
    ) -> None:
        self.topic, self.partitions = topic, partitions
        self.void: set[str] = set()  # keys whose newest value does not count
        self._counts = counts
        self._clients = clients
        self._mutex = threading.RLock()
        self._found: dict[str, bytes] = {}
        self._next: dict[int, int] = {}
        if not self._is_there():
            self._create()
        self._consumer: Consumer = clients.consumer()
        self._assign()

    def partition_of(self, key: str) -> int:
        return (keys.murmur2(key.encode()) & 0x7FFFFFFF) % self.partitions

    def known(self) -> Mapping[str, bytes]:
        """What has come in by now, without asking."""
        with self._mutex, self._translating():
            self._take_in(0.0)
            return self._found

    def read(self, key: str | None = None, *, until: Mapping[int, int] | None = None) -> Mapping[str, bytes]:
        """Everything that is visible now, in the partition of `key` or in all of them; or up to `until`."""
        numbers = range(self.partitions) if key is None else [self.partition_of(key)]
        with self._mutex, self._translating():
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
        written = self._clients.latest([(self.topic, number)], committed=False)[self.topic, number]
        deadline = time.monotonic() + ANSWER_S
        with self._translating():
            while self._clients.ends(self._consumer, self.topic, number)[1] < written:
                if time.monotonic() > deadline:
                    raise Contended(
                        "a transaction of another producer is still open.",
                        hint="it ends by itself within two minutes; try again then. If it does not: "
                        "docs/KAFKA.md, When brokers are away",
                    )
                time.sleep(_PAUSE_S)
        return self.read(key)

    def close(self) -> None:
        with self._mutex:
            self._consumer.close()

    def _translating(self) -> AbstractContextManager[None]:
        return self._clients.translating(f'topic "{self.topic}"')

    def _take_in(self, timeout_s: float) -> None:
        first = self._consumer.poll(timeout_s)
        if first is None:
            return
        failed: KafkaError | None = None
        for message in [first, *self._consumer.consume(_MANY, timeout=0)]:
            error = message.error()
            if error is None:
                self._keep(message)
            elif error.code() == KafkaError._PARTITION_EOF:
                number = message.partition() or 0
                self._next[number] = max(self._next[number], message.offset() or 0)
            elif error.code() not in _PASSING:
                failed = error
        if failed is not None:  # once everything that came with it is kept: it does not come again
            self._assign()
            raise KafkaException(failed)

    def _keep(self, message: Message) -> None:
        self._next[message.partition() or 0] = (message.offset() or 0) + 1
        key, value = (message.key() or b"").decode(), message.value()
        before = self._found.get(key)
        if value and before and self._counts and not self._counts(before, value):
            self.void.add(key)
            return
        self.void.discard(key)
        if value is None:
            self._found.pop(key, None)
        else:
            self._found[key] = value

    def _assign(self) -> None:
        """From what is known on; again after an error, which may have stopped a partition for good."""
        places = [TopicPartition(self.topic, n, next or OFFSET_BEGINNING) for n, next in self._next.items()]
        self._consumer.assign(places)

    def _create(self) -> None:
        from confluent_kafka.admin import NewTopic

        wanted = NewTopic(self.topic, self.partitions, -1, config=_CONFIG)
        (made,) = self._clients.admin.create_topics([wanted]).values()
        with self._translating():
            try:
                made.result(ANSWER_S)
            except KafkaException as failure:
                if failure.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                    raise
        deadline = time.monotonic() + ANSWER_S
        while not self._is_there():
            if time.monotonic() > deadline:
                raise Contended(f'topic "{self.topic}" did not come to be in time.', hint="try again")
            time.sleep(_PAUSE_S)

    def _is_there(self) -> bool:
        """With a leader for each partition; as many as it has."""
        with self._clients.translating():
            found = self._clients.admin.list_topics(self.topic, timeout=ANSWER_S).topics[self.topic]
        self.partitions = len(found.partitions) or self.partitions
        self._next = dict.fromkeys(range(self.partitions), 0)
        leaders = [each.leader >= 0 for each in found.partitions.values()]
        return found.error is None and bool(leaders) and all(leaders)


_PASSING = {
    KafkaError._TRANSPORT,
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError.GROUP_AUTHORIZATION_FAILED,  # see reading.py
}
