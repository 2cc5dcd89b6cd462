"""The messages of pgoutput, PostgreSQL's own logical decoding, protocol 1.

Changes are not looked at one by one: the messages of a table are laid end to end, and for each column
numpy finds where its values are in all of them at once. What comes out are columns of the texts that
PostgreSQL sent.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.capture.envelope import DELETE, INSERT, TRUNCATE, UPDATE
from penstock.schema import ArrowArray

BEGIN, COMMIT, RELATION, CHANGES, TRUNCATED, MESSAGE = b"B"[0], b"C"[0], b"R"[0], b"IUD", b"T"[0], b"M"[0]
FULL = "f"  # a replica identity: `before` has all columns
# Stands for one table in the message that empties several: so that it keeps its place among the changes.
EMPTIED = b"T\0\0\0\0N\0\0"
_EPOCH_US = 946_684_800_000_000  # PostgreSQL counts from 2000
_TEXT, _NULL, _UNCHANGED = b"t"[0], b"n"[0], b"u"[0]
_NEW, _OLD = b"N"[0], b"O"[0]
_OP_OF = {b"I"[0]: INSERT, b"U"[0]: UPDATE, b"D"[0]: DELETE, TRUNCATED: TRUNCATE}
_begin = struct.Struct("!QqI").unpack_from
_lsn = struct.Struct("!Q").unpack_from
_PADDING = b"\0" * 8  # a length is read after every kind, also after the last one

Buffer = bytes | memoryview
"""A message as it came."""


@dataclass(frozen=True, slots=True)
class Begin:
    """The start of a transaction, which tells already how it ends."""

    commit_lsn: int
    committed_us: int
    xid: int


@dataclass(frozen=True, slots=True)
class RelationColumn:
    name: str
    type_oid: int
    modifier: int
    in_identity: bool


@dataclass(frozen=True, slots=True)
class Relation:
    """A table as the changes that follow have it."""

    oid: int
    schema: str
    name: str
    identity: str
    columns: tuple[RelationColumn, ...]


@dataclass(frozen=True, slots=True)
class Rows:
    """Changes of one table, a column of texts for each of its columns."""

    ops: ArrowArray
    before: list[ArrowArray]
    after: list[ArrowArray]
    has_before: ArrowArray
    has_after: ArrowArray
    unchanged: Mapping[int, list[int]]  # column -> the rows that do not tell it


@dataclass(frozen=True, slots=True)
class _Values:
    """Where the values of one column are, a row each; in the order of the bytes."""

    kinds: Any
    starts: Any
    ends: Any

    def with_those_of(self, other: _Values, where: Any) -> _Values:
        """The other's, in the rows that `where` names."""
        return _Values(
            np.where(where, other.kinds, self.kinds),
            np.where(where, other.starts, self.starts),
            np.where(where, other.ends, self.ends),
        )


def begin_of(message: Buffer, header: int = 0) -> Begin:
    commit_lsn, committed, xid = _begin(message, header + 1)
    return Begin(commit_lsn, committed + _EPOCH_US, xid)


def end_of_commit(message: Buffer, header: int = 0) -> int:
    """The LSN behind the commit: where a reader that has stored it goes on."""
    return int(_lsn(message, header + 10)[0])


def lsn_of_message(message: Buffer, header: int = 0) -> int:
    return int(_lsn(message, header + 2)[0])


def emptied_by(message: Buffer) -> list[int]:
    """The tables that a TRUNCATE names."""
    (count,) = struct.unpack_from("!I", message, 1)
    return list(struct.unpack_from(f"!{count}I", message, 6))


def relation_of(message: Buffer) -> Relation:
    raw = bytes(message)
    (oid,) = struct.unpack_from("!I", raw, 1)
    schema, at = _word(raw, 5)
    name, at = _word(raw, at)
    identity, count = struct.unpack_from("!cH", raw, at)
    at += 3
    columns = []
    for _ in range(count):
        flags = raw[at]
        column, at = _word(raw, at + 1)
        type_oid, modifier = struct.unpack_from("!Ii", raw, at)
        at += 8
        columns.append(RelationColumn(column, type_oid, modifier, bool(flags & 1)))
    return Relation(oid, schema or "pg_catalog", name, identity.decode(), tuple(columns))


