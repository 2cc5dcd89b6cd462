"""The triggers that note every change of a SQLite table in one table of changes.

They run in the writer's SQLite, whichever that is, so they use nothing that some of them lack. A change is

    seq   the order of the changes: one writer at a time makes it the order of commits
    tbl   which form of which table, as noted beside
    op    c, u, d
    at    when, as a Julian day
    k0…   the key before an update or a delete
    c0…   the row after an insert or an update

INSERT OR REPLACE pushes out rows that have the same value in a UNIQUE column, or a key that differs only in
what its collation ignores, and runs no delete trigger for them. So a trigger before the change notes which
rows it could push out and by which value, in a table of rivals, and one after it tells those that are gone.

A column can be dropped although the triggers name it. SQLite looks for a name from the inside out: `new.x`
within a SELECT of its own is the row's x, and where there is none any more, that of the table named `new`
around it, which has a NULL for every column.
"""

from __future__ import annotations

import json
import sqlite3
import uuid
from collections.abc import Sequence
from dataclasses import dataclass

NOW = "julianday('now')"
_OWN = "_penstock_"


@dataclass(frozen=True, slots=True)
class Unique:
    """A UNIQUE index that pushes out rows of another key: columns, and how each is compared."""

    columns: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Form:
    """A table of the database in the form that its triggers were made for."""

    table: str
    columns: tuple[str, ...]
    types: tuple[str, ...]  # as declared
    key: tuple[str, ...]
    uniques: tuple[Unique, ...] = ()

    @property
    def text(self) -> str:
        """Equal for equal forms."""
        return json.dumps([self.table, self.columns, self.types, self.key, [u.columns for u in self.uniques]])

    @classmethod
    def of(cls, text: str) -> Form:
        table, columns, types, key, uniques = json.loads(text)
        found = tuple(Unique(tuple((name, how) for name, how in unique)) for unique in uniques)
        return cls(table, tuple(columns), tuple(types), tuple(key), found)


@dataclass(frozen=True, slots=True)
class Names:
    """What a capture has in the database."""

    capture: str

    @property
    def changes(self) -> str:
        return f"{_OWN}{self.capture}_changes"

    @property
    def rivals(self) -> str:
        return f"{_OWN}{self.capture}_rivals"

    @property
    def rivals_index(self) -> str:
        return f"{self.rivals}_by_value"

    @property
    def forms(self) -> str:
        return f"{_OWN}{self.capture}_forms"

    @property
    def triggers(self) -> str:
        return f"{_OWN}{self.capture}_on_"


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def install(db: sqlite3.Connection, names: Names, forms: Sequence[Form]) -> dict[str, int]:
    """Make the triggers those of these forms, within the transaction under way; returns the number of each.

    A form that has its triggers already keeps its number: nobody wrote without them. It gets new ones where
    the application has made a trigger since.
    """
    _make_tables(db, names, forms)
    numbers = {form.text: number for number, form in noted_forms(db, names).items()}
    there, late = _triggers(db, names), _late(db, names)
    wanted: dict[str, str] = {}
    found: dict[str, int] = {}
    for form in forms:
        number = numbers.get(form.text, 0)
        own = _triggers_of(names, form, number)
        if not own.items() <= there.items() or own.keys() & late:
            noted = db.execute(f"INSERT INTO {quoted(names.forms)} (form) VALUES (?)", (form.text,))
            number = int(noted.lastrowid or 0)
        found[form.table] = number
        wanted |= _triggers_of(names, form, number)
    for name in there.keys() - wanted.keys():
        db.execute(f"DROP TRIGGER {quoted(name)}")
    for name in wanted.keys() - there.keys():
        db.execute(wanted[name])
    return found


def noted_forms(db: sqlite3.Connection, names: Names) -> dict[int, Form]:
    """Every form that ever had triggers, by its number."""
    told = db.execute(f"SELECT id, form FROM {quoted(names.forms)} WHERE id > 0 ORDER BY id")
    return {number: Form.of(text) for number, text in told.fetchall()}


