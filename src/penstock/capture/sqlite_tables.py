"""The tables of a SQLite database: their form, and their values in the log's types.

SQLite's columns hold values of any type, whatever they are declared as. Penstock goes by the declaration, and
refuses a value that does not fit it, naming it, rather than to change it.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any

import pyarrow as pa

from penstock.capture import outbox
from penstock.capture.source import BOOKKEEPING, Table
from penstock.capture.sqlite_triggers import Form, Unique, quoted
from penstock.errors import BadDefinition, BadInput, BadOption, NotSupported
from penstock.schema import ArrowArray, ArrowType, RecordSchema, ddl_of, did_you_mean

# By words in the declared type, as SQLite itself does; first those that it has no type for.
_TYPES: tuple[tuple[str, ArrowType], ...] = (
    ("BOOL", pa.bool_()),
    ("DATE", pa.string()),
    ("TIME", pa.string()),
    ("INT", pa.int64()),
    ("CHAR", pa.string()),
    ("CLOB", pa.string()),
    ("TEXT", pa.string()),
    ("JSON", pa.string()),
    ("UUID", pa.string()),
    ("BLOB", pa.binary()),
    ("REAL", pa.float64()),
    ("FLOA", pa.float64()),
    ("DOUB", pa.float64()),
    ("NUMERIC", pa.float64()),
    ("DECIMAL", pa.float64()),
)
_CONVERTED = "INT|CHAR|CLOB|TEXT"
_ROWS_EXACT = 1 << 53  # larger whole numbers are no doubles
_MEND = (
    "nothing is lost meanwhile: mend that row, and let all tables be read again with: "
    "penstock capture resnapshot SOURCE"
)


def names_of(db: sqlite3.Connection) -> list[str]:
    """The tables that there are; those that Penstock or a virtual table keeps for itself are none."""
    hidden = BOOKKEEPING.union(
        name for _, name, kind, *_ in db.execute("PRAGMA table_list") if kind == "shadow"
    )
    return [
        name
        for (name,) in db.execute(
            "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\' "
            "AND name NOT LIKE '\\_penstock\\_%' ESCAPE '\\' AND sql NOT LIKE 'CREATE VIRTUAL%' ORDER BY name"
        )
        if name not in hidden
    ]


def check_named(db: sqlite3.Connection, wanted: Sequence[str]) -> None:
    there = names_of(db)
    for name in wanted:
        if name not in there:
            raise BadOption(
                f'the database has no table "{name}".', hint=did_you_mean(name, there or ["none"])
            )


def forms_of(db: sqlite3.Connection, wanted: Sequence[str] | None) -> list[Form]:
    """The tables to capture; all that have a key where none are named."""
    forms = [_form_of(db, name) for name in names_of(db) if wanted is None or name in (*wanted, outbox.TABLE)]
    for form in forms if wanted is not None else ():
        if not form.key:
            raise no_key(form.table)
    return [form for form in forms if form.key]


def keyless(db: sqlite3.Connection) -> list[str]:
    """Tables that are not captured, since nothing tells their rows apart."""
    return [name for name in names_of(db) if not _form_of(db, name).key]


def no_key(table: str) -> BadOption:
    return BadOption(
        f'table "{table}" has no primary key: its rows cannot be told apart.',
        hint=f'give it one: create a new table with a PRIMARY KEY, copy the rows, and rename it to "{table}"',
    )


def _form_of(db: sqlite3.Connection, table: str) -> Form:
    told = db.execute(f"PRAGMA table_xinfo({quoted(table)})").fetchall()
    stored = [row for row in told if row[6] == 0]  # not hidden, not generated
    key = [row for row in sorted(stored, key=lambda row: row[5]) if row[5]]
    return Form(
        table,
        tuple(row[1] for row in stored),
        tuple(row[2] for row in stored),
        tuple(row[1] for row in key),
        _uniques(db, table),
    )


def _uniques(db: sqlite3.Connection, table: str) -> tuple[Unique, ...]:
    found = []
    for _, index, unique, origin, _partial in db.execute(f"PRAGMA index_list({quoted(table)})").fetchall():
        if not unique:
            continue
        parts = [row for row in db.execute(f"PRAGMA index_xinfo({quoted(index)})") if row[5]]
        if origin == "pk" and all(row[4] == "BINARY" for row in parts):
            continue  # what it pushes out has the same key
        if any(row[1] == -2 for row in parts):
            raise NotSupported(
                f'table "{table}" has a UNIQUE index on an expression ("{index}"): which rows an INSERT OR '
                "REPLACE pushes out cannot be told.",
                hint="put the expression into a column of its own, and make that UNIQUE",
            )
        found.append(Unique(tuple((row[2], row[4]) for row in parts)))
    return tuple(found)


def table_of(form: Form, types: Mapping[str, str]) -> Table:
    """`types`: the log's types of some columns, as "table.column"."""
    fields = [
        pa.field(name, _type_of(declared, types.get(f"{form.table}.{name}")))
        for name, declared in zip(form.columns, form.types, strict=True)
    ]
    for name in form.key:
        if pa.types.is_floating(dict(zip(form.columns, (f.type for f in fields), strict=True))[name]):
            raise BadDefinition(
                f'column "{name}" of the key of "{form.table}" is a DOUBLE.',
                hint=f'say what it holds: types={{"{form.table}.{name}": "BIGINT"}}, or "STRING"',
            )
    return Table(form.table, RecordSchema.of(pa.schema(fields)).arrow, form.key)


