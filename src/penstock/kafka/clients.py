"""Clients of one cluster: made here, so that all of them are told the same and heard by the same ear."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from penstock.errors import NotAllowed, PenstockError
from penstock.kafka.address import Address
from penstock.kafka.refusals import Heard, error_of

ANSWER_S = 30.0
"""How long a cluster may take for anything."""

_FIRST_ANSWER_S = 10.0
_KEPT_MAX = 8
_PAUSE_S = 0.01
_LOOK_S = 1.0
_NOT_YET = {
    KafkaError._UNKNOWN_PARTITION,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.REPLICA_NOT_AVAILABLE,
    KafkaError.OFFSET_NOT_AVAILABLE,  # who leads it now is not sure yet how far it is
    KafkaError._DESTROY_BROKER,  # it is gone, and another leads what it led
    KafkaError._TRANSPORT,
}
_LOGGER = logging.getLogger("penstock.kafka")
_LOGGER.addHandler(logging.NullHandler())  # what matters comes as errors


class Clients:
    """Thread-safe."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.heard = Heard()
        self._mutex = threading.Lock()
        self._free: list[Consumer] = []
        self._admin: AdminClient | None = None
        self._closed = False

    def check(self) -> None:
        """Whether anybody answers. Raises Unreachable or NotAllowed, soon."""
        deadline = time.monotonic() + _FIRST_ANSWER_S
        while True:
            try:
                self.admin.list_topics(timeout=_LOOK_S)
                return
            except KafkaException as failure:
                error = self.translated(error_of(failure))
                if isinstance(error, NotAllowed) or time.monotonic() > deadline:
                    raise error from failure
            time.sleep(_PAUSE_S)

    @property
    def admin(self) -> AdminClient:
        with self._mutex:
            if self._admin is None:
                with self.translating():
                    self._admin = AdminClient(self._settings())
            return self._admin

    def producer(self, **settings: Any) -> Producer:
        with self.translating():
            return Producer(
                self._settings(
                    acks="all",
                    enable_idempotence=True,
                    linger_ms=0,
                    delivery_timeout_ms=int(ANSWER_S * 1_000),
                    queue_buffering_max_messages=1_000_000,
                    queue_buffering_max_kbytes=512 << 10,
                    message_max_bytes=64 << 20,
                    **settings,
                )
            )

    def consumer(self, **settings: Any) -> Consumer:
        with self.translating():
            return Consumer(
                self._settings(
                    **{
                        "group_id": "penstock-reader",
                        "isolation_level": "read_committed",
                        "enable_auto_commit": False,
                        "auto_offset_reset": "error",
                        "enable_partition_eof": True,
                        "fetch_wait_max_ms": 100,
                        "fetch_message_max_bytes": 8 << 20,
                        "queued_max_messages_kbytes": 64 << 10,
                        "fetch_queue_backoff_ms": 10,  # by default it sleeps a second when far ahead
                        **settings,
                    }
                )
            )

    @contextlib.contextmanager
    def reader(self, topic: str = "") -> Iterator[Consumer]:
        """A consumer to read with, kept for the next reader: one costs a connection and threads."""
        with self._mutex:
            consumer = self._free.pop() if self._free else None
        consumer = consumer or self.consumer()
        whole = False
        try:
            with self.translating(f'topic "{topic}"' if topic else ""):
                yield consumer
            whole = True
        except GeneratorExit:
            whole = True
            raise
        finally:
            self._give_back(consumer, whole=whole)

    def _give_back(self, consumer: Consumer, *, whole: bool) -> None:
        if whole:
            consumer.unassign()
            with self._mutex:
                if len(self._free) < _KEPT_MAX and not self._closed:
                    self._free.append(consumer)
                    return
        consumer.close()

    def ends(self, consumer: Consumer, topic: str, partition: int) -> tuple[int, int]:
        """The first offset held, and one past the last visible one."""
        place, deadline = TopicPartition(topic, partition), time.monotonic() + ANSWER_S
        asked_again = False
        while True:
            try:
                if asked_again:
                    consumer.list_topics(topic, timeout=ANSWER_S)  # it was added a moment ago, or has moved
                found = consumer.get_watermark_offsets(place, timeout=ANSWER_S)
            except KafkaException as failure:
                if error_of(failure).code() not in _NOT_YET or time.monotonic() > deadline:
                    raise
                asked_again = True
                time.sleep(_PAUSE_S)
                continue
            if found is None:
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
            return int(found[0]), int(found[1])

    def latest(self, places: Iterable[tuple[str, int]], *, committed: bool) -> dict[tuple[str, int], int]:
        """One past the last record of each partition, or with `committed` past the last visible one.

        Without those that are not there.
        """
        from confluent_kafka import IsolationLevel
        from confluent_kafka.admin import OffsetSpec

        newest: Any = OffsetSpec
        level = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
        with self.translating():
            known = self.admin.list_topics(timeout=ANSWER_S).topics
        there = [(topic, n) for topic, n in places if topic in known and n in known[topic].partitions]
        wanted = {TopicPartition(*place): newest.latest() for place in there}
        asked = self.admin.list_offsets(wanted, isolation_level=level) if wanted else {}
        return {
            (place.topic, place.partition): int(found.offset) for place, found in self.done(asked).items()
        }

    def done(self, futures: Mapping[Any, Any]) -> dict[Any, Any]:
        """What an admin request gave, once it is there."""
        with self.translating():
            return {key: future.result(ANSWER_S) for key, future in futures.items()}

    @contextlib.contextmanager
    def translating(self, about: str = "") -> Iterator[None]:
        """`about`: what is asked for."""
        try:
            yield
        except KafkaException as failure:
            raise self.translated(error_of(failure), about) from failure
        except TimeoutError as failure:
            raise self.translated(KafkaError(KafkaError._TIMED_OUT), about) from failure

    def translated(self, error: KafkaError, about: str = "") -> PenstockError:
        admin = self._admin
        if admin is not None:  # it tells what its connections said only when it is asked
            with contextlib.suppress(RuntimeError):  # closed meanwhile
                admin.poll(0)
        return self.heard.translated(error, str(self.address), about=about)

    def close(self) -> None:
        """Nothing of librdkafka's is left to the garbage collector, which may run in a forked child."""
        with self._mutex:
            free, self._free, self._closed = self._free, [], True
            admin, self._admin = self._admin, None
        for consumer in free:
            consumer.close()
        if admin is not None:
            admin.__exit__(None, None, None)

    def _settings(self, **settings: Any) -> dict[str, Any]:
        return {**self.address.client(**settings), "error_cb": self.heard, "logger": _LOGGER}
