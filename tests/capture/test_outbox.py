"""Events in the application's own transactions."""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import pytest
from tests.capture.world import caught_up, rows_in_log, running
from tests.waiting import wait_until

import penstock as ps
from examples import dual_writes
from penstock.capture.engine import Capture
from penstock.capture.sqlite_source import SQLiteSource
from penstock.testing import find_traces

ORDERS = "order_id BIGINT, price DECIMAL(9, 2), at TIMESTAMP, tags ARRAY<STRING>, raw BINARY"
AT = datetime(2026, 11, 16, 12, tzinfo=UTC)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "shop.db"


@pytest.fixture
def db(path: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(path)) as opened:
        opened.execute("PRAGMA journal_mode = WAL")
        ps.outbox(opened).create()
        opened.commit()
        yield opened


def source(path: Path) -> SQLiteSource:
    return SQLiteSource(path, name="shop")


def order(number: int) -> dict[str, object]:
    return {"order_id": number, "price": Decimal("9.90"), "at": AT, "tags": ["a", None], "raw": b"\x00\xff"}


def test_what_is_committed_is_published_in_order_and_once(
    log: ps.Log, path: Path, db: sqlite3.Connection
) -> None:
    orders = log.create_topic("orders", ORDERS, key="order_id")
    events = ps.outbox(db)
    with db:
        events.publish(orders, order(1))  # before anybody captures it
    caught_up(log, "shop", source(path))
    with db:
        events.publish(orders, order(2), order(3))
    events.publish(orders, order(4))
    db.rollback()
    caught_up(log, "shop", source(path))
    caught_up(log, "shop", source(path))
    assert list(orders.rows()) == [order(1), order(2), order(3)]
    assert db.execute("SELECT count(*) FROM penstock_outbox").fetchone() == (0,)


def test_the_outbox_is_emptied(log: ps.Log, path: Path, db: sqlite3.Connection) -> None:
    orders = log.create_topic("orders", ORDERS)
    with running(log, "shop", source(path)):
        for number in range(3):
            with db:
                ps.outbox(db).publish(orders, order(number))
        wait_until(lambda: db.execute("SELECT count(*) FROM penstock_outbox").fetchone() == (0,), what="that")
        wait_until(lambda: rows_in_log(log, "shop.penstock_outbox") == [], what="the log to know of it")
    assert [row["order_id"] for row in orders.rows()] == [0, 1, 2]


def test_a_snapshot_that_begins_again_publishes_nothing_twice(
    log: ps.Log, path: Path, db: sqlite3.Connection
) -> None:
    orders = log.create_topic("orders", ORDERS)
    with db:
        ps.outbox(db).publish(orders, *(order(number) for number in range(5)))
    stopped = SQLiteSource(path, name="shop", step_rows=2)
    capture, stop = Capture(log, "shop", stopped), threading.Event()
    told = stopped.stored

    def stop_within(position: object) -> None:
        told(position)  # type: ignore[arg-type]
        if capture.progress().changes == 4:
            stop.set()

    stopped.stored = stop_within  # type: ignore[method-assign]
    capture.run(stop)
    stopped.close()
    assert capture.progress().source is not None
    assert len(list(orders.rows())) == 4
    caught_up(log, "shop", source(path))
    assert [row["order_id"] for row in orders.rows()] == [0, 1, 2, 3, 4]


def test_events_are_published_also_where_only_some_tables_are_captured(
    log: ps.Log, path: Path, db: sqlite3.Connection
) -> None:
    orders = log.create_topic("orders", ORDERS)
    db.execute("CREATE TABLE users (id INTEGER PRIMARY KEY)")
    with db:
        ps.outbox(db).publish(orders, order(1))
    caught_up(log, "shop", SQLiteSource(path, name="shop", tables=["users"]))
    assert list(orders.rows()) == [order(1)]


