"""Tables that are made, dropped, renamed or put in the place of others: never a silent gap, never a ghost."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from tests.capture.postgres_database import PostgresDatabase
from tests.capture.world import caught_up, ops, rows_in_log, running
from tests.waiting import wait_until

import penstock as ps
from penstock.capture.postgres_catalog import Catalog
from penstock.capture.postgres_snapshot import InitialSnapshot
from penstock.errors import NotSupported

WIDE = "CREATE TABLE {} (id int PRIMARY KEY, n int, big text)"
LARGE = "(SELECT string_agg(md5(i::text), '') FROM generate_series(1, 200) i)"  # is kept out of line


def same(log: ps.Log, database: PostgresDatabase, table: str) -> bool:
    if f"c.{table}" not in log.topics():
        return False
    return rows_in_log(log, f"c.{table}") == sorted(database.query(f"SELECT * FROM {table}"), key=repr)


def is_followed(database: PostgresDatabase) -> bool:
    slots = "SELECT FROM pg_replication_slots WHERE active AND database = current_database()"
    return bool(database.query(slots))


@pytest.fixture(params=["while it is followed", "while nobody looks"])
def meanwhile(
    request: pytest.FixtureRequest, log: ps.Log, database: PostgresDatabase
) -> Callable[..., ps.capture.Capture]:
    """Runs SQL, and returns when the log has all of it."""

    def run(*statements: str, until: Callable[[], bool], **options: object) -> ps.capture.Capture:
        if request.param == "while nobody looks":
            database.run(*statements)
            return caught_up(log, "c", database.source(**options))
        with running(log, "c", database.source(**options)) as capture:
            wait_until(lambda: is_followed(database), timeout_s=60)
            database.run(*statements)
            wait_until(until, timeout_s=60, what="the log")
        return capture

    return run


def test_a_renamed_table_goes_on_under_its_new_name(
    log: ps.Log, database: PostgresDatabase, meanwhile: Callable[..., ps.capture.Capture]
) -> None:
    database.run(
        WIDE.format("orders"), f"INSERT INTO orders SELECT i, 0, {LARGE} FROM generate_series(1, 5) i"
    )
    caught_up(log, "c", database.source())
    capture = meanwhile(
        "UPDATE orders SET n = 1 WHERE id = 1",
        "ALTER TABLE orders RENAME TO sales",
        "UPDATE sales SET n = 2 WHERE id = 2",
        "INSERT INTO sales VALUES (6, 6, 'x')",
        "DELETE FROM sales WHERE id = 3",
        until=lambda: same(log, database, "sales") and not rows_in_log(log, "c.orders"),
    )
    assert same(log, database, "sales")
    assert rows_in_log(log, "c.orders") == []
    assert ops(log, "c.orders") == ["r"] * 5 + ["u", "t"], "what came before came under the old name"
    assert capture.status()["gone"] == ["orders"]
    assert list(capture.status()["tables"]) == ["sales"]
    database.run("INSERT INTO sales VALUES (7, 7, 'y')", "UPDATE sales SET n = 9 WHERE id = 1")
    caught_up(log, "c", database.source())
    assert same(log, database, "sales")
    assert ops(log, "c.orders")[-1] == "t", "and nothing more of it"


def test_a_table_in_the_place_of_another(
    log: ps.Log, database: PostgresDatabase, meanwhile: Callable[..., ps.capture.Capture]
) -> None:
    """Also where only that name is captured; and a large value is that of the new table."""
    database.run(
        WIDE.format("orders"), f"INSERT INTO orders SELECT i, 0, {LARGE} FROM generate_series(1, 5) i"
    )
    caught_up(log, "c", database.source(tables=["orders"]))
    meanwhile(
        WIDE.format("built"),
        f"INSERT INTO built SELECT i, 1, reverse({LARGE}) FROM generate_series(3, 9) i",
        "ALTER TABLE orders RENAME TO orders_old",
        "ALTER TABLE built RENAME TO orders",
        "UPDATE orders SET n = 2 WHERE id = 4",
        "UPDATE orders_old SET n = -1",
        until=lambda: same(log, database, "orders"),
        tables=["orders"],
    )
    assert same(log, database, "orders")
    assert "c.orders_old" not in log.topics()


SWAP = (
    "ALTER TABLE orders RENAME TO between",
    "ALTER TABLE others RENAME TO orders",
    "ALTER TABLE between RENAME TO others",
)


@pytest.mark.parametrize(
    "statements",
    [
        (
            "ALTER TABLE orders RENAME TO away",
            "INSERT INTO away VALUES (7, 7, 'x')",
            "UPDATE away SET n = 1 WHERE id = 1",
            "DELETE FROM away WHERE id = 2",
            "ALTER TABLE away RENAME TO orders",
        ),
        ("BEGIN", "ALTER TABLE orders RENAME TO away", "DELETE FROM away",
         "ALTER TABLE away RENAME TO orders", "INSERT INTO orders VALUES (8, 8, 'x')", "COMMIT"),
        (*SWAP, "INSERT INTO orders VALUES (7, 7, 'x')", "INSERT INTO others VALUES (8, 8, 'x')", *SWAP),
    ],
    ids=["renamed and back", "within a transaction", "swapped and back"],
)  # fmt: skip
@pytest.mark.parametrize("tables", [None, ["orders", "others"]], ids=["all", "named"])
def test_a_table_that_has_another_name_for_a_while(
    log: ps.Log,
    database: PostgresDatabase,
    statements: tuple[str, ...],
    tables: list[str] | None,
    meanwhile: Callable[..., ps.capture.Capture],
) -> None:
    """Nobody needs to have looked at that time."""
    database.run(WIDE.format("orders"), WIDE.format("others"))
    database.run(
        "INSERT INTO orders VALUES (1, 0, 'x'), (2, 0, 'x')", "INSERT INTO others VALUES (3, 0, 'x')"
    )
    caught_up(log, "c", database.source(tables=tables))
    capture = meanwhile(
        *statements,
        "INSERT INTO orders VALUES (9, 9, 'y')",
        until=lambda: same(log, database, "orders") and same(log, database, "others"),
        tables=tables,
    )
    assert same(log, database, "orders")
    assert same(log, database, "others")
    assert sorted(capture.status()["tables"]) == ["orders", "others"]


def test_a_table_that_is_made_anew(
    log: ps.Log, database: PostgresDatabase, meanwhile: Callable[..., ps.capture.Capture]
) -> None:
    database.run(WIDE.format("orders"), "INSERT INTO orders SELECT i, 0, 'x' FROM generate_series(1, 5) i")
    caught_up(log, "c", database.source())
    meanwhile(
        "DROP TABLE orders",
        WIDE.format("orders"),
        "INSERT INTO orders VALUES (4, 1, 'new'), (9, 9, 'new')",
        until=lambda: same(log, database, "orders"),
    )
    assert same(log, database, "orders")


def test_a_dropped_table_leaves_no_rows(
    log: ps.Log, database: PostgresDatabase, meanwhile: Callable[..., ps.capture.Capture]
) -> None:
    """Nor do changes from before it was dropped, which come later, bring some back."""
    database.run(
        WIDE.format("kept"), WIDE.format("orders"), "INSERT INTO orders VALUES (1, 1, 'x'), (2, 2, 'x')"
    )
    caught_up(log, "c", database.source())
    capture = meanwhile(
        "INSERT INTO orders VALUES (3, 3, 'x')",
        "DROP TABLE orders",
        "INSERT INTO kept VALUES (1, 1, 'x')",
        until=lambda: same(log, database, "kept") and not rows_in_log(log, "c.orders"),
    )
    assert rows_in_log(log, "c.orders") == []
    assert ops(log, "c.orders") == ["r", "r", "c", "t"]
    assert capture.status()["gone"] == ["orders"]
    database.run("INSERT INTO kept VALUES (2, 2, 'x')")
    caught_up(log, "c", database.source())
    assert ops(log, "c.orders") == ["r", "r", "c", "t"], "told once"


def test_a_dropped_table_that_was_named_is_emptied_and_then_missed(
    log: ps.Log, database: PostgresDatabase
) -> None:
    database.run(WIDE.format("kept"), WIDE.format("orders"), "INSERT INTO orders VALUES (1, 1, 'x')")
    named = {"tables": ["kept", "orders"]}
    caught_up(log, "c", database.source(**named))
    wait_until(lambda: not is_followed(database), what="the end of the first run")
    with running(log, "c", database.source(**named)):
        wait_until(lambda: is_followed(database), timeout_s=60)
        database.run("DROP TABLE orders")
        wait_until(lambda: not rows_in_log(log, "c.orders"))
    with pytest.raises(NotSupported, match='there is no table "orders"'):
        caught_up(log, "c", database.source(**named))


def test_a_new_table_is_captured_without_a_new_start(
    log: ps.Log, database: PostgresDatabase, meanwhile: Callable[..., ps.capture.Capture]
) -> None:
    database.run(WIDE.format("orders"))
    caught_up(log, "c", database.source())
    meanwhile(
        WIDE.format("later"),
        "INSERT INTO later VALUES (1, 1, 'x')",
        until=lambda: same(log, database, "later"),
    )
    assert same(log, database, "later")


@pytest.mark.parametrize("published", ["FOR TABLE orders", "FOR ALL TABLES"])
def test_a_table_that_is_added_to_a_publication_of_somebody_else(
    log: ps.Log,
    database: PostgresDatabase,
    meanwhile: Callable[..., ps.capture.Capture],
    published: str,
) -> None:
    database.run(
        WIDE.format("orders"),
        "INSERT INTO orders VALUES (1, 1, 'x')",
        f"CREATE PUBLICATION theirs {published}",
    )
    caught_up(log, "c", database.source(publication="theirs"))
    add = [] if "ALL" in published else ["ALTER PUBLICATION theirs ADD TABLE later"]
    in_one = [WIDE.format("later"), "INSERT INTO later VALUES (1, 1, 'x')", *add]
    meanwhile(
        "; ".join(in_one),
        "INSERT INTO later VALUES (2, 2, 'x')",
        "INSERT INTO orders VALUES (2, 2, 'x')",
        until=lambda: same(log, database, "later") and same(log, database, "orders"),
        publication="theirs",
    )
    assert same(log, database, "later")
    assert same(log, database, "orders")


def test_a_table_that_somebody_takes_out_of_the_publication_is_read_again(
    log: ps.Log, database: PostgresDatabase, meanwhile: Callable[..., ps.capture.Capture]
) -> None:
    database.run(WIDE.format("kept"), WIDE.format("orders"), "INSERT INTO orders VALUES (1, 1, 'x')")
    caught_up(log, "c", database.source(publication="ours"))
    meanwhile(
        "ALTER PUBLICATION ours DROP TABLE orders; INSERT INTO orders VALUES (2, 2, 'x')",
        until=lambda: same(log, database, "orders"),
        publication="ours",
    )
    assert same(log, database, "orders")


def test_a_table_that_loses_its_key_is_told(log: ps.Log, database: PostgresDatabase) -> None:
    database.run(WIDE.format("kept"), WIDE.format("orders"), "INSERT INTO orders VALUES (1, 1, 'x')")
    caught_up(log, "c", database.source())
    database.run("ALTER TABLE orders DROP CONSTRAINT orders_pkey")
    with pytest.raises(NotSupported, match='table "orders" has no primary key') as refused:
        caught_up(log, "c", database.source())
    assert "ALTER TABLE" in str(refused.value.hint)


@pytest.mark.parametrize(
    ("away", "back"),
    [
        ("DROP CONSTRAINT orders_pkey", "ADD PRIMARY KEY (id)"),
        ("REPLICA IDENTITY NOTHING", "REPLICA IDENTITY DEFAULT"),
    ],
)
def test_a_table_that_had_no_key_for_a_while_goes_on(
    log: ps.Log, database: PostgresDatabase, away: str, back: str
) -> None:
    database.run(WIDE.format("orders"), WIDE.format("others"), "INSERT INTO orders VALUES (1, 1, 'x')")
    caught_up(log, "c", database.source())
    database.run(
        f"ALTER TABLE orders {away}",
        "INSERT INTO orders VALUES (2, 2, 'x')",
        f"ALTER TABLE orders {back}",
        "UPDATE orders SET n = 9",
    )
    caught_up(log, "c", database.source())
    assert same(log, database, "orders")
    assert ops(log, "c.orders") == ["r", "c", "u", "u"]


# ---- large values that an update leaves out ----------------------------------------------------------


def test_a_large_value_of_a_row_that_a_new_snapshot_has_not_reached(
    log: ps.Log, database: PostgresDatabase
) -> None:
    """The log has no such row: the topic was deleted, and is filled again while rows change."""
    database.run(WIDE.format("t"), f"INSERT INTO t SELECT i, 0, {LARGE} FROM generate_series(1, 50) i")
    caught_up(log, "c", database.source())
    for topic in ("c.t", "c.t.changes"):
        log.delete_topic(topic)
    database.run(
        "UPDATE t SET n = 1 WHERE id > 20",
        "UPDATE t SET id = 100 WHERE id = 50",  # its row is looked for under the new key
        "UPDATE t SET n = 2 WHERE id = 49",
        "DELETE FROM t WHERE id = 49",
    )
    caught_up(log, "c", database.source(chunk_rows=7))
    assert same(log, database, "t")
    told = [row["after"] for row in log.topic("c.t.changes").rows() if row["op"] == "u"]
    assert all(row["big"] for row in told), "never null"


def test_a_large_value_beside_writers_while_a_table_is_read_for_the_first_time(
    log: ps.Log, database: PostgresDatabase
) -> None:
    database.run(WIDE.format("first"))
    caught_up(log, "c", database.source())
    database.run(WIDE.format("t"), f"INSERT INTO t SELECT i, 0, {LARGE} FROM generate_series(1, 100) i")
    done = threading.Event()

    def write() -> None:
        number = 0
        while not done.is_set():
            number += 1
            database.run(
                f"UPDATE t SET n = n + 1 WHERE id % 5 = {number % 5}",
                f"UPDATE t SET id = id + 1000 WHERE id = {100 - number % 100}",
                f"UPDATE t SET big = reverse(big) WHERE id = {number % 100}",
            )

    writer = threading.Thread(target=write)
    with running(log, "c", database.source(chunk_rows=5)) as capture:
        writer.start()
        try:
            wait_until(lambda: "t" in capture.progress().tables, timeout_s=60)
            wait_until(lambda: capture.status()["phase"] == "following", timeout_s=60)
        finally:
            done.set()
            writer.join()
    caught_up(log, "c", database.source())
    assert same(log, database, "t")


# ---- values that do not fit --------------------------------------------------------------------------


@pytest.mark.parametrize("statement", [
    "UPDATE t SET due = 'infinity' WHERE id = 1",
    "INSERT INTO t VALUES (7, 7, 'seven', 'infinity')",
    "UPDATE t SET id = 8, due = 'infinity', big = reverse(big) WHERE id = 2",
])  # fmt: skip
def test_a_value_that_does_not_fit_is_passed_once_it_is_mended(
    log: ps.Log, database: PostgresDatabase, statement: str
) -> None:
    database.run(
        "CREATE TABLE t (id int PRIMARY KEY, n int, big text, due date)",
        f"INSERT INTO t SELECT i, 0, {LARGE}, '2024-01-01' FROM generate_series(1, 5) i",
    )
    caught_up(log, "c", database.source())
    database.run(statement, "UPDATE t SET n = 1 WHERE id = 3")
    with pytest.raises(ps.BadRecord, match=r"t\.due has a value that DATE cannot hold: infinity") as stopped:
        caught_up(log, "c", database.source())
    assert "penstock capture resnapshot SOURCE t" in str(stopped.value.hint)

    capture = caught_up_after(log, database, asked=True, mended=False)
    assert "infinity" in str(capture), "it is still there: nothing is passed over for good"
    caught_up_after(log, database, asked=False, mended=True)
    assert same(log, database, "t")
    (aside,) = log.topic("c.dead").rows()
    assert aside["topic"] == "t"
    assert "infinity" in aside["event"]
    assert "cannot hold" in aside["reason"]


def caught_up_after(
    log: ps.Log, database: PostgresDatabase, *, asked: bool, mended: bool
) -> ps.BadRecord | None:
    if asked:
        ps.capture.Capture(log, "c", database.source()).request_snapshot(["t"])
    if mended:
        database.run("UPDATE t SET due = NULL WHERE due = 'infinity'")
    try:
        caught_up(log, "c", database.source())
    except ps.BadRecord as error:
        return error
    return None


def test_a_value_that_does_not_fit_after_the_snapshot_was_asked_for_stops_again(
    log: ps.Log, database: PostgresDatabase
) -> None:
    database.run(
        "CREATE TABLE t (id int PRIMARY KEY, due date)",
        "INSERT INTO t SELECT i, NULL FROM generate_series(1, 5) i",
    )
    caught_up(log, "c", database.source())
    database.run("UPDATE t SET due = 'infinity' WHERE id = 1", "UPDATE t SET due = NULL")
    assert caught_up_after(log, database, asked=False, mended=False) is not None
    assert caught_up_after(log, database, asked=True, mended=False) is None
    database.run("UPDATE t SET due = '-infinity' WHERE id = 2", "UPDATE t SET due = NULL")
    assert caught_up_after(log, database, asked=False, mended=False) is not None
    assert caught_up_after(log, database, asked=True, mended=False) is None
    assert same(log, database, "t")
    assert len(list(log.topic("c.dead").rows())) == 2


def test_another_type_is_refused_and_the_way_on_that_is_told_leads_on(
    log: ps.Log, database: PostgresDatabase
) -> None:
    """Changes of the form before are still to come: without a new slot they would be in the way for good."""
    database.run(
        "CREATE TABLE orders (id int PRIMARY KEY, n int)", "INSERT INTO orders VALUES (1, 1), (2, 2)"
    )
    caught_up(log, "c", database.source())
    database.run(
        "INSERT INTO orders VALUES (3, 3)",
        "DELETE FROM orders WHERE id = 2",
        "ALTER TABLE orders ALTER n TYPE text",
        "INSERT INTO orders VALUES (4, 'four')",
    )
    with pytest.raises(
        ps.BadOption, match='"orders" has another form than what is stored: column "n"'
    ) as told:
        caught_up(log, "c", database.source())
    assert told.value.hint == (
        "begin anew, with a new snapshot: penstock capture drop SOURCE --name c; "
        "penstock topic delete c.orders; penstock topic delete c.orders.changes"
    )
    ps.capture.Capture(log, "c", database.source()).drop()
    log.delete_topic("c.orders")
    log.delete_topic("c.orders.changes")
    caught_up(log, "c", database.source())
    assert same(log, database, "orders")
    database.run("INSERT INTO orders VALUES (5, 'five')")
    caught_up(log, "c", database.source())
    assert same(log, database, "orders")


def test_a_key_of_another_type_is_refused_with_a_way_on(log: ps.Log, database: PostgresDatabase) -> None:
    database.run("CREATE TABLE orders (id numeric(5, 1) PRIMARY KEY)", "INSERT INTO orders VALUES (1)")
    caught_up(log, "c", database.source())
    database.run("ALTER TABLE orders ALTER id TYPE numeric(6, 1)", "INSERT INTO orders VALUES (2)")
    with pytest.raises(ps.BadOption, match='"orders" has a key of another type') as told:
        caught_up(log, "c", database.source())
    assert "penstock topic delete c.orders;" in str(told.value.hint)


def test_a_table_that_is_dropped_while_it_is_looked_at_stops_nothing(
    log: ps.Log, database: PostgresDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The catalogue is asked several times: in between, a table would seem to have lost its key."""
    database.run(WIDE.format("kept"), WIDE.format("orders"), "INSERT INTO orders VALUES (1, 1, 'x')")
    caught_up(log, "c", database.source())
    described = Catalog.described
    dropped = threading.Event()

    def drops(self: Catalog, *arguments: Any) -> Any:
        if not dropped.is_set() and is_followed(database):
            database.run("DROP TABLE orders", "INSERT INTO kept VALUES (1, 1, 'x')")
            dropped.set()
        return described(self, *arguments)

    monkeypatch.setattr(Catalog, "described", drops)
    with running(log, "c", database.source()):
        wait_until(lambda: same(log, database, "kept") and not rows_in_log(log, "c.orders"), timeout_s=60)
    assert dropped.is_set()