def identity(db: sqlite3.Connection, names: Names) -> str:
    """Of this database: another one, or one where capture was dropped meanwhile, has another."""
    return str(db.execute(f"SELECT form FROM {quoted(names.forms)} WHERE id = 0").fetchone()[0])


def remove(db: sqlite3.Connection, names: Names) -> None:
    for name in _triggers(db, names):
        db.execute(f"DROP TRIGGER {quoted(name)}")
    for table in (names.changes, names.rivals, names.forms):
        db.execute(f"DROP TABLE IF EXISTS {quoted(table)}")


def _make_tables(db: sqlite3.Connection, names: Names, forms: Sequence[Form]) -> None:
    db.execute(f"CREATE TABLE IF NOT EXISTS {quoted(names.forms)} (id INTEGER PRIMARY KEY, form TEXT)")
    db.execute(f"INSERT OR IGNORE INTO {quoted(names.forms)} VALUES (0, ?)", (uuid.uuid4().hex,))
    db.execute(f"CREATE TABLE IF NOT EXISTS {quoted(names.changes)} (seq INTEGER PRIMARY KEY, tbl, op, at)")
    db.execute(f"CREATE TABLE IF NOT EXISTS {quoted(names.rivals)} (tbl, value)")
    db.execute(
        f"CREATE INDEX IF NOT EXISTS {quoted(names.rivals_index)} ON {quoted(names.rivals)} (tbl, value)"
    )
    width = max((len(form.columns) for form in forms), default=0)
    depth = max((len(form.key) for form in forms), default=0)
    keys, cells = [f"k{n}" for n in range(depth)], [f"c{n}" for n in range(width)]
    _widen(db, names.changes, [*keys, *cells])
    _widen(db, names.rivals, keys)


def _widen(db: sqlite3.Connection, table: str, columns: Sequence[str]) -> None:
    there = {row[1] for row in db.execute(f"PRAGMA table_info({quoted(table)})")}
    for column in columns:
        if column not in there:
            db.execute(f"ALTER TABLE {quoted(table)} ADD COLUMN {column}")


def _triggers(db: sqlite3.Connection, names: Names) -> dict[str, str]:
    """Those of this capture that there are, and what they say."""
    told = db.execute("SELECT name, sql FROM sqlite_schema WHERE type = 'trigger'")
    return {name: sql for name, sql in told if name.startswith(names.triggers)}


def _late(db: sqlite3.Connection, names: Names) -> set[str]:
    """Those of this capture that do not come first.

    SQLite runs the newest trigger first. One of the application that changes the row once more, and comes
    before ours, would have us tell the later change first.
    """
    late: set[str] = set()
    ours: dict[str, list[str]] = {}
    for name, table in db.execute(
        "SELECT name, tbl_name FROM sqlite_schema WHERE type = 'trigger' ORDER BY rowid"
    ):
        before = ours.setdefault(table.lower(), [])
        if name.startswith(names.triggers):
            before.append(name)
        elif not name.startswith(_OWN):  # those of another capture change no row
            late.update(before)
    return late


def _triggers_of(names: Names, form: Form, number: int) -> dict[str, str]:
    log, table = quoted(names.changes), quoted(form.table)
    news = ", ".join(f"(SELECT new.{quoted(name)})" for name in form.columns)
    nulls = ", ".join(f"NULL AS {quoted(name)}" for name in form.columns)
    olds = ", ".join(f"old.{quoted(name)}" for name in form.key)
    keys = _keys(len(form.key))
    cells = ", ".join(f"c{n}" for n in range(len(form.columns)))
    bodies = {
        "insert": (
            f"AFTER INSERT ON {table}",
            f"INSERT INTO {log} (tbl, op, at, {cells}) "
            f"SELECT {number}, 'c', {NOW}, {news} FROM (SELECT {nulls}) AS new;",
        ),
        "update": (
            f"AFTER UPDATE ON {table}",
            f"INSERT INTO {log} (tbl, op, at, {keys}, {cells}) "
            f"SELECT {number}, 'u', {NOW}, {olds}, {news} FROM (SELECT {nulls}) AS new;",
        ),
        "delete": (
            f"AFTER DELETE ON {table}",
            f"INSERT INTO {log} (tbl, op, at, {keys}) VALUES ({number}, 'd', {NOW}, {olds});",
        ),
    }
    for change, own in (("insert", "new"), ("update", "old")) if form.uniques else ():
        some, body = _could_push_out(names, form, number, own)
        bodies[f"before_{change}"] = (f"BEFORE {change} ON {table} WHEN EXISTS ({some})", body)
        some, body = _pushed_out(names, form, number)
        bodies[f"after_{change}"] = (f"AFTER {change} ON {table} WHEN EXISTS ({some})", body)
    return {
        f"{names.triggers}{what}_{number}": (
            f"CREATE TRIGGER {quoted(f'{names.triggers}{what}_{number}')} {when} BEGIN {body} END"
        )
        for what, (when, body) in bodies.items()
    }


