"""A database captured into Kafka: the same tables and changes as in a folder."""

from __future__ import annotations

import sqlite3
import uuid
from contextlib import closing
from pathlib import Path

from confluent_kafka import Producer
from tests.capture.world import caught_up, ops, rows_in_log, rows_in_sqlite
from tests.waiting import wait_until

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


def test_what_was_rolled_back_of_a_killed_capture_is_nobody_elses(kafka: State, tmp_path: Path) -> None:
    """Its offsets are gone for good, and its records are nowhere."""
    path, name = tmp_path / "shop.db", f"shop{uuid.uuid4().hex[:8]}"
    url = f"127.0.0.1:{kafka.nodes[0].port}"
    with closing(sqlite3.connect(path, isolation_level=None)) as db, ps.open_log(f"kafka://{url}") as log:
        db.executescript("CREATE TABLE users (id INTEGER PRIMARY KEY); INSERT INTO users VALUES (1)")
        topic = log.create_topic(f"{name}.users", "id BIGINT NOT NULL", key="id", cleanup="compact")
        killed = Producer({"bootstrap.servers": url, "transactional.id": name})
        killed.init_transactions(30)
        killed.begin_transaction()
        killed.produce(topic.name, b"{}", key=b"1")
        killed.flush(30)
        killed.abort_transaction(30)
        wait_until(lambda: topic.bounds()[0][1] > 0, timeout_s=30)
        caught_up(log, name, SQLiteSource(path, name=name))
        assert rows_in_log(log, topic.name) == [(1,)]
