"""Rows of a database by key: what is asked, what is kept, and what comes of odd answers."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from tests.servers import Postgres

import penstock as ps
from penstock.flow import lookup as lookups
from penstock.flow import lookup_database as databases
from penstock.flow.lookup import Cache, Desk, Lookup, found_rows

SCHEMA = (
    "id BIGINT, name STRING, since TIMESTAMP, born DATE, rate DECIMAL(9, 2), active BOOLEAN, score DOUBLE"
)
ANN = (
    "Ann", datetime(2026, 11, 1, 10, tzinfo=UTC), date(1990, 5, 4), Decimal("12.50"), True, 1.5,
)  # fmt: skip
TABLE = "CREATE TABLE {} (id {}, name TEXT, since {}, born {}, rate {}, active {}, score {})"


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A database with the table `users` of three rows, one of them without anything."""
    if request.param == "sqlite":
        path = tmp_path / "shop.db"
        with sqlite3.connect(path) as db:
            db.execute(TABLE.format("users", "INTEGER", "TEXT", "TEXT", "TEXT", "INTEGER", "REAL"))
            db.execute(
                "INSERT INTO users VALUES (1, 'Ann', '2026-11-01 10:00:00', '1990-05-04', '12.50', 1, 1.5)"
            )
            db.execute("INSERT INTO users (id) VALUES (2)")
            db.execute("CREATE TABLE prices (shop TEXT, item INTEGER, price REAL)")
            db.execute("INSERT INTO prices VALUES ('a', 1, 10), ('a', 2, 20), ('b', 1, 30)")
        db.close()
        return f"sqlite:///{path}"
    server: Postgres = request.getfixturevalue("postgres")
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        connection.execute("DROP TABLE IF EXISTS users, prices")
        made = TABLE.format("users", "BIGINT", "TIMESTAMPTZ", "DATE", "NUMERIC", "BOOLEAN", "FLOAT8")
        connection.execute(made)
        connection.execute(
            "INSERT INTO users VALUES (1, 'Ann', '2026-11-01 10:00Z', '1990-05-04', 12.5, true, 1.5)"
        )
        connection.execute("INSERT INTO users (id) VALUES (2)")
        connection.execute("CREATE TABLE prices (shop TEXT, item INT, price FLOAT8)")
        connection.execute("INSERT INTO prices VALUES ('a', 1, 10), ('a', 2, 20), ('b', 1, 30)")
    return f"postgresql://postgres@127.0.0.1:{server.port}/postgres"


@pytest.fixture
def desk_of() -> Iterator[Callable[[Lookup], Desk]]:
    with ExitStack() as opened:
        yield lambda lookup: opened.enter_context(closing(Desk(lookup)))


def test_rows_come_in_their_declared_types(url: str, desk_of: Callable[[Lookup], Desk]) -> None:
    desk = desk_of(ps.lookup(url, "users", SCHEMA, key="id"))
    assert desk.rows([(1,), (9,), (2,), (None,), (1,)]) == [ANN, None, (None,) * 6, None, ANN]


def test_a_key_of_several_columns(url: str, desk_of: Callable[[Lookup], Desk]) -> None:
    desk = desk_of(ps.lookup(url, "prices", "shop STRING, item INT, price DOUBLE", key=["item", "shop"]))
    assert desk.rows([(1, "b"), (2, "b"), (2, "a"), (1, None)]) == [(30.0,), None, (20.0,), None]


def test_more_keys_than_fit_one_question(url: str, desk_of: Callable[[Lookup], Desk]) -> None:
    desk = desk_of(ps.lookup(url, "users", "id BIGINT, name STRING", key="id"))
    found = desk.rows([(number,) for number in range(3_000)])
    assert [number for number, row in enumerate(found) if row is not None] == [1, 2]
    both = desk_of(ps.lookup(url, "prices", "shop STRING, item INT, price DOUBLE", key=["shop", "item"]))
    assert sum(row is not None for row in both.rows([("a", number) for number in range(3_000)])) == 2


def test_an_array_of_keys_gives_an_array_of_rows(url: str, desk_of: Callable[[Lookup], Desk]) -> None:
    desk = desk_of(ps.lookup(url, "users", "id BIGINT, name STRING", key="id"))
    keys = pa.array([{"id": 1}, {"id": 7}, {"id": None}, {"id": 2}])
    found = found_rows(desk, keys, pa.struct([("name", pa.string())]))
    assert found.to_pylist() == [{"name": "Ann"}, None, None, {"name": None}]


