"""Events in a SQLite file, with its write-ahead log and full syncs: what is recorded survives power loss."""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path

from eventsourcing.sqlite import SQLiteAggregateRecorder, SQLiteApplicationRecorder, SQLiteDatastore

from penstock.sourcing.failures import LOCK_S, told
from penstock.sourcing.store import Listed

_LOOK_S = 0.005
_LOOK_S_IDLE = 0.05
_IDLE_S = 2.0

_LIST = (
    "SELECT originator_id, MAX(originator_version) AS version FROM stored_events "
    "WHERE originator_id > ? GROUP BY originator_id ORDER BY originator_id LIMIT ?"
)
_COUNT = "SELECT COUNT(DISTINCT originator_id) AS count FROM stored_events"


class SQLiteStore:
    """One writer at a time makes the row ids, which are the notification ids, the order of the commits."""

    is_server = False

    def __init__(self, path: Path) -> None:
        self.path, self.address = path, str(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        self._datastore = SQLiteDatastore(
            str(path), lock_timeout=LOCK_S, pool_timeout=LOCK_S, originator_id_type="text"
        )
        self.recorder = SQLiteApplicationRecorder(self._datastore)
        self.snapshots = SQLiteAggregateRecorder(self._datastore, events_table_name="snapshots")
        with told(self.address, server=False):
            self.recorder.create_table()
            self.snapshots.create_table()

    def list(self, *, after: str, limit: int) -> list[Listed]:
        with told(self.address, server=False), self._datastore.transaction(commit=False) as cursor:
            cursor.execute(_LIST, (after, limit))
            return [Listed(row["originator_id"], row["version"]) for row in cursor.fetchall()]

    def count(self) -> int:
        with told(self.address, server=False), self._datastore.transaction(commit=False) as cursor:
            cursor.execute(_COUNT)
            return int(cursor.fetchone()["count"])

    def waker(self) -> SQLiteWaker:
        return SQLiteWaker(self.path)

    def close(self) -> None:
        self._datastore.close()


class SQLiteWaker:
    """Looks at a counter in the file's shared memory, which takes microseconds; seldom when nothing comes."""

    def __init__(self, path: Path) -> None:
        self._db = sqlite3.connect(path, timeout=LOCK_S, isolation_level=None, check_same_thread=False)
        self._version = -1  # so that the first look finds something new
        self._since = time.monotonic()

    def wait(self, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while (found := self._data_version()) == self._version:
            now = time.monotonic()
            if now >= deadline:
                return
            time.sleep(_LOOK_S if now - self._since < _IDLE_S else _LOOK_S_IDLE)
        self._version, self._since = found, time.monotonic()

    def _data_version(self) -> int:
        return int(self._db.execute("PRAGMA data_version").fetchone()[0])

    def close(self) -> None:
        self._db.close()
