"""`penstock follow`: a replica of a database, kept in sync with one command."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import psycopg
import pytest
from tests.capture.postgres_database import PostgresDatabase
from tests.capture.world import rows_in_sqlite
from tests.cli.command import Command
from tests.servers import Postgres
from tests.waiting import wait_until

from penstock.app.replica import Replica, replica_target
from penstock.capture import Capture, source_at
from penstock.errors import BadOption
from penstock.follow.sqlite import SQLiteStore
from penstock.follow.store import Sink
from penstock.follow.target import Site, SQLiteTarget
from penstock.opening import open_log


@pytest.fixture
def cli(home: Path) -> Command:
    return Command(home)


def test_a_replica_of_sqlite_follows_also_what_happens_between(cli: Command, tmp_path: Path) -> None:
    source, replica = tmp_path / "shop.db", tmp_path / "replica.db"
    with closing(sqlite3.connect(source, isolation_level=None)) as db:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("CREATE TABLE users (id INTEGER PRIMARY KEY, name TEXT, score REAL)")
        db.execute("INSERT INTO users VALUES (1, 'Ann', 1.5), (2, 'Bob', NULL)")
        address = ["follow", source, "--into", f"sqlite:///{replica}", "--once"]
        told = cli.json(*address)
        assert (told["changes"], sum(told["behind"].values()), told["errors"]) == (2, 0, {})
        db.execute("DELETE FROM users WHERE id = 1")
        db.execute("UPDATE users SET name = 'Bo' WHERE id = 2")
        db.execute("ALTER TABLE users ADD COLUMN city TEXT DEFAULT 'Bern'")
        db.execute("CREATE TABLE pets (id INTEGER PRIMARY KEY, name TEXT)")
        db.execute("INSERT INTO pets VALUES (7, 'Rex')")
        assert cli(*address).exit_code == 0
        assert rows_in_sqlite(replica, "SELECT id, name, score, city FROM users") == [(2, "Bo", None, "Bern")]
        assert rows_in_sqlite(replica, "SELECT id, name FROM pets") == [(7, "Rex")]

        with cli.start("follow", source, "--into", f"sqlite:///{replica}") as process:
            db.execute("INSERT INTO pets VALUES (8, 'Tom')")
            pets = "SELECT id FROM pets"
            wait_until(lambda: rows_in_sqlite(replica, pets) == [(7,), (8,)], timeout_s=60, what="the pet")
            process.send_signal(2)
            assert process.wait(30) == 0


def test_columns_whose_names_begin_with_an_underscore(cli: Command, tmp_path: Path) -> None:
    source, replica = tmp_path / "shop.db", tmp_path / "replica.db"
    with closing(sqlite3.connect(source, isolation_level=None)) as db:
        db.execute("CREATE TABLE users (_id INTEGER PRIMARY KEY, _x TEXT, __y REAL)")
        db.execute("INSERT INTO users VALUES (1, 'Ann', 1.5), (2, 'Bob', NULL)")
        command = ["follow", source, "--into", f"sqlite:///{replica}", "--once"]
        assert cli(*command).exit_code == 0
        db.execute("UPDATE users SET _x = 'Anna', _id = 3 WHERE _id = 1")
        assert cli(*command).exit_code == 0
        assert rows_in_sqlite(replica, "SELECT _id, _x, __y FROM users") == [
            (2, "Bob", None),
            (3, "Anna", 1.5),
        ]
        db.execute("CREATE TABLE odd (id INTEGER PRIMARY KEY, _revision TEXT)")
        told = cli(*command)
        assert told.exit_code != 0
        assert "a column cannot be named '_revision'" in told.stderr


@pytest.mark.parametrize("sign", ["/", "#", "?", "@"])
@pytest.mark.parametrize("password", ["se{}cret", "12{}34secret"])
@pytest.mark.parametrize("kind", ["postgresql", "mysql", "redis"])
def test_no_error_shows_a_password(cli: Command, tmp_path: Path, kind: str, password: str, sign: str) -> None:
    """Also where it has a character that ends it, and the rest of it looks like a host or a path."""
    address = f"{kind}://ann:{password.format(sign)}@127.0.0.1:1/shop"
    if kind != "redis":
        told = cli("capture", "status", address)
        assert (told.exit_code, "%2F" in told.stderr) == (2, True)
        assert not _has_secret(told.stdout + told.stderr)
    if kind != "mysql":
        told = cli("follow", tmp_path / "shop.db", "--into", address)
        assert (told.exit_code, "%2F" in told.stderr) == (2, True)
        assert not _has_secret(told.stdout + told.stderr)


def _has_secret(text: str) -> bool:
    return any(word in text for word in ("cret", "34", "12"))


def test_a_replica_of_postgresql_in_postgresql(
    cli: Command, database: PostgresDatabase, logical_postgres: Postgres
) -> None:
    replica = PostgresDatabase.create(logical_postgres.dsn)
    database.run(
        "CREATE TABLE items "
        "(id INT PRIMARY KEY, price NUMERIC(9, 2), tags TEXT[], at TIMESTAMPTZ, raw BYTEA)",
        "INSERT INTO items SELECT i, i / 4.0, ARRAY['a', NULL], '2026-11-16 10:00+01', '\\x00ff' "
        "FROM generate_series(1, 100) i",
    )
    addresses = [
        f"postgresql://postgres@127.0.0.1:{logical_postgres.port}/{one.name}" for one in (database, replica)
    ]
    command = ["follow", addresses[0], "--into", addresses[1], "--name", "shop", "--once"]
    assert cli.run(*command).returncode == 0
    database.run("UPDATE items SET price = 1 WHERE id = 5", "DELETE FROM items WHERE id > 50")
    assert cli.run(*command).returncode == 0
    with psycopg.connect(database.dsn) as ours, psycopg.connect(replica.dsn) as copy:
        wanted = "SELECT id, price, at, raw FROM items ORDER BY id"
        assert copy.execute(wanted).fetchall() == ours.execute(wanted).fetchall()
    assert cli.run("capture", "drop", addresses[0], "--name", "shop", "--yes").returncode == 0
    replica.close()


def test_tables_that_are_left_out_are_told(cli: Command, tmp_path: Path) -> None:
    source = made(
        tmp_path / "shop.db", "CREATE TABLE users (id INTEGER PRIMARY KEY)", "CREATE TABLE notes (n)"
    )
    for command in (
        ["follow", source, "--into", f"sqlite:///{tmp_path / 'copy.db'}"],
        ["capture", "run", source],
    ):
        told = cli(*command, "--once")
        assert (told.exit_code, "left out" in told.stderr, "notes" in told.stderr) == (0, True, True)


def test_a_replica_in_a_search_index(cli: Command, tmp_path: Path) -> None:
    pytest.importorskip("tantivy")
    source = made(
        tmp_path / "shop.db",
        "CREATE TABLE users (id INTEGER PRIMARY KEY, name TEXT)",
        "INSERT INTO users VALUES (1, 'Ann'), (2, 'Bob')",
    )
    command = ["follow", source, "--into", f"search://{tmp_path / 'index'}", "--once"]
    assert cli(*command).exit_code == 0
    made(source, "UPDATE users SET name = 'Anna' WHERE id = 1", "DELETE FROM users WHERE id = 2")
    assert cli(*command).exit_code == 0
    found = cli.json("search", tmp_path / "index", "users", "anna OR bob")
    assert [hit["row"] for hit in found["rows"]] == [{"id": 1, "name": "Anna"}]


def test_many_tables_share_a_few_connections(home: Path, tmp_path: Path) -> None:
    """A PostgreSQL takes a hundred of them, and a database may have more tables."""
    names = [f"t{number}" for number in range(20)]
    source = made(
        tmp_path / "shop.db",
        *(f"CREATE TABLE {name} (id INTEGER PRIMARY KEY)" for name in names),
        *(f"INSERT INTO {name} VALUES (7)" for name in names),
    )
    copy = tmp_path / "copy.db"
    opened: list[Sink] = []

    class Counted(SQLiteTarget):
        def open(self, site: Site) -> Sink:
            opened.append(SQLiteStore(copy))
            return opened[-1]

    with open_log(home) as log:
        capture = Capture(log, "shop", source_at(source).open("shop"))
        replica = Replica(log, home, capture, Counted(copy))
        replica.start(once=True)
        wait_until(lambda: replica.is_over, timeout_s=60, what="the end of the capture")
        replica.look()
        assert 0 < len(opened) <= 8
        replica.finish()
    for name in names:
        assert rows_in_sqlite(copy, f"SELECT id FROM {name}") == [(7,)]


def test_a_replica_of_which_nothing_can_be_kept_ends_with_the_reason(cli: Command, tmp_path: Path) -> None:
    source = made(tmp_path / "shop.db", "CREATE TABLE users (id INTEGER PRIMARY KEY)")
    taken = made(tmp_path / "taken.db", "CREATE TABLE users (id INTEGER PRIMARY KEY)")
    told = cli("follow", source, "--into", f"sqlite:///{taken}")  # without --once: it ends all the same
    assert told.exit_code == 2
    assert "that is not Penstock's" in told.stderr


def test_a_table_that_no_place_can_have_is_told_before_anything_is_made(cli: Command, tmp_path: Path) -> None:
    source = made(
        tmp_path / "shop.db",
        "CREATE TABLE users (id INTEGER PRIMARY KEY)",
        "CREATE TABLE users__rows (id INTEGER PRIMARY KEY)",
    )
    command = ["follow", source, "--into", f"sqlite:///{tmp_path / 'copy.db'}", "--once"]
    told = cli(*command)
    assert (told.exit_code, "users__rows" in told.stderr, "--table" in told.stderr) == (2, True, True)
    assert rows_in_sqlite(source, "SELECT name FROM sqlite_schema WHERE name LIKE '%penstock%'") == []
    assert cli(*command, "--table", "users").exit_code == 0


def test_a_database_is_not_followed_into_itself(
    cli: Command, tmp_path: Path, database: PostgresDatabase, logical_postgres: Postgres
) -> None:
    path = made(tmp_path / "shop.db", "CREATE TABLE users (id INTEGER PRIMARY KEY)")
    database.run("CREATE TABLE users (id INT PRIMARY KEY)")
    place = f"127.0.0.1:{logical_postgres.port}/{database.name}"
    for source, into in (
        (str(path), f"sqlite:///{tmp_path}/../{tmp_path.name}/shop.db"),
        (f"postgresql://postgres@{place}", f"postgres://postgres@{place}?connect_timeout=5"),
    ):
        told = cli("follow", source, "--into", into, "--once")
        assert told.exit_code == 2
        assert "is the database that is followed" in told.stderr
    assert rows_in_sqlite(path, "SELECT name FROM sqlite_schema") == [("users",)]
    assert database.query("SELECT count(*) FROM pg_class WHERE relname LIKE 'users%' AND relkind = 'r'") == [
        (1,)
    ]


def made(path: Path, *statements: str) -> Path:
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        for statement in statements:
            db.execute(statement)
    return path


def test_only_what_holds_rows_by_key_can_be_a_replica() -> None:
    with pytest.raises(BadOption, match="holds no rows by their key"):
        replica_target("https://example.com/hook")
    with pytest.raises(BadOption, match='nothing can follow to "oracle"'):
        replica_target("oracle://x")
