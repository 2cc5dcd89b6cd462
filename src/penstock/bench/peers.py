"""What others reach with the same events in the same run: a plain file, Arrow's own format, SQLite.

SQLite gets its recommended settings for appending: WAL, one transaction per chunk, one
prepared statement. It gets times as integers, so that it need not convert them.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa

from penstock.bench.workbench import Workbench, timed_s

Synchronous = Literal["FULL", "OFF"]
Rows = Sequence[dict[str, Any]]

_TABLE = "CREATE TABLE views (user_id INTEGER, page TEXT, session TEXT, ms REAL, at INTEGER)"
_INSERT = "INSERT INTO views VALUES (:user_id, :page, :session, :ms, :at)"
_SELECT = "SELECT user_id, page, session, ms, at FROM views"


def sqlite_rate(bench: Workbench, chunks: Sequence[Rows], synchronous: Synchronous) -> float:
    """Events per second inserted, one durable transaction per chunk."""
    plain = [_with_integer_times(chunk) for chunk in chunks]
    took_s = []
    for _ in range(bench.sizes.attempts):
        with _database(bench.folder / "peer.db", synchronous) as db:
            took_s.append(timed_s(lambda: _insert_all(db, plain)))
    return sum(map(len, plain)) / min(took_s)


def sqlite_read_rate(bench: Workbench, events: Rows) -> float:
    """Events per second selected, each as a dict."""
    with _database(bench.folder / "peer.db", "OFF") as db:
        _insert_all(db, [_with_integer_times(events)])
        return bench.rate(len(events), lambda: _select_all(db))


def file_rate(bench: Workbench, batches: Sequence[pa.RecordBatch], *, sync: bool) -> float:
    """Events per second if their bytes were written to one file and nothing else was done."""
    data = [memoryview(bytes(batch.nbytes)) for batch in batches[:1]] * len(batches)
    path = bench.folder / "peer.bin"
    took_s = []
    for _ in range(bench.sizes.attempts):
        took_s.append(timed_s(lambda: _write_file(path, data, sync=sync)))
        path.unlink()
    return rows_in(batches) / min(took_s)


def ipc_write_rate(bench: Workbench, batches: Sequence[pa.RecordBatch]) -> float:
    """Events per second into an Arrow stream file: no checksum, no offsets, no recovery."""
    path = bench.folder / "peer.arrows"
    took_s = []
    for _ in range(bench.sizes.attempts):
        took_s.append(timed_s(lambda: _write_ipc(path, batches)))
        path.unlink()
    return rows_in(batches) / min(took_s)


def ipc_read_rate(bench: Workbench, batches: Sequence[pa.RecordBatch]) -> float:
    """Events per second out of an Arrow stream file, read (not mapped) into memory."""
    path = bench.folder / "peer.arrows"
    _write_ipc(path, batches)
    try:
        return bench.rate(rows_in(batches), lambda: _read_ipc(path))
    finally:
        path.unlink()


def rows_in(batches: Sequence[pa.RecordBatch]) -> int:
    return sum(int(batch.num_rows) for batch in batches)


def _with_integer_times(events: Rows) -> list[dict[str, Any]]:
    return [{**event, "at": int(event["at"].timestamp() * 1_000_000)} for event in events]


@contextlib.contextmanager
def _database(path: Path, synchronous: Synchronous) -> Iterator[sqlite3.Connection]:
    db = sqlite3.connect(path)
    try:
        db.execute("PRAGMA journal_mode=WAL")
        db.execute("PRAGMA synchronous=FULL" if synchronous == "FULL" else "PRAGMA synchronous=OFF")
        db.execute(_TABLE)
        yield db
    finally:
        db.close()
        for name in (path.name, f"{path.name}-wal", f"{path.name}-shm"):
            path.with_name(name).unlink(missing_ok=True)


def _insert_all(db: sqlite3.Connection, chunks: Sequence[Rows]) -> None:
    for chunk in chunks:
        with db:
            db.executemany(_INSERT, chunk)


def _select_all(db: sqlite3.Connection) -> None:
    cursor = db.execute(_SELECT)
    names = [column[0] for column in cursor.description]
    for row in cursor:
        dict(zip(names, row, strict=True))


def _write_file(path: Path, data: Sequence[memoryview], *, sync: bool) -> None:
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        for chunk in data:
            os.write(fd, chunk)
            if sync:
                os.fdatasync(fd) if hasattr(os, "fdatasync") else os.fsync(fd)
    finally:
        os.close(fd)


def _write_ipc(path: Path, batches: Sequence[pa.RecordBatch]) -> None:
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, batches[0].schema) as writer:
        for batch in batches:
            writer.write_batch(batch)


def _read_ipc(path: Path) -> None:
    with pa.OSFile(str(path), "rb") as source, pa.ipc.open_stream(source) as reader:
        for _ in reader:
            pass
