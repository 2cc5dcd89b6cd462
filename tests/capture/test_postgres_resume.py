"""Stopped anywhere, the source goes on behind the last stored step: nothing twice, nothing missing."""

from __future__ import annotations

import random
import tempfile
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest
from tests.capture.conftest import LOGICAL
from tests.capture.folding import Fold, follow, followed
from tests.capture.postgres_database import PostgresDatabase
from tests.capture.writers import Writers
from tests.servers import Unavailable, start_postgres

from penstock.errors import Unreachable


def streamed(fold: Fold) -> list[tuple[str, str, int]]:
    """Position, transaction and order of everything that came by the stream."""
    return [
        (row["position"], row["transaction"], row["transaction_order"])
        for _, row in fold.changes
        if row["op"] != "r"
    ]


def assert_told_once(fold: Fold, committed: dict[str, int], *, exactly: bool = True) -> None:
    told = streamed(fold)
    assert len({position for position, _, _ in told}) == len(told), "told twice"
    orders: dict[str, list[int]] = {}
    for _, xid, order in told:
        orders.setdefault(xid, []).append(order)
    assert all(sorted(found) == list(range(1, len(found) + 1)) for found in orders.values())
    counts = {xid: len(found) for xid, found in orders.items()}
    expected = {xid: count for xid, count in committed.items() if count}
    assert {xid: counts.get(xid) for xid in expected} == expected
    if exactly:
        assert set(counts) == set(expected)


def test_stopped_after_every_step_and_before_storing_it(database: PostgresDatabase) -> None:
    database.run("CREATE TABLE t (id int PRIMARY KEY, n int)", "INSERT INTO t VALUES (0, 0)")
    fold, end = Fold(), database.end()
    follow(database.source(), fold, lambda: fold.lsn >= end)
    for number in range(1, 9):
        database.run(
            f"INSERT INTO t SELECT i, {number} FROM generate_series({number * 10}, {number * 10 + 4}) i"
        )
    end = database.end()
    while fold.lsn < end:
        unstored = None
        source = database.source(step_rows=1)
        for step in source.steps(fold.position):
            if step is not None:
                unstored = step
                break
        source.close()
        for step in followed(database.source(step_rows=1), fold):
            if step is not None:
                break
        assert unstored is not None
        assert step is not None
        assert [c.rows for c in step.changes] == [c.rows for c in unstored.changes]
    transactions = Counter(xid for _, xid, _ in streamed(fold))
    assert sorted(transactions.values()) == [5] * 8
    assert_told_once(fold, dict(transactions))
    assert fold.rows("t") == database.rows("t")


def test_three_writers_ddl_and_a_source_that_is_reopened_at_random(
    database: PostgresDatabase, report: Callable[[str], None]
) -> None:
    Writers.prepare(database.run)
    seed, fold, opened = random.Random(7), Fold(), 0
    follow(database.source(), fold, lambda: fold.lsn >= 0)
    ddl = iter(
        [
            "ALTER TABLE accounts ADD COLUMN extra int",
            "ALTER TABLE accounts DROP COLUMN extra",
            "ALTER TABLE accounts ADD COLUMN note text",
            "ALTER TABLE audit ADD COLUMN more bigint",
        ]
    )
    end = 1 << 63
    with Writers(database.dsn, transactions=250) as writers:
        while fold.lsn < end:
            opened += 1
            stop_after = seed.randint(1, 6)
            for step in followed(database.source(step_rows=seed.choice([1, 50, 20_000])), fold):
                if writers.are_done and end == 1 << 63:
                    end = database.end()
                stop_after -= step is not None
                if stop_after == 0 or fold.lsn >= end:
                    break
            if statement := next(ddl, None):
                database.run(statement)
    # Its DDL may have come behind the last of the changes.
    there = "SELECT attname::text FROM pg_attribute WHERE attrelid = 'audit'::regclass AND attnum > 0"
    audit = [name for (name,) in database.query(f"{there} ORDER BY attnum")]
    follow(database.source(), fold, lambda: fold.forms["audit"][-1].columns.names == audit)
    assert not writers.failed
    assert opened > 4
    report(
        f"three writers: {len(writers.committed):,} transactions, {len(streamed(fold)):,} changes, "
        f"{len(fold.forms['accounts'])} forms, the source opened {opened} times: nothing twice or missing"
    )
    assert_told_once(fold, writers.committed)
    for table in ("accounts", "audit"):
        assert fold.rows(table) == database.rows(table)


