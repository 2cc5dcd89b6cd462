"""The file of the embedded queues: one SQLite database that many processes write.

A transaction is committed into SQLite's write-ahead log without waiting for the disk, and the lock is free
again. Whoever promised durability then syncs that log: the sync covers everything committed before it, by
anybody; threads that come together share one. What is not synced (leases, acks) survives the death of a
process; power loss may take it back, in the order in which it happened.

Threads that come together share a transaction too: whoever gets the file does the work of all who wait.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar, cast

from penstock import fork
from penstock.clock import Clock
from penstock.errors import DiskFull, LockTimeout, StorageError, SyncFailed
from penstock.fork import Forking
from penstock.log import signal
from penstock.log.disk import RealLock, RealShared
from penstock.queue.tables import TABLES

T = TypeVar("T")
_BUSY_S = 30.0
_WORDS = 1_024  # of shared memory, two for each queue; queues may share one
_CHECKPOINT_PAGES = 4_000  # 16 MB of write-ahead log
_BLOCK = bytes(1024 * 1024)  # by which the write-ahead log grows


class Transaction:
    """The database while it is being changed, the time that counts for it, and whom to wake afterwards."""

    __slots__ = ("db", "has_room", "has_work", "mono_us", "now_us")

    def __init__(self, db: sqlite3.Connection, clock: Clock) -> None:
        self.db = db
        self.now_us = clock.now_us()
        self.mono_us = round(clock.monotonic() * 1_000_000)
        self.has_work: set[int] = set()  # queues in which somebody may find a message now
        self.has_room: set[int] = set()  # queues that are shorter now


class _Job:
    __slots__ = ("done", "durable", "error", "result", "ticket", "work")

    def __init__(self, work: Callable[[Transaction], Any], durable: bool) -> None:
        self.work, self.durable = work, durable
        self.result: Any = None
        self.error: BaseException | None = None
        self.done = False
        self.ticket = 0


class QueueFile(Forking):
    """Thread-safe."""

    def __init__(self, folder: Path, clock: Clock) -> None:
        self.folder, self.clock = folder, clock
        self._path = folder / "queues.db"
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StorageError(
                f"{folder} cannot be made ({error.strerror}).", hint="choose another home"
            ) from error
        self._lock = RealLock(folder / "lock", "the file of queues")
        self._words = RealShared(folder / "signal", 4 * _WORDS)
        self.is_closed = False
        self._begin()
        fork.tell(self)

    def _begin(self) -> None:
        self._mutex, self._syncing = threading.Lock(), threading.Lock()
        self._waiting: deque[_Job] = deque()
        self._db: sqlite3.Connection | None = None
        self._wal = -1
        self._commits = self._synced = self._owed = 0  # owed: as durable, to who has yet to wait for it
        self._broken: StorageError | None = None

    # ---- transactions ----------------------------------------------------------------------------

    def write(self, work: Callable[[Transaction], T], *, durable: bool = False) -> T:
        """Run `work` in a transaction, perhaps together with that of other threads.

        `durable`: on return it survives power loss. What `work` raises undoes what it did, and nothing else.
        """
        job = _Job(work, durable)
        while not job.done:  # again, where whoever took it was interrupted before anything was done
            self._waiting.append(job)
            with self._mutex:
                if not job.done:
                    self._run([self._waiting.popleft() for _ in range(len(self._waiting))])
        if job.error is not None:
            raise job.error
        if durable:
            self._sync(job.ticket)
        return cast("T", job.result)

    def _run(self, jobs: list[_Job]) -> None:
        before = self._commits
        try:
            with self._storage_errors():
                self._transact(jobs)
        except Exception as error:
            for job in jobs:
                job.error, job.result = job.error or error, None
        except BaseException:  # an interrupt, which is for this thread alone
            if self._commits == before:
                jobs = []  # the others try again
            raise
        finally:
            if any(job.durable for job in jobs):
                self._owed = self._commits
            for job in jobs:
                job.done, job.ticket = True, self._commits

    def _transact(self, jobs: list[_Job]) -> None:
        if self._broken is not None:
            raise self._broken
        if self.is_closed:
            raise _closed()
        if self._lock.is_held:  # by nobody here but one that an interrupt ended before it let go
            self._lock.release()
        self._lock.acquire(_BUSY_S)
        try:
            db = self._open()
            try:  # an interrupt comes at once after what has taken its time: with the transaction begun
                db.execute("BEGIN IMMEDIATE")
                tx = Transaction(db, self.clock)
                self._lay_out()
                for job in jobs:
                    self._attempt(tx, job, alone=len(jobs) == 1)
                db.execute("COMMIT")
            finally:
                if db.in_transaction:
                    db.execute("ROLLBACK")
                else:
                    self._commits += 1
        finally:
            self._lock.release()
        self._wake(tx)

    def _attempt(self, tx: Transaction, job: _Job, *, alone: bool) -> None:
        """Its own errors are its own; what the database says stops everybody."""
        if not alone:
            tx.db.execute("SAVEPOINT job")
        try:
            job.result = job.work(tx)
        except sqlite3.Error:
            raise
        except Exception as error:
            job.error = error
            if alone:
                tx.db.execute("ROLLBACK")
                tx.db.execute("BEGIN IMMEDIATE")
            else:
                tx.db.execute("ROLLBACK TO job")
        if not alone:
            tx.db.execute("RELEASE job")

    def _lay_out(self) -> None:
        """Keep the log a whole number of blocks long, the rest of it zeros, which SQLite takes for its end.

        A sync of what lies within a file waits for the disk once; where the file grows, for the file system's
        journal too. Nobody else writes to the log while our transaction is open.
        """
        length = os.fstat(self._wal).st_size
        beyond = length % len(_BLOCK)
        if beyond or not length:
            with suppress(OSError):  # a full disk is told by whoever has something to store
                os.pwrite(self._wal, memoryview(_BLOCK)[beyond:], length)

    def read(self, query: str, values: Iterable[object] = ()) -> list[Any]:
        """What a query finds, outside any transaction."""
        with self._mutex, self._storage_errors():
            return self._open().execute(query, tuple(values)).fetchall()

    def _sync(self, ticket: int) -> None:
        """Everything committed up to `ticket` survives power loss on return."""
        with self._syncing:
            if self._synced < ticket:
                self._sync_all()

    def _sync_all(self) -> None:
        if self._broken is not None:
            raise self._broken
        covers = self._commits
        try:
            self.sync_log()
        except OSError as error:
            # The system may have dropped what it could not write: what comes after cannot be trusted.
            self._broken = SyncFailed(self._path, os.strerror(error.errno or 0))
            raise self._broken from error
        self._synced = covers

    def sync_log(self) -> None:
        """One sync of SQLite's write-ahead log; a checkpoint has synced what is no longer in it."""
        os.fdatasync(self._wal)

    # ---- waking ----------------------------------------------------------------------------------

    def work_seen(self, queue: int) -> int:
        """To be asked before looking for messages, and given to `wait_for_work` if there are none."""
        return self._word(_work_word(queue))

    def wait_for_work(self, queue: int, seen: int, timeout_s: float) -> None:
        self._words.wait(_work_word(queue), seen, timeout_s)

    def room_seen(self, queue: int) -> int:
        return self._word(_work_word(queue) + 1)

    def wait_for_room(self, queue: int, seen: int, timeout_s: float) -> None:
        self._words.wait(_work_word(queue) + 1, seen, timeout_s)

    def _word(self, word: int) -> int:
        try:
            return self._words.view.cast("B").cast("I")[word]
        except ValueError as error:  # the memory is let go of when these queues are closed
            raise _closed() from error

    def _wake(self, tx: Transaction) -> None:
        for word in [_work_word(queue) for queue in tx.has_work] + [
            _work_word(queue) + 1 for queue in tx.has_room
        ]:
            self._words.view.cast("B").cast("I")[word] = signal.stamp()
            self._words.wake(word)

    # ---- the database ----------------------------------------------------------------------------

    @contextmanager
    def _storage_errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.DatabaseError as error:
            if "locked" in str(error):
                raise LockTimeout("the file of queues", waited_s=_BUSY_S) from error
            if "full" in str(error):
                raise DiskFull(self._path) from error
            raise StorageError(f"{self._path}: {error}.", hint="check the disk, or restore it") from error

    def _open(self) -> sqlite3.Connection:
        if self.is_closed:
            raise _closed()
        if self._db is None:
            db = sqlite3.connect(
                self._path,
                timeout=_BUSY_S,
                isolation_level=None,
                check_same_thread=False,
                cached_statements=256,
            )
            try:
                db.execute("PRAGMA journal_mode=WAL")
                db.execute("PRAGMA synchronous=NORMAL")  # the log is synced by us, outside the lock
                db.execute(f"PRAGMA wal_autocheckpoint={_CHECKPOINT_PAGES:d}")
                db.executescript(TABLES)
                # While a connection is open SQLite keeps this file, and it has no locks on it to lose.
                self._wal = os.open(f"{self._path}-wal", os.O_RDWR | os.O_CREAT, 0o644)
                self._sync_folder()
            except BaseException:
                db.close()
                raise
            self._db = db
        return self._db

    def _sync_folder(self) -> None:
        fd = os.open(self.folder, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def close(self) -> None:
        with self._syncing, self._mutex:
            self._close()
            self.is_closed = True
        self._lock.close()
        self._words.close()

    def _close(self) -> None:
        if self._db is not None:
            if self._synced < self._owed:  # to threads that come too late to do it
                with suppress(SyncFailed):  # which they are told
                    self._sync_all()
            self._db.close()
            os.close(self._wal)
        self._db, self._wal = None, -1

    def before_fork(self) -> None:
        # SQLite's locks do not survive a fork, and with a connection open on both sides commits get lost.
        self._syncing.acquire()
        self._mutex.acquire()
        self._close()

    def after_fork_in_parent(self) -> None:
        self._mutex.release()
        self._syncing.release()

    def after_fork_in_child(self) -> None:
        self._begin()


def _closed() -> StorageError:
    return StorageError("these queues were closed.", hint="open them anew: ps.open_queues()")


def _work_word(queue: int) -> int:
    return 2 * queue % _WORDS
