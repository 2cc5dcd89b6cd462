"""Exactly once into the program's own database."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.servers import Postgres

import penstock as ps

Connect = Callable[[], Any]


@pytest.fixture
def topic(log: ps.Log) -> ps.Topic:
    made = log.create_topic("orders", "id BIGINT, total BIGINT", key="id")
    made.append([{"id": n, "total": 10} for n in range(20)])
    return made


@pytest.fixture(params=["sqlite", "postgres"])
def connect(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Connect]:
    """Opens connections to one fresh database with an empty table `effects`."""
    opened: list[Any] = []
    if request.param == "sqlite":

        def connect() -> Any:
            opened.append(sqlite3.connect(tmp_path / "app.db", timeout=20, check_same_thread=False))
            return opened[-1]
    else:
        server: Postgres = request.getfixturevalue("postgres")

        def connect() -> Any:
            opened.append(psycopg.connect(server.dsn))
            return opened[-1]

    first = connect()
    for statement in (
        "DROP TABLE IF EXISTS effects",
        "DROP TABLE IF EXISTS penstock_progress",
        "CREATE TABLE effects (id BIGINT, total BIGINT)",
    ):
        first.execute(statement)
    first.commit()
    yield connect
    for connection in opened:
        connection.close()


def apply(connection: Any, event: ps.Event) -> None:
    mark = "?" if isinstance(connection, sqlite3.Connection) else "%s"
    connection.execute(f"INSERT INTO effects VALUES ({mark}, {mark})", (event["id"], event["total"]))


def effects(connection: Any) -> list[int]:
    found = [row[0] for row in connection.execute("SELECT id FROM effects ORDER BY id").fetchall()]
    connection.rollback()
    return found


def consume(topic: ps.Topic) -> ps.Consumer:
    return topic.consume(group="totals", delivery="exactly_once", follow=False)


def test_every_event_takes_effect_once(topic: ps.Topic, connect: Connect) -> None:
    connection = connect()
    with consume(topic) as consumer:
        for event in consumer:
            with ps.once(connection, event) as first:
                assert first
                apply(connection, event)
    assert effects(connect()) == list(range(20))


def test_an_event_that_comes_again_has_no_second_effect(topic: ps.Topic, connect: Connect) -> None:
    connection = connect()
    for delivery in range(2):
        consumer = consume(topic)
        for event in consumer:
            with ps.once(connection, event) as first:
                assert first == (delivery == 0)
                if first:
                    apply(connection, event)
        consumer.seek("earliest")
        consumer.commit()
        consumer.close()
    assert effects(connect()) == list(range(20))


def test_forgetting_to_ask_is_harmless(topic: ps.Topic, connect: Connect) -> None:
    connection = connect()
    event = next(iter(topic.events()))
    for _ in range(3):
        with ps.once(connection, event):
            apply(connection, event)
    assert effects(connect()) == [0]


def test_an_effect_that_fails_is_taken_back_with_its_progress(topic: ps.Topic, connect: Connect) -> None:
    connection = connect()
    event = next(iter(topic.events()))
    with pytest.raises(ZeroDivisionError), ps.once(connection, event):
        apply(connection, event)
        _ = 1 // 0
    assert effects(connect()) == []
    with ps.once(connection, event) as first:
        assert first
        apply(connection, event)
    assert effects(connect()) == [0]


def test_a_member_that_lost_its_partition_has_no_effect_any_more(topic: ps.Topic, connect: Connect) -> None:
    """The zombie still holds event 0 while another member has gone on to event 4."""
    events = list(topic.events())
    zombie, heir = connect(), connect()
    for event in events[:5]:
        with ps.once(heir, event):
            apply(heir, event)
    with ps.once(zombie, events[0]) as first:
        assert not first
        apply(zombie, events[0])
    assert effects(connect()) == [0, 1, 2, 3, 4]


def test_two_instances_racing_over_the_same_events_do_each_once(topic: ps.Topic, connect: Connect) -> None:
    events = list(topic.events())
    failures: list[BaseException] = []

    def work() -> None:
        connection = connect()
        try:
            for event in events:
                with ps.once(connection, event) as first:
                    if first:
                        apply(connection, event)
        except BaseException as error:
            failures.append(error)

    with ps.once(connect(), events[0]):  # so that the table is there before they race
        pass
    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert effects(connect()) == list(range(1, 20))


def test_the_first_to_come_may_be_several(topic: ps.Topic, connect: Connect) -> None:
    """Nobody made the table of progress before; all of them try."""
    event = next(iter(topic.events()))
    failures: list[BaseException] = []
    together = threading.Barrier(6)

    def work(connection: Any) -> None:
        try:
            together.wait(20)
            with ps.once(connection, event) as first:
                if first:
                    apply(connection, event)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(connect(),)) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert effects(connect()) == [0]


def test_processes_racing_over_the_same_events_do_each_once(
    topic: ps.Topic, home: Path, connect: Connect
) -> None:
    """Two members that each believe to own the partition, as after a pause longer than the lease."""
    connection = connect()
    if isinstance(connection, sqlite3.Connection):
        address = connection.execute("PRAGMA database_list").fetchone()[2]
    else:
        address = f"{connection.info.dsn} "
    racers = [subprocess.Popen([sys.executable, "-c", _RACER, home, address]) for _ in range(3)]
    assert [racer.wait(60) for racer in racers] == [0] * 3
    assert effects(connect()) == list(range(20))


_RACER = """
import sqlite3, sys
import penstock as ps
if "host=" in sys.argv[2]:
    import psycopg
    connection, mark = psycopg.connect(sys.argv[2]), "%s"
