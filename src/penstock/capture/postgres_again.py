"""A new snapshot of live tables, in chunks by key, while the stream goes on.

The order of the WAL is not the order in which transactions become visible: one that the stream has told
already may be unseen by a later query. So a chunk is read together with PostgreSQL's list of transactions it
does not see; it is held back until the stream has passed the moment of reading; then rows are left out that
any unseen transaction has touched, since the stream has told them newer than they were read.
"""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import psycopg
import pyarrow as pa
import pyarrow.compute as pc
from psycopg import Connection
from psycopg.sql import SQL

from penstock.capture.envelope import TRUNCATE
from penstock.capture.postgres_catalog import Catalog, CatalogTable, Form
from penstock.capture.postgres_connection import lsn_number, lsn_text
from penstock.capture.postgres_snapshot import Texts, last_key, read_rows, rows_by_copy, selected
from penstock.capture.source import Changes, Table

_POLL_S = 0.05
_XID_BITS = 32
_CHUNK_BYTES = 64 << 20
_FIRST_ROWS = 100  # until it is known how large they are

FormInStream = Callable[[int], Form | None]


@dataclass(frozen=True, slots=True)
class Visibility:
    """What pg_current_snapshot() says."""

    oldest: int  # all before it are seen, or were rolled back
    next: int  # it and all after it are not seen
    running: frozenset[int]

    @classmethod
    def of(cls, text: str) -> Visibility:
        oldest, following, running = text.split(":")
        return cls(int(oldest), int(following), frozenset(map(int, filter(None, running.split(",")))))

    def sees(self, xid: int) -> bool:
        """Of a transaction that was committed. `xid` has 32 bits, as the stream tells it."""
        whole = (self.next >> _XID_BITS << _XID_BITS) | xid
        if whole - self.next > 1 << (_XID_BITS - 1):
            whole -= 1 << _XID_BITS
        elif self.next - whole > 1 << (_XID_BITS - 1):
            whole += 1 << _XID_BITS
        return whole < self.next and whole not in self.running


@dataclass(frozen=True, slots=True)
class Piece:
    """What goes into a step."""

    changes: Sequence[Changes] = ()
    begins: Sequence[Table] = ()
    ends: Sequence[Table] = ()


