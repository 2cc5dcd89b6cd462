"""MariaDB as a source: whatever anybody writes to it, the log has the same rows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from tests.capture.mariadb_server import MariaDB, grant, throwaway
from tests.capture.world import caught_up, ops, rows_in_log

import penstock as ps
from penstock.capture.mysql import MySQLSource

SHOP = (
    "CREATE TABLE users (id INT PRIMARY KEY, name VARCHAR(40), score DOUBLE)",
    "CREATE TABLE `lines` (order_id INT, line INT, item TEXT, PRIMARY KEY (line, order_id))",
    "CREATE TABLE notes (text TEXT)",
)


@pytest.fixture(scope="module")
def server() -> Iterator[MariaDB]:
    with throwaway() as made:
        grant(made)
        yield made


@pytest.fixture
def db(server: MariaDB) -> Iterator[Any]:
    """The database `shop`, as it is at the beginning of every test."""
    with closing(server.connect()) as made, made.cursor() as cursor:
        for statement in ("DROP DATABASE IF EXISTS shop", "CREATE DATABASE shop CHARSET utf8mb4", "USE shop"):
            cursor.execute(statement)
        run(cursor, *SHOP)
        yield cursor


def run(cursor: Any, *statements: str) -> None:
    for statement in statements:
        cursor.execute(statement)


def source(server: MariaDB, **options: Any) -> MySQLSource:
    return MySQLSource(server.url("shop"), name="shop", **options)


def rows_in(db: Any, statement: str) -> list[tuple[Any, ...]]:
    db.execute(statement)
    return sorted(db.fetchall(), key=repr)


def same(log: ps.Log, db: Any, table: str, columns: str = "*") -> None:
    assert rows_in_log(log, f"shop.{table}") == rows_in(db, f"SELECT {columns} FROM `{table}`")


def test_rows_that_are_there_and_every_change_after(log: ps.Log, server: MariaDB, db: Any) -> None:
    run(db, "INSERT INTO users VALUES (1, 'Änn', 1.5), (2, 'Bob', NULL)")
    caught_up(log, "shop", source(server))
    same(log, db, "users")
    run(
        db,
        "INSERT INTO users VALUES (3, 'Cid', 0.1)",
        "UPDATE users SET name = 'Anna' WHERE id = 1",
        "UPDATE users SET id = 20 WHERE id = 2",
        "DELETE FROM users WHERE id = 3",
        "REPLACE INTO users VALUES (1, 'Ann again', 2)",
        "INSERT INTO `lines` VALUES (7, 1, 'tea'), (7, 2, 'milk')",
        "UPDATE `lines` SET item = 'oat milk' WHERE line = 2",
    )
    caught_up(log, "shop", source(server))
    for table in ("users", "lines"):
        same(log, db, table)
    assert ops(log, "shop.users") == ["r", "r", "c", "u", "u", "d", "u"]
    assert ops(log, "shop.lines") == ["c", "c", "u"]
    assert log.topic("shop.lines").settings.key == ("line", "order_id")
    moved = list(log.topic("shop.users.changes").rows())[4]
    assert moved["before"] == {"id": 2, "name": "Bob", "score": None}
    assert moved["after"] == {"id": 20, "name": "Bob", "score": None}
    assert "shop.notes" not in log.topics()  # it has no key


def test_a_transaction_is_told_as_one(log: ps.Log, server: MariaDB, db: Any) -> None:
    caught_up(log, "shop", source(server))
    run(
        db, "BEGIN", "INSERT INTO users VALUES (1, 'Ann', 1)", "INSERT INTO `lines` VALUES (1, 1, 'tea')",
        "DELETE FROM users", "COMMIT", "INSERT INTO users VALUES (2, 'Bob', 1)",
    )  # fmt: skip
    caught_up(log, "shop", source(server))
    told = list(log.topic("shop.users.changes").rows())
    (line,) = log.topic("shop.lines.changes").rows()
    assert [row["transaction_order"] for row in told] == [1, 3, 1]
    assert line["transaction_order"] == 2
    assert told[0]["transaction"] == told[1]["transaction"] == line["transaction"]
    assert told[2]["transaction"] != line["transaction"]
    positions = [told[0]["position"], line["position"], told[1]["position"], told[2]["position"]]
    assert sorted(set(positions)) == positions
    assert all(row["committed_at"].year >= 2024 for row in told)


def test_what_is_rolled_back_never_was(log: ps.Log, server: MariaDB, db: Any) -> None:
    caught_up(log, "shop", source(server))
    run(
        db, "BEGIN", "INSERT INTO users VALUES (1, 'no', 1)", "ROLLBACK",
        "BEGIN", "INSERT INTO users VALUES (2, 'yes', 1)", "SAVEPOINT s",
        "INSERT INTO users VALUES (3, 'no', 1)", "ROLLBACK TO s", "COMMIT",
    )  # fmt: skip
    caught_up(log, "shop", source(server))
    same(log, db, "users")
    assert ops(log, "shop.users") == ["c"]


def test_a_large_transaction_and_small_steps(log: ps.Log, server: MariaDB, db: Any) -> None:
    run(db, "INSERT INTO users SELECT seq, concat('old ', seq), seq / 7 FROM seq_1_to_2500")
    caught_up(log, "shop", source(server, step_rows=1_000))
    same(log, db, "users")
    run(db, "BEGIN", "INSERT INTO users SELECT seq, concat('n', seq), seq / 3 FROM seq_3001_to_53000",
        "DELETE FROM users WHERE id <= 2500", "COMMIT")  # fmt: skip
    caught_up(log, "shop", source(server, step_rows=1_000))
    same(log, db, "users")
    told = list(log.topic("shop.users.changes").rows())[2_500:]
    assert [row["transaction_order"] for row in told] == list(range(1, 52_501))
    assert len({row["transaction"] for row in told}) == 1
