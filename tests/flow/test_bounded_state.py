"""State does not grow with the length of a run: ten times as long, the same state."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

import penstock as ps
from penstock.app.graph import Graph
from penstock.app.runner import Runner

START = datetime(2026, 11, 1, 10, 0, tzinfo=UTC)
EVENTS, APPENDS = 400, 4
KEYS = 5
IN_BUCKETS = ("trailing", "once", "ordered", "joined", "matched", "enriched")
IN_PAGES = ("enriched",)


def events_of(app: ps.App) -> Any:
    return app.topic(
        "events",
        "id BIGINT, k BIGINT, at TIMESTAMP",
        event_time="at",
        lateness="1 second",
        idle_after="1 day",
    )


def declare(home: Path) -> ps.App:
    app = ps.App("long", home=home)
    events = events_of(app)

    def counted(window: Any, **options: Any) -> DataFrame:
        return ps.aggregate(events.stream(), by="k", window=window, n=ps.count(), **options)

    session, corrected = ps.session("2 seconds"), {"late": "correct", "correct_for": "3 seconds"}
    app.view(key=["k", "window"], name="live")(lambda: counted(ps.tumbling("5 seconds")))
    app.view(key=["k", "window"], name="corrected")(lambda: counted(ps.tumbling("5 seconds"), **corrected))
    app.view(key=["k", "window"], name="overlapping")(lambda: counted(ps.hopping("4 seconds", "2 seconds")))
    app.stream(name="sessions")(lambda: counted(session))
    app.view(key=["k", "window"], name="growing")(lambda: counted(session, emit="live"))
    app.view(key=["k", "window"], name="reopened")(lambda: counted(session, **corrected))
    app.stream(name="ordered")(lambda: ps.in_order(events.stream(), by="k"))
    app.stream(name="trailing")(lambda: counted(ps.sliding("5 seconds")))
    app.stream(name="once")(lambda: ps.deduplicate(events.stream(), id="id", within="5 seconds"))

    def joined() -> DataFrame:
        some = events.stream().filter("id % 8 = 0")
        return ps.join_within(some, events.stream(), on="k", after="5 seconds", how="full")

    def matched() -> DataFrame:
        odd = ps.pattern(by="k").first("any", events.stream(), where=ps.step("any").id >= 0).times(3)
        return odd.within("5 seconds").emit(since=ps.step("any").first().at)

    app.stream()(joined)
    app.stream()(matched)
    return app


def feed(app: ps.App, numbers: range) -> None:
    """Ten a second, each key silent for three seconds now and then, so that its sessions end."""
    table = pa.table(
        {
            "id": pa.array(numbers, pa.int64()),
            "k": pa.array([number // 40 % KEYS for number in numbers], pa.int64()),
            "at": pa.array([START + timedelta(seconds=n / 10) for n in numbers], pa.timestamp("us", "UTC")),
        }
    )
    app.log.topic("events").append(table)


def state_of(runner: Runner, app: ps.App, spark: SparkSession) -> dict[str, int]:
    """Rows that each query keeps; for those that keep tables in buckets, the rows of these, in bytes."""
    found: dict[str, int] = {}
    for supervised in runner.supervised:
        name, running = supervised.query.name, supervised.query.running
        assert running is not None and running.lastProgress is not None
        found[name] = sum(each["numRowsTotal"] for each in running.lastProgress["stateOperators"])
        if name in IN_BUCKETS:
            (checkpoint,) = (app.home / "flow" / app.name / name).iterdir()
            found[f"{name} bytes"] = _stored(spark, checkpoint, "bucket", "value")
            if name in IN_PAGES:
                found[f"{name} pages"] = _stored(spark, checkpoint, "pages0", "user_map_value")
    return found


def _stored(spark: SparkSession, checkpoint: Path, variable: str, column: str) -> int:
    stored = spark.read.format("statestore").option("stateVarName", variable).load(str(checkpoint))
    found: int = stored.selectExpr(f"sum(length({column}.packed))").collect()[0][0]
    return found


@pytest.mark.timeout(600)
def test_ten_times_the_length_of_a_run_leaves_the_same_state(
    home: Path, spark: SparkSession, report: Callable[[str], None]
) -> None:
    app = declare(home)
    graph = Graph(app, spark).analyse()
    states = []
    for begin, end in ((0, EVENTS), (EVENTS, 10 * EVENTS)):
        for first in range(begin, end, EVENTS // APPENDS):
            feed(app, range(first, first + EVENTS // APPENDS))
        # As many batches in both parts: what is kept at the end does not depend on where they were cut.
        runner = Runner(app, graph, rows_max=(end - begin) // APPENDS)
        runner.once()
        states.append(state_of(runner, app, spark))
    app.close()
    after_one, after_ten = states
    assert all(rows > 0 for rows in after_one.values())
    assert after_ten == after_one
    report(f"state after {EVENTS} and {10 * EVENTS} events: {after_one} and {after_ten}")


@pytest.mark.timeout(600)
def test_an_enrichment_keeps_the_versions_that_can_still_be_asked_for(
    home: Path, spark: SparkSession, report: Callable[[str], None]
) -> None:
    app = ps.App("long", home=home)
    events = events_of(app)
    facts = app.table(
        "facts", "k BIGINT, n BIGINT, since TIMESTAMP", key="k", event_time="since", lateness="1 second"
    )

    @app.stream()
    def enriched() -> DataFrame:
        return ps.enrich(events.stream(), facts, on="k", missing="wait 3 seconds")

    graph = Graph(app, spark).analyse()
    each, states = EVENTS // APPENDS, []
    for begin, end in ((0, EVENTS), (EVENTS, 10 * EVENTS)):
        for first in range(begin, end, each):
            since = START + timedelta(seconds=first / 10)
            facts.append([{"k": k, "n": first, "since": since} for k in range(KEYS)])
            feed(app, range(first, first + each))
        runner = Runner(app, graph, rows_max=each)
        runner.once()
        states.append(state_of(runner, app, spark))
    app.close()
    after_one, after_ten = states
    assert all(after_one.values())
    assert after_ten == after_one
    versions = 10 * KEYS * APPENDS
    report(f"state of an enrichment after {versions // 10} and {versions} versions: {after_one}, {after_ten}")
