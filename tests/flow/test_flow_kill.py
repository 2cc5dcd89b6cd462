"""kill -9 of a whole running app, at exact steps of each stage, and what is there when it runs again.

What must be there is computed here, in Python, from the events alone: every row once, none twice.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.flow.kill_points import (
    QUERIES,
    START,
    STEPS,
    STORE_STEPS,
    Kill,
    declare,
    event,
    feed,
    feed_the_end,
    gaps,
    run_until_killed,
    topic_rows,
)

import penstock as ps
from penstock.app import reading
from penstock.app.graph import Graph
from penstock.app.runner import Runner
from penstock.app.verify import verify

EVENTS_EACH = 30
LATENESS = timedelta(seconds=2)
SIZE = timedelta(seconds=5)

FIVE = [
    Kill("planned", "live", 2),
    Kill("staged", "cleaned", 2),
    Kill("committed", "closed", loses_files=True),
    Kill("stored", "totals"),
    Kill("written", "store"),
]
"""Each stage, each side of the commit point, a follower's transaction."""

POINTS = [Kill(step, name) for step in STEPS for name in QUERIES] + [Kill(s, "store") for s in STORE_STEPS]
FIFTY = [Kill(kill.step, kill.name, loses_files=lose) for kill in POINTS for lose in (False, True)]
TENTHS = [FIFTY[turn::10] for turn in range(10)]


def window_of(at: datetime) -> datetime:
    return at - (at - START) % SIZE


def counted(rows: Sequence[dict[str, Any]]) -> dict[tuple[str, datetime], tuple[int, int]]:
    found: dict[tuple[str, datetime], tuple[int, int]] = defaultdict(lambda: (0, 0))
    for row in rows:
        key = row["k"], window_of(row["at"])
        found[key] = found[key][0] + 1, found[key][1] + row["v"]
    return dict(found)


def in_time(events: Sequence[dict[str, Any]]) -> list[bool]:
    """By the rule: a window must not end at or before the watermark that its event met."""
    newest, found = START - timedelta(days=1), []
    for each in events:
        step = timedelta(milliseconds=100)
        watermark = newest - (newest - START) % step - LATENESS
        found.append(window_of(each["at"]) + SIZE > watermark)
        newest = max(newest, each["at"])
    return found


def is_as_if_nothing_had_happened(app: ps.App, events: Sequence[dict[str, Any]]) -> None:
    """`events`: what was appended, the last of them far ahead."""
    on_time = in_time(events)
    live = {(r["k"], r["window_start"]): (r["n"], r["v"]) for r in app.read("live")}
    assert live == counted([each for each, good in zip(events, on_time, strict=True) if good])
    late = Counter(row["offset"] for row in reading.late(app, "live"))
    assert late == Counter(offset for offset, good in enumerate(on_time) if not good)

    clean = [each for each in events if not each["straggler"]]
    assert [row["id"] for row in topic_rows(app, "cleaned")] == [each["id"] for each in clean]

    windows = counted(clean[:-1])  # the last one's is still open
    closed = Counter((r["k"], r["window_start"], r["n"], r["v"]) for r in topic_rows(app, "closed"))
    assert closed == Counter((*key, *value) for key, value in windows.items())

    totals = {row["k"]: (row["n"], row["v"], row["windows"]) for row in app.read("totals")}
    assert totals == {
        k: (
            sum(n for (key, _), (n, _) in windows.items() if key == k),
            sum(v for (key, _), (_, v) in windows.items() if key == k),
            sum(key == k for key, _ in windows),
        )
        for k in {key for key, _ in windows}
    }, f"{app.store.progress('totals')}, changelog: {topic_rows(app, 'totals')[-5:]}"
    assert not gaps(app)


def kill_and_compare(
    home: Path, spark: SparkSession, kills: Sequence[Kill], report: Callable[[str], None]
) -> None:
    began = time.monotonic()
    app = declare(home)
    for number, kill in enumerate(kills):
        feed(app, range(number * EVENTS_EACH, (number + 1) * EVENTS_EACH))
        run_until_killed(home, kill)
    many = len(kills) * EVENTS_EACH
    feed_the_end(app, many)
    graph = Graph(app, spark).analyse()
    Runner(app, graph, rows_max=50).once()
    last = {**event(many), "straggler": False, "at": START + timedelta(hours=1)}
    is_as_if_nothing_had_happened(app, [*map(event, range(many)), last])
    for name in app.definitions:
        assert verify(app, graph, name).verdict == "equal", name
    app.close()
    took_s = time.monotonic() - began
    report(f"kill -9 of a pipeline: {len(kills)} kills, 0 lost, 0 duplicated, {took_s:.0f} s")


@pytest.mark.timeout(900)
def test_a_pipeline_killed_in_each_stage_ends_as_if_nothing_had_happened(
    home: Path, spark: SparkSession, report: Callable[[str], None]
) -> None:
    kill_and_compare(home, spark, FIVE, report)


@pytest.mark.crash
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kills", TENTHS, ids=lambda kills: ", ".join(map(str, kills)))
def test_a_pipeline_killed_anywhere_ends_as_if_nothing_had_happened(
    kills: list[Kill], home: Path, spark: SparkSession, report: Callable[[str], None]
) -> None:
    kill_and_compare(home, spark, kills, report)
