"""Files read whole, by a process of its own: the one that runs this file.

SQLite locks files as POSIX does, and there a process loses its locks on a file as soon as it closes that
file, whichever of its handles it was. So a search that opened a database in use by its own process would take
the locks of everybody there, and writers in two processes would lose each other's commits.

Asked: the length of a path and the path. Answered: pieces, each behind its length, up to a length of 0 or,
where it cannot be read, an error's number below 0.
"""

from __future__ import annotations

import errno
import os
import struct
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import IO

_LENGTH = struct.Struct(">i")
_PIECE_BYTES = 1 << 20


class FileReader:
    """Starts its process with the first file. Not thread-safe."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def read(self, path: Path) -> bytes:
        """Raises OSError, as reading it here would."""
        process = self._started()
        assert process.stdin and process.stdout
        name = os.fsencode(path.absolute())
        process.stdin.write(_LENGTH.pack(len(name)) + name)
        process.stdin.flush()
        pieces = []
        while (length := _LENGTH.unpack(_exactly(process.stdout, _LENGTH.size))[0]) > 0:
            pieces.append(_exactly(process.stdout, length))
        if length < 0:
            raise OSError(-length, os.strerror(-length), str(path))
        return b"".join(pieces)

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", __file__],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                start_new_session=True,  # Ctrl-C is for who asks; this one ends when nobody asks any more
            )
        return self._process

    def __enter__(self) -> FileReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process:
            self._process.kill()  # it only reads
            self._process.communicate()


def _exactly(source: IO[bytes], length: int) -> bytes:
    found = source.read(length)
    if len(found) < length:
        raise OSError("the process that reads files has ended")
    return found


def _answer(path: bytes, out: IO[bytes]) -> None:
    try:
        with open(path, "rb", buffering=0) as file:  # noqa: PTH123  (Path would have to decode it)
            while piece := file.read(_PIECE_BYTES):
                out.write(_LENGTH.pack(len(piece)) + piece)
        out.write(_LENGTH.pack(0))
    except OSError as error:
        out.write(_LENGTH.pack(-(error.errno or errno.EIO)))
    out.flush()


def _serve() -> None:
    while asked := sys.stdin.buffer.read(_LENGTH.size):
        _answer(sys.stdin.buffer.read(_LENGTH.unpack(asked)[0]), sys.stdout.buffer)


if __name__ == "__main__":
    _serve()
