"""kill -9 at every single step of what changes a log, by a process that kills itself there.

What is in memory shared by processes stays, unlike after power loss; what another process has
open goes on. A step may not even be finished: half of a write, half of a move of the head.
"""

from __future__ import annotations

import itertools
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.log import kill_points
from tests.log.kill_points import DDL, KillPoints, Sweep

import penstock as ps
from penstock.log.disk import RealDisk
from penstock.log.embedded import EmbeddedLog
from penstock.log.partition import LOCK_TIMEOUT_S

Rows = dict[tuple[str, int], list[tuple[int, int, int]]]
"""By topic and partition: offset, key and value of every record."""

GO_ON_S = LOCK_TIMEOUT_S / 2
ALL = [
    pytest.param(Sweep(when), id=str(Sweep(when)), marks=pytest.mark.crash)
    for when in ("before", "after", "torn")
]
SOME = [pytest.param(sweep, id=str(sweep)) for sweep in (Sweep("before", 5), Sweep("torn", 3))]


class Restarted(RealDisk):
    """The same disk after the machine started anew."""

    def boot_id(self) -> str:
        return "another boot"


@pytest.fixture(scope="module")
def killing() -> Iterator[KillPoints]:
    with KillPoints() as points:
        yield points


def template(folder: Path, **options: object) -> Callable[[], Path]:
    """A log with two topics of two partitions and a few appends, and a maker of copies of it."""
    made = folder / "template"
    with ps.open_log(made) as log:
        for name in ("a", "b"):
            log.create_topic(name, DDL, key="k", partitions=2, **options)  # type: ignore[arg-type]
        for value in range(3):
            kill_points.append_atomically(log)
            log.topic("b").append(kill_points.records(50 + value))
        log.port.reset("g", "a", {0: 5, 1: 5})
    numbers = itertools.count()

    def copy() -> Path:
        fresh = folder / f"home-{next(numbers)}"
        shutil.copytree(made, fresh)
        return fresh

    return copy


def rows_of(log: ps.Log) -> Rows:
    found: Rows = {}
    for name in log.topics():
        for number in log.topic(name).bounds():
            events = log.topic(name).events(partition=number)
            found[name, number] = [(event.offset, event["k"], event["v"]) for event in events]
    return found


def content(rows: Rows) -> dict[str, list[tuple[int, int]]]:
    """Key and value of every record by topic, wherever they are."""
    found: dict[str, list[tuple[int, int]]] = {}
    for (name, _), records in rows.items():
        found.setdefault(name, []).extend((k, v) for _, k, v in records)
    return {name: sorted(records) for name, records in found.items()}


def check_dense(rows: Rows, where: str) -> None:
    for place, records in rows.items():
        offsets = [offset for offset, _, _ in records]
        assert offsets == list(range(len(offsets))), (where, place)


def appended(value: int) -> list[tuple[int, int]]:
    return [(record["k"], value) for record in kill_points.records(value)]  # type: ignore[misc]


def discard(home: Path) -> None:
    shutil.rmtree(home)


