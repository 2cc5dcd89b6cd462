"""Who uses the embedded queues: a process that dies is known by its lock, which the kernel frees.

See docs/decisions/liveness-of-group-members.md. Its consumers end with it, what they held goes back, and its
reply queues are removed.
"""

from __future__ import annotations

import os
import uuid
from pathlib import Path

from penstock.log.disk import RealLock
from penstock.queue import catalog, leases
from penstock.queue.file import QueueFile, Transaction
from penstock.queue.numbers import take_number


class Holder:
    """This opening of the queues, as others see it."""

    def __init__(self, file: QueueFile) -> None:
        self._folder = _folder(file)
        self._folder.mkdir(exist_ok=True)
        self.name = f"{os.getpid()}-{uuid.uuid4().hex[:8]}"
        self._lock = _lock_of(self._folder, self.name)
        self._lock.acquire(1.0)
        self.id = file.write(self._register)

    def _register(self, tx: Transaction) -> int:
        id = take_number(tx)
        tx.db.execute("INSERT INTO holders VALUES (?, ?)", (id, self.name))
        return id

    def leave(self, tx: Transaction) -> None:
        _end(tx, self.id, outcome="its consumer closed")

    def let_go(self) -> None:
        """Without a word to the others, who see it at once."""
        self._lock.release()
        self._lock.close()

    def forget(self) -> None:
        self.let_go()
        (self._folder / self.name).unlink(missing_ok=True)


def sweep_dead(tx: Transaction, file: QueueFile, *, own: Holder | None) -> None:
    """End what dead processes held. `own`: who asks, if it holds anything."""
    but, folder = own.id if own is not None else 0, _folder(file)
    for id, name in tx.db.execute("SELECT id, name FROM holders WHERE id<>?", (but,)).fetchall():
        folder.mkdir(exist_ok=True)  # a backup may have the file of queues alone
        lock = _lock_of(folder, name)
        try:
            if lock.try_acquire():
                _end(tx, id, outcome="its consumer died")
                (folder / name).unlink(missing_ok=True)
        finally:
            lock.close()  # and so free, also where the database says no: else it would live as long as we


def _folder(file: QueueFile) -> Path:
    return file.folder / "holders"


def _lock_of(folder: Path, name: str) -> RealLock:
    return RealLock(folder / name, f"holder {name}")


def _end(tx: Transaction, holder: int, *, outcome: str) -> None:
    rows = tx.db.execute("SELECT id FROM consumers WHERE holder=?", (holder,)).fetchall()
    for (consumer,) in rows:
        leases.end_consumer(tx, consumer, outcome=outcome)
    for (queue,) in tx.db.execute("SELECT id FROM queues WHERE holder=?", (holder,)).fetchall():
        catalog.delete(tx, queue)
    tx.db.execute("DELETE FROM holders WHERE id=?", (holder,))
