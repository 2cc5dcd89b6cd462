"""What waits to be sent to one client, and no more than a bound of it: who does not read is dropped."""

from __future__ import annotations

import asyncio
from collections import deque


class Subscriber:
    """Filled by a channel, emptied by the client's own task. Used on the event loop alone.

    Pieces are shared between subscribers, so that what waits for a hundred of them is in memory once.
    """

    def __init__(self, behind_bytes_max: int) -> None:
        self.dropped = asyncio.Event()
        self.is_ended = False
        self._behind_bytes_max = behind_bytes_max
        self._pieces: deque[bytes] = deque()
        self._size_bytes = 0
        self._news = asyncio.Event()

    def offer(self, piece: bytes) -> None:
        """Put it last in line; or drop the client, if it has left too much unread."""
        if self.dropped.is_set() or self.is_ended:
            return
        if self._size_bytes + len(piece) > self._behind_bytes_max and self._pieces:
            self._pieces.clear()
            self.dropped.set()
        else:
            self._pieces.append(piece)
            self._size_bytes += len(piece)
        self._news.set()

    def end(self, last: bytes = b"") -> None:
        """Nothing comes after this."""
        if last:
            self.offer(last)
        self.is_ended = True
        self._news.set()

    async def next(self, timeout_s: float, *, most_bytes: int = 64 << 10) -> bytes | None:
        """What waits, up to a bound; nothing when time is up, None when there will be no more."""
        if self._is_silent():
            self._news.clear()
            try:
                async with asyncio.timeout(timeout_s):
                    await self._news.wait()
            except TimeoutError:
                # What came in the same moment must not be passed over by who says that nothing came.
                if self._is_silent():
                    return b""
        if self.dropped.is_set() or (self.is_ended and not self._pieces):
            return None
        taken = [self._pieces.popleft()]
        size = len(taken[0])
        while self._pieces and size + len(self._pieces[0]) <= most_bytes:
            taken.append(self._pieces.popleft())
            size += len(taken[-1])
        self._size_bytes -= size
        return b"".join(taken)

    def _is_silent(self) -> bool:
        return not (self._pieces or self.is_ended or self.dropped.is_set())
