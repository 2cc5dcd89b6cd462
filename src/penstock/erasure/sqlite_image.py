"""A SQLite file and its write-ahead log, as the one file that they stand for; in memory alone.

Nothing that is looked into may be copied to a disk: it may be a key store, and a copy of a key would outlive
its destruction.
"""

from __future__ import annotations

import sqlite3
import struct
from collections.abc import Iterator

_LOG = struct.Struct(">IIIIII8x")  # sign, version, bytes a page, checkpoints, and two numbers of this turn
_FRAME = struct.Struct(">IIII8x")  # the page's number, pages there are after a commit or 0, and both numbers
_LOG_SIGNS = (0x377F0682, 0x377F0683)


def opened(data: bytes, log: bytes) -> sqlite3.Connection:
    """A connection to a copy of the database, in memory."""
    db = sqlite3.connect(":memory:")
    try:
        db.deserialize(_without_log(_merged(data, log)))
    except BaseException:
        db.close()
        raise
    return db


def _without_log(data: bytes) -> bytes:
    """The same file, of which nobody expects a write-ahead log."""
    return data[:18] + b"\x01\x01" + data[20:]


def _merged(data: bytes, log: bytes) -> bytes:
    """With the newest pages of whole transactions."""
    pages: dict[int, bytes] = {}
    begun: dict[int, bytes] = {}
    count = 0
    for number, committed, page in _frames(log):
        begun[number] = page
        if committed:
            pages.update(begun)
            begun, count = {}, committed
    if not pages:
        return data
    size = len(next(iter(pages.values())))
    whole = bytearray(data[: count * size].ljust(count * size, b"\0"))
    for number, page in pages.items():
        if number <= count:  # else a later transaction has made the file shorter
            whole[(number - 1) * size : number * size] = page
    return bytes(whole)


def _frames(log: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Those of the last turn: the log is written over from its beginning, and older ones stay behind."""
    if len(log) < _LOG.size:
        return
    sign, _, size, _, *turn = _LOG.unpack_from(log)
    step = _FRAME.size + size
    for at in range(_LOG.size, len(log) - step + 1 if sign in _LOG_SIGNS else 0, step):
        number, count, *of = _FRAME.unpack_from(log, at)
        if of != turn:
            return
        yield number, count, log[at + _FRAME.size : at + step]
