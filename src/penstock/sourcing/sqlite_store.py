"""Events in a SQLite file, with its write-ahead log and full syncs: what is recorded survives power loss."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from eventsourcing.sqlite import (
    SQLiteAggregateRecorder,
    SQLiteApplicationRecorder,
    SQLiteConnection,
    SQLiteDatastore,
)

from penstock import fork
from penstock.fork import Connected, Forking
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
        self._datastore = _Datastore(path)
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


class _Datastore(SQLiteDatastore, Forking):
    """The library's, which has no connection open while the process forks.

    SQLite's locks do not survive a fork, and with a connection open on both sides commits get lost.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._changed = threading.Condition()
        self._using = 0
        self._open()
        fork.tell(self)

    def _open(self) -> None:
        super().__init__(str(self._path), lock_timeout=LOCK_S, pool_timeout=LOCK_S, originator_id_type="text")

    @contextmanager
    def get_connection(self, *, commit: bool) -> Iterator[SQLiteConnection]:
        with self._changed:
            self._using += 1
        try:
            with super().get_connection(commit=commit) as connection:
                try:
                    yield connection
                except BaseException:  # an interrupt right after "BEGIN" would leave it begun for the next
                    with suppress(sqlite3.Error):
                        connection.rollback()
                    raise
        finally:
            with self._changed:
                self._using -= 1
                self._changed.notify_all()

    def before_fork(self) -> None:
        self._changed.acquire()
        self._changed.wait_for(lambda: not self._using, LOCK_S)
        if not self.pool.closed:
            self.close()
            self._open()

    def after_fork_in_parent(self) -> None:
        self._changed.release()

    def after_fork_in_child(self) -> None:
        self._changed = threading.Condition()


class SQLiteWaker(Connected):
    """Looks at a counter in the file's shared memory, which takes microseconds; seldom when nothing comes."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path
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
        with self._mutex:
            if self._db is None:
                self._db = sqlite3.connect(
                    self._path, timeout=LOCK_S, isolation_level=None, check_same_thread=False
                )
            return int(self._db.execute("PRAGMA data_version").fetchone()[0])
