"""A publication tells every change of a captured table, or what it has left out is read again, or refused."""

from __future__ import annotations

import pytest
from tests.capture.postgres_database import PostgresDatabase
from tests.capture.world import caught_up, rows_in_log, running
from tests.waiting import wait_until

import penstock as ps
from penstock.errors import NotSupported

TABLE = "CREATE TABLE {} (id int PRIMARY KEY, n int)"
PARTITIONED = (
    f"{TABLE} PARTITION BY RANGE (id)",
    "CREATE TABLE {0}_low PARTITION OF {0} FOR VALUES FROM (0) TO (10)",
)
NARROWED = [
    "SET (publish = 'insert')",
    "SET TABLE orders WHERE (id > 5), parts",
    "SET TABLE orders (id), parts",
    "SET (publish_via_partition_root = false)",
]
WORK = (
    "INSERT INTO orders VALUES (3, 3)",
    "UPDATE orders SET n = 9 WHERE id = 1",
    "DELETE FROM orders WHERE id = 2",
    "INSERT INTO parts VALUES (3, 3)",
    "UPDATE parts SET n = 9 WHERE id = 1",
)


@pytest.fixture(autouse=True)
def _tables(database: PostgresDatabase) -> None:
    database.run(TABLE.format("orders"), *(statement.format("parts") for statement in PARTITIONED))
    database.run("INSERT INTO orders VALUES (1, 1), (2, 2)", "INSERT INTO parts VALUES (1, 1), (2, 2)")


def same(log: ps.Log, database: PostgresDatabase) -> bool:
    return all(
        rows_in_log(log, f"c.{table}") == sorted(database.query(f"SELECT * FROM {table}"), key=repr)
        for table in ("orders", "parts")
    )


@pytest.mark.parametrize("narrowed", NARROWED)
def test_one_of_ours_that_somebody_narrows_is_mended_and_what_it_left_out_is_read(
    log: ps.Log, database: PostgresDatabase, narrowed: str
) -> None:
    options = {"publication": "ours", "tables": ["orders", "parts"]}
    caught_up(log, "c", database.source(**options))
    database.run(f"ALTER PUBLICATION ours {narrowed}", *WORK)
    caught_up(log, "c", database.source(**options))
    assert same(log, database)
    with running(log, "c", database.source(**options)):
        database.run(f"ALTER PUBLICATION ours {narrowed}", "TRUNCATE parts", "DELETE FROM orders", *WORK)
        wait_until(lambda: same(log, database), timeout_s=60, what="the log")


@pytest.mark.parametrize("narrowed", NARROWED)
def test_one_of_somebody_else_that_tells_too_little_is_refused_and_what_is_said_mends_it(
    log: ps.Log, database: PostgresDatabase, narrowed: str
) -> None:
    options = {"publication": "theirs", "tables": ["orders", "parts"]}
    database.run(
        TABLE.format("other"),
        "CREATE PUBLICATION theirs FOR TABLE orders, parts WITH (publish_via_partition_root = true)",
        f"ALTER PUBLICATION theirs {narrowed}",
        "ALTER PUBLICATION theirs ADD TABLE other",
    )
    with pytest.raises(NotSupported, match="every change of all tables") as refused:
        caught_up(log, "c", database.source(**options))
    database.run(*str(refused.value.hint).split("; "))
    caught_up(log, "c", database.source(**options))
    database.run(*WORK)
    caught_up(log, "c", database.source(**options))
    assert same(log, database)
    members = "SELECT tablename FROM pg_publication_tables WHERE pubname = 'theirs' ORDER BY 1"
    assert ("other",) in database.query(members), "who else reads it still gets their tables"


def test_one_of_a_whole_schema_has_its_tables(log: ps.Log, database: PostgresDatabase) -> None:
    database.run(
        "CREATE PUBLICATION theirs FOR TABLES IN SCHEMA public WITH (publish_via_partition_root = true)"
    )
    caught_up(log, "c", database.source(publication="theirs"))
    database.run(*WORK)
    caught_up(log, "c", database.source(publication="theirs"))
    assert same(log, database)
