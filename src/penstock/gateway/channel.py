"""One stream of events for many clients: read once, kept for a while, handed to everybody.

A thread of its own reads (a `Tail`) and hands over what it has read; all else happens on the event loop, so
that whoever joins gets everything from its place on, once: from the newest events, which are kept, and then
as they come. A client whose place lies further back catches up by itself first.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from penstock.errors import PenstockError
from penstock.gateway import sse
from penstock.gateway.sse import chunked
from penstock.gateway.subscriber import Subscriber

_HANDED_BYTES_MAX = (
    128 << 10
)  # read by the thread, and not yet taken by the loop: clients are sent it between

Places = Mapping[int, int]
"""For each partition, the next offset."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One event as it is sent; its first line says where a client is that has been told all up to it."""

    partition: int
    offset: int
    piece: bytes
    key: str = ""  # of the row that it changes, where it does
    row: bytes | None = None  # that row from then on, as an event; None where it is gone


class Tail(Protocol):
    """What reads for a channel, in a thread."""

    def run(self, line: Line) -> None:
        """Until `line.closed` is set. Raises what it cannot go on from."""

    def close(self) -> None:
        """`line.closed` is set: stop waiting. Called by another thread."""


class Line:
    """From the thread that reads to the event loop: bounded, and one wake-up for many entries."""

    def __init__(self, channel: Channel, loop: asyncio.AbstractEventLoop) -> None:
        self.closed = threading.Event()
        self._channel, self._loop = channel, loop
        self._mutex = threading.Condition()
        self._entries: list[Entry] = []
        self._size_bytes = 0
        self._places: dict[int, int] = {}
        self._position = ""
        self._is_told = False

    def begin(self, rows: Mapping[str, bytes], places: Places, position: str) -> None:
        """What there was when the reading began."""
        self._call(self._channel.begin, dict(rows), dict(places), position)

    def hand(self, entries: Sequence[Entry], places: Places, position: str) -> None:
        """What came since. Waits while the loop has not taken what was handed before."""
        with self._mutex:
            while self._size_bytes > _HANDED_BYTES_MAX and not self.closed.is_set():
                self._mutex.wait(0.5)
            self._entries.extend(entries)
            self._size_bytes += sum(len(entry.piece) for entry in entries)
            self._places, self._position = dict(places), position
            if not self._is_told:
                self._is_told = True
                self._call(self._take)

    def fail(self, error: PenstockError) -> None:
        self._call(self._channel.fail, error)

    def _take(self) -> None:
        with self._mutex:
            entries, self._entries, self._size_bytes = self._entries, [], 0
            places, position, self._is_told = self._places, self._position, False
            self._mutex.notify_all()
        self._channel.publish(entries, places, position)

    def _call(self, work: object, *args: object) -> None:
        assert callable(work)
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(work, *args)


class Channel:
    """Used on the event loop alone."""

    def __init__(self, *, replay_bytes_max: int) -> None:
        self.error: PenstockError | None = None
        self.places: dict[int, int] = {}  # told up to here
        self.position = ""  # the same as a text, for clients to come back with
        self.subscribers: set[Subscriber] = set()
        self.rows: dict[str, bytes] = {}
        self._kept: deque[Entry] = deque()
        self._kept_bytes, self._kept_bytes_max = 0, replay_bytes_max
        self._kept_from: dict[int, int] = {}  # every entry from here on is kept
        self._begun = asyncio.Event()
        self._moved = asyncio.Event()

    # ---- from the thread ------------------------------------------------------------------------

    def begin(self, rows: dict[str, bytes], places: dict[int, int], position: str) -> None:
        self.rows, self.places, self.position = rows, places, position
        self._kept_from = dict(places)
        self._begun.set()

    def publish(self, entries: Sequence[Entry], places: Places, position: str) -> None:
        for entry in entries:
            if entry.row is not None:
                self.rows[entry.key] = entry.row
            elif entry.key:
                self.rows.pop(entry.key, None)
            self._keep(entry)
        for number in places:
            self._kept_from.setdefault(number, 0)
        self.places, self.position = dict(places), position
        # In pieces small enough that a client which reads is never behind by one of them.
        for together in chunked(entry.piece for entry in entries):
            for subscriber in self.subscribers:
                subscriber.offer(together)
        moved, self._moved = self._moved, asyncio.Event()
        moved.set()

    def fail(self, error: PenstockError) -> None:
        self.error = error
        self.end(sse.failed(error))

    def end(self, last: bytes = b"") -> None:
        for subscriber in self.subscribers:
            subscriber.end(last)
        self._begun.set()
        self._moved.set()

    # ---- for clients ----------------------------------------------------------------------------

    async def begun(self) -> None:
        """Until it is known where it is. Raises what it failed with."""
        await self._begun.wait()
        if self.error is not None:
            raise self.error

    async def reached(self, places: Places) -> None:
        """Until it has told everything before `places`."""
        while any(self.places.get(number, 0) < at for number, at in places.items()):
            moved = self._moved
            await moved.wait()
            if self.error is not None:
                raise self.error

    @property
    def changed(self) -> asyncio.Event:
        """Set when something comes, or nothing will any more. Take it before you look."""
        return self._moved

    def covers(self, places: Places) -> bool:
        """Whether everything from there on is kept."""
        return all(places.get(number, 0) >= first for number, first in self._kept_from.items())

    def join(self, subscriber: Subscriber, places: Places) -> list[Entry]:
        """From now on it is told everything that comes; what is kept from `places` on is returned.

        Only after `reached(places)`, and if it `covers` them.
        """
        self.subscribers.add(subscriber)
        if self.error is not None:
            subscriber.end(sse.failed(self.error))
        return [entry for entry in self._kept if entry.offset >= places.get(entry.partition, 0)]

    def leave(self, subscriber: Subscriber) -> None:
        self.subscribers.discard(subscriber)

    def _keep(self, entry: Entry) -> None:
        self._kept.append(entry)
        self._kept_bytes += len(entry.piece)
        while self._kept_bytes > self._kept_bytes_max:
            gone = self._kept.popleft()
            self._kept_bytes -= len(gone.piece)
            self._kept_from[gone.partition] = gone.offset + 1