@dataclass(frozen=True, slots=True)
class _Chunk:
    table: CatalogTable
    form: Form
    texts: Sequence[Texts]
    seen: Visibility
    taken_at: datetime.datetime
    read_by_lsn: int
    form_in_stream: Form | None
    limit: int  # how many rows were asked for

    @property
    def count(self) -> int:
        return sum(texts.count for texts in self.texts)

    @property
    def fitting(self) -> int:
        """How many rows like these are no more than a chunk may hold."""
        size_bytes = sum(texts.size_bytes for texts in self.texts)
        return max(1, _CHUNK_BYTES * self.count // max(1, size_bytes))

    @property
    def last_key(self) -> list[str] | None:
        if not self.texts:
            return None
        names = [column.name for column in self.table.columns]
        return [self.texts[-1].columns[names.index(name)][-1].as_py() for name in self.table.key]


@dataclass(slots=True)
class _Touched:
    """Rows of the table under way that the stream has told since its snapshot began, by transaction."""

    keys: dict[int, set[str]] = field(default_factory=dict)
    emptied: set[int] = field(default_factory=set)  # transactions that touched every row

    def add(self, changes: Changes) -> None:
        xids = [int(xid) for xid in changes.rows.column("transaction").to_pylist()]
        key = changes.table.key
        for side in ("before", "after"):
            rows = changes.rows.column(side)
            present = rows.is_valid().to_pylist()
            for xid, text, there in zip(xids, _key_texts(rows, key), present, strict=True):
                if there:
                    self.keys.setdefault(xid, set()).add(text)
        emptied = np.flatnonzero(np.asarray(pc.equal(changes.rows.column("op"), TRUNCATE)))
        self.emptied.update(xids[at] for at in emptied)

    def forget(self, seen: Visibility) -> None:
        """Every later snapshot sees them too."""
        self.keys = {xid: keys for xid, keys in self.keys.items() if not seen.sees(xid)}
        self.emptied = {xid for xid in self.emptied if not seen.sees(xid)}

    def untouched(self, chunk: Changes, seen: Visibility) -> Changes:
        """The rows of a chunk that no transaction it has not seen has touched."""
        if any(not seen.sees(xid) for xid in self.emptied):
            return Changes(chunk.table, chunk.rows.slice(0, 0))
        gone = {text for xid, keys in self.keys.items() if not seen.sees(xid) for text in keys}
        if not gone:
            return chunk
        keep = [text not in gone for text in _key_texts(chunk.rows.column("after"), chunk.table.key)]
        return Changes(chunk.table, chunk.rows.filter(pa.array(keep)))


def _key_texts(rows: Any, key: Sequence[str]) -> Iterator[str]:
    """Texts, since a NaN is not equal to itself."""
    columns = [pc.struct_field(rows, name).to_pylist() for name in key]
    return map(repr, zip(*columns, strict=True))


class Again:
    """The snapshots under way. `state` is part of every position: a restart goes on with the next chunk."""

    def __init__(
        self,
        catalog: Catalog,
        state: Mapping[str, Any] | None,
        captured: Collection[str],
        *,
        chunk_rows: int,
    ) -> None:
        self._catalog, self._chunk_rows = catalog, chunk_rows
        self._limit = min(chunk_rows, _FIRST_ROWS)
        said = _of_captured(state, captured)
        self._since = {name: lsn_number(lsn) for name, lsn in said.get("since", {}).items()}
        self._tables: list[str] = list(said.get("tables", ()))
        self._begun = bool(said.get("begun"))
        self._last: list[str] | None = said.get("last")
        self._upto: list[str] | None = said.get("upto")
        self._barrier: int | None = None
        self._is_clear = False
        self._chunk: _Chunk | None = None
        self._touched = _Touched()
        self._asked_at = 0.0

    def add(self, names: Sequence[str], lsn: int) -> None:
        """One that is under way begins anew: what was read of it may be of an older form.

        `lsn`: now. All that was committed before is seen by whatever is read from now on.
        """
        self._since |= dict.fromkeys(names, lsn)
        if self._tables and self._tables[0] in names:
            self._begun, self._chunk = False, None
        self._tables += [name for name in names if name not in self._tables]

    def __bool__(self) -> bool:
        return bool(self._tables)

    @property
    def state(self) -> dict[str, Any]:
        under_way = {"begun": self._begun, "last": self._last, "upto": self._upto}
        since = {name: lsn_text(self._since[name]) for name in self._tables if name in self._since}
        return {"tables": list(self._tables), "since": since, **under_way}

    def covers(self, table: str, lsn: int) -> bool:
        """Whether a change that was committed at `lsn` will be read with the rows of its table."""
        return table in self._tables and lsn < self._since.get(table, 0)

    def notice(self, changes: Sequence[Changes]) -> None:
        """Changes of the stream, before they are handed out."""
        if not (self._tables and self._begun):
            return
        for each in changes:
            if each.table.name == self._tables[0]:
                self._touched.add(each)

    def work(self, db: Connection[Any], lsn: int, form_in_stream: FormInStream) -> Piece | None:
        """The next piece, if there is one yet. All that was committed before `lsn` has been handed out."""
        if not self._begun:
            return self._begin(db)
        if not self._is_clear and not self._cleared(db):
            return None
        if self._chunk is not None:
            return self._passed(self._chunk, lsn, form_in_stream)
        try:
            self._chunk = self._read(db, form_in_stream)
        except psycopg.errors.LockNotAvailable:
            return None  # somebody changes its form; the stream goes on meanwhile
        return None if self._chunk is not None else self._vanished()

    def _passed(self, chunk: _Chunk, lsn: int, form_in_stream: FormInStream) -> Piece | None:
        """The chunk, once the stream has passed the moment of its reading."""
        if lsn < chunk.read_by_lsn:
            return None
        now = form_in_stream(chunk.form.oid)
        if now is not None and now is not chunk.form_in_stream and now.table != chunk.form.table:
            self._chunk = None  # its form has changed since: the rows are read anew
            return None
        return self._finished(chunk, lsn)

    def _begin(self, db: Connection[Any]) -> Piece:
        """Said before anything is noted as touched: what was told since then is no ghost."""
        table = self._catalog.by_name(db, self._tables[0])
        if table is None:
            return self._vanished()
        self._begun, self._last, self._upto = True, None, None
        self._barrier, self._is_clear, self._touched = None, False, _Touched()
        self._limit = min(self._chunk_rows, _FIRST_ROWS)
        return Piece(begins=[self._catalog.form_of(table).table])

    def _cleared(self, db: Connection[Any]) -> bool:
        """Whether all transactions that ran when we began are over.

        The stream may have told one of them before we took notes; or told nothing of it, where the table has
        only just been published. From now on every snapshot sees them.
        """
        if time.monotonic() - self._asked_at < _POLL_S:
            return False
        self._asked_at = time.monotonic()
        now = _visibility(db)
        if self._barrier is None:
            self._barrier = now.next
        self._is_clear = now.oldest >= self._barrier
        return self._is_clear

    def _read(self, db: Connection[Any], form_in_stream: FormInStream) -> _Chunk | None:
        table = self._catalog.by_name(db, self._tables[0])
        if table is None:
            return None
        with db.transaction():
            db.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            db.execute("SET LOCAL lock_timeout = '1s'")
            # Before the snapshot is taken: to an older one, a rewritten table is empty.
            db.execute(SQL("LOCK TABLE {} IN ACCESS SHARE MODE").format(table.only))
            seen, taken_at = _visibility(db), db.execute("SELECT now()").fetchone()[0]  # type: ignore[index]
            (table,) = self._catalog.described(db, [table])
            form = self._catalog.form_of(table)
            if self._upto is None:
                # Rows behind it are of transactions that the stream tells. Otherwise a table to which rows
                # are added faster than we read would never be complete.
                self._upto = last_key(db, table)
            query = selected(table, after=self._last, upto=self._upto, limit=self._limit)
            texts = list(rows_by_copy(db, query, len(table.columns), self._limit))
        read_by = db.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone()[0]  # type: ignore[index]
        # A commit behind it, so that the stream passes it without waiting for somebody else's.
        db.execute("SELECT pg_logical_emit_message(true, 'penstock', '')")
        return _Chunk(
            table, form, texts, seen, taken_at, lsn_number(read_by), form_in_stream(table.oid), self._limit
        )

    def _finished(self, chunk: _Chunk, lsn: int) -> Piece:
        read = [read_rows(chunk.form, texts, lsn=lsn, taken_at=chunk.taken_at) for texts in chunk.texts]
        kept = [self._touched.untouched(each, chunk.seen) for each in read]
        changes = [each for each in kept if each.rows.num_rows]
        self._touched.forget(chunk.seen)
        self._chunk, self._last = None, chunk.last_key
        if chunk.count == chunk.limit:
            self._limit = min(self._chunk_rows, chunk.fitting)
            return Piece(changes)
        self._next()
        return Piece(changes, ends=[chunk.form.table])

    def _vanished(self) -> Piece:
        """The table was dropped: nothing is to be read."""
        self._next()
        return Piece()

    def _next(self) -> None:
        self._since.pop(self._tables.pop(0), None)
        self._begun, self._last, self._upto = False, None, None
        self._chunk, self._touched = None, _Touched()


def _of_captured(state: Mapping[str, Any] | None, names: Collection[str]) -> Mapping[str, Any]:
    """Without tables that are captured no more."""
    if not state or not state["tables"]:
        return {}
    kept = [name for name in state["tables"] if name in names]
    if kept[:1] == state["tables"][:1]:
        return {**state, "tables": kept}
    return {"tables": kept, "since": state.get("since", {})}


def _visibility(db: Connection[Any]) -> Visibility:
    return Visibility.of(db.execute("SELECT pg_current_snapshot()::text").fetchone()[0])  # type: ignore[index]
