"""Upkeep beside the appends."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

import penstock as ps
from penstock.log import compaction, maintenance
from penstock.log.embedded import EmbeddedLog
from penstock.log.upkeep import Upkeep


class Slow:
    """Upkeep that takes until it is let go."""

    def __init__(self) -> None:
        self.begun, self.go_on = threading.Event(), threading.Event()
        self.done: list[tuple[str, int]] = []

    def __call__(self, topic: str, number: int) -> None:
        self.begun.set()
        assert self.go_on.wait(60)
        self.done.append((topic, number))


def test_who_asks_does_not_wait_and_who_finishes_does() -> None:
    slow = Slow()
    upkeep = Upkeep(slow, beside=True)
    upkeep.ask([("clicks", 0)])
    assert slow.begun.wait(60)
    upkeep.ask([("clicks", 1), ("clicks", 1), ("orders", 0)])
    assert slow.done == []
    slow.go_on.set()
    upkeep.finish()
    assert slow.done == [("clicks", 0), ("clicks", 1), ("orders", 0)]


def test_it_is_done_again_when_it_is_asked_for_again() -> None:
    slow = Slow()
    slow.go_on.set()
    upkeep = Upkeep(slow, beside=True)
    for _ in range(3):
        upkeep.ask([("clicks", 0)])
        upkeep.finish()
    assert slow.done == [("clicks", 0)] * 3


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_bug_that_ends_it_is_not_the_end_of_all_upkeep() -> None:
    done: list[int] = []

    def maintain(_: str, number: int) -> None:
        done.append(number)
        if number == 0:
            raise AssertionError("a bug")

    upkeep = Upkeep(maintain, beside=True)
    for number in range(2):
        upkeep.ask([("clicks", number)])
        upkeep.finish()
    assert done == [0, 1]


def test_nothing_to_do_starts_nothing() -> None:
    before = threading.active_count()
    upkeep = Upkeep(Slow(), beside=True)
    upkeep.ask([])
    upkeep.finish()
    assert threading.active_count() == before


def test_an_append_does_not_wait_for_a_compaction(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go_on, compact = threading.Event(), maintenance._compact
    threads = []

    def slow(*args: object, **how: object) -> int:
        threads.append(threading.current_thread())
        assert go_on.wait(60)
        return compact(*args, **how)  # type: ignore[arg-type]

    monkeypatch.setattr(maintenance, "_compact", slow)
    with ps.open_log(tmp_path / "log") as log:
        users = log.create_topic(
            "users", "id BIGINT, name STRING", key="id", cleanup="compact", segment_bytes=1 << 16
        )
        for number in range(20):
            users.append([{"id": key, "name": f"{number} " + "x" * 50} for key in range(100)])
        assert threads
        assert threading.current_thread() not in threads
        go_on.set()
    with ps.open_log(tmp_path / "log") as log:  # closing it has waited
        users = log.topic("users")
        rows = users.rows()
        assert {row["id"]: row["name"][:2] for row in rows} == dict.fromkeys(range(100), "19")
        port = log.port
        assert isinstance(port, EmbeddedLog)
        sealed = port.partition("users", 0).manifest().sealed
        assert any(entry.compacted_to for entry in sealed)


def test_keys_are_sorted_once_for_a_segment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    merged, sorts = compaction._merged, []

    def counted(pieces: list[compaction.Latest]) -> compaction.Latest:
        sorts.append(len(pieces))
        return merged(pieces)

    monkeypatch.setattr(compaction, "_merged", counted)
    with ps.open_log(tmp_path / "log") as log:
        users = log.create_topic("users", "id BIGINT", key="id", cleanup="compact", segment_bytes=1 << 16)
        for number in range(400):
            users.append({"id": number % 7})
    assert sorts
    assert max(sorts) > 50
    assert len(sorts) < 30
