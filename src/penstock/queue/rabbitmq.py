"""The queue port on a RabbitMQ, through pika. What our queues are there: rabbit_topology.py."""

from __future__ import annotations

import contextlib
import threading
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import ChannelClosedByBroker

from penstock.clock import Clock, SystemClock
from penstock.errors import (
    MessageTooLarge,
    NotSupported,
    QueueDiffers,
    QueueFull,
    StorageError,
    UnknownExchange,
    UnknownQueue,
    Unroutable,
)
from penstock.queue import rabbit_note
from penstock.queue import rabbit_wire as wire
from penstock.queue.delivery import DeadLetter
from penstock.queue.message import HeaderValue, Message
from penstock.queue.pattern import check_pattern
from penstock.queue.port import ConsumerOptions, Edit, QueueStats, Wanted
from penstock.queue.rabbit_consumer import RabbitConsumer
from penstock.queue.rabbit_link import LinkLost, Server
from penstock.queue.rabbit_publisher import Outgoing, Publisher
from penstock.queue.rabbit_topology import Topology, dead_name, rounded_delay_ms
from penstock.queue.settings import Binding, ExchangeKind, QueueSettings

_ROOM_PAUSE_S = 0.05
_DECLARED_S = 30.0


class RabbitQueues:
    """Thread-safe."""

    capabilities: frozenset[str] = frozenset()

    def __init__(self, url: str, *, clock: Clock | None = None) -> None:
        self.server = Server(url)
        self._topology = Topology(self.server)
        self._publisher = Publisher(self.server)
        self._clock = clock or SystemClock()
        self._mutex = threading.Lock()
        self._known: dict[str, QueueSettings] = {}
        self._kinds: dict[str, ExchangeKind] = {}
        self._replies: set[str] = set()
        self._later: dict[tuple[str, int], tuple[str, float]] = {}
        self._consumers: weakref.WeakSet[RabbitConsumer] = weakref.WeakSet()
        self._is_closed = False
        with self._topology.channel():
            pass  # an address that is wrong should say so now

    def now_us(self) -> int:
        return self._clock.now_us()

    # ---- queues and exchanges --------------------------------------------------------------------

    def declare_queue(self, settings: QueueSettings) -> None:
        is_new = self._topology.ready(settings.name) is None
        known = None if is_new else rabbit_note.read(self._topology, settings.name)
        if known is not None and (differing := settings.differing(known)):
            raise QueueDiffers("queue", settings.name, differing)
        if is_new:  # before the queue, so that nobody finds that without it
            rabbit_note.write(self._topology, settings)
        self._topology.declare(settings)
        if not is_new and known is None:
            rabbit_note.write(self._topology, settings)
        self._known[settings.name] = settings

    def declare_reply_queue(self, name: str) -> None:
        self._replies.add(name)

    def alter_queue(self, settings: QueueSettings) -> None:
        raise _lacks("alter")

    def queue_settings(self, name: str) -> QueueSettings:
        if name in self._replies:
            return QueueSettings(name, max_attempts=None, dead_letters=False)
        self._check(name)
        # Of a queue that others have declared, the limit of attempts is known to the broker alone.
        found = rabbit_note.read(self._topology, name) or QueueSettings(name, max_attempts=None)
        self._known[name] = found
        return found

    def delete_queue(self, name: str) -> None:
        self._check(name)
        self._topology.delete(name)
        rabbit_note.remove(self._topology, name)
        self._known.pop(name, None)

    def queues(self) -> list[str]:
        raise _lacks("listing")

    def declare_exchange(self, name: str, kind: ExchangeKind) -> None:
        self._topology.declare_exchange(name, kind)
        self._kinds[name] = kind

    def exchange_kind(self, name: str) -> ExchangeKind:
        if name not in self._kinds:
            try:
                self._kinds[name] = self._topology.kind_of(name)
            except UnknownExchange:
                raise UnknownExchange(name, known=self._kinds) from None
        return self._kinds[name]

    def delete_exchange(self, name: str) -> None:
        self.exchange_kind(name)
        with self._topology.channel() as channel:
            channel.exchange_delete(name)
        del self._kinds[name]

    def exchanges(self) -> list[str]:
        raise _lacks("listing")

    def bind(self, binding: Binding) -> None:
        check_pattern(self.exchange_kind(binding.exchange), binding.pattern)
        self._check(binding.queue)
        self._topology.bind(binding)

    def unbind(self, binding: Binding) -> None:
        self.exchange_kind(binding.exchange)
        self._check(binding.queue)
        self._topology.unbind(binding)

    def bindings(self) -> list[Binding]:
        raise _lacks("listing")

    def _check(self, queue: str) -> None:
        if self._topology.ready(queue) is None:
            raise UnknownQueue(queue, known=[name for name in self._known if name != queue])

    # ---- publishing ------------------------------------------------------------------------------

    def publish(self, queue: str, messages: Sequence[Message], *, timeout_s: float) -> None:
        self._check_sizes(queue, messages)
        rest = [self._outgoing(queue, message) for message in messages]
        deadline = time.monotonic() + timeout_s
        while True:
            words = self._publisher.publish(rest)
            if "returned" in words:
                self._known.pop(queue, None)
                raise UnknownQueue(queue, known=self._known)
            rest = [each for each, word in zip(rest, words, strict=True) if word == "refused"]
            if not rest:
                return
            settings = self._known.get(queue)
            waits = settings is not None and settings.overflow == "block"
            if not waits or time.monotonic() >= deadline:
                raise QueueFull(
                    queue,
                    length_max=settings.max_length if settings else None,
                    waited_s=timeout_s if waits else 0.0,
                    count=len(messages),
                    stored=_but(messages, rest),
                )
            time.sleep(min(_ROOM_PAUSE_S, max(0.0, deadline - time.monotonic())))

    def _check_sizes(self, queue: str, messages: Sequence[Message]) -> None:
        settings = self._known.get(queue) or QueueSettings(queue)
        for message in messages:
            if len(message.body) > settings.max_message_bytes:
                raise MessageTooLarge(
                    queue, size_bytes=len(message.body), size_bytes_max=settings.max_message_bytes
                )

    def _outgoing(
        self, queue: str, message: Message, extra: Mapping[str, HeaderValue] | None = None
    ) -> Outgoing:
        headers = dict(extra or {})
        if message.delay_ms and message.ttl_ms is not None:
            headers[wire.EXPIRES] = self.now_us() + message.ttl_ms * 1_000
        route = self._later_queue(queue, message.delay_ms) if message.delay_ms else queue
        return Outgoing("", route, wire.properties_of(message, headers), message.body)

    def _later_queue(self, queue: str, delay_ms: int) -> str:
        """Where messages wait that long. Declared anew now and then, which keeps it alive."""
        rounded = rounded_delay_ms(delay_ms)
        with self._mutex:
            name, until = self._later.get((queue, rounded), ("", 0.0))
        if not name or time.monotonic() > until:
            if not name:
                self._check(queue)
            name = self._topology.declare_later(queue, rounded)
            with self._mutex:
                self._later[queue, rounded] = name, time.monotonic() + _DECLARED_S
        return name

    def publish_to_exchange(
        self, exchange: str, messages: Sequence[Message], *, mandatory: bool, timeout_s: float
    ) -> None:
        self.exchange_kind(exchange)
        if any(message.delay_ms for message in messages):
            raise NotSupported(
                "an exchange of a RabbitMQ takes no delayed messages.",
                hint="publish them to each queue, or requeue them with a delay when they arrive",
            )
        outgoing = [
            Outgoing(exchange, message.key, wire.properties_of(message), message.body, mandatory)
            for message in messages
        ]
        deadline = time.monotonic() + timeout_s
        try:
            words = self._publisher.publish(outgoing)
        except LinkLost as lost:
            self._kinds.pop(exchange, None)
            raise UnknownExchange(exchange, known=self._kinds) from lost
        for message, word in zip(messages, words, strict=True):
            if word == "returned":
                raise Unroutable(exchange, message.key)
        if "refused" in words:
            raise QueueFull(f"behind {exchange}", waited_s=max(0.0, time.monotonic() - deadline))

    def put(
        self, queue: str, message: Message, extra: Mapping[str, HeaderValue], *, delay_ms: int = 0
    ) -> bool:
        """Publish a message with headers of ours; whether it is stored."""
        return self._publisher.publish(
            [self._outgoing(queue, replace(message, delay_ms=delay_ms), extra)]
        ) == ["stored"]

    def bury(self, queue: str, message: Message, extra: Mapping[str, HeaderValue]) -> bool:
        """Publish a dead letter; whether it is stored."""
        properties = wire.properties_of(message, extra)
        return self._publisher.publish([Outgoing("", dead_name(queue), properties, message.body)]) == [
            "stored"
        ]

    def reply(self, queue: str, message: Message) -> bool:
        return self._publisher.publish([Outgoing("", queue, wire.properties_of(message), message.body)]) == [
            "stored"
        ]

    # ---- consuming -------------------------------------------------------------------------------

    def consumer(self, queue: str, options: ConsumerOptions) -> RabbitConsumer:
        if self._is_closed:
            raise StorageError("these queues were closed.", hint="open them anew: ps.open_queues()")
        settings, own = self.queue_settings(queue), queue in self._replies
        if not own:
            self._check(queue)
        made = RabbitConsumer(self, queue, options, settings, own=own)
        self._consumers.add(made)
        return made

    def forget(self, consumer: RabbitConsumer) -> None:
        self._consumers.discard(consumer)

    # ---- looking after it ------------------------------------------------------------------------

    def stats(self, queue: str) -> QueueStats:
        found = self._topology.ready(queue)
        if found is None:
            raise UnknownQueue(queue, known=[name for name in self._known if name != queue])
        dead = self._topology.ready(dead_name(queue))
        return QueueStats(queue, found[0], dead[0] if dead else 0, consumers=found[1])

    def purge(self, queue: str) -> int:
        self._check(queue)
        return self._topology.purge(queue)

    def dead_letters(self, queue: str, limit: int) -> list[DeadLetter]:
        with self._letters(queue) as found:
            return [letter for _, _, letter in _up_to(found, limit)]

    def redrive(self, queue: str, *, to: str, wanted: Wanted, edit: Edit, limit: int | None) -> int:
        self._check(to)
        count = 0
        with self._letters(queue) as found:
            for channel, tag, letter in found:
                if limit is not None and count >= limit:
                    break
                if wanted(letter):
                    self.publish(to, [edit(letter)], timeout_s=0)
                    channel.basic_ack(tag)
                    count += 1
        return count

    def purge_dead(self, queue: str, wanted: Wanted) -> int:
        count = 0
        with self._letters(queue) as found:
            for channel, tag, letter in found:
                if wanted(letter):
                    channel.basic_ack(tag)
                    count += 1
        return count

    @contextlib.contextmanager
    def _letters(self, queue: str) -> Iterator[Iterator[tuple[BlockingChannel, int, DeadLetter]]]:
        """The dead letters there are now; those not acked are back where they were afterwards."""
        self._check(queue)
        there = self._topology.ready(dead_name(queue))
        with self._topology.channel() as channel:
            yield _letters(channel, queue, there[0] if there else 0)

    def close(self) -> None:
        self._is_closed = True
        for consumer in list(self._consumers):
            consumer.close()
        self._publisher.close()

    def abandon(self) -> None:
        """Go without a word, as a process does that is killed: for tests."""
        for consumer in list(self._consumers):
            consumer.abandon()
        self._publisher.close()


def _letters(
    channel: BlockingChannel, queue: str, count: int
) -> Iterator[tuple[BlockingChannel, int, DeadLetter]]:
    for _ in range(count):
        with contextlib.suppress(ChannelClosedByBroker):
            method, properties, body = channel.basic_get(dead_name(queue))
            if method is None or properties is None or body is None:
                return
            yield channel, method.delivery_tag, wire.letter_of(queue, properties, body)


def _up_to(
    found: Iterator[tuple[BlockingChannel, int, DeadLetter]], limit: int
) -> Iterator[tuple[BlockingChannel, int, DeadLetter]]:
    for n, each in enumerate(found, 1):
        yield each
        if n >= limit:
            return


def _but(messages: Sequence[Message], refused: Sequence[Outgoing]) -> list[str]:
    """The ids of the others."""
    missing = {each.properties.message_id for each in refused}
    return [each.id for each in messages if each.id not in missing]


def _lacks(capability: str) -> NotSupported:
    return NotSupported(
        f'queues on a RabbitMQ do not offer "{capability}".', hint="see rabbitmqctl, or use queues in a file"
    )
