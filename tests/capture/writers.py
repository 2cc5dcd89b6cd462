"""Threads that write to a table `accounts` at random, and know what they have committed."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import psycopg

ACCOUNTS = "CREATE TABLE accounts (id int PRIMARY KEY, n int, tag text)"
AUDIT = "CREATE TABLE audit (id text PRIMARY KEY, note text)"
_SHARED = 300  # rows that all writers update


@dataclass(slots=True)
class Writers:
    """`committed`: the number of changes by transaction, of those whose commit was answered."""

    dsn: str
    count: int = 3
    transactions: int = 10**9
    pause_s: float = 0.0  # between two transactions of a writer
    committed: dict[str, int] = field(default_factory=dict)
    failed: list[BaseException] = field(default_factory=list)
    _stopping: threading.Event = field(default_factory=threading.Event)
    _threads: list[threading.Thread] = field(default_factory=list)

    @staticmethod
    def prepare(run: Callable[..., None]) -> None:
        run(ACCOUNTS, AUDIT, f"INSERT INTO accounts SELECT i, 0, 'old' FROM generate_series(1, {_SHARED}) i")

    def __enter__(self) -> Writers:
        self._threads = [threading.Thread(target=self._write, args=(at,)) for at in range(self.count)]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self.join()

    @property
    def are_done(self) -> bool:
        return not any(thread.is_alive() for thread in self._threads)

    def join(self) -> None:
        for thread in self._threads:
            thread.join()

    def _write(self, number: int) -> None:
        seed = random.Random(number)
        own = _Own(number)
        left = self.transactions
        while left and not self._stopping.is_set():
            # A server that was killed comes back.
            with suppress(psycopg.OperationalError), psycopg.connect(self.dsn) as db:
                while left and not self._stopping.is_set():
                    try:
                        self._transaction(db, seed, own)
                    except psycopg.OperationalError:
                        raise
                    except BaseException as error:
                        self.failed.append(error)
                        raise
                    left -= 1
                    self._stopping.wait(self.pause_s)

    def _transaction(self, db: psycopg.Connection[Any], seed: random.Random, own: _Own) -> None:
        kind = seed.random()
        changes = own.bulk(db) if kind < 0.02 else own.some(db, seed)
        if 0.02 < kind < 0.1:
            db.rollback()
            return
        found = db.execute("SELECT pg_current_xact_id()::text").fetchone()
        assert found is not None
        db.commit()
        self.committed[found[0]] = changes


@dataclass(slots=True)
class _Own:
    """Ids that only one writer makes."""

    number: int
    made: int = 0

    def _next(self) -> int:
        self.made += 1
        return 1_000_000 * (self.number + 1) + self.made

    def bulk(self, db: psycopg.Connection[Any]) -> int:
        first = self._next()
        self.made += 3_000
        db.execute(
            "INSERT INTO accounts (id, n, tag) SELECT i, 1, 'bulk' FROM generate_series(%s, %s) i",
            (first, first + 2_999),
        )
        return 3_000

    def some(self, db: psycopg.Connection[Any], seed: random.Random) -> int:
        changes = 0
        for _ in range(seed.randint(1, 4)):
            new = self._next()
            db.execute("INSERT INTO accounts (id, n, tag) VALUES (%s, 0, 'new')", (new,))
            db.execute("INSERT INTO audit VALUES (%s, 'made')", (str(new),))
            changes += 2
        if seed.random() < 0.3:  # within a subtransaction, which is undone
            db.execute("SAVEPOINT undone")
            db.execute("DELETE FROM accounts WHERE id = %s", (new,))
            db.execute("ROLLBACK TO undone")
        if seed.random() < 0.3:
            moved = self._next()
            changes += db.execute("UPDATE accounts SET id = %s WHERE id = %s", (moved, new)).rowcount
            new = moved
        if seed.random() < 0.3:
            changes += db.execute("DELETE FROM accounts WHERE id = %s", (new,)).rowcount
        # One shared row at the end: nobody waits for another in a ring.
        shared = seed.randint(1, _SHARED)
        if seed.random() < 0.1:
            changes += db.execute("DELETE FROM accounts WHERE id = %s", (shared,)).rowcount
            return changes
        told = (
            "INSERT INTO accounts (id, n, tag) VALUES (%s, 1, 'shared') "
            "ON CONFLICT (id) DO UPDATE SET n = accounts.n + 1"
        )
        return changes + db.execute(told, (shared,)).rowcount
