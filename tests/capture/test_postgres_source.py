"""What PostgreSQL tells: snapshot and stream, in one order, in the form of the moment."""

from __future__ import annotations

import datetime
import os
import resource
from collections.abc import Iterator
from decimal import Decimal

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from tests.capture.folding import Fold, follow, followed
from tests.capture.postgres_database import PostgresDatabase

from penstock.capture.postgres_source import PostgresSource
from penstock.errors import NotAllowed

ORDERS = "CREATE TABLE orders (id int PRIMARY KEY, item text, n int)"


def caught_up(database: PostgresDatabase, fold: Fold, **options: object) -> Fold:
    end = database.end()
    follow(database.source(**options), fold, lambda: fold.lsn >= end)
    return fold


def test_a_snapshot_and_then_every_change(database: PostgresDatabase) -> None:
    database.run(ORDERS, "INSERT INTO orders SELECT i, 'item ' || i, i FROM generate_series(1, 25) i")
    fold = caught_up(database, Fold(), chunk_rows=10)
    assert fold.ops("orders") == "r" * 25
    assert fold.rows("orders") == database.rows("orders")
    database.run(
        "INSERT INTO orders VALUES (26, 'new', 0)",
        "UPDATE orders SET n = 100 WHERE id = 1",
        "DELETE FROM orders WHERE id = 2",
        "UPDATE orders SET id = 30 WHERE id = 3",
    )
    caught_up(database, fold)
    assert fold.ops("orders")[25:] == "cudu"
    assert fold.rows("orders") == database.rows("orders")
    moved = fold.told("orders")[-1]
    assert (moved["before"]["id"], moved["after"]["id"]) == (3, 30)
    deleted = fold.told("orders")[-2]
    assert (deleted["before"], deleted["after"]) == ({"id": 2, "item": None, "n": None}, None)