def test_what_is_known_is_not_asked_again(
    url: str, desk_of: Callable[[Lookup], Desk], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Sequence[tuple[Any, ...]]] = []
    real = databases.opened

    def opened(*given: Any) -> Any:
        database: Any = real(*given)
        ask = database.ask

        def told(keys: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
            asked.append(keys)
            rows: list[tuple[Any, ...]] = ask(keys)
            return rows

        database.ask = told
        return database

    monkeypatch.setattr(databases, "opened", opened)
    desk = desk_of(ps.lookup(url, "users", "id BIGINT, name STRING", key="id"))
    desk.rows([(1,), (1,), (9,)])
    desk.rows([(9,), (1,), (2,)])
    assert asked == [[(1,), (9,)], [(2,)]]
    asked.clear()
    forgetful = desk_of(ps.lookup(url, "users", "id BIGINT, name STRING", key="id", cache_rows=0))
    for _ in range(2):
        assert forgetful.rows([(1,)]) == [("Ann",)]
    assert asked == [[(1,)], [(1,)]]


def test_a_cache_is_bounded_by_rows_and_by_age() -> None:
    now = [0.0]
    cache = Cache(2, 60, clock=lambda: now[0])
    cache.keep({("a",): (1,), ("b",): None})
    assert cache.of([("a",)]) == {("a",): (1,)}  # now b was used longest ago
    cache.keep({("c",): (3,)})
    assert (len(cache), cache.of([("a",), ("b",), ("c",)])) == (2, {("a",): (1,), ("c",): (3,)})
    now[0] = 60.0
    assert cache.of([("a",), ("c",)]) == {}


@pytest.mark.parametrize(
    ("table", "schema", "key", "said"),
    [
        ("nobody", "id BIGINT, name STRING", "id", 'the lookup in "nobody" failed'),
        ("users", "id BIGINT, score TIMESTAMP", "id", "float 1.5 is no time"),
        ("users", "id BIGINT, score DATE", "id", "float 1.5 is no time"),
        ("users", "id BIGINT, nick STRING", "id", 'the lookup in "users" failed'),
        ("users", "id BIGINT, name INT", "id", 'column "name" of "users" holds what is no INT'),
        ("prices", "shop STRING, price DOUBLE", "shop", "\"prices\" has several rows with shop = 'a'"),
    ],
)
def test_what_is_wrong_with_the_database_is_said(
    url: str, table: str, schema: str, key: str, said: str, desk_of: Callable[[Lookup], Desk]
) -> None:
    desk = desk_of(ps.lookup(url, table, schema, key=key))
    with pytest.raises(ps.PenstockError, match=said):
        desk.rows([("a",) if key == "shop" else (1,)])


def test_a_row_under_another_key_than_was_asked_for_is_told(
    tmp_path: Path, desk_of: Callable[[Lookup], Desk]
) -> None:
    with closing(sqlite3.connect(tmp_path / "x.db")) as db, db:
        db.execute("CREATE TABLE users (id TEXT COLLATE NOCASE, at TEXT)")
        db.execute("INSERT INTO users VALUES ('Ann', '2026-11-01T12:00:00+02:00')")
    desk = desk_of(ps.lookup(str(tmp_path / "x.db"), "users", "id STRING, at TIMESTAMP", key="id"))
    assert desk.rows([("Ann",)]) == [(datetime(2026, 11, 1, 10, tzinfo=UTC),)]
    with pytest.raises(ps.BadInput, match="answered with a row of 'Ann', which nobody asked for"):
        desk.rows([("ann",)])


def test_a_connection_that_was_cut_is_opened_again(
    postgres: Postgres, desk_of: Callable[[Lookup], Desk]
) -> None:
    url = f"postgresql://postgres@127.0.0.1:{postgres.port}/postgres"
    with psycopg.connect(postgres.dsn, autocommit=True) as other:
        other.execute(
            "DROP TABLE IF EXISTS cut; CREATE TABLE cut (id INT, n INT); INSERT INTO cut VALUES (1, 2)"
        )
        desk = desk_of(ps.lookup(url, "cut", "id INT, n INT", key="id", cache_rows=0))
        assert desk.rows([(1,)]) == [(2,)]
        other.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()")
        assert desk.rows([(1,)]) == [(2,)]


@pytest.mark.parametrize(
    ("url", "schema", "key", "said"),
    [
        ("mysql://x", "id INT, name STRING", "id", "no lookups in addresses like"),
        ("", "id INT, name STRING", "id", "no lookups in addresses like"),
        ("shop.db", "id INT, name STRING", "idd", 'no column "idd"'),
        ("shop.db", "id DOUBLE, name STRING", "id", '"id" is DOUBLE'),
        ("shop.db", "id INT", "id", "needs a key and something beside it"),
        ("shop.db", "id INT, tags ARRAY<STRING>", "id", '"tags" is ARRAY<STRING>'),
    ],
)
def test_a_wrong_declaration_is_refused(url: str, schema: str, key: str, said: str) -> None:
    with pytest.raises(ps.BadInput, match=said):
        lookups.lookup(url, "users", schema, key=key)
    with pytest.raises(ps.BadInput, match="cache_rows=-1"):
        lookups.lookup("shop.db", "users", "id INT, name STRING", key="id", cache_rows=-1)


def test_a_path_is_that_of_the_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for address in ("x.db", "sqlite:///x.db"):
        found = ps.lookup(address, "users", "id INT, n INT", key="id")
        assert found.url == f"sqlite:///{tmp_path}/x.db"


def test_a_password_is_not_shown() -> None:
    assert "secret" not in repr(ps.lookup("postgresql://a:secret@h/d", "users", "id INT, n INT", key="id"))