def _word(raw: bytes, at: int) -> tuple[str, int]:
    end = raw.index(0, at)
    return raw[at:end].decode(), end + 1


def rows_of(messages: Sequence[Buffer], *, width: int, key: Sequence[int], header: int = 0) -> Rows:
    """Inserts, updates, deletes and EMPTIED of one table of `width` columns, in their order.

    `key`: the numbers of its key columns. `header`: bytes to skip before every message.
    """
    raw = b"".join([*messages, _PADDING])
    data = np.frombuffer(raw, np.uint8)
    sizes = np.fromiter(map(len, messages), np.int64, len(messages))
    bases = np.cumsum(sizes) - sizes + header
    ops, marks = data[bases], data[bases + 5]
    is_update = ops == b"U"[0]
    has_new = (ops == b"I"[0]) | is_update
    has_old = (marks != _NEW) & (ops != TRUNCATED)
    is_full = marks == _OLD

    news = bases + 8  # behind the kind, the table, the mark and the number of columns
    old, ends = _values(data, bases, np.flatnonzero(has_old), news, width)
    news[has_old] = ends + 3
    new, _ = _values(data, bases, np.flatnonzero(has_new), news, width)

    unchanged = {}
    tells_no_key = is_update & ~has_old
    for at in range(width):
        in_key = at in key
        is_missing = new[at].kinds == _UNCHANGED
        if is_missing.any():  # a large value that an update does not touch; the old row may have it
            new[at] = new[at].with_those_of(old[at], is_missing & (has_old if in_key else is_full))
            missing = np.flatnonzero(new[at].kinds == _UNCHANGED)
            if len(missing):
                unchanged[at] = missing.tolist()
        if in_key:
            # An update that leaves the key alone tells no old one: it is the new one.
            old[at] = old[at].with_those_of(new[at], tells_no_key)
        elif has_old.any():
            # The old key comes in a whole row, of which the rest means nothing.
            old[at] = replace(old[at], kinds=np.where(is_full, old[at].kinds, _NULL))
    buffer = pa.py_buffer(raw)
    return Rows(
        pa.array([_OP_OF[op] for op in ops.tolist()], pa.string()),
        [_texts(buffer, values) for values in old],
        [_texts(buffer, values) for values in new],
        pa.array(has_old | is_update),
        pa.array(has_new),
        unchanged,
    )


def _values(data: Any, bases: Any, rows: Any, starts: Any, width: int) -> tuple[list[_Values], Any]:
    """The columns of a tuple in each of `rows`, none in the others; and where those tuples end."""
    at = starts[rows]
    if not len(rows):
        return [_Values(np.full(len(bases), _NULL, np.uint8), bases, bases)] * width, at
    lengths = np.ndarray((len(data) - 3,), ">u4", data, strides=(1,))
    found = []
    for _ in range(width):
        kinds = data[at]
        is_text = kinds == _TEXT
        begins = at + 1 + 4 * is_text
        ends = begins + np.where(is_text, lengths[at + 1], 0)
        found.append(_spread(bases, rows, kinds, begins, ends))
        at = ends
    return found, at


def _spread(bases: Any, rows: Any, kinds: Any, begins: Any, ends: Any) -> _Values:
    if len(rows) == len(bases):
        return _Values(kinds, begins, ends)
    values = _Values(np.full(len(bases), _NULL, np.uint8), bases.copy(), bases.copy())
    values.kinds[rows], values.starts[rows], values.ends[rows] = kinds, begins, ends
    return values


def _texts(buffer: Any, values: _Values) -> ArrowArray:
    """Arrow cuts the bytes into values and what is between them; every other one is ours."""
    count = len(values.starts)
    is_text = values.kinds == _TEXT
    if not is_text.any():
        return pa.nulls(count, pa.string())
    cuts = np.empty(2 * count, np.int32)
    cuts[0::2], cuts[1::2] = values.starts, values.ends
    pieces = pa.Array.from_buffers(pa.string(), 2 * count - 1, [None, pa.py_buffer(cuts), buffer])
    return pieces.take(pa.array(np.arange(0, 2 * count, 2), mask=~is_text))
