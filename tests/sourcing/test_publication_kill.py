"""kill -9 of the publisher, and of who records, at any moment: every event is published once and in order."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import groupby
from pathlib import Path

import pytest
from tests.conftest import ROOT
from tests.sourcing.carts import Cart, Place
from tests.waiting import wait_until

from penstock.app.aggregates import AppAggregates

_LONG_S = 300.0


def start(what: str, home: Path, place: Place, seed: int = 0) -> subprocess.Popen[bytes]:
    words = [what, str(home), place.name, place.url or "-", str(seed)]
    return subprocess.Popen([sys.executable, "-m", "tests.sourcing.shop", *words], cwd=ROOT)


def kill(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGKILL)
    process.wait()


@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("kills", [3, pytest.param(20, marks=pytest.mark.crash)])
def test_events_are_published_once_and_in_order_whoever_is_killed(
    in_memory: Path, place: Place, kills: int, report: Callable[[str], None]
) -> None:
    home, dice = in_memory / "home", random.Random(kills)
    with place.carts(home, snapshot_every=20) as carts:
        carts["0"].add("pear")
        carts.publish()
        running = {seed: start("write", home, place, seed) for seed in (1, 2)}
        try:
            for number in range(kills):
                running[0] = start("publish", home, place)
                wanted = carts.publisher().published() + dice.randrange(1, 200)
                wait_until(lambda: carts.publisher().published() >= wanted, timeout_s=_LONG_S)  # noqa: B023
                time.sleep(dice.random() / 20)
                kill(running[0])
                if number % 2:
                    kill(running[1])
                    running[1] = start("write", home, place, 10 + number)
            (home / "enough").touch()
            assert [running[writer].wait(_LONG_S) for writer in (1, 2)] == [0, 0]
        finally:
            for process in running.values():
                kill(process)
        carts.publish()
        events = _check(carts)
    report(f"sourcing on {place.kind}: {kills} kills, {events:,} events by 2 processes, each published once")


def _check(carts: AppAggregates[Cart]) -> int:
    """The topic has what the store has: the same events, in the same order, each once."""
    told = [
        (row["aggregate_id"], row["version"], row["command_id"], row["event"], row["item"])
        for row in carts.app.log.topic("carts").rows()
    ]
    stored = [
        (entry.id, entry.version, entry.command_id, type(entry.event).__name__, entry.event.item)
        for listed in carts.list()
        for entry in carts.history(listed.id)
    ]
    assert sorted(told) == sorted(stored)
    sequences = [row["sequence"] for row in carts.app.log.topic("carts").rows()]
    assert sequences == sorted(set(sequences))
    for _, group in groupby(sorted(told, key=lambda row: row[0]), key=lambda row: row[0]):
        versions = [row[1] for row in group]
        assert versions == list(range(1, len(versions) + 1))
    assert len(told) > 100
    return len(told)
