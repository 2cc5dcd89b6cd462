"""penstock.testing: an app under test in virtual time."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyspark.sql import DataFrame

import penstock as ps
from penstock.testing.flow import running
from penstock.testing.plugin import Flow


def shop(home: Path) -> ps.App:
    app = ps.App("shop", home=home)
    views = app.topic("views", "page STRING, at TIMESTAMP", event_time="at", lateness="5 seconds")

    @app.view(key=["page", "window"])
    def per_minute() -> DataFrame:
        return ps.aggregate(views.stream(), by="page", window=ps.tumbling("1 minute"), views=ps.count())

    @app.view(key=["page", "window"])
    def corrected() -> DataFrame:
        minute = ps.tumbling("1 minute")
        return ps.aggregate(
            views.stream(), by="page", window=minute, late="correct", correct_for="1 hour", views=ps.count()
        )

    @app.view(key=["page", "window"])
    def as_processed() -> DataFrame:
        minute = ps.tumbling("1 minute")
        return ps.aggregate(views.stream(), by="page", window=minute, clock="processing", views=ps.count())

    @app.stream()
    def starts() -> DataFrame:
        return views.stream().filter("page = '/'")

    return app


def test_a_run_from_the_first_event_to_the_proof(home: Path, flow: Flow) -> None:
    app = shop(home)
    views = app.topics["views"]
    with flow(app, day="2026-11-01") as run:
        at = run.time
        run.feed(views, {"page": "/", "at": "10:00:10"}, {"page": "/", "at": "10:01:10"})
        run.feed(views, {"page": "/", "at": "10:00:20"}, {"page": "/help", "at": "10:01:20"})

        # What was fed is processed before anything is looked at.
        assert run.values("per_minute", "page", "window_start", "views", "final") == [
            ("/", at("10:00"), 1, True),
            ("/", at("10:01"), 1, False),
            ("/help", at("10:01"), 1, False),
        ]
        assert [(late["row"]["at"], late["watermark"]) for late in run.late("per_minute")] == [
            (at("10:00:20"), at("10:01:05"))
        ]
        assert run.stream("starts")[-1] == {"page": "/", "at": at("10:00:20")}
        assert run.values("starts", "at") == [(at("10:00:10"),), (at("10:01:10"),), (at("10:00:20"),)]

        # The corrected view counts it after all, and says so.
        assert run.view("corrected", where={"window_start": at("10:00")})[0]["views"] == 2
        assert [(c["op"], c["revision"]) for c in run.changes("corrected") if c["views"] == 2] == [("u", 1)]

        # Nothing comes any more: windows close without an event that would close them.
        run.advance("10 minutes")
        assert {final for (final,) in run.values("per_minute", "final")} == {True}

        # What code under test appends itself counts as fed.
        views.append({"page": "/", "at": run.now})
        assert len(run.view("per_minute")) == 4
        assert run.values("as_processed", "page", "window_start", "views")[:2] == [
            ("/", at("10:01"), 3),
            ("/", at("10:11"), 1),
        ]

        run.verify("per_minute", "corrected", "starts")
        with pytest.raises(AssertionError, match="it counts processing time"):
            run.verify()
    assert not home.exists()


def test_a_view_that_is_not_what_the_log_says_fails_verify(home: Path, flow: Flow) -> None:
    app = shop(home)
    del app.definitions["corrected"], app.definitions["as_processed"], app.definitions["starts"]
    with flow(app) as run:
        run.feed(app.topics["views"], {"page": "/", "at": "10:00"})
        run.process()
        forged = {"page": "/forged", "window_start": run.now, "window_end": run.now, "views": 9}
        marks = {"_op": "u", "_batch": 0, "_revision": 0, "_closed": None}
        app.log.topic("per_minute").append({**forged, **marks})
        with pytest.raises(AssertionError, match=r"only live: live .*'/forged'"):
            run.verify()


def test_a_wrong_definition_is_named_with_its_place_before_anything_runs(home: Path, flow: Flow) -> None:
    app = ps.App("shop", home=home)
    views = app.topic("views", "page STRING, at TIMESTAMP", event_time="at")

    @app.view(key="window")
    def visits() -> DataFrame:
        return ps.aggregate(views.stream(), by="pge", window=ps.session("10 minutes"), views=ps.count())

    with flow(app) as run, pytest.raises(ps.BadDefinition, match=r'no column "pge"') as refused:
        run.process()
    assert refused.value.file == __file__


def test_a_query_that_fails_fails_the_test(home: Path, flow: Flow) -> None:
    app = ps.App("shop", home=home)
    views = app.topic("views", "page STRING, at TIMESTAMP", event_time="at")

    @app.stream()
    def broken() -> DataFrame:
        return views.stream().filter("assert_true(page = 'x', 'the roof is on fire') IS NULL")

    with flow(app) as run:
        run.feed(views, {"page": "/", "at": "10:00"})
        with pytest.raises(ps.QueryFailed, match="the roof is on fire"):
            run.process()


def test_records_arrive_when_they_occurred_or_after_the_one_before(home: Path) -> None:
    app = shop(home)
    views = app.topics["views"]
    with running(app) as run:
        run.feed(views, {"page": "/", "at": "10:00"}, {"page": "/", "at": "9:00:00"}, {"page": "/"})
        arrived = [event.timestamp for event in views.events()]
        assert arrived == [run.time(f"10:00:00.00{n}") for n in range(3)]
        assert [row["at"] for row in views.rows()] == [run.time("10:00"), run.time("09:00"), None]
        folder = app.home
    assert not folder.exists()


def test_records_can_arrive_later_than_they_occurred(home: Path) -> None:
    app = shop(home)
    views = app.topics["views"]
    with running(app, day="2026-11-01") as run:
        run.feed(views, {"page": "/", "at": "10:00"}, {"page": "/", "at": "10:00"}, arriving="12:00")
        assert [event.timestamp for event in views.events()] == [
            run.time("2026-11-01 12:00:00.001"),
            run.time("2026-11-01T12:00:00.002Z"),
        ]


def test_a_wrong_time_and_a_time_in_the_past_are_refused(home: Path) -> None:
    with running(shop(home)) as run:
        run.wait_until("10:00")
        assert run.now == datetime(2026, 1, 1, 10, tzinfo=UTC)
        with pytest.raises(ps.BadOption, match="does not go back"):
            run.wait_until("09:59")
        with pytest.raises(ps.BadOption, match="is no time"):
            run.time("ten")
        with pytest.raises(ps.BadOption, match="is no time"):
            run.time("25:00")


def test_names_that_mean_nothing_are_refused_with_those_that_do(home: Path) -> None:
    with running(shop(home)) as run:
        with pytest.raises(ps.UnknownView, match="per_minute"):
            run.values("per_minut", "views")
        with pytest.raises(ps.UnknownView):
            run.late("per_hour")
