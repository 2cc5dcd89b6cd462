"""One queue as programs use it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol, TypeVar, get_args

from penstock import fork
from penstock.clock import duration_ms
from penstock.errors import BadOption, UnknownQueue
from penstock.fork import Forking
from penstock.queue.consumer import QueueConsumer
from penstock.queue.delivery import Cause, DeadLetter, Delivery
from penstock.queue.message import HeaderValue, Message, message, several
from penstock.queue.port import Acks, ConsumerOptions, Edit, QueuePort, QueueStats, Wanted
from penstock.queue.request import Replies
from penstock.queue.settings import QueueSettings

T = TypeVar("T")
_ROOM_S = 30.0
_LEASE = "5 minutes"  # only for who lives and does not answer: death is noticed at once
_PREFETCH = 100
_PREFETCH_MAX = 10_000
_LIMIT_MAX = 1_000_000


class Place(Protocol):
    """Where a queue is: `Queues`."""

    port: QueuePort
    replies: Replies


class Queue(Forking):
    """Thread-safe. `ps.open_queues().queue(name)` gives one."""

    def __init__(self, name: str, place: Callable[[], Place]) -> None:
        self.name, self._place = name, place
        self.after_fork_in_child()
        fork.tell(self)

    def after_fork_in_child(self) -> None:
        self._own: QueueConsumer | None = None  # a consumer belongs to its process
        self._mutex = threading.Lock()

    def __repr__(self) -> str:
        return f"<Queue {self.name}>"

    @property
    def port(self) -> QueuePort:
        return self._port

    @property
    def _port(self) -> QueuePort:
        return self._place().port

    @property
    def settings(self) -> QueueSettings:
        return self._port.queue_settings(self.name)

    # ---- publishing ------------------------------------------------------------------------------

    def publish(
        self,
        body: object,
        *,
        key: str = "",
        headers: Mapping[str, HeaderValue] | None = None,
        priority: int = 0,
        id: str | None = None,
        delay: str | float = 0,
        ttl: str | float | None = None,
        timeout: str | float = _ROOM_S,
    ) -> str:
        """Store a message: bytes, text, anything JSON can say, or a `ps.Message`. Durable on return; its id.

        Raises QueueFull: at once with `overflow="reject"`, after `timeout` with "block".
        """
        made = message(body, key=key, headers=headers, priority=priority, id=id, delay=delay, ttl=ttl)
        self._port.publish(self.name, [made], timeout_s=duration_ms(timeout) / 1_000)
        return made.id

    def publish_many(self, bodies: Iterable[object], *, timeout: str | float = _ROOM_S) -> list[str]:
        """Several at once, which costs little more than one: all are durable on return."""
        messages = several(bodies)
        if messages:
            self._port.publish(self.name, messages, timeout_s=duration_ms(timeout) / 1_000)
        return [each.id for each in messages]

    def request(self, body: object, *, timeout: str | float = "10 seconds", **about: Any) -> Message:
        """Ask, and wait for the answer that a consumer gives with `delivery.reply`. Raises NoReply.

        A request that nobody has taken within `timeout` expires: nobody would wait for its answer.
        """
        return self._place().replies.ask(
            self.name, message(body, **about), timeout_s=duration_ms(timeout) / 1_000
        )

    # ---- consuming -------------------------------------------------------------------------------

    def consume(
        self,
        *,
        prefetch: int | None = None,
        lease: str | float = _LEASE,
        acks: Acks = "each",
        idle: str | float | None = None,
    ) -> QueueConsumer:
        """A consumer, one of as many as you like.

        `prefetch`: messages held ready here (100; with `single_active_consumer` 1, for with more a requeued
        message comes after those held; with `max_attempts=1` too, for a RabbitMQ gives up what it has sent
        ahead to a consumer that closes). `lease`: how long one delivery may take. `acks="together"`: an ack
        may wait a few milliseconds for others, and what a crash takes of them is delivered again. `idle`:
        iterating ends when no message came for so long.
        """
        if prefetch is None:
            settings = self.settings
            alone = settings.single_active_consumer or settings.max_attempts == 1
            prefetch = 1 if alone else _PREFETCH
        if not 1 <= prefetch <= _PREFETCH_MAX:
            raise BadOption(f"prefetch={prefetch}.", hint=f"1 to {_PREFETCH_MAX:,}")
        idle_s = None if idle is None else duration_ms(idle) / 1_000
        return self._consumer(prefetch, lease, acks, at_once=prefetch, idle_s=idle_s)

    def get(self, *, timeout: str | float = 0) -> Delivery | None:
        """One message, for programs that take one now and then; `consume` is faster."""
        return self._pulled(lambda consumer: consumer.get(timeout=timeout))

    def get_many(self, limit: int = _PREFETCH, *, timeout: str | float = 0) -> list[Delivery]:
        """Up to `limit` messages; `timeout` is how long the first may take."""
        _check_limit(limit)
        return self._pulled(lambda consumer: consumer.get_many(limit, timeout=timeout))

    def _pulled(self, take: Callable[[QueueConsumer], T]) -> T:
        try:
            return take(self._pulling())
        except UnknownQueue:
            self.close()  # it was deleted; there may be a new one of its name by now
            return take(self._pulling())

    def _pulling(self) -> QueueConsumer:
        with self._mutex:
            if self._own is None:
                if self.settings.single_active_consumer:
                    raise BadOption(
                        f'queue "{self.name}" has one active consumer at a time.',
                        hint="be one: with queue.consume() as consumer",
                    )
                self._own = self._consumer(None, _LEASE, "each", at_once=_PREFETCH, idle_s=None)
            return self._own

    def _consumer(
        self, prefetch: int | None, lease: str | float, acks: Acks, *, at_once: int, idle_s: float | None
    ) -> QueueConsumer:
        lease_ms = duration_ms(lease)
        if lease_ms < 1:
            raise BadOption(f"lease={lease!r}.", hint="say how long one delivery may take")
        if acks not in ("each", "together"):
            raise BadOption(f"acks={acks!r}.", hint='"each" or "together"')
        port = self._port.consumer(self.name, ConsumerOptions(prefetch, lease_ms, acks))
        return QueueConsumer(port, at_once=at_once, idle_s=idle_s)

    # ---- looking after it ------------------------------------------------------------------------

    def stats(self) -> QueueStats:
        return self._port.stats(self.name)

    def purge(self) -> int:
        """Remove what waits; how many messages that were. Delivered ones and dead letters stay."""
        return self._port.purge(self.name)

    def dead_letters(self, limit: int = 100) -> list[DeadLetter]:
        """The oldest first. They stay until they are redriven or purged."""
        _check_limit(limit)
        return self._port.dead_letters(self.name, limit)

    def redrive(
        self,
        where: Wanted | Cause | None = None,
        *,
        edit: Callable[[DeadLetter], object] | None = None,
        to: str | Queue | None = None,
        limit: int | None = None,
    ) -> int:
        """Publish dead letters anew, with no attempts behind them; how many they were.

        `where`: a cause, or a function that says which. `edit`: gives the new body, or a `ps.Message`.
        `to`: another queue. Should this be interrupted, what was redriven twice has the same message id.
        """
        if limit is not None:
            _check_limit(limit)
        target = self.name if to is None else to if isinstance(to, str) else to.name
        return self._port.redrive(
            self.name, to=target, wanted=_wanted(where), edit=_edited(edit), limit=limit
        )

    def purge_dead(self, where: Wanted | Cause | None = None) -> int:
        """Remove dead letters for good; how many they were."""
        return self._port.purge_dead(self.name, _wanted(where))

    def delete(self) -> None:
        """With everything in it."""
        self.close()
        self._port.delete_queue(self.name)

    def close(self) -> None:
        """What `get` gave and is not settled goes back. The queue itself stays."""
        with self._mutex:
            own, self._own = self._own, None
        if own is not None:
            own.close()


def _check_limit(limit: int) -> None:
    if not 1 <= limit <= _LIMIT_MAX:
        raise BadOption(f"limit={limit}.", hint=f"1 to {_LIMIT_MAX:,}")


def _wanted(where: Wanted | Cause | None) -> Wanted:
    if where is None:
        return lambda _: True
    if isinstance(where, str):
        if where not in get_args(Cause):
            raise BadOption(f"{where!r} is no cause.", hint=f"choose one of {', '.join(get_args(Cause))}")
        return lambda letter: letter.cause == where
    return where


def _edited(edit: Callable[[DeadLetter], object] | None) -> Edit:
    if edit is None:
        return lambda letter: letter.message
    asked = edit

    def edited(letter: DeadLetter) -> Message:
        given = asked(letter)
        if isinstance(given, Message):
            return message(given)
        old, new = letter.message, message(given)
        return Message(
            new.body, old.key, old.headers, old.priority, old.id, new.content_type or old.content_type,
            old.correlation_id, old.reply_to,
        )  # fmt: skip

    return edited
