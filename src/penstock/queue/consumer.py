"""A consumer of a queue: deliveries one by one, or several at once."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Self

from penstock.clock import duration_ms
from penstock.queue.delivery import Delivery
from penstock.queue.port import ConsumerPort

_WAIT_S = 60.0  # at most, before looking whether it was closed


class QueueConsumer:
    """For one thread; its deliveries may be settled in others. Leave the `with` block to hand back the rest.

    Iterating waits for messages, for ever or until none came for `idle_s`.
    """

    def __init__(self, port: ConsumerPort, *, at_once: int, idle_s: float | None) -> None:
        self._port, self._at_once, self._idle_s = port, at_once, idle_s
        self._closed = False

    def __iter__(self) -> Iterator[Delivery]:
        while found := self._next():
            yield from found

    def _next(self) -> list[Delivery]:
        deadline = None if self._idle_s is None else time.monotonic() + self._idle_s
        while not self._closed:
            left_s = _WAIT_S if deadline is None else deadline - time.monotonic()
            found = self._port.receive(1, max(0.0, min(left_s, _WAIT_S)))
            if found or left_s <= 0:
                return found
        return []

    def get(self, *, timeout: str | float = 0) -> Delivery | None:
        """The next message, waiting at most `timeout` for it."""
        found = self._port.receive(1, duration_ms(timeout) / 1_000)
        return found[0] if found else None

    def get_many(self, limit: int | None = None, *, timeout: str | float = 0) -> list[Delivery]:
        """What there is, up to `limit`; `timeout` is how long the first may take."""
        return self._port.receive(limit or self._at_once, duration_ms(timeout) / 1_000)

    def ack(self, deliveries: Sequence[Delivery]) -> None:
        """Several at once, which costs little more than one."""
        with ExitStack() as all_of_them:
            for delivery in deliveries:
                all_of_them.enter_context(delivery.settling("acked"))
            self._port.ack(deliveries)

    def flush(self) -> None:
        """With `acks="together"`: all acks so far are done on return."""
        self._port.flush()

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._port.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
