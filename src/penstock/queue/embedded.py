"""The queue port in one SQLite file. See docs/decisions/embedded-queue.md."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TypeVar

from penstock import fork
from penstock.clock import Clock, SystemClock
from penstock.errors import QueueFull, UnknownQueue, Unroutable
from penstock.fork import Forking
from penstock.queue import catalog, dead, leases, moves, positions
from penstock.queue.delivery import DeadLetter
from penstock.queue.embedded_consumer import EmbeddedConsumer
from penstock.queue.file import QueueFile, Transaction
from penstock.queue.flusher import Flusher
from penstock.queue.holders import Holder, sweep_dead
from penstock.queue.message import Message
from penstock.queue.port import ConsumerOptions, Edit, QueueStats, Wanted
from penstock.queue.positions import Numbered
from penstock.queue.settings import Binding, ExchangeKind, QueueSettings

T = TypeVar("T")
_SWEEP_US = 250_000
_ROOM_S = 0.5


class EmbeddedQueues(Forking):
    """Thread-safe, and safe for many processes."""

    capabilities = frozenset(
        {"alter", "atomic", "counts", "history", "kept-acks", "listing", "positions", "sequence"}
    )

    def __init__(self, folder: Path, *, clock: Clock | None = None) -> None:
        self.file = QueueFile(folder, clock or SystemClock())
        self._swept_us = 0
        self._closed = False
        self.after_fork_in_child()
        fork.tell(self)

    def after_fork_in_child(self) -> None:
        self._holder: Holder | None = None  # it is the parent that holds
        self._opening = threading.Lock()
        self._consumers: weakref.WeakSet[EmbeddedConsumer] = weakref.WeakSet()
        self._flusher = Flusher()

    @property
    def holder(self) -> Holder:
        """Only who consumes needs one."""
        with self._opening:
            if self._holder is None:
                self._holder = Holder(self.file)
            return self._holder

    # ---- queues and exchanges --------------------------------------------------------------------

    def declare_queue(self, settings: QueueSettings) -> None:
        self._change(lambda tx: catalog.declare(tx, settings))

    def declare_reply_queue(self, name: str) -> None:
        settings = QueueSettings(name, max_attempts=None, dead_letters=False)
        holder = self.holder.id
        self.file.write(lambda tx: catalog.declare(tx, settings, holder=holder))

    def alter_queue(self, settings: QueueSettings) -> None:
        self._change(lambda tx: catalog.alter(tx, settings))

    def queue_settings(self, name: str) -> QueueSettings:
        return self.file.write(lambda tx: catalog.find(tx, name)).settings

    def delete_queue(self, name: str) -> None:
        self._change(lambda tx: catalog.delete(tx, catalog.find(tx, name).id))

    def queues(self) -> list[str]:
        return self.file.write(catalog.names)

    def declare_exchange(self, name: str, kind: ExchangeKind) -> None:
        self._change(lambda tx: catalog.declare_exchange(tx, name, kind))

    def exchange_kind(self, name: str) -> ExchangeKind:
        return self.file.write(lambda tx: catalog.kind_of(tx, name))

    def delete_exchange(self, name: str) -> None:
        self._change(lambda tx: catalog.delete_exchange(tx, name))

    def exchanges(self) -> list[str]:
        return self.file.write(catalog.exchanges)

    def bind(self, binding: Binding) -> None:
        self._change(lambda tx: catalog.bind(tx, binding))

    def unbind(self, binding: Binding) -> None:
        self._change(lambda tx: catalog.unbind(tx, binding))

    def bindings(self) -> list[Binding]:
        return self.file.write(catalog.bindings)

    def _change(self, work: Callable[[Transaction], T]) -> T:
        return self.file.write(work, durable=True)

    # ---- publishing ------------------------------------------------------------------------------

    def publish(self, queue: str, messages: Sequence[Message], *, timeout_s: float) -> None:
        self._with_room(lambda tx: moves.publish(tx, catalog.find(tx, queue), messages), timeout_s)

    def publish_to_exchange(
        self, exchange: str, messages: Sequence[Message], *, mandatory: bool, timeout_s: float
    ) -> None:
        def routed(tx: Transaction) -> None:
            routes = catalog.Routes(tx, exchange)
            taken: dict[int, list[Message]] = {}
            for message in messages:
                queues = routes.queues(message.key)
                if mandatory and not queues:
                    raise Unroutable(exchange, message.key)
                for queue in queues:
                    taken.setdefault(queue, []).append(message)
            for queue, own in taken.items():
                found = catalog.by_id(tx, queue)
                if found is not None:
                    moves.publish(tx, found, own)

        self._with_room(routed, timeout_s)

    def _with_room(self, work: Callable[[Transaction], None], timeout_s: float) -> None:
        """Publish; with `overflow="block"` wait for room, and try again."""
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                self.file.write(work, durable=True)
                return
            except QueueFull as full:
                seen, queue = self._full(full.queue)
                left_s, count = deadline - time.monotonic(), full.count
                if queue is None or count > (full.length_max or 0):
                    raise
                if left_s <= 0:
                    raise QueueFull(full.queue, length_max=full.length_max, waited_s=timeout_s) from full
            # Whoever took a message between our look and `seen` has left the length that we see now.
            if not self._fits(queue, count):
                self.file.wait_for_room(queue, seen, min(left_s, _ROOM_S))

    def _full(self, name: str) -> tuple[int, int | None]:
        """What to wait for: None for a queue that makes nobody wait."""
        try:
            queue = self.file.write(lambda tx: catalog.find(tx, name))
        except UnknownQueue:
            return 0, None
        blocks = queue.settings.overflow == "block"
        return self.file.room_seen(queue.id), queue.id if blocks else None

    def _fits(self, queue: int, count: int) -> bool:
        found = self.file.write(lambda tx: catalog.by_id(tx, queue))
        if found is None or found.settings.max_length is None:
            return True
        return found.length + count <= found.settings.max_length

    def reply(self, queue: str, message: Message) -> bool:
        try:
            # Not durable: who asked does not outlive the machine either.
            self.file.write(lambda tx: moves.publish(tx, catalog.find(tx, queue), [message]))
        except UnknownQueue:
            return False
        return True

    # ---- consuming -------------------------------------------------------------------------------

    def consumer(self, queue: str, options: ConsumerOptions) -> EmbeddedConsumer:
        made = EmbeddedConsumer(self, queue, options)
        self._consumers.add(made)
        return made

    def forget(self, consumer: EmbeddedConsumer) -> None:
        self._consumers.discard(consumer)

    def flush_soon(self, consumer: EmbeddedConsumer) -> None:
        self._flusher.soon(consumer)

    def sweep_now_and_then(self, tx: Transaction) -> None:
        if tx.mono_us - self._swept_us >= _SWEEP_US:
            self.sweep(tx)

    def sweep(self, tx: Transaction) -> None:
        """What is over goes back to its queue: leases, and what dead processes held."""
        self._swept_us = tx.mono_us
        leases.sweep(tx)
        sweep_dead(tx, self.file, own=self._holder)

    # ---- looking after it ------------------------------------------------------------------------

    def stats(self, queue: str) -> QueueStats:
        def counted(tx: Transaction) -> QueueStats:
            self.sweep(tx)  # also where nobody consumes who would notice
            found = catalog.find(tx, queue)
            moves.wake_delayed(tx, found)
            moves.expire(tx)
            tables = ("ready", "dead", "leased", "delayed", "consumers")
            counts = [_count(tx, table, found.id) for table in tables]
            return QueueStats(queue, *counts)

        return self.file.write(counted)

    def purge(self, queue: str) -> int:
        def emptied(tx: Transaction) -> int:
            self.sweep(tx)
            found = catalog.find(tx, queue)
            gone = sum(catalog.drop_from(tx, table, found.id) for table in ("ready", "delayed"))
            moves.count(tx, found, -found.length)
            return gone

        return self._change(emptied)

    def dead_letters(self, queue: str, limit: int) -> list[DeadLetter]:
        def found(tx: Transaction) -> list[DeadLetter]:
            self.sweep(tx)
            moves.expire(tx)
            return [letter for _, letter in dead.letters(tx, queue, after=0, limit=limit)]

        return self.file.write(found)

    def redrive(self, queue: str, *, to: str, wanted: Wanted, edit: Edit, limit: int | None) -> int:
        self.file.write(self.sweep)
        return dead.redrive(self.file, queue, to=to, wanted=wanted, edit=edit, limit=limit)

    def purge_dead(self, queue: str, wanted: Wanted) -> int:
        self.file.write(self.sweep)
        return dead.purge(self.file, queue, wanted)

    # ---- bridges ---------------------------------------------------------------------------------

    def identity(self) -> str:
        return self.file.write(positions.identity)

    def position(self, producer: str) -> bytes | None:
        return self.file.write(lambda tx: positions.position(tx, producer))

    def publish_at(
        self,
        queue: str,
        messages: Sequence[Message],
        *,
        producer: str,
        before: bytes | None,
        after: bytes,
        timeout_s: float,
    ) -> None:
        def published(tx: Transaction) -> None:
            found = catalog.find(tx, queue)
            positions.publish_at(tx, found, messages, producer=producer, before=before, after=after)

        self._with_room(published, timeout_s)

    def remove(self, queue: str, messages: Sequence[Numbered]) -> int:
        return self._change(lambda tx: positions.remove(tx, catalog.find(tx, queue), messages))

    # ---- the end ---------------------------------------------------------------------------------

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        with ExitStack() as rest:  # in turn from the last, also when a consumer says that acks came too late
            rest.callback(self.file.close)
            if self._holder is not None:
                rest.callback(self._holder.forget)
                rest.callback(self.file.write, self._holder.leave)
            for consumer in list(self._consumers):
                rest.callback(consumer.close)
            self._flusher.close()

    def abandon(self) -> None:
        """Go without a word, as a process does that is killed: for tests."""
        self._closed = True
        self._flusher.close()
        if self._holder is not None:
            self._holder.let_go()
        self.file.close()


def _count(tx: Transaction, table: str, queue: int) -> int:
    (count,) = tx.db.execute(f"SELECT count(*) FROM {table} WHERE queue=?", (queue,)).fetchone()
    return int(count)
