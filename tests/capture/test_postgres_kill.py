"""From PostgreSQL to everything that follows it, through kill -9 of the program and of the database."""

from __future__ import annotations

import json
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
import pytest
import redis as redis_driver
from tests.capture.conftest import LOGICAL
from tests.capture.postgres_database import PostgresDatabase
from tests.capture.world import rows_in_log
from tests.capture.writers import Writers
from tests.conftest import ROOT
from tests.servers import Postgres, Redis, Unavailable, start_postgres
from tests.waiting import wait_until

import penstock as ps
from penstock.capture.engine import stored_progress
from penstock.follow.search import search

_APP = """
import penstock as ps

app = ps.App("bank")
bank = app.capture("bank", ps.capture.postgres({source!r}, tables=["accounts", "audit"]))
bank.table("accounts", to=[
    ps.to.redis({redis!r}), ps.to.search({index!r}, text=["tag"]), {sqlite!r}, {replica!r},
])
"""
_FORMS = {  # before which kill
    1: "ALTER TABLE accounts ADD COLUMN note text",
    2: "ALTER TABLE audit ADD COLUMN more bigint",
    3: "ALTER TABLE accounts ADD COLUMN extra int DEFAULT 5",
}
_COLUMNS = ("id", "n", "tag", "note", "extra")
Rows = list[tuple[Any, ...]]


@dataclass(slots=True)
class Bank:
    """A database, a program that follows it, and where the rows go."""

    folder: Path
    server: Postgres
    redis: Redis
    database: PostgresDatabase
    replica: PostgresDatabase
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def write_app(self) -> None:
        told = _APP.format(
            source=self._url(self.database), redis=self.redis.url, index=str(self.folder / "index"),
            sqlite=f"sqlite:///{self.folder / 'copy.db'}", replica=self._url(self.replica),
        )  # fmt: skip
        (self.folder / "bank_app.py").write_text(told)

    def _url(self, database: PostgresDatabase) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.server.port}/{database.name}"

    def run(self, *options: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "penstock", "run", str(self.folder / "bank_app.py"), *options]
        said = (self.folder / "said.txt").open("ab")
        with said:
            running = subprocess.Popen(
                [*command, "--home", str(self.folder / "home")], stdout=said, stderr=said, cwd=ROOT
            )
        self.started.append(running)
        return running

    def kill(self) -> None:
        """The program, as far as it runs."""
        for running in self.started:
            running.send_signal(signal.SIGKILL)
            running.wait()

    def wait_for_more(self, log: ps.Log, changes: int) -> None:
        wanted = stored_progress(log, "bank").changes + changes

        def are_there() -> bool:
            assert self.started[-1].poll() is None, (self.folder / "said.txt").read_text()
            return stored_progress(log, "bank").changes >= wanted

        wait_until(are_there, timeout_s=120, what="more changes")

    def copies(self) -> dict[str, Rows]:
        names = ", ".join(_COLUMNS)
        with closing(sqlite3.connect(self.folder / "copy.db")) as db:
            found = {"SQLite": db.execute(f'SELECT {names} FROM "bank.accounts"').fetchall()}
        with psycopg.connect(self.replica.dsn) as replica:
            found["PostgreSQL"] = replica.execute(f'SELECT {names} FROM "bank.accounts"').fetchall()
        found["Redis"] = list(self._in_redis())
        hits = [
            hit
            for tag in ("bulk", "new", "old", "shared")
            for hit in search(self.folder / "index", "bank.accounts", f"tag:{tag}", limit=10**6)[0]
        ]
        found["search"] = [tuple(hit.row[name] for name in _COLUMNS) for hit in hits]
        return {name: sorted(rows) for name, rows in found.items()}

    def _in_redis(self) -> Iterator[tuple[Any, ...]]:
        with redis_driver.Redis.from_url(self.redis.url) as client:
            for key in client.scan_iter("penstock:bank.accounts:*", count=1_000):
                row = json.loads(client.get(key))
                yield tuple(row[name] for name in _COLUMNS)


@pytest.fixture
def bank(in_memory: Path, redis: Redis) -> Iterator[Bank]:
    # Not in the folder of the log: only another account may run PostgreSQL.
    with tempfile.TemporaryDirectory(prefix="penstock-") as folder:
        try:
            server = start_postgres(Path(folder), options=LOGICAL)
        except Unavailable as reason:
            pytest.skip(str(reason))
        databases = PostgresDatabase.create(server.dsn), PostgresDatabase.create(server.dsn)
        made = Bank(in_memory, server, redis, *databases)
        made.write_app()
        try:
            yield made
        finally:
            made.kill()
            made.server.stop()


@pytest.mark.timeout(1500)
@pytest.mark.parametrize("kills", [10, pytest.param(60, marks=pytest.mark.crash)])
def test_nothing_is_lost_or_doubled_and_all_copies_are_the_table(
    bank: Bank, kills: int, report: Callable[[str], None]
) -> None:
    dice = random.Random(kills)
    Writers.prepare(bank.database.run)
    assert bank.run("--once").wait(600) == 0, (bank.folder / "said.txt").read_text()
    with ps.open_log(bank.folder / "home") as log, Writers(bank.database.dsn, pause_s=0.03) as writers:
        for number in range(kills):
            bank.run()
            bank.wait_for_more(log, dice.randrange(1, 400))
            if number in _FORMS:
                bank.database.run(_FORMS[number])
            if number in (kills // 3, 2 * kills // 3):
                bank.server.kill()
                bank.server = bank.server.started_again()
                bank.wait_for_more(log, 1)
            time.sleep(dice.random() / 10)
            bank.kill()
    assert not writers.failed
    assert bank.run("--once").wait(600) == 0, (bank.folder / "said.txt").read_text()

    with psycopg.connect(bank.database.dsn) as db:
        source = sorted(db.execute(f"SELECT {', '.join(_COLUMNS)} FROM accounts").fetchall())
    with ps.open_log(bank.folder / "home") as log:
        assert sorted(rows_in_log(log, "bank.accounts")) == source
        changes = [
            row
            for table in ("accounts", "audit")
            for row in log.topic(f"bank.{table}.changes").rows()
            if row["op"] != "r"
        ]
    copies = bank.copies()
    assert [name for name, rows in copies.items() if rows != source] == []
    assert max(Counter(row["position"] for row in changes).values()) == 1
    told = Counter(row["transaction"] for row in changes)
    assert {xid: told[xid] for xid in writers.committed} == writers.committed
    report(
        f"PostgreSQL: {kills} kills of the program, 2 of the server, {len(writers.committed):,} commits, "
        f"{len(changes):,} changes, {len(source):,} rows: 0 lost, 0 doubled, {len(copies)} copies equal"
    )