@pytest.fixture
def many_descriptors() -> Iterator[None]:
    """As in a server with a thousand connections: the next one gets a number from 1024 on."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 2_000:
        pytest.skip(f"no more than {hard} descriptors may be open here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2_000), hard))
    held: list[int] = []
    try:
        while not held or held[-1] < 1_024:
            held.append(os.open(os.devnull, os.O_RDONLY))
        yield
    finally:
        for descriptor in held:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("many_descriptors")
def test_it_goes_on_in_a_process_with_many_open_descriptors(database: PostgresDatabase) -> None:
    database.run(ORDERS, "INSERT INTO orders VALUES (1, 'a', 1)")
    fold = caught_up(database, Fold())
    database.run("INSERT INTO orders VALUES (2, 'b', 2)")
    caught_up(database, fold)
    assert fold.ops("orders") == "rc"


def test_the_envelope_says_where_when_and_in_which_transaction(database: PostgresDatabase) -> None:
    database.run(ORDERS, "CREATE TABLE items (name text PRIMARY KEY)")
    fold = caught_up(database, Fold())
    with psycopg.connect(database.dsn) as db:
        db.execute("INSERT INTO orders VALUES (1, 'a', 1)")
        db.execute("INSERT INTO items VALUES ('a')")
        db.execute("INSERT INTO orders VALUES (2, 'b', 2)")
        xid = db.execute("SELECT pg_current_xact_id()::text").fetchone()
    caught_up(database, fold)
    orders, items = fold.told("orders"), fold.told("items")
    assert [row["transaction_order"] for row in orders] == [1, 3]
    assert [row["transaction_order"] for row in items] == [2]
    assert xid is not None
    assert {row["transaction"] for row in orders + items} == {xid[0]}
    assert orders[0]["position"] < items[0]["position"] < orders[1]["position"]
    age = datetime.datetime.now(datetime.UTC) - orders[0]["committed_at"]
    assert datetime.timedelta(0) <= age < datetime.timedelta(minutes=5)


def test_rolled_back_changes_are_not_told(database: PostgresDatabase) -> None:
    database.run(ORDERS)
    fold = caught_up(database, Fold())
    with psycopg.connect(database.dsn) as db:
        db.execute("INSERT INTO orders VALUES (1, 'kept', 1)")
        db.execute("SAVEPOINT s")
        db.execute("INSERT INTO orders VALUES (2, 'lost', 2)")
        db.execute("ROLLBACK TO s")
        db.execute("INSERT INTO orders VALUES (3, 'kept', 3)")
        db.commit()
        db.execute("INSERT INTO orders VALUES (4, 'lost', 4)")
        db.rollback()
    caught_up(database, fold)
    assert sorted(fold.rows("orders")) == [1, 3]
    assert [row["transaction_order"] for row in fold.told("orders")] == [1, 2]


def test_truncate_is_told_for_each_captured_table(database: PostgresDatabase) -> None:
    database.run(
        ORDERS, "CREATE TABLE items (name text PRIMARY KEY)", "CREATE TABLE other (id int PRIMARY KEY)"
    )
    fold = caught_up(database, Fold(), tables=["orders", "items"])
    database.run(
        "INSERT INTO orders VALUES (1, 'a', 1)",
        "INSERT INTO items VALUES ('a')",
        "INSERT INTO other VALUES (1)",
        "TRUNCATE orders, items, other",
        "INSERT INTO orders VALUES (2, 'b', 2)",
    )
    caught_up(database, fold, tables=["orders", "items"])
    assert (fold.ops("orders"), fold.ops("items")) == ("ctc", "ct")
    emptied = fold.told("orders")[1]
    assert (emptied["before"], emptied["after"]) == (None, None)
    assert sorted(fold.rows("orders")) == [2]
    assert "other" not in fold.tables


def test_partitions_come_as_their_table(database: PostgresDatabase) -> None:
    database.run(
        "CREATE TABLE events (day date, id int, note text, PRIMARY KEY (day, id)) PARTITION BY RANGE (day)",
        "CREATE TABLE events_1 PARTITION OF events FOR VALUES FROM ('2024-01-01') TO ('2024-02-01')",
        "CREATE TABLE events_2 PARTITION OF events FOR VALUES FROM ('2024-02-01') TO ('2024-03-01')",
        "INSERT INTO events VALUES ('2024-01-05', 1, 'a'), ('2024-02-05', 2, 'b')",
    )
    fold = caught_up(database, Fold())
    database.run(
        "INSERT INTO events VALUES ('2024-01-06', 3, 'c')",
        "UPDATE events SET day = '2024-02-06' WHERE id = 1",
        "DELETE FROM events WHERE id = 2",
    )
    caught_up(database, fold)
    assert list(fold.tables) == ["events"]
    assert fold.rows("events") == database.rows("events", key=2)


def test_after_ddl_the_table_has_its_new_form(database: PostgresDatabase) -> None:
    database.run(ORDERS, "INSERT INTO orders VALUES (1, 'a', 1)")
    fold = caught_up(database, Fold())
    database.run(
        "INSERT INTO orders VALUES (2, 'b', 2)",
        "ALTER TABLE orders ADD COLUMN price numeric(8, 2)",
        "INSERT INTO orders VALUES (3, 'c', 3, 1.5)",
        "ALTER TABLE orders DROP COLUMN item",
        "INSERT INTO orders VALUES (4, 4, 2.5)",
        "ALTER TABLE orders RENAME COLUMN n TO amount",
        "ALTER TABLE orders ALTER COLUMN amount TYPE bigint",
        "INSERT INTO orders VALUES (5, 5000000000, 3.5)",
    )
    caught_up(database, fold)
    assert [form.columns.names for form in fold.forms["orders"]] == [
        ["id", "item", "n"],
        ["id", "item", "n", "price"],
        ["id", "n", "price"],
        ["id", "amount", "price"],
    ]
    assert str(fold.forms["orders"][-1].columns.field("amount").type) == "int64"
    assert [row["after"] for row in fold.told("orders")[-4:]] == [
        {"id": 2, "item": "b", "n": 2},
        {"id": 3, "item": "c", "n": 3, "price": Decimal("1.50")},
        {"id": 4, "n": 4, "price": Decimal("2.50")},
        {"id": 5, "amount": 5000000000, "price": Decimal("3.50")},
    ]
    assert fold.forms["orders"][-1] == database.source().tables()[0]


def test_ddl_within_a_transaction(database: PostgresDatabase) -> None:
    database.run(ORDERS)
    fold = caught_up(database, Fold())
    with psycopg.connect(database.dsn) as db:
        db.execute("INSERT INTO orders VALUES (1, 'a', 1)")
        db.execute("ALTER TABLE orders ADD COLUMN extra text")
        db.execute("INSERT INTO orders VALUES (2, 'b', 2, 'x')")
    caught_up(database, fold)
    assert [row["transaction_order"] for row in fold.told("orders")] == [1, 2]
    assert [list(row["after"]) for row in fold.told("orders")] == [
        ["id", "item", "n"],
        ["id", "item", "n", "extra"],
    ]


def test_a_large_transaction_is_one_step(database: PostgresDatabase) -> None:
    database.run(ORDERS)
    fold = caught_up(database, Fold())
    database.run("INSERT INTO orders SELECT i, 'x', i FROM generate_series(1, 100000) i")
    for step in followed(database.source(), fold):
        if step is not None and step.changes:
            break
    assert step is not None
    assert sum(changes.rows.num_rows for changes in step.changes) == 100_000
    assert [row["transaction_order"] for row in fold.told("orders")] == list(range(1, 100_001))


def test_keys_by_an_index_and_by_the_whole_row(database: PostgresDatabase) -> None:
    database.run(
        "CREATE TABLE by_index (id int PRIMARY KEY, code text NOT NULL, note text)",
        "CREATE UNIQUE INDEX codes ON by_index (code)",
        "ALTER TABLE by_index REPLICA IDENTITY USING INDEX codes",
        "CREATE TABLE by_row (note text, code text NOT NULL UNIQUE)",
        "ALTER TABLE by_row REPLICA IDENTITY FULL",
    )
    fold = caught_up(database, Fold())
    database.run(
        "INSERT INTO by_index VALUES (1, 'a', 'x')",
        "UPDATE by_index SET note = 'y'",
        "DELETE FROM by_index",
        "INSERT INTO by_row VALUES ('x', 'a')",
        "UPDATE by_row SET note = 'y'",
        "DELETE FROM by_row",
    )
    caught_up(database, fold)
    assert [table.key for table in database.source().tables()] == [("code",), ("code",)]
    assert fold.told("by_index")[-1]["before"] == {"id": None, "code": "a", "note": None}
    assert [row["before"] for row in fold.told("by_row")[1:]] == [
        {"note": "x", "code": "a"},
        {"note": "y", "code": "a"},
    ]
    assert fold.rows("by_index") == fold.rows("by_row") == {}


def test_a_large_value_that_an_update_leaves_alone_is_unchanged_not_null(database: PostgresDatabase) -> None:
    large = "SELECT string_agg(md5(i::text), '') FROM generate_series(1, 2000) i"
    database.run(
        "CREATE TABLE plain (id int PRIMARY KEY, body text, n int)",
        "CREATE TABLE whole (id int PRIMARY KEY, body text, n int)",
        "ALTER TABLE whole REPLICA IDENTITY FULL",
        f"INSERT INTO plain VALUES (1, ({large}), 0)",
        f"INSERT INTO whole VALUES (1, ({large}), 0)",
    )
    fold = caught_up(database, Fold())
    database.run("UPDATE plain SET n = 1", "UPDATE whole SET n = 1", "UPDATE plain SET id = 2, n = 2")
    unchanged = {}
    end = database.end()
    for step in followed(database.source(), fold):
        for changes in step.changes if step else ():
            unchanged[changes.table.name] = dict(changes.unchanged)
        if fold.lsn >= end:
            break
    assert unchanged == {"plain": {"body": [0, 1]}, "whole": {}}
    for table in ("plain", "whole"):
        assert fold.rows(table) == database.rows(table)


def test_generated_columns_and_other_schemas(database: PostgresDatabase) -> None:
    database.run(
        "CREATE SCHEMA sales",
        'CREATE TABLE sales."Big Orders" (id int PRIMARY KEY, n int,'
        ' twice int GENERATED ALWAYS AS (n * 2) STORED, "we""ird %s {}" text)',
        "CREATE TABLE without_key (id int)",
        "INSERT INTO sales.\"Big Orders\" VALUES (1, 2, DEFAULT, 'x')",
    )
    fold = caught_up(database, Fold())
    database.run("INSERT INTO sales.\"Big Orders\" VALUES (2, 3, DEFAULT, 'y')")
    caught_up(database, fold)
    assert list(fold.tables) == ["sales.Big Orders"]
    assert [row["after"] for row in fold.told("sales.Big Orders")] == [
        {"id": 1, "n": 2, 'we"ird %s {}': "x"},
        {"id": 2, "n": 3, 'we"ird %s {}': "y"},
    ]


def test_a_table_that_inherits_comes_under_its_own_name(database: PostgresDatabase) -> None:
    database.run(
        "CREATE TABLE parent (id int PRIMARY KEY)",
        "CREATE TABLE child (PRIMARY KEY (id)) INHERITS (parent)",
        "INSERT INTO parent VALUES (1)",
        "INSERT INTO child VALUES (2)",
    )
    fold = caught_up(database, Fold())
    database.run("INSERT INTO parent VALUES (3)", "INSERT INTO child VALUES (4)")
    caught_up(database, fold)
    assert (sorted(fold.rows("parent")), sorted(fold.rows("child"))) == ([1, 3], [2, 4])


def test_rows_that_a_policy_hides_are_no_silent_gap(database: PostgresDatabase) -> None:
    role = f"reader_{database.name}"
    database.run(
        ORDERS,
        "INSERT INTO orders VALUES (1, 'seen', 1), (2, 'hidden', 2)",
        "ALTER TABLE orders ENABLE ROW LEVEL SECURITY",
        "CREATE POLICY seen ON orders USING (item = 'seen')",
        f"CREATE ROLE {role} LOGIN REPLICATION",
        f"GRANT SELECT ON orders TO {role}",
        "CREATE PUBLICATION theirs FOR TABLE orders",
    )
    source = PostgresSource(make_conninfo(database.dsn, user=role), name=database.name, publication="theirs")
    with pytest.raises(NotAllowed, match="row-level security"):
        follow(source, Fold(), lambda: False)
