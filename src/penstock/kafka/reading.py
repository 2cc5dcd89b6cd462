"""Reading topics by offset, by time, and waiting for more."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping

import pyarrow as pa
from confluent_kafka import OFFSET_END, KafkaError, KafkaException, Message, TopicPartition

from penstock.errors import BadOption, OffsetOutOfRange
from penstock.kafka.clients import ANSWER_S, Clients
from penstock.kafka.records import Codec, Poison
from penstock.log.settings import TopicSettings

_MANY = 10_000
_LOOK_S = 0.5

Ruined = Callable[[TopicSettings, list[Poison]], None]
"""Told of messages that are no records."""


class Reading:
    """Thread-safe."""

    def __init__(self, clients: Clients, codec: Codec, ruined: Ruined) -> None:
        self._clients = clients
        self._codec = codec
        self._ruined = ruined

    def bounds(self, settings: TopicSettings, partition: int) -> tuple[int, int]:
        _check(settings, partition)
        with self._clients.reader(settings.name) as consumer:
            return self._clients.ends(consumer, settings.name, partition)

    def read(
        self, settings: TopicSettings, partition: int, offset: int, until: int | None
    ) -> Iterator[pa.RecordBatch]:
        start, end = self.bounds(settings, partition)
        # Whoever names an end has seen it: that it is not there any more must not look like fewer records.
        beside = until if until is not None and until > end else offset
        if not start <= beside <= end:
            raise OffsetOutOfRange(settings.name, partition, beside, start=start, end=end)
        end = end if until is None else until
        if offset >= end:
            return
        with self._clients.reader(settings.name) as consumer:
            consumer.assign([TopicPartition(settings.name, partition, offset)])
            deadline = time.monotonic() + ANSWER_S
            while offset < end:
                messages, reached = _some(consumer)
                if reached is None and not messages:
                    if time.monotonic() > deadline:
                        raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
                    continue
                deadline = time.monotonic() + ANSWER_S
                offset = max(offset, reached or 0, *((m.offset() or 0) + 1 for m in messages))
                wanted = [message for message in messages if (message.offset() or 0) < end]
                if wanted:
                    yield from self._records(settings, wanted)

    def _records(self, settings: TopicSettings, messages: list[Message]) -> Iterator[pa.RecordBatch]:
        poison: list[Poison] = []
        batch = self._codec.incoming(settings, messages, poison)
        if poison:
            self._ruined(settings, poison)
        if batch is not None:
            yield batch

    def offset_at(self, settings: TopicSettings, partition: int, time_us: int) -> int:
        _, end = self.bounds(settings, partition)
        wanted = TopicPartition(settings.name, partition, max(0, -(-time_us // 1_000)))
        with self._clients.reader(settings.name) as consumer:
            (found,) = consumer.offsets_for_times([wanted], timeout=ANSWER_S)
        if found.error is not None:
            raise self._clients.translated(found.error)
        return end if found.offset in (OFFSET_END, -1) else min(found.offset, end)

    def wait(self, settings: TopicSettings, ends: Mapping[int, int], timeout_s: float) -> bool:
        """Woken by the first message at or after `ends`."""
        deadline = time.monotonic() + timeout_s
        if not ends:
            time.sleep(timeout_s)
            return False
        with self._clients.reader(settings.name) as consumer:
            places = [TopicPartition(settings.name, number, end) for number, end in ends.items()]
            consumer.list_topics(settings.name, timeout=ANSWER_S)  # or its first fetch waits for a second
            consumer.assign(places)
            while (left := deadline - time.monotonic()) > 0:
                message = consumer.poll(min(left, _LOOK_S))
                if message is not None and message.error() is None:
                    return True
        return False


def _some(consumer: object) -> tuple[list[Message], int | None]:
    """What has come in, and how far the end is if it was reached."""
    first = consumer.poll(_LOOK_S)  # type: ignore[attr-defined]
    if first is None:
        return [], None
    messages: list[Message] = []
    reached: int | None = None
    for message in [first, *consumer.consume(_MANY, timeout=0)]:  # type: ignore[attr-defined]
        error = message.error()
        if error is None:
            messages.append(message)
        elif error.code() == KafkaError._PARTITION_EOF:
            reached = message.offset()
        elif not error.retriable() and error.code() not in _PASSING:
            raise KafkaException(error)
    return messages, reached


_PASSING = {
    KafkaError._TRANSPORT,
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.GROUP_AUTHORIZATION_FAILED,  # librdkafka asks for a group that reading by offset does not need
}


def _check(settings: TopicSettings, partition: int) -> None:
    if not 0 <= partition < settings.partitions:
        raise BadOption(
            f'topic "{settings.name}" has no partition {partition}.',
            hint=f"choose 0 to {settings.partitions - 1}",
        )
