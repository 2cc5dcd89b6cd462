"""Copies of views in PostgreSQL.

Beside `penstock_views`, which holds the progress of every view, a view has a table `<view>__rows`
of native types and a SQL view of its own name that adds `final`. Changes are copied into a
temporary table of the session and applied from there, so a large chunk takes few statements.

Nested values are jsonb, which does not keep the order of a map's entries. Text with a zero
character, which PostgreSQL has no place for, is refused with BadRecord.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
from psycopg import Connection
from psycopg.sql import SQL, Composable, Composed, Identifier

from penstock.errors import BadOption
from penstock.follow.cells import as_text, from_parsed, whole
from penstock.follow.changes import UPSERT, Changed, changed
from penstock.follow.postgres_session import Session
from penstock.follow.store import (
    CHUNK_RECORDS,
    Held,
    Progress,
    Watch,
    checked,
    conditions,
    readable,
    shown,
    unwatched,
)
from penstock.follow.table import ROWS_SUFFIX, WINDOW_END, TableSpec
from penstock.schema import ArrowArray, ArrowType

_NAME_BYTES_MAX = 63  # PostgreSQL cuts longer names short, and two could become one
_SYSTEM_COLUMNS = ("tableoid", "xmin", "cmin", "xmax", "cmax", "ctid")
_PATTERN = "_nulls"
_TYPES: dict[ArrowType, str] = {
    pa.int8(): "smallint",
    pa.int16(): "smallint",
    pa.int32(): "integer",
    pa.int64(): "bigint",
    pa.float32(): "real",
    pa.float64(): "double precision",
    pa.string(): "text",
    pa.binary(): "bytea",
    pa.bool_(): "boolean",
    pa.date32(): "date",
    pa.timestamp("us", tz="UTC"): "timestamptz",
    pa.timestamp("us"): "timestamp",
}
_PROGRESS_TABLE = """
CREATE TABLE IF NOT EXISTS penstock_views (
    view text PRIMARY KEY, changelog_id text NOT NULL, columns text NOT NULL, key text NOT NULL,
    next_offset bigint NOT NULL, batch bigint, closed timestamptz)
"""
_PARTITIONS_TABLE = """
CREATE TABLE IF NOT EXISTS penstock_partitions (
    view text, partition integer, next_offset bigint NOT NULL, PRIMARY KEY (view, partition))
