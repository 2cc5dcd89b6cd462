"""From a topic into a queue: each record a message.

Where the queues keep positions (queues in a file), how far this is, is stored in the transaction that
publishes: exactly once. Elsewhere it is stored in the log after the broker has confirmed: at least once, with
the same message id each time.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

from penstock.errors import Contended, OffsetOutOfRange, QueueFull, RecordsLost
from penstock.log.event import Event, events_of
from penstock.log.json_rows import to_json
from penstock.log.log import AtomicProducer
from penstock.log.settings import TopicSettings
from penstock.log.topic import Start, Topic
from penstock.queue.bridge import Watch, unwatched
from penstock.queue.message import Message, message
from penstock.queue.positions import PositionsPort, exact_port
from penstock.queue.queue import Queue
from penstock.schema import DEFAULT_DDL, RecordSchema

Encode = Callable[[Event], object]  # a body, or a whole message
_KEY_BYTES_MAX = 255
_ROOM_S = 1.0  # with overflow="block", before it looks whether it is to stop
Offsets = dict[int, int]


class _Place(Protocol):
    """Where the position is kept."""

    def position(self) -> bytes | None: ...

    def publish(self, messages: Sequence[Message], *, before: bytes | None, after: bytes) -> None: ...

    def close(self) -> None: ...


class TopicToQueue:
    """Reads every partition in turn. A partition's records are published in order."""

    def __init__(
        self,
        topic: Topic,
        queue: Queue,
        *,
        id: str,
        batch: int,
        start: Start,
        encode: Encode | None,
        watch: Watch = unwatched,
    ) -> None:
        self._topic, self._id, self._batch, self._watch = topic, id, batch, watch
        self._topic_id = topic.settings.id
        self._encode = encode or encoder_of(topic.settings)
        exact = exact_port(queue)
        self.exactly_once = exact is not None
        self._place: _Place = _InLog(topic, queue, id) if exact is None else _InQueues(exact, queue.name, id)
        self._stored = self._place.position()
        self._offsets = self._restored(start)
        self._is_sure = True
        self._turn = 0
        self._at_once = batch  # fewer while the queue has no room for that many

    def step(self, *, timeout_s: float) -> int:
        if not self._is_sure:
            self._look_again()
        events = self._read()
        if not events and timeout_s > 0 and self._topic.wait(self._offsets, timeout_s):
            events = self._read()
        if not events:
            return 0
        last = events[-1]
        offsets = {**self._offsets, last.partition: last.offset + 1}
        self._watch("read")
        after = self._position(offsets)
        self._is_sure = False  # after an error or an interrupt nobody knows what was published
        try:
            self._place.publish([self._message(event) for event in events], before=self._stored, after=after)
        except QueueFull:
            self._at_once, self._is_sure = max(1, len(events) // 2), True
            raise
        except Contended:  # whoever has taken over is not to be driven out
            self._is_sure = True
            raise
        self._at_once = min(self._batch, 2 * self._at_once)
        self._offsets, self._stored, self._is_sure = offsets, after, True
        self._watch("moved")
        return len(events)

    def _look_again(self) -> None:
        stored = self._place.position()
        if stored is not None and stored != self._stored:
            self._stored, self._offsets = stored, _by_number(json.loads(stored)["offsets"])
        self._is_sure = True

    def close(self) -> None:
        self._place.close()

    def _read(self) -> list[Event]:
        """Records of the next partition that has some."""
        partitions = range(self._topic.settings.partitions)
        for step in range(len(partitions)):
            partition = partitions[(self._turn + step) % len(partitions)]
            events = self._read_one(partition)
            if events:
                self._turn = partition + 1
                return events
        return []

    def _read_one(self, partition: int) -> list[Event]:
        at = self._offsets.setdefault(partition, 0)
        found: list[Event] = []
        try:
            for batch in self._topic.port.read(self._topic.name, partition, at):
                piece = batch.slice(0, self._at_once - len(found))
                found.extend(events_of(self._topic.name, piece, topic_id=self._topic_id))
                if len(found) >= self._at_once:
                    break
        except OffsetOutOfRange as error:
            if at >= error.start:
                raise
            raise self._lost(partition, at, error) from error
        return found

    def _lost(self, partition: int, at: int, error: OffsetOutOfRange) -> RecordsLost:
        lost = RecordsLost(self._topic.name, partition, at, start=error.start, end=error.end)
        lost.hint = (
            f'"{self._id}" cannot go on; begin under another id, at start="earliest" or "latest" '
            "(--id and --from), where what is moved again has the same message ids; or raise the retention"
        )
        return lost

    def _message(self, event: Event) -> Message:
        made = self._encode(event)
        id = f"{self._topic_id}-{event.partition}-{event.offset}"  # the same however often it is published
        return replace(made if isinstance(made, Message) else message(made), id=id)

    def _position(self, offsets: Offsets) -> bytes:
        return json.dumps({"topic": self._topic_id, "offsets": offsets}).encode()

    def _restored(self, start: Start) -> Offsets:
        """Where the last one was; in a topic that was created anew, where `start` says."""
        known = json.loads(self._stored) if self._stored else None
        if known and known["topic"] == self._topic_id:
            return _by_number(known["offsets"])
        return {
            partition: self._topic.offset_of(partition, start)
            for partition in range(self._topic.settings.partitions)
        }


def _by_number(offsets: dict[str, int]) -> Offsets:
    return {int(partition): offset for partition, offset in offsets.items()}


class _InQueues:
    def __init__(self, port: PositionsPort, queue: str, id: str) -> None:
        self._port, self._queue, self._id = port, queue, id

    def position(self) -> bytes | None:
        return self._port.position(self._id)

    def publish(self, messages: Sequence[Message], *, before: bytes | None, after: bytes) -> None:
        self._port.publish_at(
            self._queue, messages, producer=self._id, before=before, after=after, timeout_s=_ROOM_S
        )

    def close(self) -> None:
        """Nothing is held."""


class _InLog:
    def __init__(self, topic: Topic, queue: Queue, id: str) -> None:
        self._queue = queue
        self._producer = AtomicProducer(topic.port, id)
        self._there = set[str]()  # of a batch that had no room: those that were stored

    def position(self) -> bytes | None:
        return self._producer.position()

    def publish(self, messages: Sequence[Message], *, before: bytes | None, after: bytes) -> None:
        rest = [message for message in messages if message.id not in self._there]
        try:
            self._queue.port.publish(self._queue.name, rest, timeout_s=_ROOM_S)
        except QueueFull as full:
            self._there.update(full.stored)
            raise
        self._there -= {message.id for message in messages}
        self._producer.append({}, position=after)

    def close(self) -> None:
        self._producer.close()


def encoder_of(settings: TopicSettings) -> Encode:
    """A record as a JSON object; of a topic of bytes, its value. The record's key is the routing key."""
    if settings.schema.ddl == RecordSchema.of(DEFAULT_DDL).ddl:
        return lambda event: message(
            event["value"] or b"", key=_word((event["key"] or b"").decode(errors="replace"))
        )
    return lambda event: message(
        to_json(event.value),
        key=_word(".".join(str(to_json(event[column])) for column in settings.key)),
        headers={"deleted": True} if event.deleted else None,
    )


def _word(key: str) -> str:
    """No routing key rather than half of one."""
    return key if len(key.encode()) <= _KEY_BYTES_MAX else ""
