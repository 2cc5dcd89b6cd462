"""A database in an app: its tables in definitions, and all of it in one `penstock run`."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

import penstock as ps
from penstock.app.graph import Graph
from penstock.app.runner import Runner
from penstock.app.status import Watch
from penstock.app.verify import verify


@pytest.fixture
def db(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(tmp_path / "shop.db", isolation_level=None)) as opened:
        opened.executescript("""
            CREATE TABLE users (id INTEGER PRIMARY KEY, name TEXT, city TEXT);
            CREATE TABLE orders (id INTEGER PRIMARY KEY, user_id INTEGER, total REAL);
            INSERT INTO users VALUES (1, 'Ann', 'Bern'), (2, 'Bob', 'Rome');
            INSERT INTO orders VALUES (10, 1, 5.0), (11, 2, 7.0), (12, 1, 1.5);
        """)
        yield opened


@pytest.mark.timeout(300)
def test_views_over_a_database_follow_it(
    home: Path, tmp_path: Path, db: sqlite3.Connection, spark: SparkSession
) -> None:
    app = ps.App("shop", home=home)
    shop = app.capture("shopdb", ps.capture.sqlite(tmp_path / "shop.db"))
    users, orders = shop.table("users"), shop.table("orders")

    @app.view(key="id")
    def named_orders() -> DataFrame:
        return ps.join_tables(orders, users, on="user_id")

    @app.view(key="op")
    def kinds() -> DataFrame:
        return ps.aggregate(shop.changes("orders").stream(), by="op", n=ps.count())

    graph = Graph(app, spark).analyse()
    runner = Runner(app, graph)
    watch = Watch(runner)
    runner.once()
    assert [(row["id"], row["name"]) for row in app.read("named_orders")] == [
        (10, "Ann"),
        (11, "Bob"),
        (12, "Ann"),
    ]
    db.executescript("""
        UPDATE users SET name = 'Anna' WHERE id = 1;
        DELETE FROM orders WHERE id = 11;
        INSERT INTO orders VALUES (13, 2, 2.0);
    """)
    Runner(app, graph).once()
    assert [(row["id"], row["name"], row["total"]) for row in app.read("named_orders")] == [
        (10, "Anna", 5.0),
        (12, "Anna", 1.5),
        (13, "Bob", 2.0),
    ]
    assert {row["op"]: row["n"] for row in app.read("kinds")} == {"r": 3, "c": 1, "d": 1}
    assert [verify(app, graph, name).verdict for name in ("named_orders", "kinds")] == ["equal", "equal"]
    assert [(each.capture, each.phase) for each in watch.look().captures] == [("shopdb", "following")]
    assert {row["name"] for row in users.current()} == {"Anna", "Bob"}
    with pytest.raises(ps.NotSupported, match='is filled by capture "shopdb"'):
        users.upsert({"id": 3, "name": "no", "city": "no"})
    app.close()


def test_a_captured_table_can_be_subscribed_to(home: Path, tmp_path: Path, db: sqlite3.Connection) -> None:
    app = ps.App("shop", home=home)
    shop = app.capture("shopdb", tmp_path / "shop.db")

    def catch_up() -> None:
        capture = shop.open()
        capture.run(threading.Event(), once=True)
        capture.source.close()

    catch_up()
    told = [
        (change.op, change.row)
        for change in shop.table("users").subscribe(where={"city": "Bern"}, follow=False)
    ]
    assert told[0] == ("insert", {"id": 1, "name": "Ann", "city": "Bern"})
    db.execute("UPDATE users SET city = 'Rome' WHERE id = 1")
    catch_up()
    rows = [change.row for change in app.subscribe("shopdb.users", follow=False) if change.op == "insert"]
    assert sorted((row["id"], row["city"]) for row in rows) == [(1, "Rome"), (2, "Rome")]
    with pytest.raises(ps.PenstockError):
        next(iter(app.subscribe("shopdb.users.changes", follow=False)))
    app.close()


def test_a_database_is_declared_and_not_connected_to(home: Path, tmp_path: Path) -> None:
    app = ps.App("shop", home=home)
    app.capture("shopdb", tmp_path / "not_there.db")
    with pytest.raises(ps.BadDefinition, match='"shopdb" is declared twice'):
        app.capture("shopdb", "sqlite:///other.db")
    with pytest.raises(ps.BadOption, match="nothing can be captured from"):
        app.capture("other", "redis://localhost")
    with pytest.raises(ps.BadOption, match="there is no database"):
        app.captures["shopdb"].prepare()
