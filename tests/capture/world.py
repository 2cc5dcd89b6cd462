"""Captures in tests: run to where the database is, and compared with it."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import penstock as ps
from penstock.capture.engine import Capture
from penstock.capture.source import Source
from penstock.log import versions


def caught_up(log: ps.Log, name: str, source: Source) -> Capture:
    """Everything that the source has now is in the log."""
    capture = Capture(log, name, source)
    try:
        capture.run(threading.Event(), once=True)
    finally:
        source.close()
    return capture


@contextmanager
def running(log: ps.Log, name: str, source: Source) -> Iterator[Capture]:
    """Beside the test, as `penstock capture run` does it."""
    capture, stop = Capture(log, name, source), threading.Event()
    failed: list[BaseException] = []

    def run() -> None:
        try:
            capture.run(stop)
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield capture
    finally:
        stop.set()
        thread.join(30)
        source.close()
        if failed:  # also where the test waits in vain for what it did not do
            raise failed[0]


def rows_in_log(log: ps.Log, topic: str) -> list[tuple[Any, ...]]:
    """The table that the log has, in the order of its keys."""
    found = log.topic(topic)
    rows = versions.fold(found.read(), found.settings).to_pylist()
    return sorted((tuple(row.values()) for row in rows), key=repr)


def rows_in_sqlite(path: Path, statement: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(path)) as db:
        return sorted(db.execute(statement).fetchall(), key=repr)


def ops(log: ps.Log, topic: str) -> list[str]:
    return [row["op"] for row in log.topic(f"{topic}.changes").rows()]
