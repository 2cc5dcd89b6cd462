"""Kafka → Spark → Kafka: driver and broker killed and started again, every event once and in order."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.kafka.copying import KEYS, declare, table
from tests.waiting import wait_until

from penstock.app.graph import Graph
from penstock.app.runner import Runner
from penstock.app.verify import verify
from penstock.kafka.cluster import Cluster

EVENTS = 100_000
_ROWS_MAX = 5_000


@contextmanager
def running(home: Path, url: str) -> Iterator[subprocess.Popen[bytes]]:
    """The app in a process of its own, which ends by kill -9, with Spark."""
    with home.with_name("copying.txt").open("ab") as said:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.kafka.copying", str(home), url],
            stdout=said, stderr=said, cwd=Path(__file__).parents[2], start_new_session=True,
        )  # fmt: skip
        try:
            yield process
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def kill_and_start(cluster: Cluster, number: int) -> None:
    state = cluster.state()
    assert state is not None
    node = state.nodes[number % len(state.nodes)]
    cluster.kill(node)
    wait_until(lambda: not cluster.runs(node), what="the broker to be gone")
    cluster.start(node.number)


def amiss(found: Mapping[int, list[int]]) -> list[str]:
    """What is wrong with the events of each key, in few words."""
    said = [f"key {key}: there is no such" for key in set(found) - set(range(KEYS))]
    for key in range(KEYS):
        numbers, wanted = found[key], set(range(key, EVENTS, KEYS))
        if lost := sorted(wanted - set(numbers)):
            said.append(f"key {key}: {len(lost)} lost, {lost[0]} to {lost[-1]}")
        if foreign := set(numbers) - wanted:
            said.append(f"key {key}: {len(foreign)} that are another's")
        if twice := [number for number, times in Counter(numbers).items() if times > 1]:
            said.append(f"key {key}: {len(twice)} more than once, {twice[0]} to {twice[-1]}")
        if before := [one for one, next in pairwise(numbers) if next < one]:
            said.append(f"key {key}: out of order after {before}")
    return said


@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("kills", [2, pytest.param(20, marks=pytest.mark.crash)])
def test_every_event_arrives_once_and_in_order(
    kills: int, home: Path, three_brokers: Cluster, spark: SparkSession, report: Callable[[str], None]
) -> None:
    """As many kills of the driver, and half as many of a broker.

    Of three: one alone, killed in the middle of a commit, forgets a part of it (docs/KAFKA.md).
    """
    state = three_brokers.state()
    assert state is not None
    app = declare(home, state.url)
    events = app.topics["events"]
    Graph(app, spark).analyse()  # which declares the stream's topic
    began = time.monotonic()

    def arrived() -> int:
        return sum(end - start for start, end in app.log.topic("copied").bounds().values())

    def run_a_while(*, broker: int | None) -> None:
        before = arrived()
        with running(home, state.url) as process:
            went_on = lambda: arrived() > before or process.poll() is not None  # noqa: E731
            wait_until(went_on, timeout_s=200, what="the app to go on")
            assert process.poll() is None
            if broker is not None:
                kill_and_start(three_brokers, broker)

    each = EVENTS // kills
    for number in range(kills):
        events.append(table(range(number * each, (number + 1) * each)))
        run_a_while(broker=number // 2 if number % 2 == 1 else None)
    graph = Graph(app, spark).analyse()
    Runner(app, graph, rows_max=_ROWS_MAX).once()
    found: dict[int, list[int]] = defaultdict(list)
    for row in app.log.topic("copied").rows():
        found[row["k"]].append(row["n"])
    assert amiss(found) == []
    assert verify(app, graph, "copied").verdict == "equal"
    app.close()
    report(
        f"Kafka to Kafka: {EVENTS:,} events, {kills} kills of the driver, {kills // 2} of a broker: "
        f"0 lost, 0 duplicated, in order, {time.monotonic() - began:.0f} s"
    )
