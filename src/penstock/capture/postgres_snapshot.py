"""Rows read from PostgreSQL: whole tables at the moment a slot begins, or a chunk by key.

Rows come by COPY as CSV, where an empty field is NULL and a quoted one is text, which Arrow reads as it is.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYet
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.csv
from psycopg import Connection
from psycopg.sql import SQL, Composable, Identifier, Literal

from penstock.capture import envelope
from penstock.capture.postgres_catalog import Catalog, CatalogTable, Form
from penstock.capture.postgres_connection import connect, create_slot, lsn_number
from penstock.capture.postgres_transactions import position_text
from penstock.capture.postgres_types import column_of
from penstock.capture.source import Changes, Key, Table
from penstock.errors import Contended

_TURN_S = 0.2
_CHUNK_BYTES_MAX = 64 << 20
_BATCH_ROWS = 1_000


@dataclass(frozen=True, slots=True)
class Texts:
    """Rows as PostgreSQL prints them."""

    columns: list[Any]
    count: int

    @property
    def size_bytes(self) -> int:
        return sum(column.nbytes for column in self.columns)


def rows_by_copy(db: Connection[Any], query: Composable, width: int, chunk_rows: int) -> Iterator[Texts]:
    """What `query` selects, at most `chunk_rows` at a time, and fewer where they are large."""
    with db.cursor().copy(SQL("COPY ({}) TO STDOUT (FORMAT csv)").format(query)) as copy:
        lines = iter(copy)
        held: list[Any] = []
        size_bytes, at_once = 0, 1
        while some := list(islice(lines, min(at_once, chunk_rows - len(held)))):
            some_bytes = sum(map(len, some))
            held += some
            size_bytes += some_bytes
            at_once = min(2 * at_once, _BATCH_ROWS) if some_bytes < _CHUNK_BYTES_MAX // 16 else 1
            if len(held) == chunk_rows or size_bytes >= _CHUNK_BYTES_MAX:
                yield _read(held, width)
                held, size_bytes = [], 0
        if held:
            yield _read(held, width)


def _read(lines: list[Any], width: int) -> Texts:
    raw = b"".join(lines)
    names = [str(at) for at in range(width)]
    table = pyarrow.csv.read_csv(
        pa.BufferReader(raw),
        # In one block: Arrow refuses a row that is longer than a block.
        read_options=pyarrow.csv.ReadOptions(column_names=names, block_size=len(raw) + 1, use_threads=False),
        parse_options=pyarrow.csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False),
        convert_options=pyarrow.csv.ConvertOptions(
            column_types=dict.fromkeys(names, pa.string()),
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
            check_utf8=False,  # said with the name of the column, when it is converted
        ),
    )
    assert table.num_rows == len(lines), f"{table.num_rows} rows out of {len(lines)}"
    return Texts([column.combine_chunks() for column in table.columns], table.num_rows)


def read_rows(form: Form, texts: Texts, *, lsn: int, taken_at: datetime.datetime) -> Changes:
    """Rows of a snapshot as changes."""
    columns = form.table.columns
    arrays = [
        column_of(each, column.type, of=f"{form.table.name}.{column.name}")
        for each, column in zip(texts.columns, columns, strict=True)
    ]
    batch = envelope.changes_of(
        columns,
        pa.repeat(pa.scalar(envelope.READ), texts.count),
        None,
        envelope.struct_of(columns, arrays),
        positions=position_text(lsn),
        committed_at=taken_at,
    )
    return Changes(form.table, batch)


def selected(
    table: CatalogTable,
    *,
    after: Sequence[str] | None = None,
    upto: Sequence[str] | None = None,
    limit: int | None = None,
) -> Composable:
    """All rows; or with a limit, those behind the key `after` and up to `upto`, in the order of the key."""
    names = SQL(", ").join(Identifier(column.name) for column in table.columns)
    query: Composable = SQL("SELECT {} FROM {}").format(names, table.only)
    if limit is None:
        return query
    key = SQL(", ").join(map(Identifier, table.key))
    bounds = ((">", after), ("<=", upto))
    tests = [
        SQL("({}) {} ({})").format(key, SQL(sign), _key_literal(table, bound))
        for sign, bound in bounds
        if bound is not None
    ]
    if tests:
        query += SQL(" WHERE ") + SQL(" AND ").join(tests)
    return query + SQL(" ORDER BY {} LIMIT {}").format(key, Literal(limit))


def rows_by_key(
    db: Connection[Any], catalog: Catalog, table: Table, names: Sequence[str], keys: Sequence[Key]
) -> dict[Key, dict[str, Any]]:
    """Some columns of some rows as they are now; those that there are."""
    there = catalog.by_name(db, table.name)
    columns = {column.name for column in there.columns} if there else set()
    if there is None or not columns.issuperset(table.key):
        return {}
    kept = [*table.key, *(name for name in names if name in columns)]
    listed, key = (SQL(", ").join(map(Identifier, each)) for each in (kept, table.key))
    found: dict[Key, dict[str, Any]] = {}
    for start in range(0, len(keys), _BATCH_ROWS):
        some = SQL(", ").join(
            SQL("({})").format(_key_literal(there, key, names=table.key))
            for key in keys[start : start + _BATCH_ROWS]
        )
        query = SQL("SELECT {} FROM {} WHERE ({}) IN ({})").format(listed, there.only, key, some)
        for texts in rows_by_copy(db, query, len(kept), _BATCH_ROWS):
            values = [
                column_of(each, table.columns.field(name).type, of=f"{table.name}.{name}").to_pylist()
                for name, each in zip(kept, texts.columns, strict=True)
            ]
            for row in zip(*values, strict=True):
                found[row[: len(table.key)]] = dict(zip(kept, row, strict=True))
    return found


def _key_literal(
    table: CatalogTable, texts: Sequence[Any], *, names: Sequence[str] | None = None
) -> Composable:
    """The name of a type comes from PostgreSQL itself, quoted where it has to be."""
    type_of = {column.name: column.type_name for column in table.columns}
    return SQL(", ").join(
        SQL("{}::{}").format(Literal(text), SQL(type_of[name]))
        for name, text in zip(names or table.key, texts, strict=True)
    )


def last_key(db: Connection[Any], table: CatalogTable) -> list[str] | None:
    """The highest key there is now, as PostgreSQL prints it; None of an empty table."""
    names = SQL(", ").join(map(Identifier, table.key))
    down = SQL(", ").join(SQL("{} DESC").format(Identifier(name)) for name in table.key)
    query = SQL("SELECT {} FROM {} ORDER BY {} LIMIT 1").format(names, table.only, down)
    found = next(iter(list(rows_by_copy(db, query, len(table.key), 1))), None)
    return None if found is None else [column[0].as_py() for column in found.columns]


@contextmanager
def held_in_form(db: Connection[Any], tables: Sequence[CatalogTable]) -> Iterator[None]:
    """Nobody changes the form of the tables meanwhile; they are read and written as ever.

    A table that ALTER TABLE rewrites is empty to a snapshot that was taken before.
    """
    with db.transaction():
        for table in tables:
            try:
                db.execute(SQL("LOCK TABLE {} IN ACCESS SHARE MODE").format(table.only))
            except psycopg.errors.LockNotAvailable as error:
                raise _is_changing(table) from error
        yield


def _is_changing(table: CatalogTable) -> Contended:
    return Contended(f'the form of table "{table.name}" is being changed.', hint="try again after that")


class InitialSnapshot:
    """A new slot, and all rows as they were when it began."""

    def __init__(self, url: str, slot: str, *, chunk_rows: int) -> None:
        self._url, self._slot, self._chunk_rows = url, slot, chunk_rows
        self.lsn = 0  # where the stream begins; known once there are rows

    def changes(
        self, db: Connection[Any], catalog: Catalog, tables: Sequence[CatalogTable]
    ) -> Iterator[Changes | None]:
        """None while the slot waits for transactions that are writing."""
        with held_in_form(db, tables), connect(self._url, replication=True) as maker:
            described = catalog.described(db, tables)
            for table in described:
                if not table.key:  # since we looked another one has come by its name
                    raise _is_changing(table)
            with ThreadPoolExecutor(1) as aside:
                making = aside.submit(create_slot, maker, self._slot)
                try:
                    yield from _pauses(making)
                except GeneratorExit:
                    maker.cancel()
                    raise
            point, snapshot = making.result()
            self.lsn = lsn_number(point)
            with connect(self._url) as reader, reader.transaction():
                reader.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
                reader.execute(SQL("SET TRANSACTION SNAPSHOT {}").format(Literal(snapshot)))
                taken_at = reader.execute("SELECT now()").fetchone()[0]  # type: ignore[index]
                for table in described:
                    form, query = catalog.form_of(table), selected(table)
                    for texts in rows_by_copy(reader, query, len(table.columns), self._chunk_rows):
                        yield read_rows(form, texts, lsn=self.lsn, taken_at=taken_at)


def _pauses(making: Future[Any]) -> Iterator[None]:
    while not making.done():
        try:
            making.exception(_TURN_S)
        except NotYet:
            yield None
