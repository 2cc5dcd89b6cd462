"""SQLite as a source: generated triggers note every change, whoever writes, also in other processes.

What is noted is read in the order of the commits, and removed once it is in the log. A table whose form has
changed, or that was built anew, gets new triggers and is read again whole, in one transaction with what was
noted before: so nothing is missed, however long nobody looked.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.capture import envelope, outbox, sqlite_tables, sqlite_triggers
from penstock.capture.pieces import pieces
from penstock.capture.source import EVERY_TABLE, Changes, Position, Step, Table, check_columns
from penstock.capture.sqlite_triggers import Form, Names, quoted
from penstock.errors import BadInput, BadOption, LockTimeout, NotAllowed, StorageError, Unreachable

_BUSY_S = 10.0
_LOOK_S = 0.001  # how often to look whether somebody has written
_LOOK_S_IDLE = 0.02
_IDLE_S = 1.0
_TELL_S = 0.2  # how often to say that there is nothing new
_STEP_ROWS = 50_000
_PURGE_ROWS = 10_000
_PURGE_S = 5.0
_GO_ON = "if it should go on from here: penstock capture resnapshot SOURCE"
_NO_UTF8 = "Could not decode to UTF-8"  # as the driver says, which has no code for it
_UNIX_EPOCH_DAY = 2_440_587.5  # as a Julian day
_DAY_US = 86_400_000_000


@dataclass(frozen=True, slots=True)
class _Installed:
    """What the triggers are made for."""

    numbers: Mapping[str, int]  # of the form that each captured table has
    tables: Mapping[int, Table]  # of every form there ever was
    there: set[str]  # tables of the database, captured or not
    schema_version: int
    identity: str


class SQLiteSource:
    """`name` is the capture's; `types`: the log's types of columns, as {"orders.paid_at": "TIMESTAMP"}."""

    kind = "sqlite"

    def __init__(
        self,
        path: str | Path,
        *,
        name: str,
        tables: Sequence[str] | None = None,
        types: Mapping[str, str] | None = None,
        step_rows: int = _STEP_ROWS,
    ) -> None:
        self._path = Path(path).absolute()
        self.address = f"sqlite:///{self._path}"
        self._names, self._wanted, self._types = Names(name), tables, dict(types or {})
        self._step_rows = step_rows
        self._loose: dict[str, Collection[str]] = {}  # of each table, columns of its key without a type
        self._db: sqlite3.Connection | None = None
        self._text: Callable[[bytes], str] = str  # what text is read by
        self._file: tuple[int, int] | None = None  # that is open
        self._told = -1  # the last change that a step has told
        self._told_at: float | None = None  # when it was made, as the database has it
        self._stored = self._purged = 0
        self._published: list[int] = []  # rows of the outbox that can go
        self._purged_at = 0.0

    # ---- the port -----------------------------------------------------------------------------

    def tables(self) -> list[Table]:
        with self._errors():
            sqlite_tables.check_named(self._opened(), self._wanted or ())
            return [self._table(form) for form in sqlite_tables.forms_of(self._opened(), self._wanted)]

    def steps(self, position: Position | None, again: Sequence[str] = ()) -> Iterator[Step | None]:
        with self._errors():
            yield from self._steps(position, again)

    def stored(self, position: Position) -> None:
        self._stored = int(position["seq"])

    def altered(self, old: Table, new: Table) -> bool:
        return False  # every new form is read whole anyway

    def remove(self, table: str, ids: Sequence[int]) -> None:
        self._published.extend(ids)

    def mark(self) -> int:
        with self._errors():
            return self._last(self._opened()) if self._is_installed() else 0

    def passed(self, mark: Any) -> bool:
        return self._told >= int(mark)

    def status(self, position: Position | None) -> Mapping[str, Any]:
        with self._errors():
            db = self._opened()
            keyless = {"left_out": sqlite_tables.keyless(db)} if self._wanted is None else {}
            if not self._is_installed():
                return {"waiting": 0, "kept": 0, **keyless}
            told = int(position["seq"]) if position else 0
            log = quoted(self._names.changes)
            waiting = db.execute(f"SELECT count(*) FROM {log} WHERE seq > ?", (told,)).fetchone()
            kept = db.execute(f"SELECT count(*) FROM {log}").fetchone()
            return {"waiting": waiting[0], "kept": kept[0], **keyless}

    def drop(self) -> None:
        with self._errors(), self._transaction("IMMEDIATE") as db:
            sqlite_triggers.remove(db, self._names)

    def close(self) -> None:
        if self._db is not None:
            self._db.close()
        self._db = None

    # ---- following ----------------------------------------------------------------------------

    def _steps(self, position: Position | None, again: Sequence[str]) -> Iterator[Step | None]:
        wake = _Wake(self._opened())
        if position is None:
            check_columns("types", self._types, self.tables())
        while True:
            if position is not None and EVERY_TABLE not in again:
                self._check(position)
            installed = self._install()
            self._check_keys(position, installed)
            fresh, gone = self._to_read(position, installed, again)
            if position is None or fresh or gone:
                for step in self._all(position, installed, fresh, gone, told=EVERY_TABLE not in again):
                    position = step.position
                    yield step
                again = ()
            assert position is not None
            for news in self._until_altered(position, installed, wake):
                position = news.position if news else position
                yield news

    def _until_altered(self, position: Position, installed: _Installed, wake: _Wake) -> Iterator[Step | None]:
        """What is noted, as it comes, until the form of a table changes."""
        self._told, self._told_at = int(position["seq"]), position["at"]
        try:
            yield from self._news_until_altered(installed, wake)
        finally:
            with suppress(sqlite3.Error):
                self._purge(now=True)

    def _news_until_altered(self, installed: _Installed, wake: _Wake) -> Iterator[Step | None]:
        while self._schema_version() == installed.schema_version:
            step = self._news(installed)
            if step is not None:
                self._told, self._told_at = int(step.position["seq"]), step.position["at"]
                yield step
                self._purge()
                continue
            for _ in wake.wait():
                if self._purge():
                    break
                self._check_file()
                yield None

    def _install(self) -> _Installed:
        """Triggers for the tables as they are now. Writers wait meanwhile, some milliseconds."""
        with self._transaction("IMMEDIATE") as db:
            forms = sqlite_tables.forms_of(db, self._wanted)
            numbers = sqlite_triggers.install(db, self._names, forms)
            noted = sqlite_triggers.noted_forms(db, self._names)
            return _Installed(
                numbers,
                {number: self._table(form) for number, form in noted.items()},
                set(sqlite_tables.names_of(db)),
                self._schema_version(),
                sqlite_triggers.identity(db, self._names),
            )

    def _check(self, position: Position) -> None:
        """Before anything is made in a database that may be another one."""
        db = self._opened()
        if not self._is_installed():
            raise BadInput(
                f"{self._path} is not the database that was captured so far, or an older copy of it, or the "
                "capture was dropped there meanwhile: nothing of it is there.",
                hint=_GO_ON,
            )
        here = sqlite_triggers.identity(db, self._names)
        if position["database"] != here or self._made_at(db, int(position["seq"])) != position["at"]:
            raise self._another(int(position["seq"]), self._last(db))

    def _another(self, seq: int, last: int) -> BadInput:
        return BadInput(
            f"{self._path} is not the database that was captured so far, or an older copy of it: the log has "
            f"its changes up to {seq}, and of those it lacks the last; it has {last} of its own.",
            hint=_GO_ON,
        )

    def _check_keys(self, position: Position | None, installed: _Installed) -> None:
        for name in _begun(position):
            is_wanted = self._wanted is None or name in self._wanted
            if is_wanted and name in installed.there and name not in installed.numbers:
                raise sqlite_tables.no_key(name)

    def _to_read(
        self, position: Position | None, installed: _Installed, again: Sequence[str]
    ) -> tuple[list[Table], list[str]]:
        """Tables to read whole: new ones, those of a new form, those asked for. And those that are gone."""
        begun = _begun(position)
        fresh = [
            installed.tables[number]
            for name, number in installed.numbers.items()
            if begun.get(name) != number or name in again or EVERY_TABLE in again
        ]
        return fresh, [name for name in begun if name not in installed.there]

    def _all(
        self,
        position: Position | None,
        installed: _Installed,
        fresh: list[Table],
        gone: list[str],
        *,
        told: bool,
    ) -> Iterator[Step]:
        """Of one moment: what was noted up to it, and then the tables in `fresh`, whole.

        `told`: else all tables are read, and what was noted before is not needed.
        """
        with self._transaction("DEFERRED") as db:
            last = self._last(db)
            pending: dict[str, Any] = {
                "database": installed.identity,
                "tables": position.get("tables", {}) if position else {},
                "snapshot": [table.name for table in fresh],
            }
            seq = min(last, int(position["seq"])) if position and told else last
            while (step := self._noted(db, seq, last, installed)) is not None:
                seq = int(step.position["seq"])
                yield Step({**pending, "seq": seq, "at": step.position["at"]}, step.changes)
            pending |= {"seq": last, "at": self._made_at(db, last)}
            yield Step(pending, begins=fresh)
            moment = datetime.now(UTC)
            for table in fresh:
                for rows in self._snapshot(db, table, moment):
                    yield Step(pending, [Changes(table, rows)])
            yield Step(self._position(last, pending["at"], installed), ends=fresh, gone=gone)

    def _position(self, seq: int, at: float | None, installed: _Installed) -> dict[str, Any]:
        return {"seq": seq, "at": at, "database": installed.identity, "tables": installed.numbers}

    def _snapshot(self, db: sqlite3.Connection, table: Table, moment: datetime) -> Iterator[pa.RecordBatch]:
        columns = ", ".join(map(quoted, table.columns.names))
        cursor = db.execute(f"SELECT {columns} FROM {quoted(table.name)}")
        for rows in pieces(cursor, self._step_rows):
            after = self._struct(table, list(zip(*rows, strict=True)))
            yield envelope.changes_of(
                table.columns, pa.repeat(pa.scalar(envelope.READ), len(rows)), None, after,
                positions="snapshot", committed_at=moment,
            )  # fmt: skip

    def _news(self, installed: _Installed) -> Step | None:
        """What was noted since, in whole transactions unless very much is waiting."""
        with self._transaction("DEFERRED") as db:
            last = self._last(db)
            if self._made_at(db, self._told) != self._told_at:  # somebody has restored a backup into it
                raise self._another(self._told, last)
            return self._noted(db, self._told, last, installed)

    def _noted(self, db: sqlite3.Connection, seq: int, last: int, installed: _Installed) -> Step | None:
        depth = max((len(table.key) for table in installed.tables.values()), default=0)
        width = max((len(table.columns) for table in installed.tables.values()), default=0)
        cells = "".join(f", k{n}" for n in range(depth)) + "".join(f", c{n}" for n in range(width))
        cursor = db.execute(
            f"SELECT seq, tbl, op, at{cells} FROM {quoted(self._names.changes)} "
            "WHERE seq > ? AND seq <= ? ORDER BY seq",
            (seq, last),
        )
        rows = next(pieces(cursor, self._step_rows), None)
        cursor.close()
        if rows is None:
            return None
        changes = self._grouped(installed.tables, list(zip(*rows, strict=True)), depth)
        return Step(self._position(int(rows[-1][0]), rows[-1][3], installed), changes)

    def _grouped(
        self, tables: Mapping[int, Table], columns: list[tuple[Any, ...]], depth: int
    ) -> list[Changes]:
        forms = np.array(columns[1])
        found = []
        for number, table in tables.items():
            mine = np.flatnonzero(forms == number)
            if len(mine):
                picked = columns if len(mine) == len(forms) else [_picked(each, mine) for each in columns]
                found.append(Changes(table, self._envelope(table, picked, depth)))
        return found

    def _envelope(self, table: Table, columns: Sequence[Sequence[Any]], depth: int) -> pa.RecordBatch:
        ops = pa.array(columns[2], pa.string())
        keys = dict(zip(table.key, columns[4:], strict=False))
        before = [
            sqlite_tables.column(table.name, column.name, column.type, keys[column.name])
            if column.name in keys
            else pa.nulls(len(ops), column.type)
            for column in table.columns
        ]
        days = np.array(columns[3], np.float64)
        return envelope.changes_of(
            table.columns,
            ops,
            envelope.struct_of(table.columns, before, present=pc.not_equal(ops, envelope.INSERT)),
            self._struct(table, columns[4 + depth :], present=pc.not_equal(ops, envelope.DELETE)),
            positions=pa.array(columns[0]).cast(pa.string()),
            committed_at=pa.array(((days - _UNIX_EPOCH_DAY) * _DAY_US).round().astype(np.int64)),
        )

    def _struct(self, table: Table, columns: Sequence[Sequence[Any]], *, present: Any = None) -> Any:
        sqlite_tables.check_keys(table, columns, present, loose=self._loose.get(table.name, ()))
        arrays = [
            sqlite_tables.column(table.name, column.name, column.type, values)
            for column, values in zip(table.columns, columns, strict=False)
        ]
        return envelope.struct_of(table.columns, arrays, present=present)

    def _purge(self, *, now: bool = False) -> bool:
        """Remove what is in the log, now and then; returns whether that was a change of a table itself.

        The last change of the log stays: no other may get its number, and it shows that this is no older copy
        of the database, on which somebody has written since.
        """
        at, gone = time.monotonic(), self._published
        due = now or self._stored - self._purged >= _PURGE_ROWS or at - self._purged_at >= _PURGE_S
        if not due or (self._stored <= self._purged and not gone):
            return False
        log = quoted(self._names.changes)
        with self._transaction("IMMEDIATE") as db:
            db.execute(f"DELETE FROM {log} WHERE seq < ?", (self._stored,))
            db.execute(f"DELETE FROM {quoted(self._names.rivals)}")  # of changes that are over
            for number in gone:
                db.execute(f"DELETE FROM {outbox.TABLE} WHERE id = ?", (number,))
        self._purged, self._purged_at, self._published = self._stored, at, []
        return bool(gone)

    # ---- the database -------------------------------------------------------------------------

    def _table(self, form: Form) -> Table:
        self._loose[form.table] = sqlite_tables.loose_keys(form)
        return sqlite_tables.table_of(form, self._types)

    def _last(self, db: sqlite3.Connection) -> int:
        found = db.execute(f"SELECT coalesce(max(seq), 0) FROM {quoted(self._names.changes)}").fetchone()
        return int(found[0])

    def _made_at(self, db: sqlite3.Connection, seq: int) -> float | None:
        """When a change was made; None where there is no such change."""
        told = f"SELECT at FROM {quoted(self._names.changes)} WHERE seq = ?"
        found = db.execute(told, (seq,)).fetchone()
        return None if found is None else float(found[0])

    def _is_installed(self) -> bool:
        known = "SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = ?"
        return self._opened().execute(known, (self._names.changes,)).fetchone() is not None

    def _schema_version(self) -> int:
        return int(self._opened().execute("PRAGMA schema_version").fetchone()[0])

    def _opened(self) -> sqlite3.Connection:
        if self._db is None:
            if not self._path.is_file():
                raise BadOption(
                    f"there is no database {self._path}.", hint="check the path, or create it first"
                )
            # Before it is opened: then one that is put in its place meanwhile is another one.
            self._file = _file_of(self._path)
            self._db = sqlite3.connect(
                f"{self._path.as_uri()}?mode=rw", uri=True, timeout=_BUSY_S, isolation_level=None,
                check_same_thread=False,
            )  # fmt: skip
            self._db.text_factory = self._text
            self._db.execute("PRAGMA cache_size = -16000")
        return self._db

    def _check_file(self) -> None:
        """Raises where another file is at the path now: it is opened, and looked at, with the next try."""
        if _file_of(self._path) != self._file:
            self.close()
            raise Unreachable(f"SQLite ({self._path})", "another file is in its place", hint="check the path")

    @contextmanager
    def _transaction(self, kind: str) -> Iterator[sqlite3.Connection]:
        db = self._opened()
        db.execute(f"BEGIN {kind}")
        try:
            yield db
            db.execute("COMMIT")
        finally:
            with suppress(sqlite3.ProgrammingError):  # closed meanwhile
                if db.in_transaction:
                    db.execute("ROLLBACK")

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            code = getattr(error, "sqlite_errorcode", 0) & 0xFF
            self.close()
            if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
                raise LockTimeout(str(self._path), waited_s=_BUSY_S) from error
            if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH):
                raise NotAllowed(
                    f"SQLite ({self._path})",
                    str(error),
                    hint="capture makes triggers in the database: it must be writable, and so its folder",
                ) from error
            if code in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT):
                raise BadInput(f"{self._path}: {error}.", hint="is it a SQLite database?") from error
            if not code and _NO_UTF8 in str(error):
                # SQLite takes any bytes as text. The next try reads them, more slowly, and names the value.
                self._text = partial(str, encoding="utf-8", errors="surrogateescape")
                raise StorageError(
                    f"{self._path} holds text that is no UTF-8.", hint="it is read again, and named"
                ) from error
            if code in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_IOERR):
                raise Unreachable(f"SQLite ({self._path})", str(error), hint="check the disk") from error
            raise StorageError(f"{self._path}: {error}.", hint="check the database") from error


class _Wake:
    """Sleeps until somebody has written to the database."""

    def __init__(self, db: sqlite3.Connection, clock: Callable[[], float] = time.monotonic) -> None:
        self._db, self._clock = db, clock
        self._version, self._since = self._data_version(), clock()

    def wait(self) -> Iterator[None]:
        """Yields now and then meanwhile."""
        told = self._clock()
        while self._data_version() == self._version:
            now = self._clock()
            if now - told > _TELL_S:
                told = now
                yield None
            time.sleep(_LOOK_S if now - self._since < _IDLE_S else _LOOK_S_IDLE)
        self._version, self._since = self._data_version(), self._clock()

    def _data_version(self) -> int:
        return int(self._db.execute("PRAGMA data_version").fetchone()[0])


def _begun(position: Position | None) -> dict[str, int | None]:
    """Tables that the log may have rows of, with their forms; None of one that was not read to its end."""
    if position is None:
        return {}
    return {**position.get("tables", {}), **dict.fromkeys(position.get("snapshot", ()))}


def _file_of(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


def _picked(values: Sequence[Any], rows: Any) -> list[Any]:
    return [values[row] for row in rows]
