"""From a queue into a topic: each message a record.

Exactly once where the queues keep positions (queues in a file): the numbers of the messages under way are the
position that is stored in the same atomic append as their records. Whoever starts next reads it and takes
those messages out of the queue, wherever they are by then, before it receives any. An older instance that is
still alive is fenced: it can append no more.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from penstock.errors import BadRecord, Fenced
from penstock.log.json_rows import from_json
from penstock.log.log import AtomicProducer
from penstock.log.topic import Topic
from penstock.queue.bridge import Watch, unwatched
from penstock.queue.delivery import Delivery
from penstock.queue.positions import PositionsPort, exact_port
from penstock.queue.queue import Queue
from penstock.schema import DEFAULT_DDL, RecordSchema

Decode = Callable[[Delivery], Any]


class QueueToTopic:
    """A consumer of the queue and the producer `id` of the log."""

    def __init__(
        self,
        queue: Queue,
        topic: Topic,
        *,
        id: str,
        batch: int,
        decode: Decode | None,
        watch: Watch = unwatched,
    ) -> None:
        self._queue, self._topic, self._batch, self._watch = queue, topic, batch, watch
        self._id, self._decode = id, decode or decoder_of(topic.schema)
        self._exact = exact_port(queue)
        self.exactly_once = self._exact is not None
        self._is_sure = True
        self._begin()

    def _begin(self) -> None:
        self._producer = AtomicProducer(self._topic.port, self._id)  # fences whoever was here before
        if self._exact is not None:
            self._recover(self._exact)
        self._consumer = self._queue.consume(prefetch=self._batch)

    def step(self, *, timeout_s: float) -> int:
        if not self._is_sure:
            self._consumer.close()
            self._begin()
        # After an error or an interrupt nobody knows what was appended: then as after a crash.
        self._is_sure = False
        try:
            moved = self._move(timeout_s)
        except Fenced:  # whoever has taken over is not to be driven out
            self._is_sure = True
            raise
        self._is_sure = True
        return moved

    def _move(self, timeout_s: float) -> int:
        deliveries = self._consumer.get_many(self._batch, timeout=timeout_s)
        if not deliveries:
            return 0
        self._watch("received")
        stored = self._store(deliveries)
        self._watch("appended")
        self._remove(stored)
        self._watch("removed")
        return len(stored)

    def close(self) -> None:
        self._consumer.close()
        self._producer.close()

    def _store(self, deliveries: Sequence[Delivery]) -> list[Delivery]:
        """Append them; those that are no record of the topic become dead letters."""
        left, rows = list[Delivery](), list[Any]()
        for delivery in deliveries:
            try:
                rows.append(self._decode(delivery))
                left.append(delivery)
            except BadRecord as error:
                delivery.reject(error.message)
        while left:
            try:
                self._producer.append({self._topic: rows}, position=self._position(left))
                return left
            except BadRecord as error:
                if error.row is None or not 0 <= error.row < len(left):
                    raise
                del rows[error.row]
                left.pop(error.row).reject(error.message)
        return left

    def _remove(self, deliveries: Sequence[Delivery]) -> None:
        if self._exact is None:
            self._consumer.ack(deliveries)
            return
        # Instead of an ack, which power loss could take back after the next append has replaced the position;
        # and it finds a message wherever it is, also where its lease has ended meanwhile.
        for delivery in deliveries:
            delivery.settle("acked")
        self._exact.remove(self._queue.name, [(each.sequence or 0, each.id) for each in deliveries])

    def _position(self, deliveries: Sequence[Delivery]) -> bytes | None:
        if self._exact is None:
            return None
        numbers = [[delivery.sequence, delivery.id] for delivery in deliveries]
        return json.dumps({"queues": self._exact.identity(), "messages": numbers}).encode()

    def _recover(self, exact: PositionsPort) -> None:
        """What the last instance has appended is no longer in the queue."""
        stored = self._producer.position()
        if stored is None:
            return
        position = json.loads(stored)
        if position["queues"] == exact.identity():  # else: another file, with numbers of its own
            exact.remove(self._queue.name, [(seq, id) for seq, id in position["messages"]])


def decoder_of(schema: RecordSchema) -> Decode:
    """A body is a JSON object of the topic's columns; in a topic of bytes, it is the value."""
    if schema.ddl == RecordSchema.of(DEFAULT_DDL).ddl:
        return _as_bytes
    return lambda delivery: _as_row(schema, delivery)


def _as_bytes(delivery: Delivery) -> dict[str, Any]:
    headers = {name: str(value).encode() for name, value in delivery.headers.items()}
    return {
        "key": delivery.key.encode() or None,
        "value": delivery.body,
        "headers": {**headers, "message-id": delivery.id.encode()},
    }


def _as_row(schema: RecordSchema, delivery: Delivery) -> dict[str, object]:
    value = delivery.json()
    if not isinstance(value, Mapping):
        raise BadRecord(
            f"message {delivery.id} is no JSON object.", hint="send an object of the topic's columns"
        )
    return from_json(schema, value)
