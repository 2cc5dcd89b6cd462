"""Appending: one idempotent producer for all threads, which waits for every acknowledgement."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from penstock.errors import PenstockError
from penstock.kafka.clients import ANSWER_S, Clients
from penstock.kafka.records import APPENDED, Codec, Outgoing
from penstock.kafka.refusals import error_of
from penstock.log.port import Parts
from penstock.log.settings import TopicSettings

_SERVE_S = 0.1
_FULL_S = 0.05

Ranges = dict[int, tuple[int, int]]


class Delivery:
    """What became of the messages of one append."""

    def __init__(self) -> None:
        self.ranges: dict[str, Ranges] = {}
        self.error: KafkaError | None = None
        self.all_sent = threading.Event()
        self._left = 1  # one more than there are, until all are handed over
        self._mutex = threading.Lock()

    def expect(self) -> None:
        with self._mutex:
            self._left += 1

    def __call__(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.error = self.error or error
        else:
            topic, number, offset = message.topic() or "", message.partition() or 0, message.offset() or 0
            known = self.ranges.setdefault(topic, {})
            first, end = known.get(number, (offset, offset + 1))
            known[number] = (min(first, offset), max(end, offset + 1))
        self.finish()

    def finish(self) -> None:
        with self._mutex:
            self._left -= 1
            if not self._left:
                self.all_sent.set()


def hand_over(producer: Producer, topic: str, number: int, message: Outgoing, delivery: Delivery) -> None:
    """Waits where its queue is full."""
    delivery.expect()
    deadline = time.monotonic() + ANSWER_S
    while True:
        try:
            _produce(producer, topic, number, message, delivery)
            return
        except BufferError:
            producer.poll(_FULL_S)
        except KafkaException as failure:
            if error_of(failure).code() != KafkaError._UNKNOWN_PARTITION or time.monotonic() > deadline:
                delivery.finish()
                raise
            producer.list_topics(topic, timeout=ANSWER_S)  # it was added a moment ago


def _produce(producer: Producer, topic: str, number: int, message: Outgoing, delivery: Delivery) -> None:
    if message.appended_us is None:
        producer.produce(
            topic, message.value, message.key, number, on_delivery=delivery, headers=message.headers
        )
        return
    headers = [*(message.headers or ()), (APPENDED, str(message.appended_us))]
    producer.produce(
        topic, message.value, message.key, number, on_delivery=delivery, headers=headers,
        timestamp=message.appended_us // 1_000,
    )  # fmt: skip


def messages_of(codec: Codec, settings: TopicSettings, parts: Parts) -> Iterator[tuple[int, Outgoing]]:
    for number, batches in parts.items():
        for batch in batches:
            for message in codec.outgoing(settings, batch):
                yield number, message


class Writing:
    """Thread-safe."""

    def __init__(self, clients: Clients, codec: Codec) -> None:
        self._clients = clients
        self._codec = codec
        self._producer = clients.producer()
        self._closing = threading.Event()
        self._server = threading.Thread(target=self._serve, name="penstock-kafka-acks", daemon=True)
        self._server.start()

    def append(self, settings: TopicSettings, parts: Parts) -> Ranges:
        """Raises what stopped it, which says what is stored."""
        return self.send(settings.name, messages_of(self._codec, settings, parts))

    def send(self, topic: str, messages: Iterator[tuple[int, Outgoing]]) -> Ranges:
        delivery = Delivery()
        try:
            with self._clients.translating(f'topic "{topic}"'):
                for number, message in messages:
                    hand_over(self._producer, topic, number, message, delivery)
        except PenstockError as error:
            self._producer.flush(ANSWER_S)
            raise error.after_storing(delivery.ranges.get(topic, {})) from error.__cause__
        delivery.finish()
        delivery.all_sent.wait(ANSWER_S * 2)  # the producer gives up before that
        stored = delivery.ranges.get(topic, {})
        if delivery.error is not None or not delivery.all_sent.is_set():
            raise self._failed(topic, delivery.error, stored)
        return stored

    def _failed(
        self, topic: str, error: KafkaError | None, stored: Mapping[int, tuple[int, int]]
    ) -> PenstockError:
        known = error or KafkaError(KafkaError._TIMED_OUT)
        return self._clients.translated(known, f'topic "{topic}"').after_storing(stored)

    def _serve(self) -> None:
        while not self._closing.is_set():
            self._producer.poll(_SERVE_S)

    def close(self) -> None:
        self._producer.flush(ANSWER_S)
        self._closing.set()
        self._server.join()
        self._producer.close()