# ---- atomic appends ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sweep", "options"),
    [
        pytest.param(Sweep("before"), {}, id="before each step"),
        pytest.param(Sweep("torn"), {}, id="in each write"),
        pytest.param(Sweep("before", 7), {"segment_bytes": 2_000}, id="before one step in 7, rolling"),
        *(
            pytest.param(Sweep(when), options, id=f"{when} each step {options}", marks=pytest.mark.crash)
            for when in ("before", "after", "torn")
            for options in ({}, {"segment_bytes": 2_000})
        ),
    ],
)
def test_an_atomic_append_is_whole_or_nothing_and_its_position_agrees(
    in_memory: Path,
    killing: KillPoints,
    report: Callable[[str], None],
    sweep: Sweep,
    options: dict[str, object],
) -> None:
    make_home = template(in_memory, **options)
    witnesses: dict[Path, ps.Log] = {}

    def watched_home() -> Path:
        home = make_home()
        witnesses[home] = ps.open_log(home)
        rows_of(witnesses[home])
        return home

    before = content(rows_of(ps.open_log(make_home())))
    after = {name: sorted([*records, *appended(3)]) for name, records in before.items()}
    slowest, happened, steps = 0.0, 0, 0
    for home, where in killing.sweep(watched_home, "append_atomically", sweep):
        with witnesses.pop(home) as witness:
            # Another process, which had the log open all the time, goes on at once.
            began = time.monotonic()
            position = witness.port.producer_position("p").position
            seen = rows_of(witness)
            witness.topic("a").append(kill_points.records(100))
            slowest = max(slowest, time.monotonic() - began)
        expected = {b"2": before, b"3": after}[position or b""]
        assert content(seen) == expected, where
        check_dense(seen, where)
        happened, steps = happened + (position == b"3"), steps + 1
        _check_reopened(home, where, position, expected)
        discard(home)
    for left in witnesses.values():
        left.close()
    assert slowest < GO_ON_S
    rolling = ", rolling" if options else ""
    report(
        f"kill -9 in an atomic append ({sweep}{rolling}): {steps} steps, {happened} had happened, "
        f"{steps - happened} had not, 0 half; others went on within {slowest * 1e3:.0f} ms"
    )


def _check_reopened(
    home: Path, where: str, position: bytes | None, expected: dict[str, list[tuple[int, int]]]
) -> None:
    """A new process and one after a restart see the same; the producer then ends its work."""
    expected = {**expected, "a": sorted([*expected["a"], *appended(100)])}
    with ps.open_log(home) as again:
        assert content(rows_of(again)) == expected, where
    with ps.Log(EmbeddedLog(home, disk=Restarted())) as restarted:
        assert content(rows_of(restarted)) == expected, where
        producer = restarted.producer("p")
        assert producer.position() == position, where
        if position == b"2":
            kill_points.append_atomically(restarted)
            expected = {name: sorted([*records, *appended(3)]) for name, records in expected.items()}
        assert restarted.port.producer_position("p").position == b"3", where
        final = rows_of(restarted)
        assert content(final) == expected, where
        check_dense(final, where)


# ---- plain appends -------------------------------------------------------------------------------


@pytest.mark.parametrize("sweep", [*SOME, *ALL])
def test_what_was_stored_before_a_plain_append_stays_and_offsets_stay_dense(
    in_memory: Path, killing: KillPoints, sweep: Sweep
) -> None:
    make_home = template(in_memory, segment_bytes=2_000)
    before = rows_of(ps.open_log(make_home()))
    for home, where in killing.sweep(make_home, "append", sweep):
        with ps.open_log(home) as log:
            log.topic("a").append(kill_points.records(200))
            seen = rows_of(log)
        check_dense(seen, where)
        for place, records in before.items():
            assert seen[place][: len(records)] == records, where
        new = set(content(seen)["a"]) - set(content(before)["a"])
        assert set(appended(200)) <= new <= {*appended(100), *appended(200)}, where
        assert seen["b", 0] == before["b", 0], where
        discard(home)


# ---- topics --------------------------------------------------------------------------------------


@pytest.mark.parametrize("work", ["add_partitions", "add_column"])
@pytest.mark.parametrize("sweep", [*SOME, *ALL])
def test_a_topic_is_altered_or_not_and_nothing_is_lost(
    in_memory: Path, killing: KillPoints, sweep: Sweep, work: str
) -> None:
    make_home = template(in_memory)
    before = content(rows_of(ps.open_log(make_home())))
    for home, where in killing.sweep(make_home, work, sweep):
        with ps.open_log(home) as log:
            found = log.topic("a").settings
            assert found.version in {1, 2}, where
            assert content(rows_of(log)) == before, where
            log.topic("a").append(kill_points.records(100))
            kill_points.WORK[work](log)
            log.topic("a").append(kill_points.records(200))
            expected = {**before, "a": sorted([*before["a"], *appended(100), *appended(200)])}
            assert content(rows_of(log)) == expected, where
        with ps.Log(EmbeddedLog(home, disk=Restarted())) as restarted:
            assert content(rows_of(restarted)) == expected, where
        discard(home)


