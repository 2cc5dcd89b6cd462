"""Definitions that change: refused without a trace, rebuilt whatever the change, never half."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

import penstock as ps
from penstock.app import reading, rebuild
from penstock.app.graph import Graph
from penstock.app.runner import Runner
from penstock.app.verify import verify

START = datetime(2026, 11, 1, 10, 0, tzinfo=UTC)
DDL = "page STRING, country STRING, ms BIGINT, at TIMESTAMP"
EVENTS = (("/a", "de", 2, 0), ("/a", "fr", 4, 1), ("/b", "de", 6, 2))

Make = Callable[[Any], DataFrame]


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


class Shop:
    """An app of one view whose definition changes from run to run."""

    def __init__(self, home: Path, spark: SparkSession) -> None:
        self.home, self.spark = home, spark
        with closing(ps.App("shop", home=home)) as app:
            views = app.topic("views", DDL, event_time="at")
            for page, country, ms, seconds in EVENTS:
                views.append({"page": page, "country": country, "ms": ms, "at": at(seconds)})

    def defined(
        self, make: Make, *, key: Any = "page", kind: str = "view", stream: Any = None, **options: Any
    ) -> Graph:
        """`stream`: options of a stream; the others are the topic's."""
        app = ps.App("shop", home=self.home)
        views = app.topic("views", DDL, event_time="at", **options)
        declared = (
            app.view(key=key, name="made") if kind == "view" else app.stream(name="made", **stream or {})
        )
        declared(lambda: make(views.stream()))
        return Graph(app, self.spark).analyse()

    def run(self, make: Make, **options: Any) -> Graph:
        graph = self.defined(make, **options)
        Runner(graph.app, graph).once()
        return graph

    def rows(self, graph: Graph) -> list[Mapping[str, Any]]:
        return [dict(row) for row in graph.app.read("made")]


@pytest.fixture
def shop(home: Path, spark: SparkSession) -> Shop:
    return Shop(home, spark)


def counted(stream: DataFrame) -> DataFrame:
    return ps.aggregate(stream, by="page", n=ps.count())


def with_another(stream: DataFrame) -> DataFrame:
    return ps.aggregate(stream, by="page", n=ps.count(), slowest=ps.max("ms"))


def renamed(stream: DataFrame) -> DataFrame:
    return ps.aggregate(stream, by="page", hits=ps.count())


def of_another_type(stream: DataFrame) -> DataFrame:
    return ps.aggregate(stream, by="page", n=ps.mean("ms"))


def by_country_too(stream: DataFrame) -> DataFrame:
    return ps.aggregate(stream, by=["page", "country"], n=ps.count())


def test_a_refused_change_leaves_everything_as_it_was(shop: Shop) -> None:
    graph = shop.run(counted)
    before = shop.rows(graph)
    with pytest.raises(ps.DefinitionChanged):
        shop.run(with_another)
    changed = shop.defined(with_another)
    rebuild.prepare(changed.app, changed, "made").discard()
    again = shop.run(counted)
    assert shop.rows(again) == before
    assert verify(again.app, again, "made").verdict == "equal"


def test_a_refused_change_of_a_stream_leaves_it_running(shop: Shop) -> None:
    shop.run(lambda stream: stream.select("page", "at"), kind="stream")
    with pytest.raises(ps.DefinitionChanged, match="another name"):
        changed = {"partitions": 3, "lateness": "1 hour"}
        shop.run(lambda stream: stream.select("page", "ms", "at"), kind="stream", stream=changed)
    graph = shop.run(lambda stream: stream.select("page", "at"), kind="stream")
    assert graph.app.log.topic("made").settings.partitions == 1
    assert len(list(graph.app.log.topic("made").rows())) == len(EVENTS)


@pytest.mark.parametrize(
    ("change", "key", "rows"),
    [
        (with_another, "page", [{"page": "/a", "n": 2, "slowest": 4}, {"page": "/b", "n": 1, "slowest": 6}]),
        (renamed, "page", [{"page": "/a", "hits": 2}, {"page": "/b", "hits": 1}]),
        (of_another_type, "page", [{"page": "/a", "n": 3.0}, {"page": "/b", "n": 6.0}]),
        (
            by_country_too,
            ["page", "country"],
            [
                {"page": "/a", "country": "de", "n": 1},
                {"page": "/a", "country": "fr", "n": 1},
                {"page": "/b", "country": "de", "n": 1},
            ],
        ),
    ],
    ids=["a column more", "a column renamed", "a column of another type", "another key"],
)
def test_any_change_of_a_view_can_be_rebuilt(
    shop: Shop, change: Make, key: Any, rows: list[dict[str, Any]]
) -> None:
    shop.run(counted)
    graph = shop.defined(change, key=key)
    rebuilt = rebuild.prepare(graph.app, graph, "made")
    assert rebuilt.difference.differing
    rebuilt.swap()
    reading.catch_up(graph.app, reading.spec(graph.app, "made"))
    assert shop.rows(graph) == rows
    graph.app.topics["views"].append({"page": "/c", "country": "it", "ms": 8, "at": at(3)})
    again = shop.run(change, key=key)
    assert len(shop.rows(again)) == len(rows) + 1
    found = verify(again.app, again, "made")
    assert (found.verdict, found.rows) == ("equal", len(rows) + 1)


