"""A SQLite database that somebody puts an older copy of in the place of: noticed, and never mixed up."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.capture.world import caught_up, rows_in_log, rows_in_sqlite, running
from tests.waiting import wait_until

import penstock as ps
from penstock.capture.engine import Capture
from penstock.capture.sqlite_source import SQLiteSource
from penstock.errors import BadInput


def source(path: Path) -> SQLiteSource:
    return SQLiteSource(path, name="shop")


def run(path: Path, script: str) -> None:
    with closing(sqlite3.connect(path, timeout=30)) as db:
        db.executescript(script)


def copy(path: Path, to: Path) -> None:
    with closing(sqlite3.connect(path)) as db, closing(sqlite3.connect(to)) as other:
        db.backup(other)


def inserts(first: int, count: int) -> str:
    return "".join(f"INSERT INTO t VALUES ({n}, 'x');" for n in range(first, first + count))


@pytest.fixture
def path(log: ps.Log, tmp_path: Path) -> Path:
    """Captured, with ten changes; beside it `old.db`, of when it had five."""
    made = tmp_path / "shop.db"
    run(made, "CREATE TABLE t (id INTEGER PRIMARY KEY, name TEXT);")
    caught_up(log, "shop", source(made))
    run(made, inserts(1, 5))
    caught_up(log, "shop", source(made))
    copy(made, tmp_path / "old.db")
    run(made, inserts(6, 5))
    caught_up(log, "shop", source(made))
    return made


@pytest.mark.parametrize("written", [0, 4, 5, 6, 20])
def test_an_older_copy_is_noticed_however_much_was_written_on_it(
    log: ps.Log, path: Path, tmp_path: Path, written: int
) -> None:
    run(tmp_path / "old.db", inserts(100, written))
    (tmp_path / "old.db").replace(path)
    with pytest.raises(BadInput, match="older copy") as refused:
        caught_up(log, "shop", source(path))
    assert "penstock capture resnapshot" in str(refused.value.hint)
    opened = source(path)
    Capture(log, "shop", opened).request_snapshot(["*"])
    caught_up(log, "shop", opened)
    assert rows_in_log(log, "shop.t") == rows_in_sqlite(path, "SELECT * FROM t")


def test_a_backup_that_is_restored_into_it_while_it_is_followed(
    log: ps.Log, path: Path, tmp_path: Path
) -> None:
    run(tmp_path / "old.db", inserts(100, 20))
    with pytest.raises(BadInput, match="older copy"), running(log, "shop", source(path)) as capture:
        copy(tmp_path / "old.db", path)
        wait_until(lambda: capture.last_error is not None)


def test_a_file_that_is_put_in_its_place_while_it_is_followed(
    log: ps.Log, path: Path, tmp_path: Path
) -> None:
    run(tmp_path / "old.db", inserts(100, 20))
    with pytest.raises(BadInput, match="older copy"), running(log, "shop", source(path)) as capture:
        wait_until(lambda: capture.status()["phase"] == "following")
        (tmp_path / "old.db").replace(path)
        wait_until(lambda: "older copy" in (capture.last_error or ""))


def test_a_file_that_is_put_in_its_place_while_it_is_opened(
    log: ps.Log, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the one that is not there any more would be followed for good."""
    older, connect = tmp_path / "old.db", sqlite3.connect
    run(older, inserts(100, 20))

    def connect_and_replace(*args: Any, **options: Any) -> sqlite3.Connection:
        made: sqlite3.Connection = connect(*args, **options)
        if older.exists():
            older.replace(path)
        return made

    monkeypatch.setattr(sqlite3, "connect", connect_and_replace)
    with pytest.raises(BadInput, match="older copy"), running(log, "shop", source(path)) as capture:
        wait_until(lambda: "older copy" in (capture.last_error or ""), timeout_s=20)


def test_a_copy_of_now_goes_on(log: ps.Log, path: Path, tmp_path: Path) -> None:
    copy(path, tmp_path / "new.db")
    (tmp_path / "new.db").replace(path)
    run(path, inserts(11, 3))
    caught_up(log, "shop", source(path))
    assert rows_in_log(log, "shop.t") == rows_in_sqlite(path, "SELECT * FROM t")
