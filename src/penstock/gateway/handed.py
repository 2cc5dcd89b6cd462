"""Messages of queues in the hands of HTTP clients: each known by a receipt until it is settled."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock.errors import DeliveryExpired
from penstock.gateway.refusals import BadRequest, Busy

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.queue.delivery import Delivery
    from penstock.queue.queues import Queues

_LEASE_S = 300.0  # of what `Queue.get` hands out


class UnknownReceipt(BadRequest):
    def __init__(self, receipt: str) -> None:
        self.receipt = receipt
        super().__init__(
            404,
            f'there is no delivery "{receipt}": it was settled, or its lease ran out.',
            hint="the message comes again, if it was not acked",
        )


class Handed:
    """The queues of a home, opened when they are first asked for. Thread-safe."""

    def __init__(self, home: Path, *, most: int, now_s: Callable[[], float] = time.monotonic) -> None:
        self._home, self._most, self._now_s = home, most, now_s
        self._queues: Queues | None = None
        self._held: dict[str, tuple[Delivery, float]] = {}
        self._mutex = threading.Lock()

    def __len__(self) -> int:
        return len(self._held)

    @property
    def exist(self) -> bool:
        """Whether there are queues at all: to look at them creates none."""
        from penstock.queue.opening import FOLDER

        return self._queues is not None or (self._home / FOLDER).exists()

    @property
    def queues(self) -> Queues:
        from penstock.queue.opening import open_queues

        with self._mutex:
            if self._queues is None:
                self._queues = open_queues(self._home)
            return self._queues

    def take(self, queue: str, limit: int) -> list[tuple[str, Delivery]]:
        """Up to so many messages, each with its receipt. Raises Busy when too many are out already."""
        self._forget_expired()
        room = self._most - len(self._held)
        if room <= 0:
            raise Busy(f"{self._most} messages are in the hands of clients", retry_after_s=5)
        found = self.queues.open_queue(queue).get_many(min(limit, room))
        handed = [(secrets.token_hex(16), delivery) for delivery in found]
        with self._mutex:
            self._held.update({name: (each, self._now_s() + _LEASE_S) for name, each in handed})
        return handed

    def settle(self, queue: str, receipt: str, deed: Callable[[Delivery], None]) -> None:
        """Do it with the delivery of a receipt, which is then worth nothing any more. Raises UnknownReceipt.

        What could not be done now can be tried again with the same receipt.
        """
        with self._mutex:
            held = self._held.get(receipt)
            if held is None or held[0].queue != queue:
                raise UnknownReceipt(receipt)
            del self._held[receipt]
        try:
            deed(held[0])
        except DeliveryExpired:
            raise
        except BaseException:
            with self._mutex:
                self._held[receipt] = held
            raise

    def extend(self, queue: str, receipt: str) -> None:
        with self._mutex:
            found, _ = self._held.get(receipt, (None, 0.0))
        if found is None or found.queue != queue:
            raise UnknownReceipt(receipt)
        found.extend()
        with self._mutex:
            self._held[receipt] = (found, self._now_s() + _LEASE_S)

    def close(self) -> None:
        """What is not settled goes back."""
        with self._mutex:
            queues, self._queues = self._queues, None
            self._held.clear()
        if queues is not None:
            queues.close()

    def _forget_expired(self) -> None:
        now_s = self._now_s()
        with self._mutex:
            self._held = {name: held for name, held in self._held.items() if held[1] > now_s}
