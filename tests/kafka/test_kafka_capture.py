"""A database captured into Kafka: the same tables and changes as in a folder."""

from __future__ import annotations

import sqlite3
import uuid
from contextlib import closing
from pathlib import Path

from tests.capture.world import caught_up, ops, rows_in_log, rows_in_sqlite

import penstock as ps
from penstock.capture.sqlite_source import SQLiteSource
from penstock.kafka.cluster import State


def test_a_database_goes_to_kafka_and_goes_on(kafka: State, tmp_path: Path) -> None:
    path, name = tmp_path / "shop.db", f"shop{uuid.uuid4().hex[:8]}"
    with (
        closing(sqlite3.connect(path, isolation_level=None)) as db,
        ps.open_log(f"kafka://127.0.0.1:{kafka.nodes[0].port}") as log,
    ):
        db.executescript("""
            CREATE TABLE users (id INTEGER PRIMARY KEY, name TEXT);
            INSERT INTO users VALUES (1, 'Ann'), (2, 'Bob');
        """)
        caught_up(log, name, SQLiteSource(path, name=name))
        db.executescript("UPDATE users SET name = 'Bo' WHERE id = 2; DELETE FROM users WHERE id = 1;")
        db.executescript(
            "ALTER TABLE users ADD COLUMN city TEXT; INSERT INTO users VALUES (3, 'Cid', 'Rome');"
        )
        caught_up(log, name, SQLiteSource(path, name=name))
        caught_up(log, name, SQLiteSource(path, name=name))
        assert rows_in_log(log, f"{name}.users") == rows_in_sqlite(path, "SELECT * FROM users")
        assert ops(log, f"{name}.users")[:4] == ["r", "r", "u", "d"]
