"""Why nothing comes out: each reason, from what a run has left."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from tests.cli.command import Command

import penstock as ps
from penstock.app import explain as explaining
from penstock.app import failures
from penstock.app.explain import Reason
from penstock.app.failures import Failure
from penstock.app.graph import Graph
from penstock.app.runner import Runner

START = datetime(2026, 11, 1, 10, 0, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


@pytest.fixture
def app(home: Path) -> Iterator[ps.App]:
    """One view, not run."""
    made = ps.App("shop", home=home)
    views = made.topic("views", "page STRING, at TIMESTAMP", event_time="at", lateness="5 seconds")

    @made.view(key=["page", "window"])
    def per_minute() -> DataFrame:
        return ps.aggregate(views.stream(), by="page", window=ps.tumbling("1 minute"), views=ps.count())

    yield made
    made.close()


def _append(app: ps.App, *seconds: float) -> None:
    for second in seconds:
        app.topics["views"].append({"page": "/", "at": at(second)})


def _reasons(app: ps.App) -> dict[str, Reason]:
    found = explaining.explain(app, "per_minute", now_us=time.time_ns() // 1_000)
    return {reason.kind: reason for reason in found.reasons}


def test_before_the_first_run_it_is_that_and_an_empty_topic(app: ps.App) -> None:
    assert set(_reasons(app)) == {"not run", "no input"}
    _append(app, 0)
    assert set(_reasons(app)) == {"not run"}


def test_an_unknown_name_is_refused(app: ps.App) -> None:
    with pytest.raises(ps.UnknownView):
        explaining.explain(app, "per_minut", now_us=0)


def test_a_failure_is_told_until_it_is_settled(app: ps.App) -> None:
    failures.record(app, ["per_minute"], Failure("per_minute", "no disk", 1_000_000, 2, False, stored=3))
    assert "no disk" in _reasons(app)["failed"].text
    failures.settle(app, ["per_minute"], stored=3)
    assert "failed" in _reasons(app)
    failures.settle(app, ["per_minute"], stored=4)
    assert "failed" not in _reasons(app)


def test_what_a_view_waits_for_after_a_run(app: ps.App, spark: SparkSession) -> None:
    """One run, and then everything that can be seen of it; each step adds one thing."""
    _append(app, 0, 61, 70)
    graph = Graph(app, spark).analyse()
    Runner(app, graph).once()
    found = _reasons(app)
    assert set(found) == {"watermark", "fine"}
    waits = found["watermark"]
    # The open window is 10:01 to 10:02; the watermark is 10:01:10 less 5 s.
    assert waits.facts["missing_us"] == 55_000_000
    assert (waits.facts["held_by"], waits.facts["topic"], waits.facts["partition"]) == (
        "newer event",
        "views",
        0,
    )
    assert "an event at 2026-11-01 10:02:05Z or later closes it" in waits.hint

    plan = explaining.plan_of(graph, "per_minute")
    assert (plan.topics, plan.key) == (("views",), ("page", "window_start", "window_end"))
    assert (plan.lateness_ms, plan.operators[0]["late"]) == (5_000, "divert")
    assert list(explaining.changed(graph, "per_minute")) == []

    app.store.drop("per_minute")
    assert set(_reasons(app)) == {"watermark", "follower behind"}

    _append(app, 1, 2)
    found = _reasons(app)
    assert found["unread"].facts["records"] == 2
    assert found["watermark"].facts["held_by"] == "unread"

    Runner(app, graph).once()
    assert _reasons(app)["some late"].facts["late"] == 2


def test_rows_that_are_all_late_are_told_as_that(app: ps.App, spark: SparkSession) -> None:
    app.topics["views"].append({"page": "/", "at": None})
    Runner(app, Graph(app, spark).analyse()).once()
    assert _reasons(app)["all late"].facts == {"late": 1, "rows": 1}


def test_rows_behind_a_declared_watermark_are_all_late(app: ps.App, spark: SparkSession) -> None:
    app.topics["views"].watermark(at(600))
    _append(app, 0, 1)
    Runner(app, Graph(app, spark).analyse()).once()
    assert _reasons(app)["all late"].facts == {"late": 2, "rows": 2}


def test_a_view_of_final_rows_names_the_watermark_it_waits_for(home: Path, spark: SparkSession) -> None:
    made = ps.App("shop", home=home)
    views = made.topic("views", "page STRING, at TIMESTAMP", event_time="at", lateness="5 seconds")

    @made.view(key=["page", "window"])
    def per_minute() -> DataFrame:
        return ps.aggregate(
            views.stream(), by="page", window=ps.tumbling("1 minute"), emit="final", views=ps.count()
        )

    _append(made, 0, 30)
    Runner(made, Graph(made, spark).analyse()).once()
    due = _reasons(made)["nothing due"]
    assert "the watermark is 2026-11-01 10:00:25Z, and what ends later has not closed" in due.text
    assert (due.blocks, due.facts["rows"], due.facts["held_by"]) == (True, 2, "newer event")
    made.close()


def test_a_clock_that_goes_on_by_itself_is_told_as_idle(app: ps.App, spark: SparkSession) -> None:
    _append(app, 0)
    graph = Graph(app, spark).analyse()
    Runner(app, graph).once()
    later_us = time.time_ns() // 1_000 + 40_000_000
    Runner(app, graph, now_us=later_us).once()
    found = explaining.explain(app, "per_minute", now_us=later_us)
    (waits,) = (reason for reason in found.reasons if reason.kind == "watermark")
    assert waits.facts["held_by"] == "idle"
    assert found.watermark_us is not None
    assert found.watermark_us > START.timestamp() * 1_000_000


def test_another_definition_than_the_one_that_ran_is_told(home: Path, spark: SparkSession) -> None:
    def graph_with(window: str) -> Graph:
        made = ps.App("shop", home=home)
        views = made.topic("views", "page STRING, at TIMESTAMP", event_time="at", lateness="5 seconds")
        made.view(key=["page", "window"], name="per_minute")(
            lambda: ps.aggregate(views.stream(), by="page", window=ps.tumbling(window), views=ps.count())
        )
        return Graph(made, spark).analyse()

    graph = graph_with("1 minute")
    _append(graph.app, 0)
    Runner(graph.app, graph).once()
    assert list(explaining.changed(graph_with("1 minute"), "per_minute")) == []
    (changed,) = explaining.changed(graph_with("2 minutes"), "per_minute")
    assert (changed.kind, changed.hint) == ("definition changed", "penstock rebuild APP per_minute")


def test_records_that_retention_took_before_they_were_read_are_told(app: ps.App, spark: SparkSession) -> None:
    _append(app, 0)
    Runner(app, Graph(app, spark).analyse()).once()
    _append(app, 1, 2)
    app.log.alter_topic("views", retention="1 ms")
    app.log.port.groups_store().let_go(f"flow.{app.name}.per_minute")  # type: ignore[attr-defined]
    assert Command(app.home)("topic", "compact", "views").exit_code == 0
    assert _reasons(app)["retention"].facts["records"] == 2
