"""The same work on three brokers: queues in a file, RabbitMQ through the same API, RabbitMQ through pika."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

_PREFETCH = 100
_IDLE_S = 0.5
_ROOM_S = 60.0
_BLOCK, _BLOCKS = 4_096, 1_024

Seen = Callable[[bytes], None]


class Broker(Protocol):
    """Plain data, so that it can be sent to another process."""

    @property
    def name(self) -> str: ...

    @property
    def queue(self) -> str:
        """Its own: two of them may share a server."""

    def clear(self, queue: str) -> None:
        """An empty queue of that name; messages in it survive power loss."""

    def publish_batches(self, queue: str, bodies: Sequence[bytes], batch: int) -> None:
        """`batch` together: all are confirmed before the next are sent."""

    def publisher(self, queue: str) -> Any:
        """A context manager of a function that publishes one body and returns when it is confirmed."""

    def consume(self, queue: str, seen: Seen, *, each: bool) -> None:
        """Take and ack until nothing comes any more. `each`: each ack waits until it is kept."""


@dataclass(frozen=True, slots=True)
class ThroughPenstock:
    name: str
    address: str
    queue: str = "work"

    def clear(self, queue: str) -> None:
        with self._opened() as queues:
            if queues.has_queue(queue):
                queues.open_queue(queue).delete()
            queues.queue(queue)

    def publish_batches(self, queue: str, bodies: Sequence[bytes], batch: int) -> None:
        with self._opened() as queues:
            opened = queues.open_queue(queue)
            for at in range(0, len(bodies), batch):
                opened.publish_many(bodies[at : at + batch])

    @contextmanager
    def publisher(self, queue: str) -> Iterator[Callable[[bytes], object]]:
        with self._opened() as queues:
            yield queues.open_queue(queue).publish

    def consume(self, queue: str, seen: Seen, *, each: bool) -> None:
        acks: Any = "each" if each else "together"
        with (
            self._opened() as queues,
            queues.open_queue(queue).consume(prefetch=_PREFETCH, acks=acks, idle=_IDLE_S) as consumer,
        ):
            for delivery in consumer:
                seen(delivery.body)
                delivery.ack()

    def _opened(self) -> Any:
        from penstock.queue.opening import open_queues

        return open_queues(self.address)


@dataclass(frozen=True, slots=True)
class ThroughPika:
    """As pika's own documents say: durable queue, persistent messages, publisher confirms, a prefetch."""

    name: str
    address: str
    queue: str = "work-through-pika"

    def clear(self, queue: str) -> None:
        with self._channel() as channel:
            channel.queue_delete(queue)
            channel.queue_declare(queue, durable=True)

    @contextmanager
    def publisher(self, queue: str) -> Iterator[Callable[[bytes], object]]:
        import pika

        with self._channel() as channel:
            channel.confirm_delivery()
            lasting = pika.BasicProperties(delivery_mode=2)
            yield lambda body: channel.basic_publish("", queue, body, lasting)

    def publish_batches(self, queue: str, bodies: Sequence[bytes], batch: int) -> None:
        """On a SelectConnection: a BlockingConnection waits for each confirm."""
        _Batches(self.address, queue, bodies, batch).run()

    def consume(self, queue: str, seen: Seen, *, each: bool) -> None:
        """`each` is not to be had: an ack is sent, and nobody says when it has arrived."""
        with self._channel() as channel:
            channel.basic_qos(prefetch_count=_PREFETCH)
            for method, _, body in channel.consume(queue, inactivity_timeout=_IDLE_S):
                if method is None:
                    break
                seen(body)
                channel.basic_ack(method.delivery_tag)
            channel.cancel()

    @contextmanager
    def _channel(self) -> Iterator[Any]:
        import pika

        connection = pika.BlockingConnection(pika.URLParameters(self.address))
        try:
            yield connection.channel()
        finally:
            connection.close()


@contextmanager
def bare_disk(folder: Path) -> Iterator[Callable[[bytes], object]]:
    """No broker: what a sync of one block takes, in a file that is there already. Nobody can be faster."""
    file = os.open(folder / "bare", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        os.write(file, bytes(_BLOCK * _BLOCKS))
        os.fsync(file)
        places = itertools.cycle(range(0, _BLOCK * _BLOCKS, _BLOCK))

        def store(body: bytes) -> None:
            os.pwrite(file, body.ljust(_BLOCK), next(places))
            os.fdatasync(file)

        yield store
    finally:
        os.close(file)


class _Batches:
    """Publishes a batch, waits until the broker has confirmed all of it, publishes the next."""

    def __init__(self, address: str, queue: str, bodies: Sequence[bytes], batch: int) -> None:
        import pika

        self._queue, self._bodies, self._batch = queue, bodies, batch
        self._sent = self._confirmed = 0
        self._error: BaseException | None = None
        self._lasting = pika.BasicProperties(delivery_mode=2)
        self._connection = pika.SelectConnection(
            pika.URLParameters(address),
            on_open_callback=lambda connection: connection.channel(on_open_callback=self._opened),
            on_open_error_callback=lambda _, error: self._end(error),
            on_close_callback=lambda _, reason: self._end(reason),
        )

    def run(self) -> None:
        until = time.monotonic() + _ROOM_S
        self._connection.ioloop.call_later(_ROOM_S, lambda: self._end(TimeoutError("no confirm")))
        try:
            self._connection.ioloop.start()
        finally:
            self._connection.ioloop.close()
        if self._confirmed < len(self._bodies):
            raise self._error or TimeoutError(f"not confirmed by {until:.0f}")

    def _opened(self, channel: Any) -> None:
        self._channel = channel
        channel.confirm_delivery(self._confirm, callback=lambda _: self._next())

    def _next(self) -> None:
        for body in self._bodies[self._sent : self._sent + self._batch]:
            self._channel.basic_publish("", self._queue, body, self._lasting)
        self._sent = min(self._sent + self._batch, len(self._bodies))

    def _confirm(self, frame: Any) -> None:
        method = frame.method
        self._confirmed = method.delivery_tag if method.multiple else self._confirmed + 1
        if self._confirmed == len(self._bodies):
            self._connection.close()
        elif self._confirmed == self._sent:
            self._next()

    def _end(self, reason: BaseException) -> None:
        self._error = reason
        self._connection.ioloop.stop()
