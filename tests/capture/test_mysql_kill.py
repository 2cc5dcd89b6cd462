"""kill -9 of a capture and of the server, while three processes write: nothing is lost or doubled."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.capture import mysql_writer
from tests.capture.mariadb_server import MariaDB, grant, throwaway
from tests.capture.world import rows_in_log
from tests.conftest import ROOT
from tests.waiting import wait_until

import penstock as ps
from penstock.capture.engine import stored_progress

_TABLES = (
    "CREATE DATABASE shop",
    "CREATE TABLE shop.users (id INT PRIMARY KEY, name VARCHAR(60))",
    "CREATE TABLE shop.parts (owner INT, part INT, item TEXT, PRIMARY KEY (owner, part))",
)
_FORMS = {
    3: "ALTER TABLE shop.users ADD COLUMN city VARCHAR(20) DEFAULT 'Bern'",
    7: "ALTER TABLE shop.parts MODIFY item VARCHAR(200)",
}


def capture(home: Path, server: MariaDB, *options: str) -> subprocess.Popen[bytes]:
    command = [
        sys.executable, "-m", "penstock", "capture", "run", server.url("shop"), "--name", "shop", *options,
    ]  # fmt: skip
    return subprocess.Popen([*command, "--home", str(home)], stderr=subprocess.DEVNULL, cwd=ROOT)


def run(server: MariaDB, *statements: str) -> list[tuple[Any, ...]]:
    with closing(server.connect()) as db, db.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)
        return list(cursor.fetchall())


@pytest.mark.timeout(600)
@pytest.mark.parametrize("kills", [10, pytest.param(60, marks=pytest.mark.crash)])
def test_a_killed_capture_and_a_killed_server_lose_and_double_nothing(
    in_memory: Path, kills: int, report: Callable[[str], None]
) -> None:
    home, enough, dice = in_memory / "home", in_memory / "enough", random.Random(kills)
    with throwaway() as server:
        grant(server)
        run(server, *_TABLES)
        writers = [
            subprocess.Popen(
                [sys.executable, mysql_writer.__file__, str(server.folder / "socket"), str(seed), str(enough)]
            )
            for seed in (1, 2, 3)
        ]
        try:
            with ps.open_log(home) as log:
                for number in range(kills):
                    _one_life(log, home, server, dice, number)
        finally:
            enough.touch()
            ended = [writer.wait(60) for writer in writers]
        assert ended == [0, 0, 0]
        assert capture(home, server, "--once").wait(120) == 0
        there = {
            "users": run(server, "SELECT id, name, city FROM shop.users"),
            "parts": run(server, "SELECT owner, part, item FROM shop.parts"),
        }
    with ps.open_log(home) as log:
        for table, rows in there.items():
            assert rows_in_log(log, f"shop.{table}") == sorted(rows, key=repr)
            assert len(rows) > 100
        told = Counter(
            row["position"]
            for table in there
            for row in log.topic(f"shop.{table}.changes").rows()
            if "/" in row["position"]
        )
    assert max(told.values()) == 1
    assert len(told) > 1_000
    report(f"MariaDB capture: {kills} kills, {len(told):,} changes by 3 processes, 0 lost, 0 doubled")


def _one_life(log: ps.Log, home: Path, server: MariaDB, dice: random.Random, number: int) -> None:
    """A capture that stores some changes, and is killed; twice in ten, the server is too while it runs."""
    before, some = stored_progress(log, "shop").changes, dice.randrange(1, 300)
    running = capture(home, server)
    try:
        wait_until(lambda: stored_progress(log, "shop").changes >= before + some, timeout_s=60)
        if number in _FORMS:
            run(server, _FORMS[number])
        if number % 5 == 4:
            server.kill()
            server.start()
            killed_at = stored_progress(log, "shop").changes
            wait_until(lambda: stored_progress(log, "shop").changes > killed_at, timeout_s=60)
        time.sleep(dice.random() / 20)
    finally:
        running.send_signal(signal.SIGKILL)
        running.wait()
