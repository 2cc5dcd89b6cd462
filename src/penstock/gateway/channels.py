"""The channels that are open, and how clients get into them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.errors import PenstockError, StorageError
from penstock.gateway import sse
from penstock.gateway.channel import Channel, Line, Tail
from penstock.gateway.limits import Limits
from penstock.gateway.measures import Measures
from penstock.gateway.refusals import Busy
from penstock.gateway.sse import EventStream
from penstock.gateway.subscriber import Subscriber

if TYPE_CHECKING:
    from collections.abc import Hashable

_LINGER_S = 30.0  # after the last client has left: one that was cut off comes back soon
_JOIN_S = 5.0
_GOODBYE_S = 1.0  # for clients to take what they were sent, when the server ends

Pieces = Callable[[Channel, Subscriber], AsyncIterator[bytes]]
"""What a client of a channel is sent."""


@dataclass(slots=True)
class _Open:
    channel: Channel
    line: Line
    tail: Tail
    users: int = 0
    leaving: asyncio.TimerHandle | None = None


class Channels:
    """Used on the event loop alone. One channel for each `key`: what is read, and which part of it."""

    def __init__(self, limits: Limits, measures: Measures) -> None:
        self._limits, self._measures = limits, measures
        self._open: dict[Hashable, _Open] = {}
        self._subscribers: set[Subscriber] = set()
        self._threads: list[threading.Thread] = []
        self._ending = False

    def __len__(self) -> int:
        return len(self._open)

    @property
    def subscribers(self) -> int:
        return len(self._subscribers)

    def use(self, key: Hashable, tail: Callable[[], Tail]) -> Channel:
        """The channel of `key`, begun if there is none. `release` it once for every use."""
        found = self._open.get(key)
        if found is None or found.channel.error is not None:
            if len(self._open) >= self._limits.channels:
                raise Busy(f"{self._limits.channels} streams are followed already", retry_after_s=5)
            found = self._open[key] = self._begin(tail())
        found.users += 1
        if found.leaving is not None:
            found.leaving.cancel()
            found.leaving = None
        return found.channel

    def release(self, key: Hashable, channel: Channel) -> None:
        found = self._open.get(key)
        if found is None or found.channel is not channel:
            return
        found.users -= 1
        if found.users == 0:
            linger_s = 0.0 if channel.error is not None else _LINGER_S
            found.leaving = asyncio.get_running_loop().call_later(linger_s, self._close, key, found)

    def _subscriber(self) -> Subscriber:
        if self._ending or len(self._subscribers) >= self._limits.subscribers:
            raise Busy(f"{len(self._subscribers)} clients have subscribed already", retry_after_s=5)
        return Subscriber(self._limits.behind_bytes)

    def answer(self, key: Hashable, tail: Callable[[], Tail], pieces: Pieces) -> EventStream:
        """The stream for a client of the channel of `key`. Raises Busy."""
        subscriber = self._subscriber()
        channel = self.use(key, tail)
        self._subscribers.add(subscriber)

        def ended() -> None:
            self._subscribers.discard(subscriber)
            self._measures.dropped += subscriber.dropped.is_set()
            channel.leave(subscriber)
            self.release(key, channel)

        told = self._counted(pieces(channel, subscriber))
        return EventStream(told, dropped=subscriber.dropped, on_end=ended)

    async def _counted(self, pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """An error on the way is told as the last event."""
        try:
            async for piece in pieces:
                self._measures.sent += piece.count(b"\n\n")
                yield piece
        except PenstockError as error:
            yield sse.failed(error)

    def end(self) -> None:
        """All streams; no new ones begin."""
        if not self._ending:
            asyncio.get_running_loop().call_later(_GOODBYE_S, self._cut_off)
        self._ending = True
        for subscriber in self._subscribers:
            subscriber.end()
        for key, found in list(self._open.items()):
            self._close(key, found)

    def _cut_off(self) -> None:
        """Who has not read its last words by now."""
        for subscriber in self._subscribers:
            subscriber.dropped.set()

    async def close(self) -> None:
        """Once nobody reads the log any more, at the latest a few seconds from now."""
        self.end()
        for thread in self._threads:
            await asyncio.to_thread(thread.join, _JOIN_S)

    def _begin(self, tail: Tail) -> _Open:
        channel = Channel(replay_bytes_max=self._limits.replay_bytes)
        line = Line(channel, asyncio.get_running_loop())
        thread = threading.Thread(target=_run, args=(tail, line), name="gateway-tail", daemon=True)
        thread.start()
        self._threads = [each for each in self._threads if each.is_alive()] + [thread]
        return _Open(channel, line, tail)

    def _close(self, key: Hashable, found: _Open) -> None:
        found.line.closed.set()
        found.tail.close()
        if self._open.get(key) is found:
            del self._open[key]


def _run(tail: Tail, line: Line) -> None:
    try:
        tail.run(line)
    except PenstockError as error:
        line.fail(error)
    except Exception as error:
        if line.closed.is_set():  # and perhaps the log with it
            return
        # A fault of ours: clients are told that it is over, and the server's log says why.
        line.fail(StorageError(f"the stream broke off ({type(error).__name__}).", hint="subscribe again"))
        raise


async def told(subscriber: Subscriber, channel: Channel, *, heartbeat_s: float) -> AsyncIterator[bytes]:
    """What comes, for a client that has joined."""
    while (piece := await subscriber.next(heartbeat_s)) is not None:
        # A silent stream says where it is: who comes back need not look at what was not for it.
        yield piece or sse.place(channel.position)
