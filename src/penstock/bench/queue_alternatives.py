"""The same work as a log and as a table of a database do it."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from penstock.bench.report import Result, Setting
from penstock.bench.workbench import timed_s
from penstock.opening import open_log

_BATCH = 100
_CLAIM = "SELECT id, body FROM jobs ORDER BY id LIMIT 1"


def measure(folder: Path, bodies: Sequence[bytes], each: int, attempts: int) -> Iterator[Result]:
    """One process; an append or a commit returns when it survives power loss."""
    settings: dict[str, Setting] = {"body_bytes": len(bodies[0]), "best_of": attempts, "durability": "fsync"}

    def rate(name: str, count: int, attempt: Callable[[int], float]) -> Result:
        best = min(attempt(number) for number in range(attempts))
        return Result(name, count / best, "messages/s", settings=settings)

    log, table = _Log(folder / "as-log"), _Table(folder / "as-table.db")
    try:
        yield rate("as a log: append, one by one", each, lambda n: log.append(n, bodies[:each], 1))
        yield rate(
            f"as a log: append, {_BATCH} together", len(bodies), lambda n: log.append(-n - 1, bodies, _BATCH)
        )
        yield rate("as a log: consume, 1 consumer", len(bodies), log.consume)
        yield rate("as a table: insert, one by one", each, lambda _: table.insert(bodies[:each], 1))
        yield rate(
            f"as a table: insert, {_BATCH} together", len(bodies), lambda _: table.insert(bodies, _BATCH)
        )
        yield rate("as a table: take and delete, 1 consumer", each, lambda _: table.work_off(bodies[:each]))
    finally:
        log.close()
        table.close()


class _Log:
    def __init__(self, home: Path) -> None:
        self._log = open_log(home)

    def append(self, number: int, bodies: Sequence[bytes], batch: int) -> float:
        topic = self._log.create_topic(f"work{number}", "body BINARY")
        return timed_s(
            lambda: [topic.append(_rows(bodies[at : at + batch])) for at in range(0, len(bodies), batch)]
        )

    def consume(self, number: int) -> float:
        """What the last appends of `append` left."""
        topic = self._log.topic("work-1")
        return timed_s(lambda: sum(1 for _ in topic.consume(group=f"readers{number}", follow=False)))

    def close(self) -> None:
        self._log.close()


def _rows(bodies: Sequence[bytes]) -> list[dict[str, bytes]]:
    return [{"body": body} for body in bodies]


class _Table:
    """As one writes it: an insert, and a transaction that takes the oldest row away."""

    def __init__(self, path: Path) -> None:
        self._db = sqlite3.connect(path, isolation_level=None)
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute("PRAGMA synchronous = FULL")
        self._db.execute("CREATE TABLE jobs (id INTEGER PRIMARY KEY, body BLOB NOT NULL)")

    def insert(self, bodies: Sequence[bytes], batch: int) -> float:
        self._db.execute("DELETE FROM jobs")

        def all_of_them() -> None:
            for at in range(0, len(bodies), batch):
                self._db.execute("BEGIN IMMEDIATE")
                rows = [(body,) for body in bodies[at : at + batch]]
                self._db.executemany("INSERT INTO jobs (body) VALUES (?)", rows)
                self._db.execute("COMMIT")

        return timed_s(all_of_them)

    def work_off(self, bodies: Sequence[bytes]) -> float:
        self.insert(bodies, len(bodies))

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
