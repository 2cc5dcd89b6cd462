"""The demo's database: who has which plan, in SQLite, and captured while it changes."""

from __future__ import annotations

import sqlite3
import tempfile
import threading
from pathlib import Path

from penstock.capture.engine import Capture
from penstock.capture.running import Running
from penstock.capture.sqlite_source import SQLiteSource
from penstock.log.log import Log
from penstock.log.topic import Topic

CAPTURE = "shop"
TOPICS = tuple(f"{CAPTURE}.{name}" for name in ("plans", "plans.changes", "schemas"))
_TABLE = "CREATE TABLE plans (person TEXT PRIMARY KEY, plan TEXT) WITHOUT ROWID"


class Database:
    """Of one thread, but for the capture, which has one of its own."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._folder = tempfile.TemporaryDirectory(prefix="penstock-demo-")
        self._path = Path(self._folder.name) / "shop.db"
        self._db = sqlite3.connect(self._path, isolation_level=None)
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute(_TABLE)
        self._capture().drop()  # an earlier demo had another database
        self._running = Running([self._capture()])

    def start(self) -> None:
        self._running.start()

    def change(self, person: str, plan: str | None) -> None:
        """None: the person leaves."""
        if plan is None:
            self._db.execute("DELETE FROM plans WHERE person = ?", (person,))
        else:
            self._db.execute("INSERT OR REPLACE INTO plans VALUES (?, ?)", (person, plan))

    def in_database(self) -> dict[str, str]:
        return dict(self._db.execute("SELECT person, plan FROM plans"))

    def in_log(self) -> dict[str, str]:
        """As the log tells it, not as this process remembers it."""
        if TOPICS[0] not in self._log.topics():
            return {}
        topic: Topic = self._log.topic(TOPICS[0])
        return {person: record["plan"] for person, record in topic.latest().items()}

    def finish(self) -> bool:
        """Capture what is left; whether both are the same then."""
        self._running.stop()
        last = self._capture()
        last.run(threading.Event(), once=True)
        last.source.close()
        return self.in_database() == self.in_log()

    def close(self) -> None:
        self._running.stop()
        self._db.close()
        self._folder.cleanup()

    def _capture(self) -> Capture:
        return Capture(self._log, CAPTURE, SQLiteSource(self._path, name=CAPTURE))
