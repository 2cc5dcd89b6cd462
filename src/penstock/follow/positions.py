"""How far deliveries are: a small SQLite file in the app's home, for receivers that keep no offset.

A delivery of several records is noted before it is sent, so that it is sent again with the same records
and under the same key, whatever has come since.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from penstock.errors import Contended, StorageError
from penstock.follow.store import Progress
from penstock.fork import Connected

_BUSY_S = 5.0
_TABLE = """
CREATE TABLE IF NOT EXISTS positions (
    topic TEXT, target TEXT, topic_id TEXT, partition INTEGER, next_offset INTEGER NOT NULL,
    sending_until INTEGER, PRIMARY KEY (topic, target, topic_id, partition)) WITHOUT ROWID
"""
_THESE = "topic = ? AND target = ? AND topic_id = ?"


class Positions(Connected):
    """Thread-safe. What was noted survives the death of the process."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path

    def progress(self, topic: str, target: str, topic_id: str) -> Progress | None:
        statement = f"SELECT partition, next_offset FROM positions WHERE {_THESE}"
        with self._opened() as db:
            found = db.execute(statement, (topic, target, topic_id)).fetchall()
        progress = Progress(0)
        for partition, next_offset in found:
            progress = progress.moved(partition, next_offset)
        return progress if found else None

    def begin(self, topic: str, target: str, topic_id: str) -> None:
        """At the beginning, unless there is a position already."""
        with self._opened() as db:
            values = (topic, target, topic_id)
            db.execute("INSERT OR IGNORE INTO positions VALUES (?, ?, ?, 0, 0, NULL)", values)

    def sending(self, topic: str, target: str, topic_id: str, partition: int) -> int | None:
        """Where a delivery ends that was begun and is not known to have arrived."""
        statement = f"SELECT sending_until FROM positions WHERE {_THESE} AND partition = ?"
        with self._opened() as db:
            found = db.execute(statement, (topic, target, topic_id, partition)).fetchone()
        return found[0] if found else None

    def note(
        self,
        topic: str,
        target: str,
        topic_id: str,
        partition: int,
        *,
        before: int,
        after: int,
        until: int | None = None,
    ) -> None:
        """From `before` to `after`. Raises Contended where somebody else has moved it."""
        values = (topic, target, topic_id, partition)
        with self._opened() as db:
            db.execute("INSERT OR IGNORE INTO positions VALUES (?, ?, ?, ?, 0, NULL)", values)
            moved = db.execute(
                "UPDATE positions SET next_offset = ?, sending_until = ? "
                f"WHERE {_THESE} AND partition = ? AND next_offset = ?",
                (after, until, *values, before),
            )
        if not moved.rowcount:
            raise Contended(
                f'deliveries of "{topic}" are not at offset {before} any more.',
                hint="the same app runs elsewhere; stop one of them",
            )

    def forget(self, topic: str, target: str) -> None:
        with self._opened() as db:
            db.execute("DELETE FROM positions WHERE topic = ? AND target = ?", (topic, target))

    @contextmanager
    def _opened(self) -> Iterator[sqlite3.Connection]:
        with self._mutex:
            try:
                if self._db is None:
                    self._db = _connect(self._path)
                with self._db:
                    yield self._db
            except (sqlite3.Error, OSError) as error:
                raise StorageError(f"{self._path}: {error}.", hint="check the disk") from error


def _connect(path: Path) -> sqlite3.Connection:
    path.parent.mkdir(parents=True, exist_ok=True)
    db = sqlite3.connect(path, timeout=_BUSY_S, check_same_thread=False)
    try:
        db.execute("PRAGMA journal_mode=WAL")
        db.execute("PRAGMA synchronous=NORMAL")
        db.execute(_TABLE)
    except BaseException:
        db.close()
        raise
    return db