def test_a_table_that_is_made_anew_before_it_is_first_read_stops_nothing(
    log: ps.Log, database: PostgresDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    database.run("CREATE TABLE orders (id int PRIMARY KEY)", "INSERT INTO orders VALUES (1)")
    changes = InitialSnapshot.changes
    made = threading.Event()

    def makes(self: InitialSnapshot, *arguments: Any) -> Any:
        if not made.is_set():
            database.run("DROP TABLE orders", "CREATE TABLE orders (id int PRIMARY KEY, n int)")
            database.run("INSERT INTO orders VALUES (1, 2)")
            made.set()
        return changes(self, *arguments)

    monkeypatch.setattr(InitialSnapshot, "changes", makes)
    caught_up(log, "c", database.source())
    assert rows_in_log(log, "c.orders") == [(1, 2)]
    assert made.is_set()


def test_a_capture_that_runs_goes_on_where_it_cannot_be_dropped(
    log: ps.Log, database: PostgresDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.capture.postgres_source._BUSY_S", 0.1)
    database.run("CREATE TABLE orders (id int PRIMARY KEY)", "INSERT INTO orders VALUES (1)")
    with running(log, "c", database.source()) as capture:
        wait_until(lambda: capture.status()["phase"] == "following")
        wait_until(lambda: is_followed(database))
        with pytest.raises(ps.Contended, match="is in use by another process"):
            ps.capture.Capture(log, "c", database.source()).drop()
        database.run("INSERT INTO orders VALUES (2)")
        wait_until(lambda: same(log, database, "orders"))
    assert capture.last_error is None