@pytest.mark.parametrize("sweep", [*SOME, *ALL])
def test_a_topic_is_created_or_can_be_created_again(
    in_memory: Path, killing: KillPoints, sweep: Sweep
) -> None:
    make_home = template(in_memory)
    for home, where in killing.sweep(make_home, "create", sweep):
        with ps.open_log(home) as log:
            assert set(log.topics()) - {"c"} == {"a", "b"}, where
            kill_points.create(log)
            log.topic("c").append(kill_points.records(100))
            assert content(rows_of(log))["c"] == sorted(appended(100)), where
        discard(home)


@pytest.mark.parametrize("sweep", [*SOME, *ALL])
def test_a_topic_is_deleted_or_can_be_deleted_again_and_its_name_is_free(
    in_memory: Path, killing: KillPoints, sweep: Sweep
) -> None:
    make_home = template(in_memory)
    before = content(rows_of(ps.open_log(make_home())))
    for home, where in killing.sweep(make_home, "delete", sweep):
        with ps.open_log(home) as log:
            if "a" in log.topics():
                assert content(rows_of(log)) == before, where
                assert log.port.committed("g", "a") == {0: 5, 1: 5}, where
                log.delete_topic("a")
            assert log.topics() == ["b"], where
            log.create_topic("a", DDL, key="k", partitions=2)
            assert content(rows_of(log)).get("a", []) == [], where
            assert log.port.committed("g", "a") == {}, where
            log.topic("a").append(kill_points.records(100))
            after = {"a": sorted(appended(100)), "b": before["b"]}
            assert content(rows_of(log)) == after, where
        with ps.Log(EmbeddedLog(home, disk=Restarted())) as restarted:
            assert content(rows_of(restarted)) == after, where
        discard(home)


# ---- maintenance ---------------------------------------------------------------------------------


@pytest.mark.parametrize("work", ["maintain", "archive"])
@pytest.mark.parametrize("sweep", [*SOME, *ALL])
def test_merging_and_archiving_lose_nothing(
    in_memory: Path, killing: KillPoints, sweep: Sweep, work: str
) -> None:
    make_home = _rolled(in_memory)
    before = rows_of(ps.open_log(make_home()))
    for home, where in killing.sweep(make_home, work, sweep):
        with ps.open_log(home) as log:
            assert rows_of(log) == before, where
            kill_points.WORK[work](log)
            assert rows_of(log) == before, where
        with ps.Log(EmbeddedLog(home, disk=Restarted())) as restarted:
            assert rows_of(restarted) == before, where
        discard(home)


@pytest.mark.parametrize("sweep", [*SOME, *ALL])
def test_compaction_keeps_the_latest_of_every_key(in_memory: Path, killing: KillPoints, sweep: Sweep) -> None:
    make_home = _rolled(in_memory, cleanup="compact")
    with ps.open_log(make_home()) as log:
        before = {name: log.topic(name).latest() for name in log.topics()}
        ends = {name: log.topic(name).bounds() for name in log.topics()}
    for home, where in killing.sweep(make_home, "maintain", sweep):
        with ps.open_log(home) as log:
            for _ in range(2):
                assert {name: log.topic(name).latest() for name in log.topics()} == before, where
                assert {name: log.topic(name).bounds() for name in log.topics()} == ends, where
                kill_points.maintain(log)
        discard(home)


def _rolled(folder: Path, **options: object) -> Callable[[], Path]:
    """Every topic has a sealed segment of several small batches."""
    make_home = template(folder, **options)
    with ps.open_log(folder / "template") as log:
        assert isinstance(log.port, EmbeddedLog)
        for name in log.topics():
            for number in log.topic(name).bounds():
                part, wanted = log.port.partition(name, number), log.topic(name).settings
                with part.locked(wanted) as head:
                    part.roll(head, wanted)
            log.topic(name).append(kill_points.records(9))
    return make_home
