"""Databases that can be asked for the rows of some keys."""

from __future__ import annotations

import datetime as dt
import json
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

from penstock.errors import BadDefinition, BadInput, StorageError, Unreachable
from penstock.opening import check_postgres, is_postgres
from penstock.schema import ddl_of

_AT_ONCE = 500  # keys in one question
_CONNECT_S = 5
_ANSWER_S = 30
_SQLITE = "sqlite:///"


class Database(Protocol):
    def ask(self, keys: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
        """The rows that have one of these keys. Raises StorageError."""
        ...

    def close(self) -> None: ...


def checked(url: str) -> str:
    """The address, for a worker anywhere. Raises for one that means nothing to us, or a missing driver."""
    if is_postgres(url):
        check_postgres()
        return url
    path = url.removeprefix(_SQLITE)
    if not path or "://" in path:
        raise BadDefinition(
            f'no lookups in addresses like "{url.partition("://")[0]}://".',
            hint='use "postgresql://user@host/database", "sqlite:///path" or a path',
        )
    return f"{_SQLITE}{Path(path).absolute()}"  # a worker may have another working directory


def opened(url: str, table: str, columns: Sequence[str], key: Sequence[str]) -> Database:
    """Connects when it is first asked."""
    if is_postgres(url):
        return _Asking(
            _Dialect("PostgreSQL", "%s", '"', _postgres_away), lambda: _postgres(url), table, columns, key
        )
    path = Path(url.removeprefix(_SQLITE))
    return _Asking(_Dialect("SQLite", "?", "`", _sqlite_away), lambda: _sqlite(path), table, columns, key)


@dataclass(frozen=True, slots=True)
class _Dialect:
    name: str
    mark: str  # of a value
    quote: str  # of a name; in double quotes, SQLite takes a column that is not there for text
    away: Callable[[Exception], bool]  # the database, not what was asked, is the cause

    def quoted(self, name: str) -> str:
        return self.quote + name.replace(self.quote, self.quote * 2) + self.quote


class _Asking:
    """A connection that is kept, and opened again once it broke."""

    def __init__(
        self, dialect: _Dialect, connect: Callable[[], Any], table: str, columns: Sequence[str],
        key: Sequence[str],
    ) -> None:  # fmt: skip
        quoted = dialect.quoted
        self._dialect, self._connect = dialect, connect
        self._table, self._key = table, [quoted(name) for name in key]
        place = ".".join(quoted(part) for part in table.split("."))
        self._select = f"SELECT {', '.join(map(quoted, columns))} FROM {place} WHERE "
        self._db: Any = None

    def ask(self, keys: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
        was_open = self._db is not None
        try:
            return self._asked(keys)
        except StorageError:
            if not was_open:  # otherwise it may have been cut since it was last used
                raise
        return self._asked(keys)

    def _asked(self, keys: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
        try:
            if self._db is None:
                self._db = self._connect()
            return [row for some in _parts(keys) for row in self._rows(some)]
        except Exception as error:
            self.close()
            raise self._failure(error) from error

    def close(self) -> None:
        with suppress(Exception):
            self._db.close()
        self._db = None

    def _failure(self, error: Exception) -> StorageError:
        """Of whatever kind: it says nothing about the state of the query that asked."""
        if self._dialect.away(error):
            return Unreachable(
                f'the lookup in "{self._table}" failed, {self._dialect.name}',
                _line(error),
                hint="check that it runs, and its address",
            )
        return StorageError(
            f'the lookup in "{self._table}" failed, {self._dialect.name} says: {_line(error)}.',
            hint="check the table with its columns, their types, and your permissions",
        )

    def _rows(self, keys: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
        values = [value for key in keys for value in key]
        return list(self._db.execute(self._select + self._condition(len(keys)), values).fetchall())

    def _condition(self, many: int) -> str:
        if len(self._key) == 1:
            return f"{self._key[0]} IN ({', '.join([self._dialect.mark] * many)})"
        one = " AND ".join(f"{name} = {self._dialect.mark}" for name in self._key)
        return " OR ".join([f"({one})"] * many)


def _postgres(url: str) -> Any:
    import psycopg

    return psycopg.connect(
        url, autocommit=True, connect_timeout=_CONNECT_S, tcp_user_timeout=_ANSWER_S * 1_000,
        options=f"-c statement_timeout={_ANSWER_S}s -c default_transaction_read_only=on -c TimeZone=UTC",
    )  # fmt: skip


def _sqlite(path: Path) -> Any:
    # Read only: a database that is not there is a mistake and not an empty one.
    return sqlite3.connect(
        f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=_ANSWER_S, isolation_level=None
    )


def _postgres_away(error: Exception) -> bool:
    import psycopg

    return isinstance(error, psycopg.OperationalError)


def _sqlite_away(error: Exception) -> bool:
    """Also a missing table is an OperationalError there."""
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
    return code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_IOERR)


def _parts(keys: Sequence[tuple[Any, ...]]) -> Iterator[Sequence[tuple[Any, ...]]]:
    for start in range(0, len(keys), _AT_ONCE):
        yield keys[start : start + _AT_ONCE]


def _line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")


def several(table: str, key: Sequence[str], value: tuple[Any, ...]) -> BadInput:
    named = ", ".join(f"{name} = {part!r}" for name, part in zip(key, value, strict=True))
    return BadInput(
        f'"{table}" has several rows with {named}.', hint="a lookup needs a key that only one row has"
    )


def unasked(table: str, key: tuple[Any, ...]) -> BadInput:
    return BadInput(
        f'"{table}" has answered with a row of {", ".join(map(repr, key))}, which nobody asked for.',
        hint="its key compares otherwise (a collation, padding, another type): declare the key as it is "
        "there, and bring the events' to the same form",
    )


def arrow(rows: Sequence[tuple[Any, ...]], schema: pa.Schema, table: str) -> pa.Table:
    """Rows of a database in the declared types. Raises BadInput for a value that is of another."""
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(schema)
    made = [_column(values, column, table) for values, column in zip(columns, schema, strict=True)]
    return pa.table(made, schema=pa.schema([column.with_nullable(True) for column in schema]))


def _column(values: Sequence[Any], column: Any, table: str) -> Any:
    dtype = column.type
    try:
        if pa.types.is_timestamp(dtype):
            return pa.array([_time(value, dt.datetime) for value in values], pa.timestamp("us")).cast(dtype)
        if pa.types.is_date(dtype):
            return pa.array([_time(value, dt.date) for value in values], dtype)
        if pa.types.is_string(dtype):
            return pa.array([None if value is None else _text(value) for value in values], dtype)
        try:
            return pa.array(values, dtype)
        except (pa.ArrowInvalid, pa.ArrowTypeError):
            return pa.array(values).cast(dtype)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise BadInput(
            f'column "{column.name}" of "{table}" holds what is no {ddl_of(dtype)}: {_line(error)}.',
            hint="declare it in the lookup as the database has it, or as STRING",
        ) from error


def _time(value: Any, kind: type[dt.date]) -> Any:
    """A time without a zone is UTC; a number could count anything."""
    if isinstance(value, str):
        value = kind.fromisoformat(value)
    if value is not None and not isinstance(value, kind):
        raise TypeError(f"{type(value).__name__} {value!r} is no time")
    if isinstance(value, dt.datetime) and value.tzinfo is not None:
        return value.astimezone(dt.UTC).replace(tzinfo=None)
    return value


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        raise TypeError(f"{len(value)} bytes")
    return json.dumps(value, ensure_ascii=False) if isinstance(value, dict | list) else str(value)
