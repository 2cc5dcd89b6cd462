"""What a capture stores with every append: short, however many tables there are."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from tests.capture.world import caught_up

import penstock as ps
from penstock.capture.engine import PRODUCER
from penstock.capture.progress import Known, Progress
from penstock.capture.sqlite_source import SQLiteSource

_TABLES = 100


def test_a_position_does_not_grow_with_the_number_of_tables(
    log: ps.Log, tmp_path: Path, report: Callable[[str], None]
) -> None:
    path = tmp_path / "shop.db"
    with closing(sqlite3.connect(path)) as db:
        for number in range(_TABLES):
            db.execute(
                f"CREATE TABLE table_with_a_name_{number} (id INTEGER PRIMARY KEY, name TEXT, note TEXT)"
            )
        db.commit()
        capture = caught_up(log, "shop", SQLiteSource(path, name="shop"))
        known = log.topic("shop.known").bounds()[0][1]
        db.execute("INSERT INTO table_with_a_name_7 VALUES (1, 'Ann', 'x')")
        db.commit()
        capture = caught_up(log, "shop", SQLiteSource(path, name="shop"))
    stored = log.port.producer_position(f"{PRODUCER}shop").position
    assert stored is not None
    assert len(stored) < 300
    assert log.topic("shop.known").bounds()[0][1] == known, "a change of rows is none of its table"
    assert len(capture.progress().tables) == len(capture.progress().marks) == _TABLES
    report(f"position of a capture of {_TABLES} tables: {len(stored)} bytes")


def test_what_is_known_is_told_once_and_read_back() -> None:
    first = Progress(source={"seq": 1}, tables={"a": Known("id BIGINT", ("id",))}, marks={"a": 3, "b": [1]})
    news = first.news(Progress())
    assert news is not None
    rows = [row for row in news.to_pylist() if not row["_deleted"]]
    assert Progress.of(first.to_bytes(), rows) == first
    assert first.news(first) is None
    assert first.position == {"seq": 1, "tables": {"a": 3, "b": [1]}}
    moved = first.at({"seq": 2, "tables": {"a": 4}})
    told = moved.news(first)
    assert told is not None
    assert {row["table"]: row["_deleted"] for row in told.to_pylist()} == {"a": False, "b": True}