"""
_is = pa.types


class PostgresStore:
    """Thread-safe: one connection writes, another one reads, each used by one thread at a time."""

    keyed, gather_s, chunk_records = True, 0.0, CHUNK_RECORDS

    def __init__(self, url: str, *, schema: str = "public", watch: Watch = unwatched) -> None:
        _check_length(schema)
        self._schema, self._watch = schema, watch
        self._writer = Session(url, schema)
        self._reader = Session(url, schema)
        self._prepared: dict[str, str] = {}  # view -> id of the changelog it follows

    def __repr__(self) -> str:
        return f"<PostgresStore, schema {self._schema}>"  # the address may hold a password

    def prepare(self, spec: TableSpec, changelog_id: str) -> Progress:
        _check_length(spec.name + ROWS_SUFFIX)
        for name in spec.columns.names:
            _check_length(name)
            _check_free(name)
        with self._writer.transaction() as db:
            _take_turns(db)
            db.execute(_PROGRESS_TABLE)
            db.execute(_PARTITIONS_TABLE)
            held = _held(db, spec.name)
            there = _exists(db, spec.name + ROWS_SUFFIX)
            if held is None or not there or not held.is_of(spec, changelog_id):
                _drop(db, spec.name, known=held is not None)
                _create(db, spec, changelog_id)
                held = Held(changelog_id, spec.ddl, spec.key, Progress(0))
        self._prepared[spec.name] = changelog_id
        return held.progress

    def apply(
        self, spec: TableSpec, changes: pa.Table, *, from_offset: int, next_offset: int, partition: int = 0
    ) -> None:
        todo = changed(spec, changes)
        with self._writer.transaction() as db:
            self._watch("begun")
            held = _held(db, spec.name, lock=True)
            before = checked(spec, held, self._prepared.get(spec.name), from_offset, partition)
            stage = self._staged(db, spec, todo)
            _remove(db, spec, stage, todo)
            self._watch("removed")
            _upsert(db, spec, stage, todo)
            self._watch("written")
            _note(db, spec.name, before.after(todo, next_offset, partition=partition))
            self._watch("noted")
        self._watch("committed")

    def _staged(self, db: Connection[Any], spec: TableSpec, todo: Changed) -> Identifier:
        """The changes in a temporary table: keys to remove as "d", rows to write as "u"."""
        typed = [*spec.values, pa.field("_op", pa.string()), pa.field(_PATTERN, pa.int64())]
        stage = self._writer.stage_of(db, spec, SQL(", ").join(map(_column, typed)))
        for rows, upsert in ((todo.removals, False), (todo.upserts, True)):
            if not rows.num_rows:
                continue
            names = [*spec.key] if not upsert else spec.values.names
            columns = SQL(", ").join(map(Identifier, [*names, "_op", _PATTERN]))
            arrays = [_written(rows[name]) for name in names]
            ops = pa.array(["u" if upsert else "d"] * rows.num_rows)
            nulls = pa.array(np.zeros(rows.num_rows, np.int64) if upsert else todo.patterns)
            copied = pa.table([*arrays, ops, nulls], names=[*map(str, range(len(names))), "_op", _PATTERN])
            statement = SQL("COPY {} ({}) FROM STDIN (FORMAT csv)").format(stage, columns)
            with db.cursor().copy(statement) as copy:
                copy.write(_csv(copied))
        return stage

    def progress(self, view: str) -> Progress | None:
        held = self._reader.ask(lambda db: _held_if_any(db, view))
        return held.progress if held else None

    def rows(
        self, spec: TableSpec, *, where: Mapping[str, object] | None = None, limit: int | None = None
    ) -> tuple[pa.Table, Progress]:
        tests = _tests(conditions(spec, where))
        statement = SQL("SELECT {} FROM {}").format(_names(spec.values.names), _table(spec.name))
        if tests:
            statement += SQL(" WHERE ") + SQL(" AND ").join(tests)
        if spec.key:
            statement += SQL(" ORDER BY ") + _names(spec.key)
        limited = statement + SQL(" LIMIT {}").format(limit)

        def look(db: Connection[Any]) -> tuple[Progress, list[tuple[Any, ...]]]:
            db.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            progress = readable(spec, _held_if_any(db, spec.name))
            return progress, db.execute(limited, binary=True).fetchall()

        progress, found = self._reader.ask(look)
        return shown(spec, _arrow(spec, found), progress), progress

    def drop(self, view: str) -> None:
        with self._writer.transaction() as db:
            _take_turns(db)
            if _held_if_any(db, view):
                _drop(db, view, known=True)
                db.execute("DELETE FROM penstock_views WHERE view = %s", (view,))
                db.execute("DELETE FROM penstock_partitions WHERE view = %s", (view,))
        self._prepared.pop(view, None)

    def close(self) -> None:
        self._writer.close()
        self._reader.close()


def _take_turns(db: Connection[Any]) -> None:
    """Two followers that start together would both create the tables."""
    db.execute("SELECT pg_advisory_xact_lock(hashtext('penstock_views'))")


def _held(db: Connection[Any], view: str, *, lock: bool = False) -> Held | None:
    statement = (
        "SELECT changelog_id, columns, key, next_offset, batch, "
        "(extract(epoch FROM closed) * 1000000)::bigint FROM penstock_views WHERE view = %s"
    )
    found = db.execute(SQL(statement) + SQL(" FOR UPDATE" if lock else ""), (view,)).fetchone()
    if found is None:
        return None
    changelog_id, columns, key, next_offset, batch, closed_us = found
    progress = Progress(next_offset, batch, closed_us, _others(db, view))
    return Held(changelog_id, columns, tuple(json.loads(key)), progress)


def _others(db: Connection[Any], view: str) -> tuple[int, ...]:
    if not _exists(db, "penstock_partitions"):  # made by an earlier version
        return ()
    statement = "SELECT next_offset FROM penstock_partitions WHERE view = %s ORDER BY partition"
    return tuple(offset for (offset,) in db.execute(statement, (view,)))


def _held_if_any(db: Connection[Any], view: str) -> Held | None:
    """The same where nothing may have been prepared yet."""
    return _held(db, view) if _exists(db, "penstock_views") else None


def _note(db: Connection[Any], view: str, progress: Progress) -> None:
    closed = as_text(pa.array([progress.closed_us], pa.timestamp("us")))[0].as_py()
    db.execute(
        "UPDATE penstock_views SET next_offset = %s, batch = %s, closed = %s::timestamptz WHERE view = %s",
        (progress.next_offset, progress.batch, closed, view),
    )
    for number, offset in enumerate(progress.others, start=1):
        db.execute(
            "INSERT INTO penstock_partitions VALUES (%s, %s, %s) "
            "ON CONFLICT (view, partition) DO UPDATE SET next_offset = excluded.next_offset",
            (view, number, offset),
        )


# ---- tables ---------------------------------------------------------------------------------------


def _exists(db: Connection[Any], name: str) -> bool:
    found = db.execute(
        "SELECT 1 FROM pg_class WHERE relname = %s AND relnamespace = current_schema()::regnamespace", (name,)
    )
    return found.fetchone() is not None


def _drop(db: Connection[Any], view: str, *, known: bool) -> None:
    """Only what Penstock has made: anything else of that name is somebody's data."""
    if known:
        kind = "SELECT 1 FROM pg_views WHERE viewname = %s AND schemaname = current_schema()"
        if db.execute(kind, (view,)).fetchone():
            db.execute(SQL("DROP VIEW {}").format(Identifier(view)))
        db.execute(SQL("DROP TABLE IF EXISTS {}").format(_table(view)))
    for name in (view, view + ROWS_SUFFIX):
        if _exists(db, name):
            raise BadOption(
                f'the database has a table "{name}" that is not Penstock\'s.',
                hint="rename the view or that table, or keep the views in a schema of their own",
            )


