"""A consumer of an embedded queue: fetches ahead, hands out, and settles."""

from __future__ import annotations

import json
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from penstock.errors import BadOption, DeliveryExpired, PenstockError, UnknownQueue
from penstock.queue import catalog, leases, moves
from penstock.queue.delivery import Delivery
from penstock.queue.file import Transaction
from penstock.queue.leases import Row
from penstock.queue.moves import Place
from penstock.queue.port import ConsumerOptions

if TYPE_CHECKING:
    from penstock.queue.embedded import EmbeddedQueues

_LOOK_S = 0.5  # how long a dead consumer can go unnoticed by one that waits
_NONE: dict[str, str | int | float | bool] = {}


class EmbeddedConsumer:
    """The ConsumerPort on a file."""

    def __init__(self, port: EmbeddedQueues, queue: str, options: ConsumerOptions) -> None:
        self._port, self._file, self._queue, self._options = port, port.file, queue, options
        self._lease_us = options.lease_ms * 1_000
        self._pid = os.getpid()
        self._ahead: deque[tuple[Delivery, int | None]] = deque()  # fetched and not handed out; its ttl
        self._ahead_until_us = 0
        self._later: list[Delivery] = []  # acks that wait for each other
        self._lost: list[str] = []
        self._trouble: PenstockError | None = None
        self._mutex, self._handing = threading.Lock(), threading.Lock()
        self._closed = False
        self._holder = port.holder.id
        self._queue_id, self._id = self._file.write(self._join)

    @property
    def port(self) -> EmbeddedQueues:
        return self._port

    def _join(self, tx: Transaction) -> tuple[int, int]:
        queue = catalog.find(tx, self._queue)
        return queue.id, leases.add_consumer(tx, self._holder, queue.id)

    def _own_queue(self, tx: Transaction) -> catalog.QueueRow:
        """By its number: another one of the same name, declared after ours was deleted, is not ours."""
        found = catalog.by_id(tx, self._queue_id)
        if found is None:
            raise UnknownQueue(self._queue)
        return found

    # ---- receiving -------------------------------------------------------------------------------

    def receive(self, limit: int, timeout_s: float) -> list[Delivery]:
        self._check_process()
        if found := self._handed_out(limit):
            return found
        deadline = time.monotonic() + timeout_s
        wanted = max(limit, self._options.prefetch or 0)
        while True:
            seen = self._file.work_seen(self._queue_id)
            rows, again_s = self._file.write(lambda tx: self._fetch(tx, limit, wanted))
            if rows:
                with self._handing:
                    self._ahead.extend((self._delivery(row), row[-1]) for row in rows)
                if found := self._handed_out(limit):
                    return found  # else another thread was faster
            left_s = deadline - time.monotonic()
            if left_s <= 0 or self._closed:
                return []
            if not rows:
                self._file.wait_for_work(self._queue_id, seen, min(left_s, again_s))

    def _fetch(self, tx: Transaction, limit: int, wanted: int) -> tuple[list[Row], float]:
        """Messages; or how long it makes sense to wait for some."""
        self._ack_later(tx)
        if self._closed:  # by another thread: what it took now, nobody would ever end
            return [], 0.0
        queue = self._own_queue(tx)
        self._port.sweep_now_and_then(tx)
        rows = self._take(tx, queue, limit, wanted)
        if not rows:
            self._port.sweep(tx)
            rows = self._take(tx, queue, limit, wanted)
        self._ahead_until_us = tx.mono_us + self._lease_us
        return rows, _LOOK_S if rows else self._moment_s(tx, queue.id)

    def _take(self, tx: Transaction, queue: catalog.QueueRow, limit: int, wanted: int) -> list[Row]:
        moves.wake_delayed(tx, queue)
        moves.expire(tx)
        return leases.take(tx, queue, self._id, limit=wanted, lease_us=self._lease_us, ahead=wanted > limit)

    def _moment_s(self, tx: Transaction, queue: int) -> float:
        due_us, until_us = leases.next_moment_us(tx, queue)
        waits = [_LOOK_S]
        if due_us is not None:
            waits.append((due_us - tx.now_us) / 1e6)
        if until_us is not None:
            waits.append((until_us - tx.mono_us) / 1e6)
        return max(0.001, min(waits))

    def _handed_out(self, limit: int) -> list[Delivery]:
        """From what was fetched, with a lease that has most of its time before it."""
        found, late = list[Delivery](), list[Delivery]()
        with self._handing:
            if not self._ahead:
                return []
            if self._file.clock.monotonic() * 1_000_000 > self._ahead_until_us - self._lease_us // 2:
                self._renew_ahead()
            while self._ahead and len(found) < limit:
                delivery, expires_us = self._ahead.popleft()
                is_late = expires_us is not None and expires_us <= self._file.clock.now_us()
                (late if is_late else found).append(delivery)
        if late:
            self._expire([each.token for each in late])
        return found

    def _expire(self, late: Sequence[leases.Lease]) -> None:
        """What waited here for too long."""

        def given_up(tx: Transaction) -> None:
            leases.hand_back(tx, self._own_queue(tx), self._id, late)
            moves.expire(tx)

        self._file.write(given_up)

    def _renew_ahead(self) -> None:
        wanted = [each.token for each, _ in self._ahead]

        def renew(tx: Transaction) -> list[Place]:
            self._ahead_until_us = tx.mono_us + self._lease_us
            return leases.extend(tx, self._id, wanted, self._lease_us)

        kept = {(place.seq, place.attempts) for place in self._file.write(renew)}
        self._ahead = deque(pair for pair in self._ahead if pair[0].token in kept)

    def _delivery(self, row: Row) -> Delivery:
        _, seq, before, id, key, priority, published_us, extra, body, _ = row
        headers, content_type, correlation_id, reply_to = json.loads(extra) if extra else (_NONE, "", "", "")
        return Delivery(
            self._queue, body, key, id, priority, before + 1, before > 0, headers, content_type,
            correlation_id, reply_to, seq, published_us, (seq, before + 1), self,
        )  # fmt: skip

    # ---- settling --------------------------------------------------------------------------------

    def ack(self, deliveries: Sequence[Delivery]) -> None:
        self._check_process()
        if self._options.acks == "each":
            self._settle(deliveries, lambda tx, wanted: leases.ack(tx, self._id, wanted))
            return
        if self._trouble is not None:  # before anything is promised about these
            self._tell_trouble()
        with self._mutex:
            self._later.extend(deliveries)
            many = len(self._later) >= max(self._options.prefetch or 1, 100)
        if many:
            self.flush_later()
        else:
            self._port.flush_soon(self)
        self._tell_lost()

    def nack(self, deliveries: Sequence[Delivery], *, reason: str, delay_ms: int) -> None:
        def again(tx: Transaction, wanted: list[leases.Lease]) -> list[Place]:
            found = leases.held(tx, self._id, wanted)
            leases.release(tx, found)
            moves.put_back(
                tx, self._own_queue(tx), found, outcome="requeued", reason=reason, delay_ms=delay_ms
            )
            return found

        self._settle(deliveries, again)

    def reject(self, deliveries: Sequence[Delivery], *, reason: str) -> None:
        def bury(tx: Transaction, wanted: list[leases.Lease]) -> list[Place]:
            found = leases.held(tx, self._id, wanted)
            leases.release(tx, found)
            moves.remember(tx, found, "rejected", reason)
            moves.give_up(tx, self._own_queue(tx), found, cause="rejected", reason=reason)
            return found

        self._settle(deliveries, bury)

    def extend(self, deliveries: Sequence[Delivery]) -> None:
        self._settle(deliveries, lambda tx, wanted: leases.extend(tx, self._id, wanted, self._lease_us))

    def _settle(
        self, deliveries: Sequence[Delivery], change: Callable[[Transaction, list[leases.Lease]], list[Place]]
    ) -> None:
        self._check_process()
        if not deliveries:
            return
        wanted = [delivery.token for delivery in deliveries]
        found = {place.seq for place in self._file.write(lambda tx: change(tx, wanted))}
        if len(found) < len(deliveries):
            lost = [delivery.id for delivery in deliveries if delivery.token[0] not in found]
            raise self._expired(lost)

    def _expired(self, ids: Sequence[str]) -> DeliveryExpired:
        why = "this consumer was closed" if self._closed else "its lease ended"
        return DeliveryExpired(self._queue, ids, why)

    # ---- acks together ---------------------------------------------------------------------------

    def flush(self) -> None:
        self.flush_later()
        self._tell_lost()

    def flush_later(self) -> None:
        """What goes wrong is told to whoever acks, flushes or closes next."""
        if self._later:
            try:
                self._file.write(self._ack_later)
            except PenstockError as error:
                self._trouble = error

    def _ack_later(self, tx: Transaction) -> None:
        with self._mutex:
            later, self._later = self._later, []
        if later:
            found = {place.seq for place in leases.ack(tx, self._id, [each.token for each in later])}
            if len(found) < len(later):
                self._lost.extend(each.id for each in later if each.token[0] not in found)

    def _tell_trouble(self) -> None:
        trouble, self._trouble = self._trouble, None
        if trouble is not None:
            raise trouble

    def _tell_lost(self) -> None:
        if self._trouble is not None:
            self._tell_trouble()
        if self._lost:
            lost, self._lost = self._lost, []
            raise self._expired(lost)

    # ---- the end ---------------------------------------------------------------------------------

    def close(self) -> None:
        if self._closed or self._pid != os.getpid() or self._file.is_closed:
            return
        self._closed = True
        self._port.forget(self)
        self._file.write(self._leave)
        self._tell_lost()

    def _leave(self, tx: Transaction) -> None:
        self._ack_later(tx)
        queue = catalog.by_id(tx, self._queue_id)
        if queue is not None and self._ahead:
            leases.hand_back(tx, queue, self._id, [each.token for each, _ in self._ahead])
        self._ahead.clear()
        leases.end_consumer(tx, self._id, outcome="its consumer closed")

    def _check_process(self) -> None:
        if self._pid != os.getpid():
            raise BadOption(
                "this consumer belongs to the process that this one was forked from.",
                hint="consume after the fork",
            )
