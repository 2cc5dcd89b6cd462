"""When nothing comes any more, everything that is due comes out, whatever stands before the windows."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import DataFrame

import penstock as ps
from penstock.testing.plugin import Flow


def test_final_rows_come_out_of_an_idle_topic(home: Path, flow: Flow) -> None:
    app = ps.App("shop", home=home)
    views = app.topic("views", "page STRING, at TIMESTAMP", event_time="at", lateness="5 seconds")

    # Spark moves a filter on other columns towards the source, where it would catch the heartbeats.
    @app.stream()
    def filtered() -> DataFrame:
        starts = views.stream().filter("page = '/'")
        return ps.aggregate(starts, window=ps.tumbling("1 minute"), emit="final", views=ps.count())

    @app.stream()
    def slid() -> DataFrame:
        return ps.aggregate(views.stream(), by="page", window=ps.sliding("1 minute"), views=ps.count())

    @app.stream()
    def sessions() -> DataFrame:
        return ps.aggregate(views.stream(), by="page", window=ps.session("1 minute"), views=ps.count())

    @app.stream()
    def ordered() -> DataFrame:
        return ps.in_order(views.stream())

    with flow(app) as run:
        run.feed(views, {"page": "/", "at": "10:00:10"}, {"page": "/help", "at": "10:00:20"})
        assert [run.stream(name) for name in ("filtered", "sessions")] == [[], []]
        run.advance("10 minutes")
        assert run.values("filtered", "views") == [(1,)]
        assert sorted(run.values("slid", "page", "views")) == [("/", 1), ("/help", 1)]
        assert sorted(run.values("sessions", "page", "views")) == [("/", 1), ("/help", 1)]
        assert run.values("ordered", "page") == [("/",), ("/help",)]
        run.verify()
