"""kill -9 of an app with joins, patterns, searches and tables: it ends as one that nobody killed."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.flow.kill_points import STEPS, Kill, gaps, outcome, run_until_killed
from tests.flow.relating import QUERIES, declare, feed, feed_the_end

from penstock.app.graph import Graph
from penstock.app.runner import Runner
from penstock.app.verify import verify

EVENTS_EACH = 24
FOUR = [
    Kill("planned", "joined", 2, loses_files=True),
    Kill("staged", "unpaid", 2),
    Kill("stored", "known", loses_files=True),
    Kill("committed", "named", 2),
]
FIFTY = [Kill(step, name, loses_files=lose) for step in STEPS for name in QUERIES for lose in (False, True)]
TENTHS = [FIFTY[turn::10] for turn in range(10)]


def kill_and_compare(
    home: Path, spark: SparkSession, kills: Sequence[Kill], report: Callable[[str], None]
) -> None:
    began = time.monotonic()
    app, other = declare(home), declare(home.with_name("undisturbed"))
    for number, kill in enumerate(kills):
        some = range(number * EVENTS_EACH, (number + 1) * EVENTS_EACH)
        feed(app, some)
        run_until_killed(home, kill, app="tests.flow.relating")
        feed(other, some)
    found = []
    for each in (app, other):
        feed_the_end(each)
        graph = Graph(each, spark).analyse()
        Runner(each, graph, rows_max=50).once()
        found.append(outcome(each))
        assert [verify(each, graph, name).verdict for name in QUERIES] == ["equal"] * len(QUERIES)
        assert not gaps(each)
        each.close()
    assert found[0] == found[1]
    assert all(found[0][name] for name in QUERIES)
    assert all(found[0][f"{name}.late"] for name in QUERIES if name != "named")  # of tables nothing is late
    took_s = time.monotonic() - began
    report(f"kill -9 of joins, patterns, tables: {len(kills)} kills, 0 lost, 0 duplicated, {took_s:.0f} s")


@pytest.mark.timeout(900)
def test_killed_apps_end_as_those_that_nobody_killed(
    home: Path, spark: SparkSession, report: Callable[[str], None]
) -> None:
    kill_and_compare(home, spark, FOUR, report)


@pytest.mark.crash
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kills", TENTHS, ids=lambda kills: ", ".join(map(str, kills)))
def test_apps_killed_anywhere_end_as_those_that_nobody_killed(
    kills: list[Kill], home: Path, spark: SparkSession, report: Callable[[str], None]
) -> None:
    kill_and_compare(home, spark, kills, report)
