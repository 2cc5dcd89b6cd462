"""A new snapshot of a live table: equal to the source, whatever is written meanwhile."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from tests.capture.folding import Fold, follow, followed
from tests.capture.postgres_database import PostgresDatabase
from tests.capture.world import caught_up, rows_in_log
from tests.capture.writers import Writers
from tests.servers import Postgres
from tests.waiting import wait_until

import penstock as ps
from penstock.capture.postgres_again import Visibility
from penstock.errors import BadOption


def is_finished(fold: Fold) -> bool:
    return fold.position is not None and "again" not in fold.position


def spoil(fold: Fold, table: str) -> None:
    """As if something had gone wrong: rows missing, rows wrong, rows that are not there."""
    rows = fold.tables[table]
    for key in sorted(rows)[::3]:
        del rows[key]
    for key in sorted(rows)[::4]:
        rows[key] = {**rows[key], "n": -77}
    rows[(-1,)] = {"id": -1, "n": 0, "tag": "ghost"}


def test_a_table_is_read_anew_in_chunks(database: PostgresDatabase) -> None:
    database.run(
        "CREATE TABLE t (id int PRIMARY KEY, n int)",
        "INSERT INTO t SELECT i, i FROM generate_series(1, 95) i",
    )
    database.run("CREATE TABLE other (id int PRIMARY KEY)", "INSERT INTO other VALUES (1)")
    fold, end = Fold(), database.end()
    follow(database.source(), fold, lambda: fold.lsn >= end)
    first = len(fold.changes)
    spoil(fold, "t")
    begins, ends, chunks = [], [], []
    for step in followed(database.source(chunk_rows=10), fold, again=["t"]):
        if step is not None:
            begins += [table.name for table in step.begins]
            ends += [table.name for table in step.ends]
            chunks += [changes.rows.num_rows for changes in step.changes]
        if ends:
            break
    assert (begins, ends, chunks) == (["t"], ["t"], [10] * 9 + [5])
    assert fold.rows("t") == database.rows("t")
    assert [row["op"] for _, row in fold.changes[first:]] == ["r"] * 95
    assert is_finished(fold)


def test_of_large_rows_few_are_read_at_a_time(
    database: PostgresDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.capture.postgres_snapshot._CHUNK_BYTES_MAX", 1 << 20)
    monkeypatch.setattr("penstock.capture.postgres_again._CHUNK_BYTES", 1 << 20)
    database.run(
        "CREATE TABLE t (id int PRIMARY KEY, n text)",
        "INSERT INTO t SELECT i, repeat('x', 50000) FROM generate_series(1, 250) i",
    )
    fold, end, chunks, again = Fold(), database.end(), list[int](), list[int]()
    for step in followed(database.source(), fold):
        chunks += [changes.rows.num_rows for changes in step.changes] if step else []
        if fold.lsn >= end:
            break
    assert max(chunks) <= 24
    for step in followed(database.source(), fold, again=["t"]):
        again += [changes.rows.num_rows for changes in step.changes] if step else []
        if again and is_finished(fold):
            break
    assert max(again[4:]) <= 21  # of the first hundred nothing is known before
    assert sum(chunks) == sum(again) == 250


def test_one_that_is_asked_for_again_on_its_way_begins_anew(database: PostgresDatabase) -> None:
    """What was read of it is of an older form, and nobody tells what a new column has in those rows."""
    database.run(
        "CREATE TABLE t (id int PRIMARY KEY, n int)",
        "INSERT INTO t SELECT i, i FROM generate_series(1, 95) i",
    )
    fold, end = Fold(), database.end()
    follow(database.source(), fold, lambda: fold.lsn >= end)
    first = len(fold.changes)
    follow(database.source(chunk_rows=10), fold, lambda: len(fold.changes) == first + 30, again=["t"])
    database.run("ALTER TABLE t ADD COLUMN extra int DEFAULT 5")
    follow(database.source(chunk_rows=10), fold, lambda: is_finished(fold), again=["t"])
    assert fold.rows("t") == database.rows("t")


@pytest.mark.parametrize("reopen", [False, True], ids=["in one go", "reopened at random"])
def test_under_three_writers_it_is_equal(
    database: PostgresDatabase, report: Callable[[str], None], reopen: bool
) -> None:
    Writers.prepare(database.run)
    database.run("INSERT INTO accounts SELECT i, 0, 'much' FROM generate_series(10001, 15000) i")
    fold, seed, opened = Fold(), random.Random(3), 0
    follow(database.source(), fold, lambda: fold.lsn >= 0)
    spoil(fold, "accounts")
    with Writers(database.dsn, transactions=300) as writers:
        again = ["*"]
        while again or not is_finished(fold):
            opened += 1
            stop_after = seed.randint(3, 12) if reopen else 10**9
            for step in followed(database.source(chunk_rows=500), fold, again=again):
                if step is not None:
                    again = []
                    stop_after -= 1
                if stop_after <= 0 or (step is not None and is_finished(fold)):
                    break
    end = database.end()
    follow(database.source(), fold, lambda: fold.lsn >= end)
    assert not writers.failed
    assert fold.rows("accounts") == database.rows("accounts")
    assert fold.rows("audit") == database.rows("audit")
    report(
        f"incremental snapshot under three writers, opened {opened} times: "
        f"{len(fold.tables['accounts']):,} rows equal after {len(writers.committed):,} transactions"
    )


def test_a_transaction_that_is_told_before_it_is_visible_wins(
    database: PostgresDatabase, logical_postgres: Postgres
) -> None:
    """A commit that waits for a standby is in the WAL, but no query sees it yet."""
    database.run(
        "CREATE TABLE t (id int PRIMARY KEY, n int)",
        "INSERT INTO t SELECT i, 0 FROM generate_series(1, 30) i",
    )
    fold, end = Fold(), database.end()
    follow(database.source(), fold, lambda: fold.lsn >= end)
    waits = "SELECT FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND datname = current_database()"
    writer = threading.Thread(target=database.run, args=("UPDATE t SET n = -1 WHERE id = 15",))
    ended: list[Any] = []
    try:
        for step in followed(database.source(chunk_rows=10), fold, again=["t"]):
            ended += step.ends if step else ()
            if step is not None and step.changes and not writer.is_alive() and not ended:
                _settings(logical_postgres, "ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
                wait_until(lambda: _standbys(database) == "nobody")
                writer.start()
                wait_until(lambda: database.query(waits))
            if ended:
                break
        assert database.rows("t")[15] == (15, 0), "it is visible: this shows nothing"
        assert fold.rows("t")[15] == (15, -1)
        assert fold.ops("t").count("u") == 1
    finally:
        _settings(logical_postgres, "ALTER SYSTEM RESET synchronous_standby_names")
        writer.join(20)
    assert fold.rows("t") == database.rows("t")


def _settings(server: Postgres, statement: str) -> None:
    with psycopg.connect(server.dsn, autocommit=True) as db:
        db.execute("SET synchronous_commit = local")
        db.execute(statement)
        db.execute("SELECT pg_reload_conf()")


def _standbys(database: PostgresDatabase) -> str:
    return str(database.query("SHOW synchronous_standby_names")[0][0])


def test_keys_of_several_columns_and_of_text(database: PostgresDatabase) -> None:
    database.run(
        "CREATE TYPE colour AS ENUM ('red', 'green', 'blue')",
        "CREATE TABLE t (note text, b colour, at timestamptz, a text, PRIMARY KEY (a, at, b))",
        "INSERT INTO t SELECT 'x', (ARRAY['red', 'green', 'blue']::colour[])[1 + i % 3],"
        " timestamptz '2024-01-01' + (i / 3) * interval '1 second', E'it''s \\\\ \"' || i % 7"
        " FROM generate_series(1, 100) i",
    )
    fold, end = Fold(), database.end()
    follow(database.source(), fold, lambda: fold.lsn >= end)
    fold.tables["t"].clear()
    follow(
        database.source(chunk_rows=9), fold, lambda: is_finished(fold) and bool(fold.tables["t"]), again=["t"]
    )
    assert fold.forms["t"][-1].key == ("b", "at", "a")
    assert {tuple(row.values()) for row in fold.tables["t"].values()} == set(
        database.query("SELECT * FROM t")
    )


def test_a_table_that_is_made_later_is_read_at_the_next_start(database: PostgresDatabase) -> None:
    """Also what a transaction wrote that had begun before the table was published, and ended after."""
    database.run("CREATE TABLE t (id int PRIMARY KEY)")
    fold, end = Fold(), database.end()
    follow(database.source(), fold, lambda: fold.lsn >= end)
    database.run("CREATE TABLE later (id int PRIMARY KEY)", "INSERT INTO later VALUES (1)")
    with psycopg.connect(database.dsn) as writer:
        writer.execute("INSERT INTO later VALUES (2)")
        begun = 0
        for step in followed(database.source(), fold):
            begun += bool(step and step.begins)
            if begun and step is None and not writer.closed:
                writer.commit()
                writer.close()
            if begun and is_finished(fold):
                break
    database.run("INSERT INTO later VALUES (3)")
    end = database.end()
    follow(database.source(), fold, lambda: fold.lsn >= end)
    assert fold.rows("later") == database.rows("later")
    assert sorted(fold.rows("later")) == [1, 2, 3]


def test_a_table_that_changes_its_form_or_is_emptied_meanwhile(database: PostgresDatabase) -> None:
    database.run(
        "CREATE TABLE t (id int PRIMARY KEY, n int)",
        "INSERT INTO t SELECT i, i FROM generate_series(1, 50) i",
    )
    fold, end = Fold(), database.end()
    follow(database.source(), fold, lambda: fold.lsn >= end)
    todo = ["ALTER TABLE t ADD COLUMN more text", "INSERT INTO t VALUES (60, 6, 'x')", "TRUNCATE t",
            "INSERT INTO t VALUES (1, 1, 'new')"]  # fmt: skip
    for step in followed(database.source(chunk_rows=10), fold, again=["t"]):
        if todo and step is not None and step.changes:
            database.run(todo.pop(0))
        if not todo and is_finished(fold):
            break
    end = database.end()
    follow(database.source(), fold, lambda: fold.lsn >= end)
    assert fold.rows("t") == database.rows("t")


def test_only_captured_tables_can_be_read_anew(log: ps.Log, database: PostgresDatabase) -> None:
    database.run("CREATE TABLE orders (id int PRIMARY KEY)")
    capture = caught_up(log, "c", database.source())
    with pytest.raises(BadOption, match='no table "order"') as refused:
        capture.request_snapshot(["order"])
    assert "orders" in str(refused.value.hint)


@pytest.mark.parametrize("ddl", ["DROP TABLE orders", "ALTER TABLE orders RENAME TO older"])
def test_a_table_that_goes_after_it_was_asked_for_stops_nothing(
    log: ps.Log, database: PostgresDatabase, ddl: str
) -> None:
    database.run("CREATE TABLE orders (id int PRIMARY KEY)", "CREATE TABLE users (id int PRIMARY KEY)")
    database.run("INSERT INTO orders VALUES (1)")
    caught_up(log, "c", database.source()).request_snapshot(["orders"])
    database.run(ddl, "INSERT INTO users VALUES (1)")
    caught_up(log, "c", database.source())
    assert rows_in_log(log, "c.users") == [(1,)]
    caught_up(log, "c", database.source())
    assert rows_in_log(log, "c.orders") == []


def test_visibility_counts_on_over_the_end_of_transaction_ids() -> None:
    seen = Visibility.of(f"{(5 << 32) - 10}:{(5 << 32) + 10}:{(5 << 32) - 10},{(5 << 32) + 3}")
    assert not seen.sees((1 << 32) - 10)
    assert seen.sees((1 << 32) - 9)
    assert seen.sees(2)
    assert not seen.sees(3)
    assert not seen.sees(10)
    assert not seen.sees(11)