def _could_push_out(names: Names, form: Form, number: int, own: str) -> tuple[str, str]:
    """Other rows with a value that must be unique, and how they are noted.

    `own`: which row has the key of the one that changes.
    """
    rivals, depth = quoted(names.rivals), len(form.key)
    itself = " AND ".join(_same(f"t.{quoted(name)}", f"{own}.{quoted(name)}") for name in form.key)
    if own == "new" and depth == 1:  # a row that gets its id only now has -1 here
        itself += f" AND new.{quoted(form.key[0])} IS NOT -1"
    columns = ", ".join(f"t.{quoted(name)}" for name in form.key)
    noted = " AND ".join(f"r.k{n} IS t.{quoted(name)}" for n, name in enumerate(form.key))
    others = [
        f"FROM {quoted(form.table)} AS t WHERE {_equal(unique)} AND NOT ({itself})" for unique in form.uniques
    ]
    body = " ".join(
        f"INSERT INTO {rivals} (tbl, value, {_keys(depth)}) SELECT {number}, {_value(unique)}, {columns} "
        f"{found} AND NOT EXISTS (SELECT 1 FROM {rivals} AS r "
        f"WHERE r.tbl = {number} AND r.value = {_value(unique)} AND {noted});"
        for unique, found in zip(form.uniques, others, strict=True)
    )
    return " UNION ALL ".join(f"SELECT 1 {found}" for found in others), body


def _pushed_out(names: Names, form: Form, number: int) -> tuple[str, str]:
    """Of the rows noted before, those that are gone, and how they are told as deleted.

    The others stay noted: triggers of the application may change the table before the row goes. So a row that
    went since may be told as deleted twice, which is right.
    """
    rivals, keys = quoted(names.rivals), _keys(len(form.key))
    same = " AND ".join(_same(f"t.{quoted(name)}", f"{rivals}.k{n}") for n, name in enumerate(form.key))
    values = ", ".join(dict.fromkeys(map(_value, form.uniques)))
    gone = (
        f"FROM {rivals} WHERE tbl = {number} AND value IN ({values}) "
        f"AND NOT EXISTS (SELECT 1 FROM {quoted(form.table)} AS t WHERE {same})"
    )
    return f"SELECT 1 {gone}", (
        f"INSERT INTO {quoted(names.changes)} (tbl, op, at, {keys}) "
        f"SELECT DISTINCT {number}, 'd', {NOW}, {keys} {gone}; DELETE {gone};"
    )


def _keys(depth: int) -> str:
    return ", ".join(f"k{n}" for n in range(depth))


def _value(unique: Unique) -> str:
    """Of the new row, as one text."""
    return " || ".join(f"quote(new.{quoted(name)})" for name, _ in unique.columns)


def _equal(unique: Unique) -> str:
    return " AND ".join(
        f"t.{quoted(name)} = new.{quoted(name)} COLLATE {quoted(how)}" for name, how in unique.columns
    )


def _same(column: str, value: str) -> str:
    """To the letter, which a key that is compared without case is not; the first test is for its index."""
    return f"{column} IS {value} AND {column} COLLATE BINARY IS {value}"