def test_a_rebuild_that_died_between_two_versions_is_made_good_by_another(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.run(counted)
    graph = shop.defined(renamed)
    rebuilt = rebuild.prepare(graph.app, graph, "made")

    def dies(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(rebuild, "create_output", dies)
        with pytest.raises(KeyboardInterrupt):
            rebuilt.swap()
    for make in (counted, renamed):
        with pytest.raises(ps.DefinitionChanged, match="penstock rebuild"):
            shop.run(make)
    graph = shop.defined(renamed)
    rebuild.prepare(graph.app, graph, "made").swap()
    again = shop.run(renamed)
    assert shop.rows(again) == [{"page": "/a", "hits": 2}, {"page": "/b", "hits": 1}]
    assert verify(again.app, again, "made").verdict == "equal"


def test_what_was_final_is_final_after_a_rebuild_that_died(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    def windows(stream: DataFrame, by: Any = "page") -> DataFrame:
        return ps.aggregate(stream, by=by, window=ps.tumbling("1 second"), n=ps.count())

    def finer(stream: DataFrame) -> DataFrame:
        return windows(stream, ["page", "country"])

    graph = shop.run(windows, key=["page", "window"], lateness="0 seconds")
    final = sum(row["final"] for row in shop.rows(graph))
    assert final == 2
    key = ["page", "country", "window"]
    for dies in (True, False):
        graph = shop.defined(finer, key=key, lateness="0 seconds")
        rebuilt = rebuild.prepare(graph.app, graph, "made")
        with monkeypatch.context() as patched:
            if dies:
                patched.setattr(rebuild, "create_output", lambda *_, **__: 1 / 0)
                with pytest.raises(ZeroDivisionError):
                    rebuilt.swap()
            else:
                rebuilt.swap()
    reading.catch_up(graph.app, reading.spec(graph.app, "made"))
    assert sum(row["final"] for row in shop.rows(graph)) == final


def test_a_row_that_lost_a_column_keeps_the_past_of_its_view(shop: Shop) -> None:
    """Only what late pairs look like is another: the changelog takes what is made now."""

    def fewer(stream: DataFrame) -> DataFrame:
        return counted(stream.select("page", "at"))

    shop.run(counted)
    before = datetime.now(UTC)
    graph = shop.defined(fewer)
    rebuilt = rebuild.prepare(graph.app, graph, "made")
    assert rebuilt.replaced == (".late",)
    rebuilt.swap()
    again = shop.run(fewer)
    assert verify(again.app, again, "made").verdict == "equal"
    assert len(again.app.read("made", as_of=before)) == 2


def test_what_counts_as_a_usable_time_is_part_of_a_definition(shop: Shop) -> None:
    def windows(stream: DataFrame) -> DataFrame:
        return ps.aggregate(stream, by="page", window=ps.tumbling("1 minute"), n=ps.count())

    key = ["page", "window"]
    shop.run(windows, key=key)
    with pytest.raises(ps.DefinitionChanged):
        shop.run(windows, key=key, ahead="1 day")
    shop.run(windows, key=key, retention="7 days")


def test_options_of_a_stream_count_from_now_on(home: Path, spark: SparkSession) -> None:
    def run(**options: Any) -> ps.App:
        app = ps.App("shop", home=home)
        views = app.topic("views", DDL, event_time="at", lateness="5 seconds")
        app.stream(name="copied", **options)(views.stream)
        Runner(app, Graph(app, spark).analyse()).once()
        return app

    assert run().log.topic("copied").settings.lateness_ms == 5_000
    changed = run(lateness="1 minute", partitions=3).log.topic("copied").settings
    assert (changed.lateness_ms, changed.partitions) == (60_000, 3)


def test_a_stream_goes_on_without_its_checkpoint_although_its_input_is_gone(
    home: Path, spark: SparkSession
) -> None:
    """It has no state: nothing of what it has read is needed."""

    def run() -> ps.App:
        app = ps.App("shop", home=home)
        views = app.topic("views", DDL, event_time="at", segment_bytes=1)
        app.stream(name="copied")(views.stream)
        Runner(app, Graph(app, spark).analyse()).once()
        return app

    def append(app: ps.App, ms: int) -> None:
        app.topics["views"].append({"page": "/", "country": "de", "ms": ms, "at": at(ms)})

    app = run()
    for ms in range(3):
        append(app, ms)
    run()
    port: Any = app.log.port
    port.groups_store().let_go("flow.shop.copied")
    app.log.alter_topic("views", retention_bytes=0)
    port.maintain("views", 0)
    assert app.topics["views"].bounds()[0][0] > 0
    for checkpoint in (home / "flow" / "shop" / "copied").iterdir():
        checkpoint.rename(home / "aside")
    append(app, 3)
    assert [row["ms"] for row in run().log.topic("copied").rows()] == [0, 1, 2, 3]
