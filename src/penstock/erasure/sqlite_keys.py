"""The key store in one SQLite file, `keys.db` beside the log.

keys         a subject's keyed hash, the id of its key, and the key
forgotten    of every subject that was forgotten, the keyed hash, the id that its key had, and when
secret       what the hashes are keyed with

The file never keeps what was deleted: it has a rollback journal, which is gone when a transaction is done,
and no write-ahead log; deleted cells are overwritten (`secure_delete`), and after a key is destroyed the file
is written anew (VACUUM), since moving cells between pages can leave copies in what a page does not use.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from penstock.erasure.cipher import Key, check_cryptography, new_key
from penstock.errors import DiskFull, LockTimeout, StorageError, UnknownSubject
from penstock.fork import Connected

NAME = "keys.db"
_BUSY_S = 30.0
_TABLES = """
CREATE TABLE IF NOT EXISTS secret (secret BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS keys (
    subject BLOB PRIMARY KEY, id BLOB NOT NULL UNIQUE, key BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS forgotten (
    number INTEGER PRIMARY KEY, subject BLOB NOT NULL UNIQUE, id BLOB NOT NULL UNIQUE,
    at_us INTEGER NOT NULL);
"""


class SqliteKeys(Connected):
    """The KeyStore port. Thread-safe; nothing is created before the first key is."""

    def __init__(self, path: Path, *, now_us: Callable[[], int] = lambda: time.time_ns() // 1_000) -> None:
        super().__init__()
        self.path = path
        self._now_us = now_us
        self._secret = b""

    # ---- keys ---------------------------------------------------------------------------------------

    def make(self, subjects: Iterable[str]) -> Mapping[str, Key]:
        check_cryptography()
        wanted = list(subjects)
        with self._writing() as db:
            found: dict[str, Key] = {}
            for subject in wanted:
                hashed = self._hash(subject)
                if self._when_forgotten(db, hashed) is None:
                    db.execute("INSERT OR IGNORE INTO keys VALUES (?, ?, ?)", (hashed, *new_key()))
                    found[subject] = self._key(db, hashed)
            return found

    def find(self, subjects: Iterable[str]) -> Mapping[str, Key]:
        if not self.path.exists():
            return {}
        with self._reading() as db:
            query = "SELECT id, key FROM keys WHERE subject=?"
            found = {subject: _row(db, query, self._hash(subject)) for subject in subjects}
        return {subject: Key(*row) for subject, row in found.items() if row}

    def by_id(self, ids: Iterable[bytes]) -> Mapping[bytes, Key | None]:
        if not self.path.exists():
            return {}
        query = "SELECT id, key FROM keys WHERE id=?1 UNION ALL SELECT id, NULL FROM forgotten WHERE id=?1"
        with self._reading() as db:
            found = {id: _row(db, query, id) for id in ids}
        return {id: Key(*row) if row[1] else None for id, row in found.items() if row}

    def count(self) -> int:
        return self._number("SELECT count(*) FROM keys")

    def _key(self, db: sqlite3.Connection, hashed: bytes) -> Key:
        row = _row(db, "SELECT id, key FROM keys WHERE subject=?", hashed)
        assert row is not None
        return Key(*row)

    # ---- forgetting ---------------------------------------------------------------------------------

    def destroy(self, subject: str) -> bool:
        if not self.path.exists():
            raise UnknownSubject(subject)
        with self._writing() as db:
            hashed = self._hash(subject)
            before = self._when_forgotten(db, hashed) is not None
            if not before:
                key = _row(db, "DELETE FROM keys WHERE subject=? RETURNING id, key", hashed)
                if key is None:
                    raise UnknownSubject(subject)
                gone = hashed, key[0], self._now_us()
                db.execute("INSERT INTO forgotten (subject, id, at_us) VALUES (?, ?, ?)", gone)
        with self._reading() as db:
            db.execute("VACUUM")
        return not before

    def is_forgotten(self, subject: str) -> bool:
        if not self.path.exists():
            return False
        with self._reading() as db:
            return self._when_forgotten(db, self._hash(subject)) is not None

    def destroyed(self) -> int:
        return self._number("SELECT coalesce(max(number), 0) FROM forgotten")

    def _when_forgotten(self, db: sqlite3.Connection, hashed: bytes) -> int | None:
        row = db.execute("SELECT at_us FROM forgotten WHERE subject=?", (hashed,)).fetchone()
        return None if row is None else int(row[0])

    def _hash(self, subject: str) -> bytes:
        return hmac.digest(self._secret, subject.encode(), hashlib.sha256)

    # ---- the database -------------------------------------------------------------------------------

    def _number(self, query: str) -> int:
        if not self.path.exists():
            return 0
        with self._reading() as db:
            return int(db.execute(query).fetchone()[0])

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        with self._mutex, self._storage_errors():
            yield self._open()

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        with self._mutex, self._storage_errors():
            db = self._open()
            db.execute("BEGIN IMMEDIATE")
            try:
                yield db
                db.execute("COMMIT")
            except BaseException:
                if db.in_transaction:
                    db.execute("ROLLBACK")
                raise

    @contextmanager
    def _storage_errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.DatabaseError as error:
            if "locked" in str(error):
                raise LockTimeout("the key store", waited_s=_BUSY_S) from error
            if "full" in str(error):
                raise DiskFull(self.path) from error
            raise StorageError(f"{self.path}: {error}.", hint="check the disk, or restore it") from error
        except OSError as error:
            reason = error.strerror or str(error)
            raise StorageError(
                f"the key store {self.path} cannot be opened: {reason}.",
                hint="check its folder, and who may write",
            ) from error

    def _open(self) -> sqlite3.Connection:
        if self._db is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            if not self.path.exists():
                _create(self.path)
            db = sqlite3.connect(self.path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False)
            try:
                self._secret = _prepared(db)
            except sqlite3.Error:
                db.close()
                raise
            self._db = db
        return self._db


def _create(path: Path) -> None:
    """An empty file, its owner's alone from the first byte on: SQLite gives the journal the same rights.

    It is never closed under its own name, since that would take the locks of everybody in this process.
    """
    fd, beside = tempfile.mkstemp(prefix=f"{path.name}.", dir=path.parent)
    os.close(fd)
    try:
        with contextlib.suppress(FileExistsError):  # somebody else was first
            os.link(beside, path)
    finally:
        Path(beside).unlink()


def _prepared(db: sqlite3.Connection) -> bytes:
    """The connection ready to be used; the secret of the hashes, made if this is a new store."""
    # EXTRA: what ends a transaction, the journal's removal, is on the disk before the commit returns.
    db.execute("PRAGMA synchronous=EXTRA")
    db.execute("PRAGMA secure_delete=ON")
    db.execute("PRAGMA temp_store=MEMORY")  # VACUUM would put a copy of the keys into a temporary file
    db.execute("BEGIN IMMEDIATE")
    for statement in _TABLES.split(";"):
        db.execute(statement)
    found = db.execute("SELECT secret FROM secret").fetchone()
    if found is None:
        found = (os.urandom(32),)
        db.execute("INSERT INTO secret VALUES (?)", found)
    db.execute("COMMIT")
    return bytes(found[0])


def _row(db: sqlite3.Connection, query: str, value: bytes) -> tuple[bytes, bytes] | None:
    found: tuple[bytes, bytes] | None = db.execute(query, (value,)).fetchone()
    return found
