"""Joins, patterns and searches that are wrong: refused before anything runs, with place and reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

import penstock as ps
from penstock.app.graph import Graph


def joined(left: Any, right: Any, **options: Any) -> DataFrame:
    return ps.join_within(left, right, **{"on": "user", "after": 5, **options})


def began(one: Any, condition: Any) -> DataFrame:
    return ps.pattern(by="user").first("a", one, where=condition).within(5).emit()


WRONG: dict[str, tuple[Any, str]] = {
    "a column that is not there": (lambda t: joined(t.one, t.other, on="usr"), 'no column "usr" in the left'),
    "keys of two types": (
        lambda t: joined(t.one, t.other),
        '"user" is BIGINT, and "user" of the right stream is STRING',
    ),
    "an append time beside an event time": (
        lambda t: joined(t.one, t.untimed),
        'topic "untimed" has no event time, and another one here has',
    ),
    "events without a time and a table with one": (
        lambda t: ps.enrich(t.untimed, t.people, on="user"),
        'topic "untimed" has no event time, and another one here has',
    ),
    "no key": (lambda t: joined(t.one, t.other, on=[]), "what must be equal?"),
    "another join": (lambda t: joined(t.one, t.one, how="cross"), "how='cross'"),
    "a name that is taken": (
        lambda t: joined(t.one, t.one.withColumnRenamed("country", "joined_at")),
        'a column "joined_at" would be there twice',
    ),
    "late rows that correct": (lambda t: joined(t.one, t.one, late="correct"), "late='correct'"),
    "two topics side by side": (
        lambda t: t.one.select("at").union(t.other.select("at")),
        "it reads logins and, apart from that, buys",
    ),
    "a pattern without an end": (
        lambda t: ps.pattern(by="user").first("a", t.one).emit(),
        "a pattern without within()",
    ),
    "a step without such a column": (lambda t: began(t.one, ps.step("a").cuntry == "x"), "cuntry"),
    "text compared with a number": (lambda t: began(t.one, ps.step("a").country > 5), "country"),
    "keys of two types in a pattern": (
        lambda t: ps.pattern(by="user").first("a", t.one).then("b", t.other).within(5).emit(),
        "user",
    ),
    "a length of time": (
        lambda t: ps.pattern(by="user").first("a", t.one).within(5).emit(n=ps.step("a").at - ps.step("a").at),
        'column "n": Arrow type duration',
    ),
    "an event for two steps": (
        lambda t: (
            ps.pattern(by="user").first("a", t.one).then("b", t.one.filter("user > 1")).within(5).emit()
        ),
        "one event could fill two steps",
    ),
    "no stream": (lambda t: joined(t.one, "buys"), "'buys' is no stream"),
    "a query that cannot be read": (
        lambda t: ps.search(t.one, queries={"it": "(country"}, fields=["country"]),
        "the query '(country' fails at character 1",
    ),
    "a field that is not there": (
        lambda t: ps.search(t.one, queries=t.saved, fields=["contry"]),
        '"contry"',
    ),
    "no table of searches": (
        lambda t: ps.search(t.one, queries=t.logins, fields=["country"]),
        '"logins" is no table',
    ),
}


class Read:
    """The topics of an app, opened in a definition."""

    def __init__(self, app: ps.App) -> None:
        self.logins, self.saved = app.topics["logins"], app.topics["saved"]
        self.one, self.other = self.logins.stream(), app.topics["buys"].stream()
        self.people: Any = app.topics["people"]
        self._untimed = app.topics["untimed"]

    @property
    def untimed(self) -> DataFrame:
        return self._untimed.stream()


@pytest.mark.parametrize("what", WRONG)
def test_what_is_wrong_is_named_with_file_and_line(home: Path, spark: SparkSession, what: str) -> None:
    app = ps.App("shop", home=home)
    app.topic("logins", "user BIGINT, country STRING, at TIMESTAMP", event_time="at")
    app.topic("buys", "user STRING, price BIGINT, at TIMESTAMP", event_time="at")
    app.topic("saved", "id STRING, query STRING", key="id", cleanup="compact")
    app.topic("untimed", "user BIGINT")
    app.table("people", "user BIGINT, since TIMESTAMP", key="user", event_time="since")
    made, told = WRONG[what]

    @app.stream()
    def mistaken() -> DataFrame:
        found: DataFrame = made(Read(app))
        return found

    with pytest.raises(ps.BadDefinition) as refused:
        Graph(app, spark).analyse()
    assert told in refused.value.message
    assert refused.value.file == __file__
    assert refused.value.line is not None
    app.close()
