"""Columns that look as before and are not: PostgreSQL tells nothing of what that does to the rows."""

from __future__ import annotations

import pytest
from tests.capture.postgres_database import PostgresDatabase
from tests.capture.world import caught_up, ops, rows_in_log, running
from tests.waiting import wait_until

import penstock as ps

ANEW = ("ALTER TABLE orders DROP COLUMN m", "ALTER TABLE orders ADD COLUMN m int DEFAULT 5")
SWAPPED = (
    "ALTER TABLE orders RENAME COLUMN n TO between",
    "ALTER TABLE orders RENAME COLUMN m TO n",
    "ALTER TABLE orders RENAME COLUMN between TO m",
    "INSERT INTO orders (id, n, m) VALUES (3, 3, 3)",
)


@pytest.fixture(autouse=True)
def _table(database: PostgresDatabase) -> None:
    database.run(
        "CREATE TABLE orders (id int PRIMARY KEY, n int, m int)",
        "INSERT INTO orders VALUES (1, 10, 100), (2, 20, 200)",
    )


def same(log: ps.Log, database: PostgresDatabase) -> bool:
    return rows_in_log(log, "c.orders") == sorted(database.query("SELECT id, n, m FROM orders"), key=repr)


@pytest.mark.parametrize("statements", [ANEW, SWAPPED], ids=["made anew", "with each other's names"])
def test_columns_that_are_not_those_of_before_are_read_again(
    log: ps.Log, database: PostgresDatabase, statements: tuple[str, ...]
) -> None:
    caught_up(log, "c", database.source())
    database.run(*statements)
    caught_up(log, "c", database.source())
    assert same(log, database)
    told = ops(log, "c.orders")
    caught_up(log, "c", database.source())
    assert ops(log, "c.orders") == told, "and not again and again"


def test_also_while_it_is_followed(log: ps.Log, database: PostgresDatabase) -> None:
    with running(log, "c", database.source()):
        wait_until(lambda: "c.orders" in log.topics() and same(log, database), timeout_s=60, what="the log")
        database.run(*ANEW)
        wait_until(lambda: same(log, database), timeout_s=60, what="the log")
        database.run(*SWAPPED)
        wait_until(lambda: same(log, database), timeout_s=60, what="the log")


def test_columns_with_other_names_come_without_a_change_and_are_read_once(
    log: ps.Log, database: PostgresDatabase
) -> None:
    caught_up(log, "c", database.source())
    database.run(*SWAPPED[:-1])
    caught_up(log, "c", database.source())
    assert same(log, database)
    database.run("ALTER TABLE orders RENAME COLUMN n TO more")
    caught_up(log, "c", database.source())
    assert rows_in_log(log, "c.orders") == [(1, None, 10, 100), (2, None, 20, 200)]
    database.run("UPDATE orders SET more = 0 WHERE id = 1")
    caught_up(log, "c", database.source())
    assert ops(log, "c.orders") == ["r"] * 6 + ["u"]


def test_a_column_that_goes_is_no_reason_to_read_a_table_again(
    log: ps.Log, database: PostgresDatabase
) -> None:
    caught_up(log, "c", database.source())
    database.run("ALTER TABLE orders DROP COLUMN n", "UPDATE orders SET m = 1 WHERE id = 1")
    caught_up(log, "c", database.source())
    assert ops(log, "c.orders") == ["r", "r", "u"]


def test_a_new_column_comes_without_a_change_and_is_read_once(
    log: ps.Log, database: PostgresDatabase
) -> None:
    caught_up(log, "c", database.source())
    database.run("ALTER TABLE orders ADD COLUMN more text DEFAULT 'x'")
    caught_up(log, "c", database.source())
    assert rows_in_log(log, "c.orders") == [(1, 10, 100, "x"), (2, 20, 200, "x")]
    database.run("UPDATE orders SET n = 0 WHERE id = 1")
    caught_up(log, "c", database.source())
    assert ops(log, "c.orders") == ["r"] * 4 + ["u"]
