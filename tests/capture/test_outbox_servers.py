"""The outbox in PostgreSQL and in MariaDB, as their drivers and rights have it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from tests.capture.mariadb_server import MariaDB, grant, throwaway
from tests.capture.postgres_database import PostgresDatabase
from tests.capture.world import caught_up

import penstock as ps
from penstock.capture.mysql_source import MySQLSource
from penstock.capture.outbox import TABLE
from penstock.capture.postgres_source import PostgresSource
from penstock.errors import NotAllowed, NotSupported


@pytest.fixture(scope="module")
def server() -> Iterator[MariaDB]:
    with throwaway() as made:
        grant(made)
        yield made


@pytest.fixture
def shop(server: MariaDB) -> Iterator[Any]:
    """A connection to the database `shop`, which has an outbox."""
    with closing(server.connect()) as root, root.cursor() as cursor:
        cursor.execute("DROP DATABASE IF EXISTS shop")
        cursor.execute("CREATE DATABASE shop CHARSET utf8mb4")
        root.select_db("shop")
        ps.outbox(root).create()
        root.autocommit(False)
        yield root


@pytest.fixture
def orders(log: ps.Log) -> ps.Topic:
    return log.create_topic("orders", "order_id BIGINT", key="order_id")


def publish(connection: Any, orders: ps.Topic, *, first: int) -> None:
    """Two events that are committed, one that is not, and one more that is."""
    events = ps.outbox(connection)
    events.publish(orders, {"order_id": first}, {"order_id": first + 1})
    connection.commit()
    events.publish(orders, {"order_id": -1})
    connection.rollback()
    events.publish(orders, {"order_id": first + 2})
    connection.commit()


def test_in_postgresql_what_is_committed_is_published_once_and_removed(
    log: ps.Log, orders: ps.Topic, database: PostgresDatabase
) -> None:
    with psycopg.connect(database.dsn) as db:
        ps.outbox(db).create()
        publish(db, orders, first=1)  # before anybody captures it
        caught_up(log, "shop", database.source())
        publish(db, orders, first=4)
    caught_up(log, "shop", database.source())
    assert database.query(f"SELECT * FROM {TABLE}") == []
    caught_up(log, "shop", database.source())
    assert [row["order_id"] for row in orders.rows()] == [1, 2, 3, 4, 5, 6]


def test_in_mariadb_what_is_committed_is_published_once_and_removed(
    log: ps.Log, orders: ps.Topic, server: MariaDB, shop: Any
) -> None:
    with shop.cursor() as cursor:
        cursor.execute(f"GRANT DELETE ON shop.{TABLE} TO capture@'%'")
    publish(shop, orders, first=1)
    caught_up(log, "shop", MySQLSource(server.url("shop"), name="shop"))
    publish(shop, orders, first=4)
    caught_up(log, "shop", MySQLSource(server.url("shop"), name="shop"))
    with shop.cursor() as cursor:
        cursor.execute(f"SELECT * FROM {TABLE}")
        assert cursor.fetchall() == ()
        cursor.execute(f"REVOKE DELETE ON shop.{TABLE} FROM capture@'%'")
    assert [row["order_id"] for row in orders.rows()] == [1, 2, 3, 4, 5, 6]
    removed = [row for row in log.topic(f"shop.{TABLE}.changes").rows() if row["op"] == "d"][:3]
    assert len({row["transaction"] for row in removed}) == 1  # not a transaction for each


def test_who_may_not_remove_what_is_published_is_told_before(
    database: PostgresDatabase, server: MariaDB, shop: Any
) -> None:
    with psycopg.connect(database.dsn) as db:
        ps.outbox(db).create()
        db.execute(f"CREATE ROLE limited_{database.name} LOGIN REPLICATION")
        db.execute(f"GRANT SELECT ON {TABLE} TO limited_{database.name}")
    limited = PostgresSource(make_conninfo(database.dsn, user=f"limited_{database.name}"), name="shop")
    with pytest.raises(NotSupported, match="may not delete from") as raised:
        limited.tables()
    limited.close()
    assert raised.value.hint == f'GRANT DELETE ON "public"."{TABLE}" TO "limited_{database.name}"'
    with pytest.raises(NotAllowed, match="may not delete from") as refused:
        MySQLSource(server.url("shop"), name="shop").tables()
    assert refused.value.hint == f"GRANT DELETE ON `shop`.{TABLE} TO capture"