def _type_of(declared: str, chosen: str | None) -> ArrowType:
    if chosen:
        return RecordSchema.of(f"value {chosen}").arrow.field(0).type
    words = declared.upper()
    found = next((dtype for word, dtype in _TYPES if re.search(word, words)), None)
    return pa.string() if found is None else found  # SQLite's NUMERIC of an unknown name, or none at all


def loose_keys(form: Form) -> frozenset[str]:
    """Columns of the key that SQLite makes no value of another: there 1, '1' and x'31' are three."""
    declared = dict(zip(form.columns, form.types, strict=True))
    return frozenset(
        name
        for name in form.key
        if not declared[name]
        or ("BLOB" in declared[name].upper() and not re.search(_CONVERTED, declared[name].upper()))
    )


def check_keys(
    table: Table, columns: Sequence[Sequence[Any]], present: ArrowArray | None, *, loose: Collection[str]
) -> None:
    """Raises BadInput for a key that names no row in the log, or two.

    `present`: which rows are there; None: all. `loose`: see loose_keys.
    """
    for column, values in zip(table.columns, columns, strict=False):
        if column.name in loose:
            _check_one_row(table, column, values)
        if column.name in table.key and None in values:
            _check_no_null(table, column.name, values, present)


def _check_no_null(table: Table, name: str, values: Sequence[Any], present: ArrowArray | None) -> None:
    there = [True] * len(values) if present is None else present.to_pylist()
    if any(value is None and is_there for value, is_there in zip(values, there, strict=True)):
        raise BadInput(
            f'column "{name}" of the key of "{table.name}" holds NULL, which names no row.', hint=_MEND
        )


def _check_one_row(table: Table, column: pa.Field, values: Sequence[Any]) -> None:
    is_bytes = pa.types.is_binary(column.type)
    same = "those bytes" if is_bytes else "that number"
    for value in values:
        if isinstance(value, str) and (is_bytes or _is_number(value)):
            raise BadInput(
                f'column "{column.name}" of the key of "{table.name}", which has no type, holds the text '
                f"{value[:60]!r}: in the log that is the same as {same}.",
                hint=f"give the column a type, such as TEXT; {_MEND}",
            )


def _is_number(text: str) -> bool:
    """Whether a number is printed so."""
    for read in (int, float):
        with suppress(ValueError):
            return str(read(text)) == text
    return False


def column(table: str, name: str, dtype: ArrowType, values: Sequence[Any]) -> ArrowArray:
    """Values of SQLite as a column of the log. Raises BadInput for one that does not fit."""
    try:
        return _converted(dtype, values)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        for value in values:
            try:
                _converted(dtype, [value])
            except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
                raise BadInput(
                    f'column "{name}" of "{table}" holds {type(value).__name__} {str(value)[:60]!r}, '
                    f"which is no {ddl_of(dtype)}.",
                    hint=_MEND,
                ) from error
        raise


def _converted(dtype: ArrowType, values: Sequence[Any]) -> ArrowArray:
    if pa.types.is_string(dtype):
        return pa.array([None if value is None else _text(value) for value in values], dtype)
    if pa.types.is_boolean(dtype):
        return pa.array([None if value is None else _flag(value) for value in values], dtype)
    if pa.types.is_floating(dtype):
        return pa.array([_number(value) for value in values], dtype)
    if pa.types.is_binary(dtype):
        return pa.array(
            [value.encode(errors="surrogateescape") if isinstance(value, str) else value for value in values],
            dtype,
        )
    if pa.types.is_integer(dtype):
        return pa.array([_whole(value) for value in values], dtype)
    return pa.array([None if value is None else _text(value) for value in values], pa.string()).cast(dtype)


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        raise TypeError("bytes")
    return str(value)


def _flag(value: Any) -> bool:
    if value not in (0, 1):
        raise ValueError(value)
    return bool(value)


def _whole(value: Any) -> Any:
    """Of a REAL, where nothing is behind the point: Arrow would cut it off."""
    if not isinstance(value, float):
        return value
    if not value.is_integer():
        raise ValueError(value)
    return int(value)


def _number(value: Any) -> float | None:
    if isinstance(value, int) and abs(value) > _ROWS_EXACT:
        raise ValueError(value)
    if value is not None and not isinstance(value, int | float):
        raise TypeError(type(value))
    return value
