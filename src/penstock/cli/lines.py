"""Lines of a file or a pipe, in bounded chunks, as soon as they are there."""

from __future__ import annotations

import io
import os
import select
from collections import deque
from typing import BinaryIO

_READ_BYTES = 256 << 10
_CHUNK_BYTES = 8 << 20


class LineReader:
    """A pipe that pauses does not hold back the lines it has sent.

    A line longer than `line_bytes_max` is given as None.
    """

    def __init__(self, stream: BinaryIO, *, line_bytes_max: int) -> None:
        self.taken = 0  # lines given out so far
        self.bytes_read = 0
        self._stream, self._line_bytes_max = stream, line_bytes_max
        self._descriptor = _descriptor_of(stream)
        self._ready: deque[bytes | None] = deque()
        self._ready_bytes = 0
        self._tail, self._overlong, self._ended = b"", False, False

    def take(self, lines_max: int) -> list[bytes | None]:
        """The next lines, at least one unless the input has ended; more only if they are there already."""
        while not self._ended and len(self._ready) < lines_max and self._ready_bytes < _CHUNK_BYTES:
            if self._ready and not self._has_more_now():
                break
            self._fill()
        chunk = [self._ready.popleft() for _ in range(min(lines_max, len(self._ready)))]
        self._ready_bytes -= sum(len(line) for line in chunk if line)
        self.taken += len(chunk)
        return chunk

    def _has_more_now(self) -> bool:
        return self._descriptor is None or bool(select.select([self._descriptor], [], [], 0)[0])

    def _fill(self) -> None:
        data = (
            self._stream.read(_READ_BYTES)
            if self._descriptor is None
            else os.read(self._descriptor, _READ_BYTES)
        )
        self.bytes_read += len(data)
        if not data:
            self._ended = True
            if self._tail or self._overlong:
                self._add(self._tail)
            return
        *whole, self._tail = (self._tail + data).split(b"\n")
        for line in whole:
            self._add(line)
        if len(self._tail) > self._line_bytes_max:
            self._tail, self._overlong = b"", True

    def _add(self, line: bytes) -> None:
        given = None if self._overlong or len(line) > self._line_bytes_max else line
        self._overlong = False
        self._ready.append(given)
        self._ready_bytes += len(given or b"")


def _descriptor_of(stream: BinaryIO) -> int | None:
    try:
        return stream.fileno()
    except (io.UnsupportedOperation, AttributeError):
        return None
