"""Copies of views in a SQLite file.

Beside `penstock_views`, which holds the progress of every view, a view has a table `<view>__rows`
and a SQL view of its own name that adds `final`, for people with a SQL shell. Columns are stored as
cells.py says, booleans as 0 and 1, NaN as the text NaN (SQLite would make it NULL).

The file is in WAL mode: readers see one moment and do not block the writer. A commit survives the
death of the process; after power loss the copy may be some commits back, and its offset with it.
"""

from __future__ import annotations

import errno
import json
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import BadOption, DiskFull, LockTimeout, StorageError
from penstock.follow.cells import as_text, from_text, is_text, values_of, whole
from penstock.follow.changes import Changed, changed
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
from penstock.fork import Connected
from penstock.schema import ArrowArray, ArrowType

_BUSY_S = 5.0
_NOT_A_NUMBER = "NaN"
_PROGRESS_TABLE = """
CREATE TABLE IF NOT EXISTS penstock_views (
    view TEXT PRIMARY KEY COLLATE NOCASE, changelog_id TEXT NOT NULL, columns TEXT NOT NULL,
    key TEXT NOT NULL, next_offset INTEGER NOT NULL, batch INTEGER, closed TEXT) WITHOUT ROWID
"""
_PARTITIONS_TABLE = """
CREATE TABLE IF NOT EXISTS penstock_partitions (
    view TEXT COLLATE NOCASE, partition INTEGER, next_offset INTEGER NOT NULL, PRIMARY KEY (view, partition))
WITHOUT ROWID
"""
_is = pa.types


class SQLiteStore:
    """Thread-safe: one connection writes, another one reads, each used by one thread at a time."""

    keyed, gather_s, chunk_records = True, 0.0, CHUNK_RECORDS

    def __init__(self, path: str | Path, *, busy_s: float = _BUSY_S, watch: Watch = unwatched) -> None:
        self._path = Path(path).absolute()
        self._busy_s, self._watch = busy_s, watch
        self._writer = _Connection(self._path, busy_s)
        self._reader = _Connection(self._path, busy_s)
        self._prepared: dict[str, str] = {}  # view -> id of the changelog it follows

    def __repr__(self) -> str:
        return f"<SQLiteStore {self._path}>"

    def prepare(self, spec: TableSpec, changelog_id: str) -> Progress:
        with self._writer.transaction("IMMEDIATE") as db:
            held = _held(db, spec.name)
            there = _has_table(db, spec.name)
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
        with self._writer.transaction("IMMEDIATE") as db:
            self._watch("begun")
            held = _held(db, spec.name)
            before = checked(spec, held, self._prepared.get(spec.name), from_offset, partition)
            _remove(db, spec, todo)
            self._watch("removed")
            _upsert(db, spec, todo.upserts)
            self._watch("written")
            _note(db, spec.name, before.after(todo, next_offset, partition=partition))
            self._watch("noted")
        self._watch("committed")

    def progress(self, view: str) -> Progress | None:
        with self._reader.transaction("DEFERRED") as db:
            held = _held(db, view)
        return held.progress if held else None

    def rows(
        self, spec: TableSpec, *, where: Mapping[str, object] | None = None, limit: int | None = None
    ) -> tuple[pa.Table, Progress]:
        wanted = {name: _stored(value)[0] for name, value in conditions(spec, where).items()}
        columns = ", ".join(map(_quoted, spec.values.names))
        statement = f"SELECT {columns} FROM {_table(spec.name)}"
        if wanted:
            statement += " WHERE " + _same(wanted)
        if spec.key:
            statement += " ORDER BY " + ", ".join(map(_quoted, spec.key))
        with self._reader.transaction("DEFERRED") as db:
            progress = readable(spec, _held(db, spec.name))
            limited = (*wanted.values(), -1 if limit is None else limit)
            found = db.execute(f"{statement} LIMIT ?", limited).fetchall()
        return shown(spec, _arrow(spec, found), progress), progress

    def drop(self, view: str) -> None:
        with self._writer.transaction("IMMEDIATE") as db:
            if _held(db, view):
                _drop(db, view, known=True)
                db.execute("DELETE FROM penstock_views WHERE view = ?", (view,))
                db.execute("DELETE FROM penstock_partitions WHERE view = ?", (view,))
        self._prepared.pop(view, None)

    def close(self) -> None:
        self._writer.close()
        self._reader.close()