def _create(db: Connection[Any], spec: TableSpec, changelog_id: str) -> None:
    columns = [_column(column) for column in spec.values]
    if spec.key:
        # From 15 on the index itself can keep NULLs apart from each other; before, only `_remove` does.
        nulls = SQL("NULLS NOT DISTINCT ") if db.info.server_version >= 150000 else SQL("")
        columns.append(SQL("UNIQUE {}({})").format(nulls, _names(spec.key)))
    db.execute(SQL("CREATE TABLE {} ({})").format(_table(spec.name), SQL(", ").join(columns)))
    selected: Composable = _names(spec.values.names)
    if spec.windowed:
        final = SQL("{}, coalesce({} <= (SELECT closed FROM penstock_views WHERE view = {}), false) AS final")
        selected = final.format(selected, Identifier(WINDOW_END), spec.name)
    db.execute(
        SQL("CREATE VIEW {} AS SELECT {} FROM {}").format(Identifier(spec.name), selected, _table(spec.name))
    )
    db.execute("DELETE FROM penstock_partitions WHERE view = %s", (spec.name,))
    db.execute(
        "INSERT INTO penstock_views VALUES (%s, %s, %s, %s, 0, NULL, NULL) ON CONFLICT (view) DO UPDATE SET "
        "changelog_id = excluded.changelog_id, columns = excluded.columns, key = excluded.key, "
        "next_offset = 0, batch = NULL, closed = NULL",
        (spec.name, changelog_id, spec.ddl, json.dumps(spec.key)),
    )


def _check_length(name: str) -> None:
    length = len(name.encode())
    if length > _NAME_BYTES_MAX:
        raise BadOption(
            f'the name "{name}" has {length} bytes; PostgreSQL takes at most {_NAME_BYTES_MAX}.',
            hint="choose a shorter name",
        )


