"""What our queues are on a RabbitMQ.

A quorum queue, which counts deliveries; one with priorities is a classic queue, since quorum queues have
none before RabbitMQ 4. Beside it `<name>.dead` for its dead letters, and `<name>.<ms>.later` for each delay
in use: what has been in there for so long goes to the queue.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pika
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import AMQPConnectionError, AMQPError, ChannelClosedByBroker, ChannelWrongStateError

from penstock.errors import QueueDiffers, UnknownExchange, UnknownQueue
from penstock.queue.rabbit_link import Server
from penstock.queue.settings import Binding, ExchangeKind, QueueSettings

_NOT_FOUND, _DIFFERS = 404, 406
# After a restart a message may find its queue not there yet, and the broker tries again after 3 minutes: a
# queue that expired before would take it along.
_UNUSED_MS = 15 * 60_000
# A quorum queue of RabbitMQ 4 that says nothing gives a message up after 20 deliveries, and looking at a dead
# letter is one. "None" has another word in each version, and this is a number in all of them.
_NO_LIMIT = 2**31 - 1
_KINDS: tuple[ExchangeKind, ...] = ("direct", "topic", "fanout")


def dead_name(queue: str) -> str:
    return f"{queue}.dead"


def later_name(queue: str, delay_ms: int) -> str:
    return f"{queue}.{delay_ms}.later"


def rounded_delay_ms(delay_ms: int) -> int:
    """Up to two digits that count: each delay has a queue of its own, and there should be few.

    >>> rounded_delay_ms(1_234), rounded_delay_ms(50)
    (1300, 50)
    """
    unit: int = 10 ** max(0, len(str(delay_ms)) - 2)
    return -(-delay_ms // unit) * unit


def arguments_of(settings: QueueSettings) -> dict[str, Any]:
    """What the broker is told about a queue."""
    classic = settings.max_priority > 0
    drops = settings.max_length is not None and settings.overflow == "drop_oldest"
    found: dict[str, Any] = {"x-overflow": "drop-head" if drops else "reject-publish"}
    if classic:
        found["x-max-priority"] = settings.max_priority
    else:
        found["x-queue-type"] = "quorum"
        tries = settings.max_attempts
        found["x-delivery-limit"] = _NO_LIMIT if tries is None else tries - 1
    if settings.max_length is not None:
        found["x-max-length"] = settings.max_length
    if settings.ttl_ms is not None:
        found["x-message-ttl"] = settings.ttl_ms
    if settings.single_active_consumer:
        found["x-single-active-consumer"] = True
    if settings.dead_letters:
        found |= {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead_name(settings.name)}
        if not classic and not drops:
            found["x-dead-letter-strategy"] = "at-least-once"
    return found


def dead_arguments() -> dict[str, Any]:
    return {"x-queue-type": "quorum", "x-delivery-limit": _NO_LIMIT}


def later_arguments(queue: str, delay_ms: int) -> dict[str, Any]:
    return {
        "x-queue-type": "quorum",
        "x-message-ttl": delay_ms,
        "x-expires": 2 * delay_ms + _UNUSED_MS,  # declaring it anew, which publishing does, puts this off
        "x-overflow": "reject-publish",
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": queue,
        "x-dead-letter-strategy": "at-least-once",
    }


class Topology:
    """Queues and exchanges, over a connection for each question: they are rare."""

    def __init__(self, server: Server) -> None:
        self._server = server

    @contextmanager
    def channel(self) -> Iterator[BlockingChannel]:
        """Raises Unreachable or NotAllowed; what the broker says about a question passes through."""
        try:
            connection = pika.BlockingConnection(self._server.parameters)
        except (AMQPError, OSError) as error:
            raise self._server.error(error) from error
        try:
            yield connection.channel()
        except (ChannelClosedByBroker, ChannelWrongStateError):
            raise
        except (AMQPConnectionError, OSError) as error:
            raise self._server.error(error) from error
        finally:
            if connection.is_open:
                connection.close()

    def declare(self, settings: QueueSettings) -> None:
        with self.channel() as channel:
            try:
                if settings.dead_letters:
                    dead = dead_name(settings.name)
                    channel.queue_declare(dead, durable=True, arguments=dead_arguments())
                channel.queue_declare(settings.name, durable=True, arguments=arguments_of(settings))
            except ChannelClosedByBroker as error:
                if error.reply_code == _DIFFERS:
                    raise QueueDiffers("queue", settings.name) from error
                raise self._server.error(error) from error

    def declare_later(self, queue: str, delay_ms: int) -> str:
        name = later_name(queue, delay_ms)
        with self.channel() as channel:
            channel.queue_declare(name, durable=True, arguments=later_arguments(queue, delay_ms))
        return name

    def ready(self, queue: str) -> tuple[int, int] | None:
        """Messages that wait and consumers; None if there is no such queue."""
        with self.channel() as channel:
            try:
                found = channel.queue_declare(queue, passive=True).method
            except ChannelClosedByBroker as error:
                if error.reply_code == _NOT_FOUND:
                    return None
                raise self._server.error(error) from error
            return found.message_count, found.consumer_count

    def delete(self, queue: str) -> None:
        with self.channel() as channel:
            channel.queue_delete(queue)
            channel.queue_delete(dead_name(queue))

    def purge(self, queue: str) -> int:
        with self.channel() as channel:
            return int(channel.queue_purge(queue).method.message_count)

    # ---- exchanges -------------------------------------------------------------------------------

    def declare_exchange(self, name: str, kind: ExchangeKind) -> None:
        with self.channel() as channel:
            try:
                channel.exchange_declare(name, kind, durable=True)
            except ChannelClosedByBroker as error:
                if error.reply_code == _DIFFERS:
                    raise QueueDiffers("exchange", name, ["kind"]) from error
                raise self._server.error(error) from error

    def kind_of(self, exchange: str) -> ExchangeKind:
        """The broker does not say: it only refuses every other kind. Raises UnknownExchange."""
        self.ask(lambda channel: channel.exchange_declare(exchange, passive=True), UnknownExchange(exchange))
        for kind in _KINDS:
            try:
                self.declare_exchange(exchange, kind)
            except QueueDiffers:
                continue
            return kind
        raise QueueDiffers("exchange", exchange, ["kind"])

    def bind(self, binding: Binding) -> None:
        self.ask(
            lambda channel: channel.queue_bind(binding.queue, binding.exchange, binding.pattern),
            UnknownQueue(binding.queue),
        )

    def unbind(self, binding: Binding) -> None:
        self.ask(
            lambda channel: channel.queue_unbind(binding.queue, binding.exchange, binding.pattern),
            UnknownQueue(binding.queue),
        )

    def ask(self, question: Callable[[BlockingChannel], object], unknown: Exception) -> None:
        """Raises `unknown` when the broker knows no such thing."""
        with self.channel() as channel:
            try:
                question(channel)
            except ChannelClosedByBroker as error:
                if error.reply_code == _NOT_FOUND:
                    raise unknown from error
                raise self._server.error(error) from error
