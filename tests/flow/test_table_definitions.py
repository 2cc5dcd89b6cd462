"""Definitions over tables: what they give in small, hand-made cases, and which are refused."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from tests.flow.refusing import not_refused

import penstock as ps
from penstock.app.graph import Graph
from penstock.app.runner import Runner
from penstock.app.verify import verify

START = datetime(2026, 11, 1, 10, 0, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


@pytest.fixture
def app(home: Path) -> ps.App:
    return ps.App("shop", home=home)


@pytest.mark.timeout(600)
def test_events_and_tables_meet_as_they_should(app: ps.App, spark: SparkSession) -> None:
    clicks = app.topic("clicks", "user_id INT, n BIGINT, at TIMESTAMP", event_time="at", lateness=20)
    users = app.table("users", "id BIGINT, age BIGINT, at TIMESTAMP", key="id", event_time="at", lateness=20)
    orders = app.table("orders", "order_id BIGINT, user_id BIGINT, city STRING", key="order_id", lateness=0)
    cities = app.table("cities", "city STRING, country STRING", key="city", lateness=0)

    @app.stream()
    def aged() -> DataFrame:
        return ps.enrich(clicks.stream(), users, on="user_id")

    @app.stream()
    def newest() -> DataFrame:
        return ps.enrich(clicks.stream(), users, on={"user_id": "id"}, as_of="latest")

    @app.view(key="order_id")
    def with_age() -> DataFrame:
        return ps.join_tables(orders, users, on="user_id", how="left")

    @app.view(key="order_id")
    def with_country() -> DataFrame:
        return ps.join_tables(with_age, cities, on="city")

    graph = Graph(app, spark).analyse()
    users.upsert([{"id": 1, "age": 30, "at": None}, {"id": 1, "age": 31, "at": at(10)}])
    users.upsert({"id": 2, "age": 40, "at": None})
    orders.upsert(
        [{"order_id": 7, "user_id": 1, "city": "Bern"}, {"order_id": 8, "user_id": 9, "city": "Bern"}]
    )
    cities.upsert({"city": "Bern", "country": "Switzerland"})
    clicks.append(
        [{"user_id": u, "n": n, "at": at(s)} for n, (u, s) in enumerate([(1, 9), (1, 10), (3, 11)])]
    )
    clicks.append({"user_id": 1, "n": 3, "at": at(100)})
    Runner(app, graph).once()
    orders.upsert({"order_id": 7, "user_id": 2, "city": "Bern"})  # from one user to another
    users.upsert({"id": 9, "age": 50, "at": at(101)})
    orders.delete({"order_id": 8})
    Runner(app, graph).once()

    ages = [(row["n"], row["age"], row["version_offset"]) for row in app.log.topic("aged").rows()]
    assert sorted(ages) == [(0, 30, 0), (1, 31, 1), (2, None, None)]
    assert {row["n"]: row["age"] for row in app.log.topic("newest").rows()} == {0: 31, 1: 31, 2: None, 3: 31}
    assert [(row["order_id"], row["user_id"], row["age"]) for row in app.read("with_age")] == [(7, 2, 40)]
    assert [(row["order_id"], row["country"]) for row in app.read("with_country")] == [(7, "Switzerland")]
    told = [
        (row["order_id"], row["_op"])
        for row in app.log.topic("with_age").rows()
        if row["_batch"] and row["order_id"]
    ]
    assert sorted(told) == [(7, "u"), (8, "d")]
    found = {name: verify(app, graph, name) for name in app.definitions}
    assert {name: each.verdict for name, each in found.items()} == {
        "aged": "equal", "newest": "not verifiable", "with_age": "equal", "with_country": "equal",
    }  # fmt: skip
    assert found["newest"].reason == "it joins with what was newest when it ran"


def test_of_nothing_comes_nothing_and_NULL_meets_nobody(app: ps.App, spark: SparkSession) -> None:
    clicks = app.topic("clicks", "user STRING, at TIMESTAMP", event_time="at")
    silent = app.topic("silent", "user STRING, at TIMESTAMP", event_time="at")
    accounts = app.table("accounts", "account BIGINT, user STRING", key="account")

    @app.view(key="user")
    def per_user() -> DataFrame:
        return ps.aggregate(clicks.stream(), by="user", n=ps.count())

    @app.view(key="account")
    def with_clicks() -> DataFrame:
        return ps.join_tables(accounts, per_user, on="user", how="left")

    @app.view(key="user")
    def of_silent() -> DataFrame:
        return ps.aggregate(silent, by="user", n=ps.count())  # type: ignore[arg-type]

    @app.stream()
    def short() -> DataFrame:
        return ps.search(clicks, queries={"a": "user:a*", "b": "-bob"}, fields=["user"])  # type: ignore[arg-type]

    graph = Graph(app, spark).analyse()
    clicks.append([{"user": user, "at": at(n)} for n, user in enumerate(["ann", None, "bob", "ann"])])
    accounts.upsert([{"account": 1, "user": "ann"}, {"account": 2, "user": None}])
    Runner(app, graph).once()
    clicks.append({"user": None, "at": at(9)})
    Runner(app, graph).once()
    assert {row["account"]: row["n"] for row in app.read("with_clicks")} == {1: 2, 2: None}
    found = [(row["user"], row["query_id"]) for row in app.log.topic("short").rows()]
    assert sorted(found, key=str) == sorted(
        [("ann", "a"), ("ann", "b"), (None, "b"), ("ann", "a"), ("ann", "b"), (None, "b")], key=str
    )
    verdicts = {name: verify(app, graph, name).verdict for name in app.definitions}
    assert verdicts == dict.fromkeys(app.definitions, "equal")


def test_a_stream_goes_by_the_time_at_which_its_rows_were_known(app: ps.App, spark: SparkSession) -> None:
    """Else what is known late would be late for whoever reads on."""
    clicks = app.topic("clicks", "k BIGINT, n BIGINT, at TIMESTAMP", event_time="at")
    users = app.table("users", "k BIGINT, name STRING, since TIMESTAMP", key="k", event_time="since")
    stream, click = clicks.stream, ps.step("click")
    given: dict[str, Callable[[], DataFrame]] = {
        "joined_at": lambda: ps.join_within(stream(), stream(), on="k", after="1 minute", how="left"),
        "matched_at": lambda: (
            ps.pattern(by="k")
            .first("click", stream(), where=click.n > 0)
            .within("1 minute")
            .emit(at=click.at)
        ),
        "enriched_at": lambda: ps.enrich(stream(), users, on="k", missing="wait 1 minute"),
        "at": lambda: ps.enrich(stream(), users, on="k"),
        "renamed": lambda: ps.deduplicate(
            stream().withColumnRenamed("at", "renamed"), id="n", within="1 minute"
        ),
    }
    for name, function in given.items():
        app.stream(name=f"by_{name}")(function)
    found = Graph(app, spark).analyse().analysed
    assert {name: found[f"by_{name}"].time for name in given} == {name: name for name in given}


def refusals(app: ps.App) -> dict[str, tuple[Callable[[], Any], str]]:
    clicks = app.topic("clicks", "user_id BIGINT, name STRING, at TIMESTAMP", event_time="at")
    users = app.table("users", "id BIGINT, name STRING", key="id")
    pairs = app.table("pairs", "a BIGINT, b BIGINT, user_id STRING", key=["a", "b"])
    stream = clicks.stream
    return {
        "no table": (lambda: ps.enrich(stream(), clicks, on="user_id"), '"clicks" is no table'),
        "no column": (lambda: ps.enrich(stream(), users, on="user_ids"), 'no column "user_ids"'),
        "no key": (lambda: ps.enrich(stream(), users, on={"user_id": "name"}), "not in the key"),
        "part of a key": (lambda: ps.enrich(stream(), pairs, on={"user_id": "a"}), "key of table"),
        "types": (lambda: ps.enrich(stream(), users, on={"name": "id"}), '"name" is STRING'),
        "as of": (lambda: ps.enrich(stream(), users, on="user_id", as_of="now"), "as_of='now'"),  # type: ignore[arg-type]
        "missing": (lambda: ps.enrich(stream(), users, on="user_id", missing="wait soon"), "wait soon"),
        "latest and wait": (
            lambda: ps.enrich(stream(), users, on="user_id", as_of="latest", missing="wait 1 second"),
            "not waited for",
        ),
        "late": (lambda: ps.enrich(stream(), users, on="user_id", late="correct"), "late='correct'"),
        "no time": (
            lambda: ps.enrich(stream().select("user_id"), users, on="user_id"),
            "lost its event time",
        ),
        "twice": (lambda: ps.enrich(stream(), users, on="user_id", suffix=""), "there twice"),
        "how": (lambda: ps.join_tables(pairs, users, on={"a": "id"}, how="full"), "how='full'"),  # type: ignore[arg-type]
        "other types": (lambda: ps.join_tables(pairs, users, on="user_id"), '"user_id" is STRING'),
        "a stream of changing rows": (lambda: ps.join_tables(pairs, users, on={"a": "id"}), "may change"),
        "a filter of ours": (lambda: users.changes().select(F.col("_op")), "_op"),
    }


def test_wrong_definitions_are_refused_with_the_place_and_the_reason(
    app: ps.App, spark: SparkSession
) -> None:
    assert not_refused(app, spark, refusals(app), __file__) == {}
