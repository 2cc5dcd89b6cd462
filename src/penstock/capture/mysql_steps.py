"""Transactions and rows of MySQL to what the engine stores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import pyarrow as pa

from penstock.capture import envelope, mysql_types
from penstock.capture.mysql_transactions import Form, Piece, Row, Transaction
from penstock.capture.mysql_types import Column
from penstock.capture.source import Changes, Table

_SECOND_US = 1_000_000


@dataclass(slots=True)
class _Run:
    """Changes of one form of a table. `columns` are None as long as it was only emptied."""

    table: Table
    columns: Sequence[Column] | None
    ops: list[str] = field(default_factory=list)
    before: list[Row] = field(default_factory=list)
    after: list[Row] = field(default_factory=list)
    positions: list[str] = field(default_factory=list)
    transactions: list[str] = field(default_factory=list)
    orders: list[int] = field(default_factory=list)
    times: list[int] = field(default_factory=list)

    def add(self, changes: Sequence[tuple[str, Row, Row]], of: Transaction, order: int) -> None:
        for op, before, after in changes:
            self.ops.append(op)
            self.before.append(before)
            self.after.append(after)
            self.positions.append(f"{of.end}/{order:08d}")
            self.orders.append(order)
            order += 1
        self.transactions += [of.id] * len(changes)
        self.times += [of.committed_at * _SECOND_US] * len(changes)


class Gathered:
    """Whole transactions, to be one step."""

    def __init__(self, zero_dates: str | None) -> None:
        self._zero_dates = zero_dates
        self._runs: list[_Run] = []
        self._current: dict[str, _Run] = {}
        self.count = 0

    def add(self, transaction: Transaction) -> None:
        order = 1
        for piece in transaction.pieces:
            self._run(piece).add(piece.changes, transaction, order)
            order += len(piece.changes)
        self.count += order - 1

    def changes(self) -> list[Changes]:
        return [Changes(run.table, self._envelope(run)) for run in self._runs]

    def _run(self, piece: Piece) -> _Run:
        form = piece.form
        table = form.table if isinstance(form, Form) else form
        columns = form.reader.columns if isinstance(form, Form) else None
        run = self._current.get(table.name)
        if run is None or run.table != table or (columns is not None and run.columns != columns):
            run = self._current[table.name] = _Run(table, columns)
            self._runs.append(run)
        return run

    def _envelope(self, run: _Run) -> pa.RecordBatch:
        before, after = (self._struct(run, rows) for rows in (run.before, run.after))
        return envelope.changes_of(
            run.table.columns, pa.array(run.ops, pa.string()), before, after, positions=run.positions,
            committed_at=pa.array(run.times, pa.int64()), transactions=run.transactions, orders=run.orders,
        )  # fmt: skip

    def _struct(self, run: _Run, rows: Sequence[Row]) -> Any:
        if run.columns is None:
            return None
        absent = (None,) * len(run.columns)
        columns = zip(*(absent if row is None else row for row in rows), strict=True)
        arrays = [
            mysql_types.values_of(run.table.name, column, values, zero_dates=self._zero_dates)
            for column, values in zip(run.columns, columns, strict=True)
        ]
        present = pa.array([row is not None for row in rows])
        return envelope.struct_of(run.table.columns, arrays, present=present)


def read_rows(
    table: Table,
    columns: Sequence[Column],
    rows: Sequence[tuple[Any, ...]],
    moment: datetime,
    *,
    zero_dates: str | None,
) -> Changes:
    """Rows of a snapshot."""
    arrays = [
        mysql_types.values_from_text(table.name, column, values, zero_dates=zero_dates)
        for column, values in zip(columns, zip(*rows, strict=True), strict=True)
    ]
    after = envelope.struct_of(table.columns, arrays)
    ops = pa.repeat(pa.scalar(envelope.READ), len(rows))
    told = envelope.changes_of(table.columns, ops, None, after, positions="snapshot", committed_at=moment)
    return Changes(table, told)


def emptied(table: Table, moment: datetime) -> Changes:
    """A table that went while the binlog was not there to tell it."""
    rows = envelope.changes_of(
        table.columns, pa.array([envelope.TRUNCATE]), None, None, positions="dropped", committed_at=moment
    )
    return Changes(table, rows)
