"""A consumer of a queue on a RabbitMQ: the broker sends ahead, we hand out, keep leases, and settle."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pika
from pika import spec
from pika.channel import Channel

from penstock.errors import DeliveryExpired, StorageError, UnknownQueue
from penstock.queue import rabbit_wire as wire
from penstock.queue.delivery import Cause, Delivery
from penstock.queue.port import ConsumerOptions
from penstock.queue.rabbit_link import Link, LinkLost
from penstock.queue.rabbit_publisher import connected
from penstock.queue.settings import QueueSettings

if TYPE_CHECKING:
    from penstock.queue.rabbitmq import RabbitQueues

_CONNECT_FOR_S = 30.0
_STEP_S = 0.5
_PULL_S = 0.02
_ON_ITS_WAY_S = 0.5  # what the broker is sending is waited for, also by who does not want to wait
_SWEEP_S_MAX = 1.0


@dataclass(slots=True, eq=False)
class Held:
    """One message that the broker has given us. `link`: only there it can be settled."""

    link: Link
    tag: int
    redelivered: bool
    properties: pika.BasicProperties
    body: bytes
    deadline: float | None = None  # None: not handed out
    is_open: bool = True
    is_settled: bool = False  # the broker was told


class RabbitConsumer:
    """The ConsumerPort on a RabbitMQ."""

    def __init__(
        self, port: RabbitQueues, queue: str, options: ConsumerOptions, settings: QueueSettings, *, own: bool
    ) -> None:
        self._port, self._queue, self._options, self._settings = port, queue, options, settings
        self._own = own  # a reply queue, which only its connection may consume
        self._lease_s = options.lease_ms / 1_000
        self._changed = threading.Condition()
        self._asking = threading.Lock()  # a channel has room for one question at a time
        self._inbox: deque[Held] = deque()
        self._out: set[Held] = set()  # handed out and not settled
        self._pulled: Future[Any] | None = None
        self._receiving = 0
        self._tag = ""
        self._begin: Callable[[], None] = lambda: None
        self._is_paused = self._cancelled = self._closed = False
        self._link = connected(port.server, self._prepare, for_s=_CONNECT_FOR_S)

    @property
    def port(self) -> RabbitQueues:
        return self._port

    # ---- in the link's thread --------------------------------------------------------------------

    def _prepare(self, link: Link, channel: Channel, ready: Callable[[], None]) -> None:
        channel.add_on_cancel_callback(lambda _: self._cancel())
        channel.add_callback(lambda _: self._nothing_there(), [spec.Basic.GetEmpty], one_shot=False)
        self._watch_leases(link, channel)
        if self._options.prefetch is None:
            ready()
            return

        def arrived(_: Channel, method: Any, properties: pika.BasicProperties, body: bytes) -> None:
            self._arrived(Held(link, method.delivery_tag, method.redelivered, properties, body))

        def consume(_: object = None) -> None:
            self._tag = channel.basic_consume(self._queue, arrived, callback=lambda _: ready())

        self._begin = consume

        def declare(_: object) -> None:
            channel.queue_declare(self._queue, exclusive=True, auto_delete=True, callback=consume)

        channel.basic_qos(prefetch_count=self._options.prefetch, callback=declare if self._own else consume)

    def _arrived(self, held: Held) -> None:
        with self._changed:
            self._inbox.append(held)
            self._changed.notify()

    def _cancel(self) -> None:
        with self._changed:
            self._cancelled = True
            self._changed.notify()

    def _nothing_there(self) -> None:
        if self._pulled is not None and not self._pulled.done():
            self._pulled.set_result(None)

    def _watch_leases(self, link: Link, channel: Channel) -> None:
        """Also while this program does not ask for anything."""

        def look() -> None:
            if channel.is_open:
                self._pause_if_silent(channel)
                self._sweep()
                self._watch_leases(link, channel)

        link.later(min(_SWEEP_S_MAX, self._lease_s / 4), look)

    def _pause_if_silent(self, channel: Channel) -> None:
        """A program that lets a lease end and asks for nothing gets nothing more until it does: neither
        that message again, nor what the broker has sent ahead."""
        with self._changed:
            if self._is_paused or self._receiving or self._own or not self._overdue():
                return
            self._is_paused = self._options.prefetch is not None
            ahead = list(self._inbox)
            self._inbox.clear()
        if self._is_paused:
            channel.basic_cancel(self._tag)
        for held in ahead:
            channel.basic_nack(held.tag, requeue=True)

    def _overdue(self) -> list[Held]:
        now = time.monotonic()
        return [held for held in self._out if held.deadline is not None and held.deadline <= now]

    def _sweep(self) -> None:
        """Leases that are over: the broker gets those messages back, and gives them to somebody."""
        with self._changed:
            over = self._overdue()
            for held in over:
                held.is_open = False
                self._out.discard(held)
        for held in over:
            self._post(held, lambda channel, tag=held.tag: channel.basic_nack(tag, requeue=True))  # type: ignore[misc]

    # ---- receiving -------------------------------------------------------------------------------

    def receive(self, limit: int, timeout_s: float) -> list[Delivery]:
        with self._changed:
            self._receiving += 1
            was_paused, self._is_paused = self._is_paused, False
        try:
            if was_paused:
                self._resume()
            return self._received(limit, timeout_s)
        finally:
            with self._changed:
                self._receiving -= 1

    def _resume(self) -> None:
        with contextlib.suppress(LinkLost):  # else a new connection begins by itself
            self._link.post(lambda _: self._begin())

    def _received(self, limit: int, timeout_s: float) -> list[Delivery]:
        pulls = self._options.prefetch is None
        deadline = time.monotonic() + (timeout_s if pulls else max(timeout_s, _ON_ITS_WAY_S))
        while True:
            self._sweep()
            self._reconnect()
            left_s = deadline - time.monotonic()
            taken = self._pull(limit) if pulls else self._pushed(limit, left_s)
            found = self._all_admitted(taken)
            if found or left_s <= 0 or self._closed:
                return found
            if pulls:
                time.sleep(min(_PULL_S, max(0.0, left_s)))

    def _pushed(self, limit: int, left_s: float) -> list[Held]:
        with self._changed:
            if not self._inbox and left_s > 0:
                self._changed.wait(min(left_s, _STEP_S, self._lease_s))
            if self._cancelled and not self._inbox:
                raise UnknownQueue(self._queue)
            return [self._inbox.popleft() for _ in range(min(limit, len(self._inbox)))]

    def _pull(self, limit: int) -> list[Held]:
        found: list[Held] = []
        while len(found) < limit:
            try:
                with self._asking:
                    held = self._link.call(self._ask)
            except LinkLost as lost:
                if lost.code == 404:
                    raise UnknownQueue(self._queue) from lost
                break
            if held is None:
                break
            found.append(held)
        return found

    def _ask(self, channel: Channel, future: Future[Any]) -> None:
        self._pulled = future

        def arrived(_: Channel, method: Any, properties: pika.BasicProperties, body: bytes) -> None:
            future.set_result(Held(self._link, method.delivery_tag, method.redelivered, properties, body))

        channel.basic_get(self._queue, arrived)

    def _reconnect(self) -> None:
        with self._asking:
            if not self._link.is_lost or self._closed:
                return
            self._link.close()
            with self._changed:
                self._inbox.clear()
                self._out.clear()
            self._link = connected(self._port.server, self._prepare, for_s=_CONNECT_FOR_S)

    def _all_admitted(self, taken: Sequence[Held]) -> list[Delivery]:
        try:
            return [delivery for held in taken if (delivery := self._admitted(held))]
        except BaseException:
            for held in taken:
                self._give_back(held)
            raise

    def _give_back(self, held: Held) -> None:
        """Nobody here can finish it: the broker gives it to somebody."""
        with self._changed:
            self._out.discard(held)
            settled, held.is_settled = held.is_settled, True
        if not settled:
            self._post(held, lambda channel: channel.basic_nack(held.tag, requeue=True))

    def _admitted(self, held: Held) -> Delivery | None:
        """As a delivery, unless it is over: expired, delivered too often, or first to be counted."""
        before, now_us = wire.attempts_before(held.properties), self._port.now_us()
        if wire.is_expired(held.properties, now_us):
            self._bury(held, before, "expired", "it waited longer than its ttl")
            return None
        if self._settings.max_priority and held.redelivered:
            # A classic queue does not count: we do, with a copy that takes the message's place.
            before += 1
            if not self._is_last(before):
                self._again(held, before, "its consumer died or closed", "", delay_ms=0)
                return None
        if self._settings.max_attempts is not None and before >= self._settings.max_attempts:
            self._bury(held, before, "attempts", "its consumer died or closed")
            return None
        held.deadline = time.monotonic() + self._lease_s
        with self._changed:
            self._out.add(held)
        return self._delivery(held, before)

    def _is_last(self, attempts: int) -> bool:
        return self._settings.max_attempts is not None and attempts >= self._settings.max_attempts

    def _delivery(self, held: Held, before: int) -> Delivery:
        message = wire.message_of(held.properties, held.body)
        return Delivery(
            self._queue, held.body, message.key, message.id, message.priority, before + 1,
            held.redelivered or before > 0, message.headers, message.content_type, message.correlation_id,
            message.reply_to, None, None, held, self,
        )  # fmt: skip

    # ---- settling --------------------------------------------------------------------------------

    def ack(self, deliveries: Sequence[Delivery]) -> None:
        held, lost = self._claimed(deliveries)
        for each in held:
            self._post(each, lambda channel, tag=each.token.tag: channel.basic_ack(tag))  # type: ignore[misc]
        self._tell(lost)

    def nack(self, deliveries: Sequence[Delivery], *, reason: str, delay_ms: int) -> None:
        held, lost = self._claimed(deliveries)
        for each in held:
            if self._is_last(each.attempts):
                self._bury(each.token, each.attempts, "attempts", reason or "requeued")
            elif delay_ms or self._settings.max_priority:
                self._again(each.token, each.attempts, "requeued", reason, delay_ms=delay_ms)
            else:
                self._post(
                    each,
                    lambda channel, tag=each.token.tag: channel.basic_nack(tag, requeue=True),  # type: ignore[misc]
                )
        self._tell(lost)

    def reject(self, deliveries: Sequence[Delivery], *, reason: str) -> None:
        held, lost = self._claimed(deliveries)
        for each in held:
            self._bury(each.token, each.attempts, "rejected", reason)
        self._tell(lost)

    def extend(self, deliveries: Sequence[Delivery]) -> None:
        self._sweep()
        lost = []
        with self._changed:
            for each in deliveries:
                if self._is_ours(each.token):
                    each.token.deadline = time.monotonic() + self._lease_s
                else:
                    lost.append(each)
        self._tell(lost)

    def _claimed(self, deliveries: Sequence[Delivery]) -> tuple[list[Delivery], list[Delivery]]:
        """Those that are ours to settle, from now on by nobody else; and those that are not."""
        self._sweep()
        held: list[Delivery] = []
        lost: list[Delivery] = []
        with self._changed:
            for each in deliveries:
                (held if self._is_ours(each.token) else lost).append(each)
                each.token.is_open = False
                self._out.discard(each.token)
        return held, lost

    def _is_ours(self, held: Held) -> bool:
        return held.is_open and held.link is self._link and not self._link.is_lost and not self._closed

    def _tell(self, lost: Sequence[Delivery]) -> None:
        if lost:
            ended = "its lease ended, or the connection was lost"
            why = "this consumer was closed" if self._closed else ended
            raise DeliveryExpired(self._queue, [each.id for each in lost], why)

    def _post(self, each: Delivery | Held, work: Callable[[Channel], None]) -> None:
        held = each.token if isinstance(each, Delivery) else each
        try:
            held.link.post(work)
        except LinkLost:
            if isinstance(each, Delivery):
                self._tell([each])  # else the broker has the message back anyway

    def _again(self, held: Held, attempts: int, outcome: str, reason: str, *, delay_ms: int) -> None:
        """Published anew with one more attempt behind it; the broker forgets the old one afterwards."""
        now_us = self._port.now_us()
        extra = wire.tried(held.properties, attempts, outcome, reason, now_us)
        message = wire.message_of(held.properties, held.body)
        if self._stored(held, lambda: self._port.put(self._queue, message, extra, delay_ms=delay_ms)):
            self._drop(held)
        else:
            self._give_back(held)

    def _stored(self, held: Held, publish: Callable[[], bool]) -> bool:
        """What cannot be published in another place goes back to its own."""
        try:
            return publish()
        except BaseException:
            self._give_back(held)
            raise

    def _drop(self, held: Held) -> None:
        held.is_settled = True
        self._post(held, lambda channel: channel.basic_ack(held.tag))

    def _bury(self, held: Held, attempts: int, cause: Cause, reason: str) -> None:
        if not self._settings.dead_letters:
            self._drop(held)
            return
        now_us = self._port.now_us()
        outcome = "rejected" if cause == "rejected" else "given up"
        extra = wire.tried(held.properties, attempts, outcome, reason, now_us)
        extra |= wire.buried(cause, reason, now_us)
        letter = wire.message_of(held.properties, held.body)
        if self._stored(held, lambda: self._port.bury(self._queue, letter, extra)):
            self._drop(held)
        else:
            # There is no queue for dead letters that we know of: the broker does what it was told.
            held.is_settled = True
            self._post(held, lambda channel: channel.basic_reject(held.tag, requeue=False))

    def flush(self) -> None:
        """The broker answers a question only after what was sent before."""

        def ask(channel: Channel, future: Future[Any]) -> None:
            channel.basic_qos(
                prefetch_count=self._options.prefetch or 0, callback=lambda _: future.set_result(None)
            )

        try:
            self._link.call(ask)
        except LinkLost as lost:
            raise self._port.server.error(lost) from lost

    def close(self) -> None:
        if not self._closed:
            self._port.forget(self)
            if self._settings.single_active_consumer:
                # A quorum queue gives the next consumer what comes after our message before it has that one
                # back, if we take leave; if the connection just ends, it has it back first.
                with contextlib.suppress(StorageError):
                    self.flush()
                self._link.drop()
            self._closed = True
            self._link.close()

    def abandon(self) -> None:
        """Drop the connection without a word: for tests."""
        self._closed = True
        self._link.drop()