def test_postgres_is_killed_and_comes_back(report: Callable[[str], None]) -> None:
    with tempfile.TemporaryDirectory(prefix="penstock-") as folder:
        try:
            server = start_postgres(Path(folder), options=LOGICAL)
        except Unavailable as reason:
            pytest.skip(str(reason))
        database = PostgresDatabase.create(server.dsn)
        try:
            Writers.prepare(database.run)
            fold, cut = Fold(), 0
            follow(database.source(), fold, lambda: fold.lsn >= 0)
            with Writers(database.dsn) as writers:
                for _ in range(2):
                    more = len(fold.changes) + 300
                    source = database.source()
                    with pytest.raises(Unreachable):
                        for _ in followed(source, fold):
                            if len(fold.changes) > more and server.process.poll() is None:
                                server.kill()
                    cut += 1
                    server = server.started_again()
            end = database.end()
            follow(database.source(), fold, lambda: fold.lsn >= end)
            assert not writers.failed
            report(f"kill -9 of PostgreSQL, {cut} times: {len(streamed(fold)):,} changes, each told once")
            assert_told_once(fold, writers.committed, exactly=False)
            for table in ("accounts", "audit"):
                assert fold.rows(table) == database.rows(table)
        finally:
            database.let_go()
            server.stop()


def test_an_interrupted_first_snapshot_begins_anew_without_ghosts(database: PostgresDatabase) -> None:
    database.run("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t SELECT generate_series(1, 100)")
    fold = Fold()
    follow(database.source(chunk_rows=10), fold, lambda: len(fold.changes) >= 30)
    assert fold.position is not None
    assert fold.position["phase"] == "snapshot"
    database.run("DELETE FROM t WHERE id <= 20")
    end = database.end()
    follow(database.source(), fold, lambda: fold.lsn >= end)
    assert fold.rows("t") == database.rows("t")
    assert len(database.query("SELECT FROM pg_replication_slots WHERE database = current_database()")) == 1


def test_the_first_snapshot_waits_for_whoever_writes_and_says_so(database: PostgresDatabase) -> None:
    database.run("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    fold, idle = Fold(), 0
    with psycopg.connect(database.dsn) as writer:
        writer.execute("INSERT INTO t VALUES (2)")
        for step in followed(database.source(), fold):
            idle += step is None
            if idle == 2:
                writer.commit()
            if fold.lsn >= 0:
                break
    assert idle >= 2
    assert fold.ops("t") == "rr"


def test_a_source_that_is_closed_while_its_slot_waits_leaves_nobody_hanging(
    database: PostgresDatabase,
) -> None:
    database.run("CREATE TABLE t (id int PRIMARY KEY)")
    fold = Fold()
    with psycopg.connect(database.dsn) as writer:
        writer.execute("INSERT INTO t VALUES (2)")
        for step in followed(database.source(), fold):
            if step is None:
                break
    end = database.end()
    follow(database.source(), fold, lambda: fold.lsn >= end)
    assert fold.rows("t") == database.rows("t") == {2: (2,)}


def test_postgres_can_shut_down_while_it_is_captured() -> None:
    """It waits until every reader has confirmed the last of the WAL."""
    with tempfile.TemporaryDirectory(prefix="penstock-") as folder:
        try:
            server = start_postgres(Path(folder), options=LOGICAL)
        except Unavailable as reason:
            pytest.skip(str(reason))
        database = PostgresDatabase.create(server.dsn)
        try:
            database.run("CREATE TABLE t (id int PRIMARY KEY)", "CREATE TABLE other (id int)")
            fold, stopping = Fold(), threading.Thread(target=server.stop)
            with pytest.raises(Unreachable):
                for step in followed(database.source(heartbeat_s=1000), fold):
                    if step is None and fold.lsn >= 0 and stopping.ident is None:
                        database.run("INSERT INTO other VALUES (1)")
                        stopping.start()
            stopping.join()
            assert server.process.returncode == 0, "it had to be killed"
            server = server.started_again()
            database.run("INSERT INTO t VALUES (1)")
            end = database.end()
            follow(database.source(), fold, lambda: fold.lsn >= end)
            assert fold.ops("t") == "c"
        finally:
            database.let_go()
            server.stop()