else:
    connection, mark = sqlite3.connect(sys.argv[2], timeout=30), "?"
for event in ps.open_log(sys.argv[1]).topic("orders").events():
    with ps.once(connection, event):
        connection.execute(f"INSERT INTO effects VALUES ({mark}, {mark})", (event["id"], event["total"]))
"""


def test_a_connection_is_usable_after_a_refusal(topic: ps.Topic, connect: Connect) -> None:
    connection = connect()
    first, second, *_ = topic.events()
    with pytest.raises(ZeroDivisionError), ps.once(connection, first):
        _ = 1 // 0
    for event in (first, second):
        with ps.once(connection, event) as fresh:
            assert fresh
            apply(connection, event)
    assert effects(connect()) == [0, 1]


def test_a_crash_between_effect_and_commit_of_the_group_repeats_nothing(
    topic: ps.Topic, connect: Connect
) -> None:
    connection = connect()
    consumer = topic.consume(group="totals", delivery="exactly_once", commit_every="1 hour")
    for _ in range(7):
        event = next(consumer)
        with ps.once(connection, event):
            apply(connection, event)
    consumer.close(commit=False)
    with consume(topic) as again:
        seen = []
        for event in again:
            with ps.once(connection, event) as first:
                seen.append(first)
                apply(connection, event)
    assert seen == [False] * 7 + [True] * 13
    assert effects(connect()) == list(range(20))


def test_groups_and_partitions_have_progress_of_their_own(log: ps.Log, connect: Connect) -> None:
    topic = log.create_topic("two", "id BIGINT, total BIGINT", partitions=2)
    topic.append({"id": 1, "total": 1}, partition=0)
    topic.append({"id": 2, "total": 1}, partition=1)
    connection = connect()
    for group in ("a", "b"):
        for event in topic.consume(group=group, delivery="exactly_once", follow=False):
            with ps.once(connection, event) as first:
                assert first
                apply(connection, event)
    assert effects(connect()) == [1, 1, 2, 2]


def test_a_topic_created_again_takes_effect_again(log: ps.Log, connect: Connect) -> None:
    connection = connect()
    for life in range(2):
        topic = log.create_topic("again", "id BIGINT, total BIGINT")
        topic.append([{"id": 10 * life + n, "total": 1} for n in range(3)])
        with topic.consume(group="g", delivery="exactly_once", follow=False) as consumer:
            for event in consumer:
                with ps.once(connection, event) as first:
                    assert first
                    apply(connection, event)
        log.delete_topic("again")
    assert effects(connect()) == [0, 1, 2, 10, 11, 12]


def test_a_transaction_under_way_is_refused(topic: ps.Topic, connect: Connect) -> None:
    connection = connect()
    event = next(iter(topic.events()))
    apply(connection, event)
    with pytest.raises(ps.BadOption, match="under way"), ps.once(connection, event):
        pass
    connection.rollback()
    assert effects(connect()) == []


def test_a_connection_that_commits_by_itself_is_refused(topic: ps.Topic, postgres: Postgres) -> None:
    event = next(iter(topic.events()))
    with (
        psycopg.connect(postgres.dsn, autocommit=True) as connection,
        pytest.raises(ps.BadOption, match="autocommit off"),
        ps.once(connection, event),
    ):
        pass


def test_something_that_is_no_connection_is_refused(topic: ps.Topic) -> None:
    event = next(iter(topic.events()))
    with pytest.raises(ps.BadOption, match="sqlite3, psycopg or psycopg2"), ps.once("db", event):
        pass
