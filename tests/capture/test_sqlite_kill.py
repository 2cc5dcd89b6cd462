"""kill -9 of a capture while two processes write and tables change their form: nothing is lost or doubled."""

from __future__ import annotations

import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from tests.capture import sqlite_writer
from tests.capture.world import rows_in_log, rows_in_sqlite
from tests.conftest import ROOT
from tests.waiting import wait_until

import penstock as ps
from penstock.capture.engine import stored_progress

_TABLES = """
PRAGMA journal_mode = WAL;
CREATE TABLE users (id INTEGER PRIMARY KEY, name TEXT, email TEXT UNIQUE);
CREATE TABLE lines (order_id INTEGER, line INTEGER, item TEXT, PRIMARY KEY (order_id, line));
"""
_FORMS = (
    "ALTER TABLE users ADD COLUMN city TEXT DEFAULT 'Bern'",
    """
    BEGIN IMMEDIATE;
    CREATE TABLE built (order_id INTEGER, line INTEGER, item TEXT, PRIMARY KEY (order_id, line));
    INSERT INTO built SELECT * FROM lines WHERE line % 3;
    DROP TABLE lines;
    ALTER TABLE built RENAME TO lines;
    COMMIT;
    """,
    "CREATE UNIQUE INDEX names ON users (name)",
)


def capture(home: Path, path: Path, *options: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "penstock", "capture", "run", str(path), "--name", "shop", *options]
    return subprocess.Popen([*command, "--home", str(home)], stderr=subprocess.DEVNULL, cwd=ROOT)


@contextmanager
def killed_in_the_end(running: subprocess.Popen[bytes]) -> Iterator[None]:
    try:
        yield
    finally:
        running.send_signal(signal.SIGKILL)
        running.wait()


@pytest.mark.timeout(600)
@pytest.mark.parametrize("kills", [10, pytest.param(60, marks=pytest.mark.crash)])
def test_a_killed_capture_loses_and_doubles_nothing(
    in_memory: Path, kills: int, report: Callable[[str], None]
) -> None:
    path, home, enough = in_memory / "shop.db", in_memory / "home", in_memory / "enough"
    dice = random.Random(kills)
    with closing(sqlite3.connect(path, timeout=60)) as db, ps.open_log(home) as log:
        db.executescript(_TABLES)
        writers = [
            subprocess.Popen([sys.executable, sqlite_writer.__file__, str(path), str(seed), str(enough)])
            for seed in (1, 2)
        ]
        try:
            for number in range(kills):
                with killed_in_the_end(capture(home, path)):
                    wanted = stored_progress(log, "shop").changes + dice.randrange(1, 500)
                    wait_until(lambda: stored_progress(log, "shop").changes >= wanted, timeout_s=120)  # noqa: B023
                    if number in (2, 4, 6):
                        db.executescript(_FORMS[number // 2 - 1])
                    time.sleep(dice.random() / 20)
        finally:
            enough.touch()
            ended = [writer.wait(60) for writer in writers]
        assert ended == [0, 0]
    assert capture(home, path, "--once").wait(120) == 0

    with ps.open_log(home) as log:
        for table, columns in (("users", "id, name, email, city"), ("lines", "*")):
            there = rows_in_sqlite(path, f"SELECT {columns} FROM {table}")
            assert rows_in_log(log, f"shop.{table}") == there
            assert len(there) > 100
        told = Counter(
            row["position"]
            for table in ("users", "lines")
            for row in log.topic(f"shop.{table}.changes").rows()
            if row["position"].isdigit()
        )
    assert max(told.values()) == 1
    assert len(told) > 1_000
    report(f"SQLite capture: {kills} kills, {len(told):,} changes by 2 processes, 0 lost, 0 doubled")
