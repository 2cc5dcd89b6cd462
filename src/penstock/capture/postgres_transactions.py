"""Messages of the stream, collected into the changes of whole transactions.

A transaction is kept apart until it is committed, so that what is complete can be handed out at any time.
Rows of one table, of several transactions, become one batch: `transaction_order` says how they lie across
tables.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.capture import envelope, pgoutput
from penstock.capture.pgoutput import Begin, Relation
from penstock.capture.postgres_catalog import Form
from penstock.capture.postgres_connection import HEADER_BYTES
from penstock.capture.postgres_types import column_of
from penstock.capture.postgres_unfit import told_texts, unfit_rows, without
from penstock.capture.source import Aside, Changes
from penstock.errors import BadRecord
from penstock.schema import ArrowArray

_PIECE_ROWS_MAX = 50_000
_PIECE_BYTES_MAX = 256 << 20  # offsets in a column of text have 31 bits
_EMPTIED = bytes(HEADER_BYTES) + pgoutput.EMPTIED
_CHANGES = frozenset(pgoutput.CHANGES)
_kind_and_table = struct.Struct(f"!{HEADER_BYTES}xBI").unpack_from

FormOf = Callable[[Relation], Form | None]
"""The form of a table; None where it is not captured. Asked once for each form."""

Covers = Callable[[str, int], bool]
"""Whether what was committed to a table at an LSN will be read with its rows anyway."""


def position_text(lsn: int, order: int = 0) -> str:
    """Sorts as the changes were committed."""
    return f"{_sortable(lsn)}/{order:010d}"


def _sortable(lsn: int) -> str:
    return f"{lsn >> 32:08X}/{lsn & 0xFFFFFFFF:08X}"


@dataclass(slots=True)
class _Piece:
    """Messages of one table in one form."""

    form: Form
    frames: list[bytes | memoryview] = field(default_factory=list)
    orders: list[int] = field(default_factory=list)
    transactions: list[tuple[Begin, int]] = field(default_factory=list)  # with the number of their rows
    size_bytes: int = 0
    closed: int = 0  # rows that are of one of the transactions

    def add(self, frame: bytes | memoryview, order: int) -> None:
        self.frames.append(frame)
        self.orders.append(order)
        self.size_bytes += len(frame)

    def extend(self, other: _Piece) -> None:
        self.frames += other.frames
        self.orders += other.orders
        self.transactions += other.transactions
        self.size_bytes += other.size_bytes
        self.closed += other.closed

    @property
    def is_large(self) -> bool:
        return len(self.frames) >= _PIECE_ROWS_MAX or self.size_bytes >= _PIECE_BYTES_MAX

    def close(self, begin: Begin) -> None:
        """Its rows that are of no transaction yet are of this one."""
        count = len(self.frames)
        self.transactions.append((begin, count - self.closed))
        self.closed = count

    @property
    def lsns(self) -> Any:
        """Where each of its rows was committed."""
        return np.repeat(
            np.array([begin.commit_lsn for begin, _ in self.transactions], np.uint64),
            [count for _, count in self.transactions],
        )


@dataclass(slots=True)
class _Collected:
    """Changes in their order: those in `changes` come before those in `pieces`."""

    covers: Covers
    changes: list[Changes] = field(default_factory=list)
    aside: list[Aside] = field(default_factory=list)
    pieces: dict[int, _Piece] = field(default_factory=dict)
    count: int = 0

    def cut(self, oid: int) -> None:
        piece = self.pieces.pop(oid, None)
        if piece is not None and piece.frames:
            changes, aside = _changes_of(piece, self.covers)
            self.changes.append(changes)
            self.aside += aside

    def cut_all(self) -> None:
        for oid in list(self.pieces):
            self.cut(oid)


class Transactions:
    """Fed with every message in order; hands out what is committed."""

    def __init__(self, form_of: FormOf, *, after_lsn: int, covers: Covers | None = None) -> None:
        self._form_of, self._covers = form_of, covers or (lambda _table, _lsn: False)
        self._relations: dict[int, Relation] = {}
        self._forms: dict[int, Form | None] = {}
        self._done = _Collected(self._covers)
        self._open = _Collected(self._covers)
        self._begin: Begin | None = None
        self._after_lsn = after_lsn
        self.lsn = after_lsn  # everything committed before it has been fed

    @property
    def count(self) -> int:
        """Changes that can be taken."""
        return self._done.count

    @property
    def is_between(self) -> bool:
        """Whether no transaction is under way."""
        return self._begin is None

    def form(self, oid: int) -> Form | None:
        """As the last change of the table had it, if one came."""
        return self._forms.get(oid)

    def take(self) -> tuple[list[Changes], list[Aside]]:
        """Raises BadRecord for a value that its type cannot hold; it can be called again."""
        self._done.cut_all()
        taken, self._done = self._done, _Collected(self._covers)
        return taken.changes, taken.aside

    def passed(self, lsn: int) -> None:
        """The server has nothing more to say about what came before `lsn`."""
        if self._begin is None:
            self.lsn = max(self.lsn, lsn)

    def feed(self, frames: Iterable[memoryview | bytes]) -> None:
        """Messages in their order. Changes are most of them, so those come first and take the short way."""
        pieces = self._open.pieces
        for frame in frames:
            kind, oid = _kind_and_table(frame)
            if kind in _CHANGES:
                piece = pieces.get(oid)
                if piece is None:
                    piece = self._piece(oid)
                    if piece is None:
                        continue
                opened = self._open
                opened.count += 1
                piece.frames.append(frame)
                piece.orders.append(opened.count)
                piece.size_bytes += len(frame)
                if piece.size_bytes >= _PIECE_BYTES_MAX or len(piece.frames) >= _PIECE_ROWS_MAX:
                    self._cut_open(oid)
            else:
                self._heard(kind, frame)
                pieces = self._open.pieces

    def _heard(self, kind: int, frame: memoryview | bytes) -> None:
        if kind == pgoutput.BEGIN:
            self._begin = pgoutput.begin_of(frame, HEADER_BYTES)
        elif kind == pgoutput.COMMIT:
            self._commit(pgoutput.end_of_commit(frame, HEADER_BYTES))
        elif kind == pgoutput.RELATION:
            self._relation(pgoutput.relation_of(frame[HEADER_BYTES:]))
        elif kind == pgoutput.TRUNCATED:
            for table in pgoutput.emptied_by(frame[HEADER_BYTES:]):
                piece = self._open.pieces.get(table) or self._piece(table)
                if piece is not None:
                    self._open.count += 1
                    piece.add(_EMPTIED, self._open.count)
        elif kind == pgoutput.MESSAGE:
            self.passed(pgoutput.lsn_of_message(frame, HEADER_BYTES))

    def _piece(self, oid: int) -> _Piece | None:
        """A new one in the transaction under way; None where the table is not captured."""
        form = self._forms[oid]
        if form is None:
            return None
        made = self._open.pieces[oid] = _Piece(form)
        return made

    def _cut_open(self, oid: int) -> None:
        """A large transaction is kept as columns, which are a fraction of its messages."""
        assert self._begin is not None
        self._open.pieces[oid].close(self._begin)
        self._open.cut(oid)

    def _relation(self, relation: Relation) -> None:
        """PostgreSQL repeats it at every chance: only another form is news."""
        if self._relations.get(relation.oid) == relation:
            return
        form = self._form_of(relation)
        if form != self._forms.get(relation.oid) and relation.oid in self._open.pieces:
            self._cut_open(relation.oid)
        self._relations[relation.oid], self._forms[relation.oid] = relation, form

    def _commit(self, end_lsn: int) -> None:
        begin, opened = self._begin, self._open
        assert begin is not None
        self._begin, self._open = None, _Collected(self._covers)
        self.lsn = max(self.lsn, end_lsn)
        if end_lsn <= self._after_lsn:
            return  # stored before
        if opened.changes:
            self._done.cut_all()
            self._done.changes += opened.changes
            self._done.aside += opened.aside
        for oid, piece in opened.pieces.items():
            piece.close(begin)
            self._merge(oid, piece)
        self._done.count += opened.count

    def _merge(self, oid: int, piece: _Piece) -> None:
        there = self._done.pieces.get(oid)
        if there is not None and (there.form != piece.form or there.is_large):
            self._done.cut(oid)
            there = None
        if there is None:
            self._done.pieces[oid] = piece
        else:
            there.extend(piece)


def _changes_of(piece: _Piece, covers: Covers) -> tuple[Changes, list[Aside]]:
    table = piece.form.table
    rows = pgoutput.rows_of(
        piece.frames, width=len(table.columns), key=piece.form.key_places, header=HEADER_BYTES
    )
    try:
        return _converted(piece, rows), []
    except BadRecord as error:
        bad = unfit_rows(piece.form, rows)
        lsns = piece.lsns
        if not all(covers(table.name, int(lsns[at])) for at in bad):
            raise
        about = _about(piece)
        aside = [
            Aside(table.name, told_texts(piece.form, rows, at, about), str(error.message))
            for at in sorted(bad)
        ]
        rows, lost = without(piece.form, rows, bad)
        changes = _converted(piece, rows)
        return (_kept(changes, lost) if lost else changes), aside


def _converted(piece: _Piece, rows: pgoutput.Rows) -> Changes:
    table = piece.form.table
    batch = envelope.changes_of(
        table.columns,
        rows.ops,
        _struct(piece.form, rows.before, rows.has_before),
        _struct(piece.form, rows.after, rows.has_after),
        **_about(piece),
    )
    unchanged = {table.columns.names[at]: numbers for at, numbers in rows.unchanged.items()}
    return Changes(table, batch, unchanged)


def _kept(changes: Changes, lost: set[int]) -> Changes:
    """Without some of the rows."""
    keep = [at for at in range(changes.rows.num_rows) if at not in lost]
    places = {at: number for number, at in enumerate(keep)}
    unchanged = {
        name: [places[at] for at in numbers if at in places] for name, numbers in changes.unchanged.items()
    }
    return Changes(changes.table, changes.rows.take(pa.array(keep, pa.int64())), unchanged)


def _struct(form: Form, texts: list[ArrowArray], present: ArrowArray) -> Any:
    columns = form.table.columns
    arrays = [
        column_of(each, column.type, of=f"{form.table.name}.{column.name}")
        for each, column in zip(texts, columns, strict=True)
    ]
    return envelope.struct_of(columns, arrays, present=present)


def _about(piece: _Piece) -> dict[str, Any]:
    begins = [begin for begin, _ in piece.transactions]
    of_row = pa.array(np.repeat(np.arange(len(begins)), [count for _, count in piece.transactions]))
    orders = pa.array(piece.orders, pa.int64())
    lsns = pa.array([_sortable(begin.commit_lsn) for begin in begins]).take(of_row)
    counted = pc.utf8_lpad(orders.cast(pa.string()), 10, "0")
    committed = pa.array([begin.committed_us for begin in begins], pa.timestamp("us", tz="UTC"))
    return {
        "positions": pc.binary_join_element_wise(lsns, counted, "/"),
        "transactions": pa.array([str(begin.xid) for begin in begins]).take(of_row),
        "orders": orders,
        "committed_at": committed.take(of_row),
    }
