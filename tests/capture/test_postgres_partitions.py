"""Partitions come as their table, also those that were tables of their own before."""

from __future__ import annotations

import pytest
from tests.capture.postgres_database import PostgresDatabase
from tests.capture.world import caught_up, ops, rows_in_log, running
from tests.waiting import wait_until

import penstock as ps
from penstock.errors import NotSupported


@pytest.fixture(autouse=True)
def _tables(database: PostgresDatabase) -> None:
    database.run(
        "CREATE TABLE parts (id int PRIMARY KEY, n int) PARTITION BY RANGE (id)",
        "CREATE TABLE low PARTITION OF parts FOR VALUES FROM (0) TO (10)",
        "INSERT INTO parts VALUES (1, 1)",
        "CREATE TABLE alone (id int PRIMARY KEY, n int)",
        "INSERT INTO alone VALUES (11, 11)",
    )


ATTACH = (
    "ALTER TABLE parts ATTACH PARTITION alone FOR VALUES FROM (10) TO (20)",
    "INSERT INTO parts VALUES (12, 12)",
)


def same(log: ps.Log, database: PostgresDatabase, table: str) -> bool:
    return rows_in_log(log, f"c.{table}") == sorted(database.query(f"SELECT * FROM {table}"), key=repr)


def test_a_table_that_becomes_a_partition_brings_its_rows(log: ps.Log, database: PostgresDatabase) -> None:
    caught_up(log, "c", database.source())
    database.run(*ATTACH)
    capture = caught_up(log, "c", database.source())
    assert same(log, database, "parts")
    assert rows_in_log(log, "c.alone") == [], "they are in one place"
    assert capture.status()["gone"] == ["alone"]
    told = ops(log, "c.parts")
    caught_up(log, "c", database.source())
    assert ops(log, "c.parts") == told, "and are not read again and again"


def test_also_while_it_is_followed_and_where_it_is_not_captured_itself(
    log: ps.Log, database: PostgresDatabase
) -> None:
    caught_up(log, "c", database.source(tables=["parts"]))
    with running(log, "c", database.source(tables=["parts"])):
        database.run(*ATTACH)
        wait_until(lambda: same(log, database, "parts"), timeout_s=60, what="the log")
        database.run(
            "CREATE TABLE other (id int PRIMARY KEY, n int) PARTITION BY RANGE (id)",
            "CREATE TABLE inner_part PARTITION OF other FOR VALUES FROM (20) TO (30)",
            "INSERT INTO other VALUES (25, 25)",
            "ALTER TABLE parts ATTACH PARTITION other FOR VALUES FROM (20) TO (40)",
        )
        wait_until(lambda: same(log, database, "parts"), timeout_s=60, what="the log")


def test_a_partition_that_was_made_as_one_is_not_read_again(log: ps.Log, database: PostgresDatabase) -> None:
    caught_up(log, "c", database.source(tables=["parts"]))
    database.run(
        "CREATE TABLE high PARTITION OF parts FOR VALUES FROM (20) TO (30)",
        "INSERT INTO parts VALUES (21, 21)",
    )
    caught_up(log, "c", database.source(tables=["parts"]))
    assert same(log, database, "parts")
    assert ops(log, "c.parts") == ["r", "c"]


def test_a_partition_is_not_captured_beside_its_table(log: ps.Log, database: PostgresDatabase) -> None:
    with pytest.raises(NotSupported, match='"low" is a partition of "parts", under which its changes come'):
        caught_up(log, "c", database.source(tables=["parts", "low"]))
    caught_up(log, "c", database.source(tables=["low"]))
    database.run("INSERT INTO parts VALUES (2, 2)")
    caught_up(log, "c", database.source(tables=["low"]))
    assert same(log, database, "low")
