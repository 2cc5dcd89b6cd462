"""Events that look into a database while they run."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pyspark.sql import DataFrame, SparkSession
from tests.flow.refusing import not_refused
from tests.servers import Postgres

import penstock as ps
from penstock.app.explain import plan_of
from penstock.app.graph import Graph
from penstock.app.runner import Runner
from penstock.app.verify import verify

START = datetime(2026, 11, 1, 10, 0, tzinfo=UTC)
USERS = "id BIGINT, name STRING, country STRING"


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


@pytest.fixture
def app(home: Path) -> ps.App:
    return ps.App("shop", home=home)


@pytest.fixture
def users(tmp_path: Path) -> Path:
    path = tmp_path / "users.db"
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("CREATE TABLE users (id INTEGER PRIMARY KEY, name TEXT, country TEXT)")
        db.execute("INSERT INTO users VALUES (1, 'Ann', 'CH'), (2, 'Bob', 'IT')")
    return path


@pytest.mark.timeout(600)
def test_events_meet_what_the_database_says_now(
    app: ps.App, spark: SparkSession, users: Path, postgres: Postgres
) -> None:
    clicks = app.topic("clicks", "user_id INT, name STRING, at TIMESTAMP", event_time="at", lateness=5)
    untimed = app.topic("untimed", "user_id BIGINT, n BIGINT")
    people = ps.lookup(f"sqlite:///{users}", "users", USERS, key="id", cache_rows=0)
    with psycopg.connect(postgres.dsn, autocommit=True) as db:
        db.execute("CREATE SCHEMA IF NOT EXISTS sales; DROP TABLE IF EXISTS sales.prices")
        db.execute("CREATE TABLE sales.prices (item UUID, price NUMERIC)")
        db.execute("INSERT INTO sales.prices VALUES ('6f2c5a2e-0000-4000-8000-000000000001', 9.99)")
    orders = app.topic("orders", "item STRING")
    url = f"postgresql://postgres@127.0.0.1:{postgres.port}/postgres"
    prices = ps.lookup(url, "sales.prices", "item STRING, price DECIMAL(9, 2)", key="item")

    @app.stream()
    def named() -> DataFrame:
        return ps.enrich(clicks.stream(), lookup=people, on="user_id")

    @app.stream()
    def known() -> DataFrame:  # reads what `named` reads, and may share its query
        return ps.enrich(clicks.stream().select("user_id"), lookup=people, on="user_id", missing="divert")

    @app.view(key=["country", "window"])
    def by_country() -> DataFrame:
        looked = ps.enrich(clicks.stream(), lookup=people, on={"user_id": "id"}, suffix="_there")
        return ps.aggregate(looked, by="country", window=ps.tumbling("10 seconds"), clicks=ps.count())

    @app.view(key="country")
    def untimed_by_country() -> DataFrame:
        return ps.aggregate(
            ps.enrich(untimed, lookup=people, on=["user_id"]),  # type: ignore[arg-type]
            by="country",
            n=ps.count(),
        )

    @app.view(key="n")
    def of_untimed() -> DataFrame:
        return ps.enrich(untimed.stream(), lookup=people, on="user_id")

    @app.stream()
    def priced() -> DataFrame:
        return ps.enrich(orders.stream(), lookup=prices, on="item")

    graph = Graph(app, spark).analyse()
    clicks.append([{"user_id": u, "name": "-", "at": at(n)} for n, u in enumerate([1, 2, 1, 7, None])])
    untimed.append([{"user_id": 2, "n": 1}, {"user_id": 8, "n": 2}])
    orders.append(
        [{"item": "6f2c5a2e-0000-4000-8000-000000000001"}, {"item": "6f2c5a2e-0000-4000-8000-000000000002"}]
    )
    Runner(app, graph).once()
    with closing(sqlite3.connect(users)) as other, other:
        other.execute("UPDATE users SET name = 'Anna', country = 'AT' WHERE id = 1")
    clicks.append({"user_id": 1, "name": "-", "at": at(30)})
    clicks.append({"user_id": 2, "name": "-", "at": at(1)})
    Runner(app, graph).once()

    names = [(row["user_id"], row["name_users"]) for row in app.log.topic("named").rows()]
    assert sorted(names, key=str) == sorted(
        [(1, "Ann"), (2, "Bob"), (1, "Ann"), (7, None), (None, None), (1, "Anna"), (2, "Bob")], key=str
    )
    assert [row["country"] for row in app.log.topic("known").rows()].count("CH") == 2
    left = [
        (row["row"]["user_id"], row["reason"], row["offset"]) for row in app.log.topic("known.late").rows()
    ]
    assert sorted(left, key=str) == [(7, "no row in users", 3), (None, "no row in users", 4)]
    counted = {(row["country"], row["window_start"]): row["clicks"] for row in app.read("by_country")}
    assert counted == {("CH", at(0)): 2, ("IT", at(0)): 1, (None, at(0)): 2, ("AT", at(30)): 1}
    assert [row["row"]["user_id"] for row in app.log.topic("by_country.late").rows()] == [2]  # it came late
    assert [(row["n"], row["name"]) for row in app.read("of_untimed")] == [(1, "Bob"), (2, None)]
    assert {row["country"]: row["n"] for row in app.read("untimed_by_country")} == {"IT": 1, None: 1}
    assert [str(row["price"]) for row in app.log.topic("priced").rows()] == ["9.99", "None"]
    for name in app.definitions:
        found = verify(app, graph, name)
        assert found.verdict == "not verifiable"
        assert "which may have changed since" in found.reason
    (step,) = plan_of(graph, "named").operators
    assert "may have changed since" in str(step["not_verifiable"])


@pytest.mark.timeout(300)
def test_a_database_that_is_away_loses_nothing(app: ps.App, spark: SparkSession, users: Path) -> None:
    clicks = app.topic("clicks", "user_id BIGINT")

    @app.stream()
    def named() -> DataFrame:
        people = ps.lookup(str(users), "users", USERS, key="id", cache_rows=0)
        return ps.enrich(clicks.stream(), lookup=people, on="user_id")

    @app.view(key="name")
    def counted() -> DataFrame:
        people = ps.lookup(str(users), "users", USERS, key="id", cache_rows=0)
        looked = ps.enrich(clicks.stream(), lookup=people, on="user_id")
        return ps.aggregate(looked, by="name", n=ps.count())

    graph = Graph(app, spark).analyse()
    clicks.append([{"user_id": 1}])
    Runner(app, graph).once()
    users.rename(users.with_suffix(".away"))
    clicks.append([{"user_id": 2}])
    runner = Runner(app, graph)
    with pytest.raises(ps.QueryFailed, match='the lookup in "users" failed, SQLite does not answer: unable'):
        runner.once()
    assert not any(each.rebuilt for each in runner.supervised)
    users.with_suffix(".away").rename(users)
    Runner(app, graph).once()
    assert [row["name"] for row in app.log.topic("named").rows()] == ["Ann", "Bob"]
    assert {row["name"]: row["n"] for row in app.read("counted")} == {"Ann": 1, "Bob": 1}


@pytest.mark.timeout(300)
def test_a_count_of_what_a_database_said_is_not_made_again(
    app: ps.App, spark: SparkSession, users: Path
) -> None:
    """It may say something else now: five of one name would be there as five of another once more."""
    clicks = app.topic("clicks", "user_id BIGINT, at TIMESTAMP", event_time="at")
    people = ps.lookup(str(users), "users", USERS, key="id")

    @app.view(key="name")
    def counted() -> DataFrame:
        return ps.aggregate(ps.enrich(clicks.stream(), lookup=people, on="user_id"), by="name", n=ps.count())

    graph = Graph(app, spark).analyse()
    clicks.append([{"user_id": 1, "at": at(n)} for n in range(5)])
    Runner(app, graph).once()
    shutil.rmtree(app.checkpoints)
    clicks.append({"user_id": 1, "at": at(6)})
    with pytest.raises(ps.PenstockError, match='"counted" has lost its state, and it looks into "users"'):
        Runner(app, graph).once()
    assert {row["name"]: row["n"] for row in app.read("counted")} == {"Ann": 5}


@pytest.mark.timeout(300)
def test_a_table_that_is_not_there_is_no_outage(app: ps.App, spark: SparkSession, users: Path) -> None:
    clicks = app.topic("clicks", "user_id BIGINT")

    @app.stream()
    def named() -> DataFrame:
        people = ps.lookup(str(users), "peeple", USERS, key="id")
        return ps.enrich(clicks.stream(), lookup=people, on="user_id")

    graph = Graph(app, spark).analyse()
    clicks.append([{"user_id": 1}])
    with pytest.raises(ps.QueryFailed, match='the lookup in "peeple" failed, SQLite says: no such table'):
        Runner(app, graph).once()


def refusals(app: ps.App, users: Path) -> dict[str, tuple[Callable[[], Any], str]]:
    clicks = app.topic("clicks", "user_id BIGINT, name STRING")
    people = ps.lookup(str(users), "users", USERS, key="id")
    table = app.table("users", "id BIGINT, name STRING", key="id")
    stream = clicks.stream
    return {
        "nothing": (lambda: ps.enrich(stream(), on="user_id"), "from one place"),
        "both": (lambda: ps.enrich(stream(), table, lookup=people, on="user_id"), "from one place"),
        "column": (lambda: ps.enrich(stream(), lookup=people, on="user"), 'no column "user"'),
        "key": (lambda: ps.enrich(stream(), lookup=people, on={"user_id": "name"}), "not in the key"),
        "type": (lambda: ps.enrich(stream(), lookup=people, on={"name": "id"}), '"name" is STRING, and "id"'),
        "wait": (
            lambda: ps.enrich(stream(), lookup=people, on="user_id", missing="wait 1 second"),
            "missing=",
        ),
        "time": (
            lambda: ps.enrich(stream(), lookup=people, on="user_id", as_of="event time"),
            "is there now",
        ),
        "twice": (lambda: ps.enrich(stream(), lookup=people, on="user_id", suffix=""), "there twice"),
        "after": (
            lambda: ps.enrich(stream(), lookup=people, on="user_id", missing="divert").filter("user_id > 1"),
            "would be lost",
        ),
    }


def test_wrong_lookups_are_refused(app: ps.App, spark: SparkSession, users: Path) -> None:
    assert not_refused(app, spark, refusals(app, users), __file__) == {}
