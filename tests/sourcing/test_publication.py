"""Every recorded event is published once, in order; and a receipt says where it is, whoever published it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
from tests.sourcing.carts import Cart, Place
from tests.waiting import wait_until

import penstock as ps
from penstock.app.aggregates import AppAggregates
from penstock.capture.running import Running

Carts = AppAggregates[Cart]


@contextmanager
def published(carts: Carts) -> Iterator[None]:
    """Somebody publishes meanwhile."""
    running = Running([carts.publisher()])
    running.start()
    try:
        yield
    finally:
        running.stop()
    running.raise_failure()


def rows(carts: Carts) -> list[dict[str, Any]]:
    return list(carts.app.log.topic("carts").rows())


def test_a_published_event_tells_what_happened_when_and_by_whom(carts: Carts) -> None:
    receipt = carts.get("7", by="ann").add("apple", 2)
    carts.publish()
    (row,) = rows(carts)
    (entry,) = receipt.entries
    assert row == {
        "aggregate_id": "7", "version": 1, "event": "ItemAdded", "event_version": 1, "at": entry.at,
        "by": "ann", "command_id": entry.command_id, "sequence": receipt.sequence,
        "item": "apple", "quantity": 2,
    }  # fmt: skip


def test_events_of_many_writers_are_published_once_and_in_order(carts: Carts) -> None:
    def write(number: int) -> None:
        for _ in range(10):
            carts.get(f"{number % 4}", retries=100).add("apple")

    with published(carts), ThreadPoolExecutor(max_workers=8) as pool:
        list(pool.map(write, range(8)))
        recorded = carts.book.recorded()
        wait_until(lambda: carts.publisher().published() == recorded, what="everything to be published")
    told = rows(carts)
    sequences = [row["sequence"] for row in told]
    assert len(told) == 80
    assert sequences == sorted(set(sequences))
    ordered = sorted(told, key=lambda row: row["aggregate_id"])  # stable: within one, as published
    for _, group in groupby(ordered, key=lambda row: row["aggregate_id"]):
        assert [row["version"] for row in group] == list(range(1, 21))


@pytest.mark.parametrize("place", ["postgresql"], indirect=True)  # SQLite has one writer at a time
def test_what_commits_late_under_an_earlier_number_is_not_passed_over(
    place: Place, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PostgreSQL gives numbers before the commit: who read 2 before 1 could miss 1 for ever."""
    with place.carts(home) as slow, place.carts(home) as fast, ThreadPoolExecutor() as pool:
        assert fast.book.recorded() == 0  # it is open: to open it is to wait for who writes
        has_number, may_commit = threading.Event(), threading.Event()
        recorder: Any = slow.book.store.recorder
        fetch_numbers = recorder._fetch_ids_after_insert_events

        def hold(*args: Any, **options: Any) -> Any:
            has_number.set()
            assert may_commit.wait(20)
            return fetch_numbers(*args, **options)

        monkeypatch.setattr(recorder, "_fetch_ids_after_insert_events", hold)
        first = pool.submit(slow["1"].add, "apple")
        assert has_number.wait(20)
        second = pool.submit(fast["2"].add, "pear")
        with published(fast):
            with pytest.raises(TimeoutError):
                second.result(0.5)
            may_commit.set()
            for receipt in (first.result(20), second.result(20)):
                assert fast.position_of(receipt, timeout_s=20) is not None
        assert [row["item"] for row in rows(fast)] == ["apple", "pear"]


def test_a_receipt_says_where_its_events_are_once_they_are_published(carts: Carts) -> None:
    receipt = carts["7"].add("apple")
    assert carts.position_of(receipt) is None
    carts.publish()
    position = carts.position_of(receipt)
    assert position == ps.Position("carts", {0: 1})


def test_it_may_be_published_by_another_process(place: Place, home: Path) -> None:
    with place.carts(home) as here, place.carts(home) as there:
        receipt = here["7"].add("apple")
        with published(there):
            assert here.position_of(receipt, timeout_s=30) is not None
            second = here["8"].add("pear")  # the other is woken
            assert here.position_of(second, timeout_s=30) is not None


def test_the_position_is_in_the_partition_of_the_aggregate(place: Place, home: Path) -> None:
    with place.carts(home, partitions=4) as carts:
        receipts = [carts[f"{number}"].add("apple") for number in range(8)]
        carts.publish()
        for receipt in receipts:
            position = carts.position_of(receipt)
            assert position is not None
            ((partition, end),) = position.ends.items()
            held = [row["aggregate_id"] for row in carts.app.log.topic("carts").rows(partition=partition)]
            assert receipt.id in held[:end]


def test_a_receipt_of_nothing_waits_for_what_was_recorded_by_then(carts: Carts) -> None:
    carts["7"].add("apple")
    receipt = carts["7"].remove("pear")
    assert carts.position_of(receipt) is None
    carts.publish()
    assert carts.position_of(receipt) is not None


def test_a_newer_publisher_takes_over_and_nothing_is_told_twice(carts: Carts) -> None:
    older = carts.publisher()
    running = Running([older])
    running.start()
    carts["7"].add("apple")
    wait_until(lambda: older.published() == carts.book.recorded(), what="the first event")
    with published(carts):
        carts["7"].add("pear")
        wait_until(lambda: running.is_over or carts.publisher().published() == 2, what="the second event")
        carts["7"].add("plum")
        wait_until(lambda: running.is_over, what="the older publisher to end")
    with pytest.raises(ps.Fenced):
        running.raise_failure()
    carts.publish()
    assert [row["item"] for row in rows(carts)] == ["apple", "pear", "plum"]


def test_nobody_else_writes_to_the_topic(carts: Carts) -> None:
    with pytest.raises(ps.NotSupported, match="events of aggregates"):
        carts.topic.append({})


@pytest.mark.parametrize("commands", [0, 1, 2])
def test_a_store_that_was_put_back_to_an_older_copy_is_refused(tmp_path: Path, commands: int) -> None:
    """Also where it has recorded others since, under the same numbers."""
    place = Place("sqlite")
    with place.carts(tmp_path / "home") as carts:
        carts["7"].add("apple")
        path = Path(carts.book.store.address)
    older = {found: found.read_bytes() for found in path.parent.iterdir()}
    with place.carts(tmp_path / "home") as carts:
        carts["7"].add("pear")
        carts.publish()
    for found in path.parent.iterdir():
        found.unlink()
    for found, content in older.items():
        found.write_bytes(content)
    told = "another event 2 in" if commands else r"up to 1 in .* up to 2"
    with place.carts(tmp_path / "home") as carts:
        for _ in range(commands):
            carts["7"].add("plum")
        with pytest.raises(ps.EventsLost, match=told) as lost:
            carts.publish()
        assert "newer copy" in lost.value.hint


def test_a_server_that_is_away_is_told(home: Path) -> None:
    nowhere = Place("postgresql", "postgresql://nobody@127.0.0.1:9/none")
    with nowhere.carts(home) as carts, pytest.raises(ps.Unreachable, match="does not answer"):
        carts["7"].add("apple")


def test_events_can_be_stored_in_files_and_postgresql_alone(home: Path) -> None:
    with pytest.raises(ps.BadOption, match="mysql://"):
        ps.App("shop", home=home).aggregates("carts", Cart, store="mysql://db/shop")


def test_a_stop_ends_a_publisher_that_has_nothing_to_do(carts: Carts) -> None:
    stop = threading.Event()
    thread = threading.Thread(target=carts.publisher().run, args=(stop,))
    thread.start()
    stop.set()
    thread.join(20)
    assert not thread.is_alive()