class _Connection(Connected):
    """One SQLite connection, opened when it is needed; a transaction holds it, and holds up a fork."""

    def __init__(self, path: Path, busy_s: float) -> None:
        super().__init__()
        self._path, self._busy_s = path, busy_s
        self._file: tuple[int, int] | None = None

    @contextmanager
    def transaction(self, kind: str) -> Iterator[sqlite3.Connection]:
        with self._mutex, self._storage_errors():
            db = self._opened()
            db.execute(f"BEGIN {kind}")
            try:
                yield db
                db.execute("COMMIT")
            except BaseException:
                if db.in_transaction:  # SQLite may have rolled back by itself
                    db.execute("ROLLBACK")
                raise

    def _opened(self) -> sqlite3.Connection:
        if self._db is not None and self._file != _file_id(self._path):
            self.close()  # somebody deleted or replaced the file: what is written to the old one is lost
        if self._db is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            there = _file_id(self._path)  # one that is put in its place while it is opened is another one
            db = sqlite3.connect(
                self._path, timeout=self._busy_s, isolation_level=None, check_same_thread=False
            )
            try:
                db.execute("PRAGMA journal_mode=WAL")
                db.execute("PRAGMA synchronous=NORMAL")
                db.execute(_PROGRESS_TABLE)
                db.execute(_PARTITIONS_TABLE)
            except BaseException:
                db.close()
                raise
            self._db, self._file = db, there or _file_id(self._path)
        return self._db

    @contextmanager
    def _storage_errors(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # above are the finer shades
            if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
                raise LockTimeout(str(self._path), waited_s=self._busy_s) from error
            if code == sqlite3.SQLITE_FULL or getattr(error, "errno", None) == errno.ENOSPC:
                raise DiskFull(self._path) from error
            self.close()
            raise StorageError(
                f"{self._path}: {error}.",
                hint="check the address and the disk; a file with only copies may be deleted, with its "
                "-wal and -shm: they are made again",
            ) from error


def _file_id(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


def _held(db: sqlite3.Connection, view: str) -> Held | None:
    found = db.execute(
        "SELECT view, changelog_id, columns, key, next_offset, batch, closed "
        "FROM penstock_views WHERE view = ?",
        (view,),
    ).fetchone()
    if found is None:
        return None
    name, changelog_id, columns, key, next_offset, batch, closed = found
    if name != view:
        raise BadOption(
            f'view "{view}" cannot be beside view "{name}" in SQLite, where case does not count.',
            hint="rename one of them, or keep it in a store of its own",
        )
    others = db.execute(
        "SELECT next_offset FROM penstock_partitions WHERE view = ? ORDER BY partition", (view,)
    ).fetchall()
    progress = Progress(next_offset, batch, _closed_us(closed), tuple(offset for (offset,) in others))
    return Held(changelog_id, columns, tuple(json.loads(key)), progress)


def _closed_us(text: str | None) -> int | None:
    closed: int | None = from_text(pa.timestamp("us"), [text]).cast(pa.int64())[0].as_py()
    return closed


def _note(db: sqlite3.Connection, view: str, progress: Progress) -> None:
    closed = as_text(pa.array([progress.closed_us], pa.timestamp("us")))[0].as_py()
    db.execute(
        "UPDATE penstock_views SET next_offset = ?, batch = ?, closed = ? WHERE view = ?",
        (progress.next_offset, progress.batch, closed, view),
    )
    db.executemany(
        "INSERT OR REPLACE INTO penstock_partitions VALUES (?, ?, ?)",
        [(view, number, offset) for number, offset in enumerate(progress.others, start=1)],
    )


# ---- tables ---------------------------------------------------------------------------------------


def _has_table(db: sqlite3.Connection, view: str) -> bool:
    statement = "SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = ? COLLATE NOCASE"
    return db.execute(statement, (view + ROWS_SUFFIX,)).fetchone() is not None


def _drop(db: sqlite3.Connection, view: str, *, known: bool) -> None:
    """Only what Penstock has made: anything else of that name is somebody's data."""
    if known:
        with suppress(sqlite3.OperationalError):  # somebody put a table in its place
            db.execute(f"DROP VIEW IF EXISTS {_quoted(view)}")
        db.execute(f"DROP TABLE IF EXISTS {_table(view)}")
    taken = db.execute(
        "SELECT name FROM sqlite_schema WHERE name COLLATE NOCASE IN (?, ?)", (view, view + ROWS_SUFFIX)
    ).fetchone()
    if taken:
        raise BadOption(
            f'the SQLite file has a table "{taken[0]}" that is not Penstock\'s.',
            hint="rename the view or that table, or keep the views in a file of their own",
        )


def _create(db: sqlite3.Connection, spec: TableSpec, changelog_id: str) -> None:
    columns = ", ".join(f"{_quoted(column.name)} {_affinity(column.type)}" for column in spec.values)
    db.execute(f"CREATE TABLE {_table(spec.name)} ({columns})")
    if spec.key:
        index = _quoted(f"{spec.name}{ROWS_SUFFIX}_key")
        key = ", ".join(map(_quoted, spec.key))
        db.execute(f"CREATE UNIQUE INDEX {index} ON {_table(spec.name)} ({key})")
    selected = ", ".join(map(_quoted, spec.values.names))
    if spec.windowed:
        closed = f"SELECT closed FROM penstock_views WHERE view = {_literal(spec.name)}"
        selected += f", ifnull({_quoted(WINDOW_END)} <= ({closed}), 0) AS final"
    db.execute(f"CREATE VIEW {_quoted(spec.name)} AS SELECT {selected} FROM {_table(spec.name)}")
    db.execute("DELETE FROM penstock_partitions WHERE view = ?", (spec.name,))
    db.execute(
        "INSERT OR REPLACE INTO penstock_views VALUES (?, ?, ?, ?, 0, NULL, NULL)",
        (spec.name, changelog_id, spec.ddl, json.dumps(spec.key)),
    )


def _affinity(dtype: ArrowType) -> str:
    if _is.is_integer(dtype) or _is.is_boolean(dtype):
        return "INTEGER"
    if _is.is_floating(dtype):
        return "REAL"
    return "BLOB" if _is.is_binary(dtype) else "TEXT"


def _table(view: str) -> str:
    return _quoted(view + ROWS_SUFFIX)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


# ---- rows -----------------------------------------------------------------------------------------


def _remove(db: sqlite3.Connection, spec: TableSpec, todo: Changed) -> None:
    if not todo.removals.num_rows:
        return
    statement = f"DELETE FROM {_table(spec.name)}"
    if not spec.key:
        db.execute(statement)
        return
    keys = [_stored(todo.removals[name]) for name in spec.key]
    db.executemany(f"{statement} WHERE {_same(spec.key)}", zip(*keys, strict=True))


def _upsert(db: sqlite3.Connection, spec: TableSpec, rows: pa.Table) -> None:
    if not rows.num_rows:
        return
    names = spec.values.names
    marks = ", ".join("?" * len(names))
    statement = f"INSERT INTO {_table(spec.name)} VALUES ({marks})"
    if spec.key:
        # Updating in place keeps the row's id: a third faster than INSERT OR REPLACE.
        updated = [f"{_quoted(name)} = excluded.{_quoted(name)}" for name in names if name not in spec.key]
        target = ", ".join(map(_quoted, spec.key))
        statement += f" ON CONFLICT ({target}) DO UPDATE SET {', '.join(updated)}"
    db.executemany(statement, zip(*(_stored(rows[name]) for name in names), strict=True))


def _same(names: Any) -> str:
    """IS, unlike =, finds NULLs, and uses the index as well."""
    return " AND ".join(f"{_quoted(name)} IS ?" for name in names)


def _stored(column: ArrowArray) -> list[Any]:
    column = whole(column)
    if _is.is_floating(column.type) and pc.any(pc.is_nan(column)).as_py():
        return [_NOT_A_NUMBER if value != value else value for value in column.to_pylist()]  # noqa: PLR0124
    return values_of(as_text(column))


def _arrow(spec: TableSpec, found: list[tuple[Any, ...]]) -> pa.Table:
    if not found:
        return spec.values.empty_table()
    columns = zip(*found, strict=True)
    arrays = [_loaded(column.type, list(each)) for column, each in zip(spec.values, columns, strict=True)]
    return pa.table(arrays, schema=spec.values)


def _loaded(dtype: ArrowType, values: list[Any]) -> ArrowArray:
    if is_text(dtype):
        return from_text(dtype, values)
    if _is.is_boolean(dtype):
        return pa.array(values, pa.int8()).cast(pa.bool_())
    if _is.is_floating(dtype):
        values = [float("nan") if value == _NOT_A_NUMBER else value for value in values]
    return pa.array(values, dtype)
