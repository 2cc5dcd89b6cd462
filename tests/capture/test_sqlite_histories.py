"""SQLite as a source: tables that come and go while a capture is stopped and begun again."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from tests.capture.world import caught_up, ops, rows_in_log, rows_in_sqlite

import penstock as ps
from penstock.capture.engine import Capture
from penstock.capture.source import Position
from penstock.capture.sqlite_source import SQLiteSource
from penstock.errors import BadOption


class Stopping(SQLiteSource):
    """Whoever runs it is stopped when so many of its steps are stored."""

    def __init__(self, path: Path, *, after: int) -> None:
        super().__init__(path, name="shop", step_rows=1)
        self.stop, self._left = threading.Event(), after

    def stored(self, position: Position) -> None:
        super().stored(position)
        self._left -= 1
        if not self._left:
            self.stop.set()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "shop.db"


@pytest.fixture
def db(path: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(path, isolation_level=None)) as opened:
        yield opened


def stopped(log: ps.Log, path: Path, *, after: int) -> None:
    source = Stopping(path, after=after)
    Capture(log, "shop", source).run(source.stop)
    source.close()


def test_a_table_that_goes_while_its_first_snapshot_is_interrupted(
    log: ps.Log, path: Path, db: sqlite3.Connection
) -> None:
    db.executescript("""
        CREATE TABLE pets (id INTEGER PRIMARY KEY);
        CREATE TABLE users (id INTEGER PRIMARY KEY);
        INSERT INTO pets VALUES (1), (2);
        INSERT INTO users VALUES (1);
    """)
    stopped(log, path, after=2)
    assert rows_in_log(log, "shop.pets") == [(1,)]
    db.execute("DROP TABLE pets")
    caught_up(log, "shop", SQLiteSource(path, name="shop"))
    assert rows_in_log(log, "shop.pets") == []
    assert ops(log, "shop.pets") == ["r", "t"]
    assert rows_in_log(log, "shop.users") == rows_in_sqlite(path, "SELECT * FROM users")


def test_a_table_that_loses_its_key_while_its_first_snapshot_is_interrupted(
    log: ps.Log, path: Path, db: sqlite3.Connection
) -> None:
    db.executescript("CREATE TABLE pets (id INTEGER PRIMARY KEY); INSERT INTO pets VALUES (1), (2);")
    stopped(log, path, after=2)
    db.executescript("DROP TABLE pets; CREATE TABLE pets (id INTEGER); INSERT INTO pets VALUES (3);")
    with pytest.raises(BadOption, match="no primary key"):
        caught_up(log, "shop", SQLiteSource(path, name="shop"))


def test_a_column_whose_name_changes_in_case_only_leaves_what_is_stored_readable(
    log: ps.Log, path: Path, db: sqlite3.Connection
) -> None:
    db.execute("CREATE TABLE users (id INTEGER PRIMARY KEY, name TEXT)")
    db.execute("INSERT INTO users VALUES (1, 'Ann')")
    caught_up(log, "shop", SQLiteSource(path, name="shop"))
    db.execute("ALTER TABLE users RENAME COLUMN name TO Name")
    with pytest.raises(BadOption, match=r'"users" cannot be stored: .* two columns named "Name"') as refused:
        caught_up(log, "shop", SQLiteSource(path, name="shop"))
    assert "penstock capture drop" in str(refused.value.hint)
    assert rows_in_log(log, "shop.users") == [(1, "Ann")]
    db.execute("ALTER TABLE users RENAME COLUMN Name TO name")
    db.execute("INSERT INTO users VALUES (2, 'Bob')")
    caught_up(log, "shop", SQLiteSource(path, name="shop"))
    assert rows_in_log(log, "shop.users") == [(1, "Ann"), (2, "Bob")]
