"""The same work as a log and as a table of a database do it."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from penstock.bench.report import Result, Setting
from penstock.bench.workbench import timed_s
from penstock.log.topic import Topic
from penstock.opening import open_log

_BATCH = 100
_CLAIM = "SELECT id, body FROM jobs ORDER BY id LIMIT 1"


LOG, TABLE = "as a log", "as a table"


@contextmanager
def opened(folder: Path) -> Iterator[Alternatives]:
    log, table = _Log(folder / "as-log"), _Table(folder / "as-table.db")
    try:
        yield Alternatives(log, table)
    finally:
        log.close()
        table.close()


@dataclass(frozen=True, slots=True)
class Alternatives:
    """One process; an append or a commit returns when it survives power loss."""

    log: _Log
    table: _Table

    def publishers(self) -> dict[str, Callable[[bytes], object]]:
        """Each stores one body, by the name of its line."""
        one_by_one = self.log.topic("one-by-one")
        return {
            f"{LOG}: append, one by one": lambda body: one_by_one.append([{"body": body}]),
            f"{TABLE}: insert, one by one": lambda body: self.table.insert([body]),
        }

    def measure(self, bodies: Sequence[bytes], each: int, attempts: int) -> Iterator[Result]:
        settings: dict[str, Setting] = {
            "body_bytes": len(bodies[0]), "best_of": attempts, "durability": "fsync",
        }  # fmt: skip

        def rate(name: str, count: int, attempt: Callable[[int], float]) -> Result:
            best = min(attempt(number) for number in range(attempts))
            return Result(name, count / best, "messages/s", settings=settings)

        log, table = self.log, self.table
        yield rate(f"{LOG}: append, {_BATCH} together", len(bodies), lambda n: log.append(n, bodies))
        yield rate(f"{LOG}: consume, 1 consumer", len(bodies), log.consume)
        yield rate(f"{TABLE}: insert, {_BATCH} together", len(bodies), lambda _: table.insert_all(bodies))
        yield rate(f"{TABLE}: take and delete, 1 consumer", each, lambda _: table.work_off(bodies[:each]))


class _Log:
    def __init__(self, home: Path) -> None:
        self._log = open_log(home)

    def topic(self, name: str) -> Topic:
        return self._log.create_topic(name, "body BINARY")

    def append(self, number: int, bodies: Sequence[bytes]) -> float:
        topic = self.topic(f"work{number}")
        return timed_s(
            lambda: [topic.append([{"body": body} for body in batch]) for batch in _batches(bodies)]
        )

    def consume(self, number: int) -> float:
        """What the first `append` left."""
        topic = self._log.topic("work0")
        return timed_s(lambda: sum(1 for _ in topic.consume(group=f"readers{number}", follow=False)))

    def close(self) -> None:
        self._log.close()


def _batches(bodies: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
    return (bodies[at : at + _BATCH] for at in range(0, len(bodies), _BATCH))


class _Table:
    """As one writes it: an insert, and a transaction that takes the oldest row away."""

    def __init__(self, path: Path) -> None:
        self._db = sqlite3.connect(path, isolation_level=None)
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute("PRAGMA synchronous = FULL")
        self._db.execute("CREATE TABLE jobs (id INTEGER PRIMARY KEY, body BLOB NOT NULL)")

    def insert(self, bodies: Sequence[bytes]) -> None:
        self._db.execute("BEGIN IMMEDIATE")
        self._db.executemany("INSERT INTO jobs (body) VALUES (?)", [(body,) for body in bodies])
        self._db.execute("COMMIT")

    def insert_all(self, bodies: Sequence[bytes]) -> float:
        self._db.execute("DELETE FROM jobs")

        def all_of_them() -> None:
            for batch in _batches(bodies):
                self.insert(batch)

        return timed_s(all_of_them)

    def work_off(self, bodies: Sequence[bytes]) -> float:
        self.insert_all(bodies)

        def all_of_them() -> None:
            while True:
                self._db.execute("BEGIN IMMEDIATE")
                row = self._db.execute(_CLAIM).fetchone()
                if row is not None:
                    self._db.execute("DELETE FROM jobs WHERE id = ?", (row[0],))
                self._db.execute("COMMIT")
                if row is None:
                    return

        return timed_s(all_of_them)

    def close(self) -> None:
        self._db.close()
