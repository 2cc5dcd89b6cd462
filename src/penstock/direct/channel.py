"""A bounded channel between the threads of one process: nothing is stored, nothing survives the process."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator
from types import TracebackType
from typing import Generic, Literal, Self, TypeVar, get_args

from penstock.clock import duration_ms
from penstock.errors import BadOption, ChannelClosed, ChannelFull

T = TypeVar("T")
Overflow = Literal["block", "drop_oldest", "reject"]


class Channel(Generic[T]):
    """Any number of senders and receivers; what is sent is received once, in order.

    When `capacity` messages wait, `overflow` decides what `send` does, in the words that queues have too:
    "block" (wait for room), "drop_oldest" (the message that waits longest, counted in `dropped`) or "reject"
    (ChannelFull). A message is out of the channel as soon as it is received: a receiver that dies with it
    loses it, and what waits when the process ends is gone. Work that must not be lost belongs into a queue.

    >>> mails = Channel[str](capacity=2, overflow="drop_oldest")
    >>> for name in ("ann", "bob", "cleo"):
    ...     mails.send(name)
    >>> mails.close()
    >>> list(mails), mails.dropped
    (['bob', 'cleo'], 1)
    """

    def __init__(self, capacity: int = 1_000, *, overflow: Overflow = "block") -> None:
        if capacity < 1:
            raise BadOption(f"capacity={capacity}.", hint="a channel holds at least one message")
        if overflow not in get_args(Overflow):
            raise BadOption(f"overflow={overflow!r}.", hint=f"choose one of {', '.join(get_args(Overflow))}")
        self.capacity, self.overflow = capacity, overflow
        self.dropped = 0
        self._waiting: deque[T] = deque()
        self._closed = False
        lock = threading.Lock()
        self._some, self._room = threading.Condition(lock), threading.Condition(lock)

    def __len__(self) -> int:
        return len(self._waiting)

    def __repr__(self) -> str:
        return f"<Channel {len(self)} of {self.capacity}{', closed' if self._closed else ''}>"

    @property
    def closed(self) -> bool:
        return self._closed

    def send(self, message: T, *, timeout: str | float | None = None) -> None:
        """Raises ChannelFull (rejected, or no room within `timeout`) or ChannelClosed: nothing was sent."""
        if message is None:
            raise BadOption("None is no message.", hint="receive() says None when nothing came")
        with self._room:
            if len(self._waiting) >= self.capacity:
                self._make_room(timeout)
            if self._closed:
                raise ChannelClosed
            self._waiting.append(message)
            self._some.notify()

    def receive(self, *, timeout: str | float | None = None) -> T | None:
        """The message that waits longest; None when none came within `timeout`, or none will come."""
        deadline = _deadline(timeout)
        with self._some:
            while not self._waiting and not self._closed:
                if not self._some.wait(_left(deadline)):
                    break
            if not self._waiting:
                return None
            message = self._waiting.popleft()
            self._room.notify()
            return message

    def close(self) -> None:
        """Nothing more is taken. What waits can still be received; then receivers are told so."""
        with self._some:
            self._closed = True
            self._some.notify_all()
            self._room.notify_all()

    def __iter__(self) -> Iterator[T]:
        """Every message until the channel is closed and empty."""
        while (message := self.receive()) is not None:
            yield message

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _make_room(self, timeout: str | float | None) -> None:
        if self.overflow == "drop_oldest" and not self._closed:
            self._waiting.popleft()
            self.dropped += 1
            return
        deadline = _deadline(timeout)
        while len(self._waiting) >= self.capacity and not self._closed:
            if self.overflow == "reject" or _left(deadline) == 0.0:
                raise ChannelFull(self.capacity)
            self._room.wait(_left(deadline))  # woken or not, what counts is the room: nobody else was told


def _deadline(timeout: str | float | None) -> float | None:
    return None if timeout is None else time.monotonic() + duration_ms(timeout) / 1_000


def _left(deadline: float | None) -> float | None:
    return None if deadline is None else max(0.0, deadline - time.monotonic())