def _check_free(column: str) -> None:
    if column in _SYSTEM_COLUMNS:
        raise BadOption(
            f'a column cannot be named "{column}" in PostgreSQL, where every table has one of that name.',
            hint="give it another name, or keep the rows in another place",
        )


def _table(view: str) -> Identifier:
    return Identifier(view + ROWS_SUFFIX)


def _names(names: Any) -> Composed:
    return SQL(", ").join(map(Identifier, names))


def _column(column: Any) -> Composable:
    return SQL("{} {}").format(Identifier(column.name), _type_of(column.type))


def _type_of(dtype: ArrowType) -> SQL:
    if _is.is_nested(dtype):
        return SQL("jsonb")
    if _is.is_decimal(dtype):
        return SQL(f"numeric({int(dtype.precision)}, {int(dtype.scale)})")
    return SQL(_TYPES[dtype])


# ---- rows -----------------------------------------------------------------------------------------


def _remove(db: Connection[Any], spec: TableSpec, stage: Identifier, todo: Changed) -> None:
    """One statement for each set of key columns that are NULL.

    IS NOT DISTINCT FROM would be one for all, but uses neither an index nor a hash.
    """
    for pattern in np.unique(todo.patterns).tolist():
        same = [SQL("s._op = 'd' AND s.{} = {}").format(Identifier(_PATTERN), pattern)]
        for at, name in enumerate(map(Identifier, spec.key)):
            is_null = pattern >> at & 1
            same.append(SQL("t.{0} IS NULL" if is_null else "t.{0} = s.{0}").format(name))
        statement = SQL("DELETE FROM {} t USING {} s WHERE {}")
        db.execute(statement.format(_table(spec.name), stage, SQL(" AND ").join(same)))


def _upsert(db: Connection[Any], spec: TableSpec, stage: Identifier, todo: Changed) -> None:
    if not todo.upserts.num_rows:
        return
    names = _names(spec.values.names)
    statement: Composed = SQL("INSERT INTO {} ({}) SELECT {} FROM {} WHERE _op = {}").format(
        _table(spec.name), names, names, stage, UPSERT
    )
    if spec.key:
        updated = [
            SQL("{} = excluded.{}").format(Identifier(name), Identifier(name))
            for name in spec.values.names
            if name not in spec.key
        ]
        statement += SQL(" ON CONFLICT ({}) DO UPDATE SET {}").format(
            _names(spec.key), SQL(", ").join(updated)
        )
    db.execute(statement)


def _written(column: ArrowArray) -> ArrowArray:
    """A column as COPY takes it."""
    column = as_text(whole(column))
    if not _is.is_binary(column.type):
        return column
    return pa.array([None if v is None else "\\x" + v.hex() for v in column.to_pylist()], pa.string())


def _csv(table: pa.Table) -> bytes:
    """NULL is an empty field, and text always has quotes, so that the empty text is another one."""
    buffer = io.BytesIO()
    pyarrow.csv.write_csv(table, buffer, pyarrow.csv.WriteOptions(include_header=False))
    return buffer.getvalue()


def _tests(wanted: Mapping[str, ArrowArray]) -> list[Composable]:
    """With quoted literals, not parameters: those would see a marker in a column named "%s"."""
    tests: list[Composable] = []
    for name, column in wanted.items():
        value = _written(column)[0].as_py()
        if value is None:
            tests.append(SQL("{} IS NULL").format(Identifier(name)))
        else:
            tests.append(SQL("{} = {}::{}").format(Identifier(name), value, _type_of(column.type)))
    return tests


def _arrow(spec: TableSpec, found: list[tuple[Any, ...]]) -> pa.Table:
    if not found:
        return spec.values.empty_table()
    columns = zip(*found, strict=True)
    arrays = [
        from_parsed(column.type, list(each)) if _is.is_nested(column.type) else pa.array(each, column.type)
        for column, each in zip(spec.values, columns, strict=True)
    ]
    return pa.table(arrays, schema=spec.values)