def test_what_fits_no_topic_is_put_aside_and_the_rest_goes_on(
    log: ps.Log, path: Path, db: sqlite3.Connection
) -> None:
    orders = log.create_topic("orders", ORDERS)
    events = ps.outbox(db)
    with pytest.raises(ps.BadRecord, match="order_id"):
        events.publish(orders, {"order_id": "seven"})
    with db:
        events.publish("nowhere", {"a": 1})
        events.publish("orders", {"order_id": "seven"})
        events.publish("orders", {"order_id": 8, "raw": "x" * 2_000_000})
        events.publish("orders", {"order_id": 7})
    caught_up(log, "shop", source(path))
    assert [row["order_id"] for row in orders.rows()] == [7]
    dead = [(row["topic"], row["event"], row["reason"]) for row in log.topic("shop.dead").rows()]
    assert [(topic, event[:20]) for topic, event, _ in dead] == [
        ("nowhere", '{"a": 1}'),
        ("orders", '{"order_id": "seven"'),
        ("orders", '{"order_id": 8, "raw'),
    ]
    assert 'no topic "nowhere"' in dead[0][2]


def test_what_capture_fills_itself_takes_no_events(log: ps.Log, path: Path, db: sqlite3.Connection) -> None:
    """They would be rows that the table has not, or what capture knows of its tables."""
    db.execute("CREATE TABLE lines (id INTEGER PRIMARY KEY)")
    caught_up(log, "shop", source(path))
    events = ps.outbox(db)
    with db:
        db.execute("INSERT INTO lines VALUES (1)")
        events.publish("shop.lines", {"id": 7})
        events.publish("shop.known", {"table": "lines", "known": "{}", "mark": None})
    for _ in range(2):
        caught_up(log, "shop", source(path))
    assert rows_in_log(log, "shop.lines") == [(1,)]
    reasons = [row["reason"] for row in log.topic("shop.dead").rows()]
    assert reasons == [f'topic "shop.{name}" is filled by the capture itself.' for name in ("lines", "known")]


def test_what_is_no_connection_is_refused() -> None:
    with pytest.raises(ps.BadOption, match="is no connection that an outbox knows"):
        ps.outbox("shop.db")


@pytest.mark.parametrize("trouble", [dual_writes.crash_between, dual_writes.race])
def test_dual_writes_disagree_and_an_outbox_does_not(trouble: object) -> None:
    database, told = dual_writes.compared(dual_writes.write_both, trouble)  # type: ignore[arg-type]
    assert database != told
    database, told = dual_writes.compared(dual_writes.write_with_outbox, trouble)  # type: ignore[arg-type]
    assert database == told
    assert len(told) == 1


ANN, BOB = "ann.lastname@example.org", "bob.lastname@example.org"


def test_what_is_personal_in_an_event_is_sealed_and_nowhere_else_in_the_log(
    log: ps.Log, home: Path, path: Path, db: sqlite3.Connection
) -> None:
    """Neither in the outbox's own topics nor in that of events that could not be published."""
    orders = log.create_topic(
        "orders", "id BIGINT, customer BIGINT, email STRING", personal={"email": "customer"}
    )
    orders.append({"id": 0, "customer": 18, "email": BOB})
    log.port.keys.destroy("18")
    with db:
        ps.outbox(db).publish(orders, {"id": 1, "customer": 17, "email": ANN})
        wrong = {"id": "no number", "customer": 17, "email": ANN}
        for event in (
            wrong,
            {**wrong, "customer": None},
            {"id": 2, "customer": 18, "email": BOB},
            {"mail": ANN},
        ):
            db.execute(
                "INSERT INTO penstock_outbox (topic, event) VALUES ('orders', ?)", (json.dumps(event),)
            )
        db.execute("INSERT INTO penstock_outbox (topic, event) VALUES ('orders', ?)", ('{"email": "' + ANN,))
    caught_up(log, "shop", source(path))
    assert [row["email"] for row in orders.revealed().rows()] == [None, ANN]
    found = find_traces(home, ANN, BOB)
    assert (found.clear, found.unread) == ((), ())
    dead = [
        (row["event"] and json.loads(row["event"]), row["reason"]) for row in log.topic("shop.dead").rows()
    ]
    sealed, *others = dead
    assert (sealed[0]["id"], sealed[0]["email"][:9]) == ("no number", "personal:")
    blank = {"id": None, "customer": None, "email": None}
    assert [event for event, _ in others] == [
        {**blank, "id": "no number"}, {"id": 2, "customer": 18, "email": None}, blank, None,
    ]  # fmt: skip
    assert "was forgotten" in others[1][1] and '"mail"' in others[2][1]
    log.port.keys.destroy("17")
    assert find_traces(home, ANN, BOB).found == ()
