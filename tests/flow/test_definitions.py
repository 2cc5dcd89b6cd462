"""Definitions that are unusual and right, and those that are wrong: refused before anything runs."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from tests.cli.command import Command

import penstock as ps
from penstock.app import failures, reading, rebuild
from penstock.app.graph import Graph
from penstock.app.runner import Runner
from penstock.app.status import Watch
from penstock.app.verify import verify
from penstock.errors import ViewBehind
from penstock.flow import build as builds

START = datetime(2026, 11, 1, 10, 0, tzinfo=UTC)
DDL = "page STRING, ms DOUBLE, at TIMESTAMP"


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


@pytest.fixture
def app(home: Path) -> ps.App:
    return ps.App("shop", home=home)


def test_unusual_definitions_run_and_verify(app: ps.App, spark: SparkSession) -> None:
    views = app.topic("views", DDL, event_time="at", lateness="5 seconds")
    more = app.topic("more", DDL, event_time="at", lateness="5 seconds")

    @app.view(key="window")
    def sessions_of_all() -> DataFrame:
        return ps.aggregate(views.stream(), window=ps.session("10 seconds"), n=ps.count())

    @app.view(key=["page", "window"])
    def of_two_topics() -> DataFrame:
        return ps.aggregate(ps.stream(views, more), by="page", window=ps.tumbling("1 minute"), n=ps.count())

    @app.view(key=["shown", "window"])
    def renamed_and_filtered() -> DataFrame:
        stream = views.stream().filter(F.col("ms") > 1).select(F.col("at").alias("moment"), "page")
        named = stream.select(F.upper("page").alias("shown"), "moment")
        return ps.aggregate(named, by="shown", window=ps.tumbling("1 minute"), n=F.count("*"))

    @app.view(key=["page", "window"])
    def as_appended() -> DataFrame:
        return ps.aggregate(
            views.stream(), by="page", window=ps.tumbling("1 minute"), clock="append", n=ps.count()
        )

    @app.stream()
    def short() -> DataFrame:
        return views.stream().filter("ms < 3").select("page", "at")

    @app.stream()
    def long() -> DataFrame:
        return views.stream().filter("ms >= 3").select("page", "ms", "at", F.col("_offset").alias("place"))

    for seconds in (0, 3, 30, 65, 200):
        views.append({"page": "/a", "ms": float(seconds % 7), "at": at(seconds)})
        more.append({"page": "/b", "ms": 1.0, "at": at(seconds)})
    graph = Graph(app, spark).analyse()
    shared = [query for query in graph.queries() if len(query.members) > 1]
    assert [member.definition.name for query in shared for member in query.members] == ["long", "short"]
    Runner(app, graph).once()
    found = [verify(app, graph, name) for name in app.definitions]
    assert [(each.name, each.verdict) for each in found if each.verdict != "equal"] == []
    assert [row["n"] for row in app.read("sessions_of_all")] == [2, 1, 1]
    assert sum(row["n"] for row in app.read("of_two_topics")) == 10
    assert sum(row["n"] for row in app.read("as_appended")) == 5
    assert all(row["window_start"] > at(0) for row in app.read("as_appended"))
    assert app.read("of_two_topics").to_pandas()["n"].sum() == 10
    assert {row["shown"] for row in app.read("renamed_and_filtered")} == {"/A"}
    rows = [len(list(app.log.topic(name).rows())) for name in ("short", "long")]
    assert sum(rows) == 5
    assert all(rows)
    assert [row["place"] for row in app.log.topic("long").rows()] == [1, 4]


def test_a_stream_joins_a_static_table_by_the_name_of_a_column(app: ps.App, spark: SparkSession) -> None:
    views = app.topic("views", DDL, event_time="at", lateness="5 seconds")
    titles = spark.sql("SELECT * FROM VALUES ('/a', 'start'), ('/b', 'end') AS t(page, title)")

    @app.stream()
    def titled() -> DataFrame:
        return views.stream().join(titles, "page").select("title", "at")

    for seconds, page in ((0, "/a"), (1, "/b"), (2, "/c"), (3, "/a")):
        views.append({"page": page, "ms": 1.0, "at": at(seconds)})
    graph = Graph(app, spark).analyse()
    Runner(app, graph).once()
    assert sorted(row["title"] for row in app.log.topic("titled").rows()) == ["end", "start", "start"]
    assert verify(app, graph, "titled").verdict == "equal"
    app.close()


def test_a_topic_that_gets_a_column_leaves_its_readers_running(home: Path, spark: SparkSession) -> None:
    def run(ddl: str, *rows: dict[str, Any]) -> ps.App:
        app = ps.App("shop", home=home)
        views = app.topic("views", ddl, event_time="at", lateness="5 seconds")

        @app.stream()
        def slow() -> DataFrame:
            return views.stream().filter("ms > 1")

        @app.view(key=["page", "window"])
        def per_minute() -> DataFrame:
            return ps.aggregate(views.stream(), by="page", window=ps.tumbling("1 minute"), n=ps.count())

        for row in rows:
            views.append(row)
        graph = Graph(app, spark).analyse()
        Runner(app, graph).once()
        assert [verify(app, graph, name).verdict for name in app.definitions] == ["equal", "equal"]
        return app

    first = {"page": "/a", "ms": 2.0, "at": at(0)}
    run(DDL, first, {**first, "at": at(90)}, {**first, "at": at(1)}).close()
    more = {"page": "/a", "ms": 3.0, "country": "BG"}
    run(f"{DDL}, country STRING", {**more, "at": at(100)}, {**more, "at": at(2)}).close()
    app = run(f"{DDL}, country STRING", {**more, "at": at(101)})
    assert [row["country"] for row in app.log.topic("slow").rows()] == [None, None, None, "BG", "BG", "BG"]
    assert [(row["window_start"], row["n"]) for row in app.read("per_minute")] == [(at(0), 1), (at(60), 3)]
    assert [row["row"]["country"] for row in reading.late(app, "per_minute")] == [None, "BG"]


def test_a_reader_waits_for_its_own_writes(app: ps.App, spark: SparkSession) -> None:
    views = app.topic("views", DDL, event_time="at", lateness="5 seconds")

    @app.view(key="page")
    def totals() -> DataFrame:
        return ps.aggregate(views.stream(), by="page", n=ps.count())

    runner = Runner(app, Graph(app, spark).analyse(), every="1 second")
    first = views.append({"page": "/", "ms": 1.0, "at": at(0)})
    with pytest.raises(ViewBehind):
        app.read("totals", after=first, timeout="10 ms")
    runner.start()
    try:
        assert [row["n"] for row in app.read("totals", after=first, timeout="60 seconds")] == [1]
        second = views.append({"page": "/", "ms": 1.0, "at": at(1)})
        assert [row["n"] for row in app.read("totals", after=second, timeout="60 seconds")] == [2]
    finally:
        runner.stop()


def test_a_view_whose_input_is_gone_cannot_be_verified(app: ps.App, spark: SparkSession) -> None:
    views = app.topic("views", DDL, event_time="at", lateness="5 seconds")

    @app.view(key="page")
    def totals() -> DataFrame:
        return ps.aggregate(views.stream(), by="page", n=ps.count())

    views.append({"page": "/", "ms": 1.0, "at": at(0)})
    graph = Graph(app, spark).analyse()
    Runner(app, graph).once()
    app.log.alter_topic("views", retention="1 ms")
    assert Command(app.home)("topic", "compact", "views").exit_code == 0
    found = verify(app, graph, "totals")
    assert (found.verdict, "before offset 1 of partition 0" in found.reason) == ("not verifiable", True)


def test_a_view_that_takes_a_new_column_in_is_rebuilt_once(home: Path, spark: SparkSession) -> None:
    def analysed(ddl: str, **more: Any) -> Graph:
        app = ps.App("shop", home=home)
        views = app.topic("views", ddl, event_time="at")
        app.view(key="page", name="totals")(
            lambda: ps.aggregate(views.stream(), by="page", newest=ps.last("ms"), **more)
        )
        views.append({"page": "/", "ms": 1.0, "at": at(0)})
        return Graph(app, spark).analyse()

    def run(graph: Graph) -> None:
        Runner(graph.app, graph).once()

    run(analysed(DDL))
    wider, country = f"{DDL}, country STRING", ps.last("country")
    graph = analysed(wider, country=country)
    with pytest.raises(ps.DefinitionChanged):
        run(graph)
    rebuild.prepare(graph.app, graph, "totals").swap()
    run(analysed(wider, country=country))
    run(analysed(f"{wider}, city STRING", country=country))


def test_a_users_own_state_hears_of_the_time(app: ps.App, spark: SparkSession) -> None:
    views = app.topic("views", DDL, event_time="at", lateness="0 seconds", idle_after="1 day")

    def step(key: Any, frames: Any, state: Any) -> Any:
        import pandas as pd

        if state.hasTimedOut:
            state.remove()
            yield pd.DataFrame({"page": [key[0]], "what": ["timed out"]})
            return
        newest = max(frame["at"].max() for frame in frames)
        state.update((0,))
        state.setTimeoutTimestamp(int(newest.timestamp() * 1_000) + 10_000)
        yield pd.DataFrame({"page": [key[0]], "what": ["open"]})

    @app.view(key="page")
    def pages() -> DataFrame:
        return (
            views.stream()
            .groupBy("page")
            .applyInPandasWithState(step, "page STRING, what STRING", "n INT", "update", "EventTimeTimeout")
        )

    runner = Runner(app, Graph(app, spark).analyse())
    runner.start()
    try:
        for page, seconds in (("/a", 0), ("/b", 100)):
            done = views.append({"page": page, "ms": 1.0, "at": at(seconds)})
            app.read("pages", after=done, timeout="100 seconds")
        deadline = time.monotonic() + 60
        while (found := {row["page"]: row["what"] for row in app.read("pages")})["/a"] == "open":
            assert time.monotonic() < deadline, found
            time.sleep(0.1)
    finally:
        runner.stop()
    assert found == {"/a": "timed out", "/b": "open"}


def test_a_column_that_is_no_longer_dropped_is_a_change(home: Path, spark: SparkSession) -> None:
    def run(*, dropped: bool) -> None:
        app = ps.App("shop", home=home)
        views = app.topic("views", DDL, event_time="at")
        app.stream(name="out")(lambda: views.stream().drop("page") if dropped else views.stream())
        views.append({"page": "/", "ms": 1.0, "at": at(0)})
        try:
            Runner(app, Graph(app, spark).analyse()).once()
        finally:
            app.close()

    run(dropped=True)
    with pytest.raises(ps.DefinitionChanged):
        run(dropped=False)


def test_what_sparks_own_grouping_drops_is_counted(app: ps.App, spark: SparkSession) -> None:
    views = app.topic("views", DDL, event_time="at", lateness="5 seconds")

    @app.view(key=["page", "window"])
    def per_minute() -> DataFrame:
        return views.stream().groupBy("page", F.window("at", "1 minute")).count()

    graph = Graph(app, spark).analyse()
    fed: list[list[datetime | None]] = [[at(0), at(200)], [at(210)], [at(1), None]]
    for moments in fed:
        for moment in moments:
            views.append({"page": "/", "ms": 1.0, "at": moment})
        runner = Runner(app, graph)
        watch = Watch(runner)
        runner.once()
    (query,) = watch.look().queries
    assert query.late == 2
    assert "drops late rows" in verify(app, graph, "per_minute").reason


def test_streams_that_share_a_query_come_and_go(home: Path, spark: SparkSession) -> None:
    def declared(*names: str) -> ps.App:
        app = ps.App("shop", home=home)
        views = app.topic("views", DDL, event_time="at")
        for name in names:
            app.stream(name=name)(lambda: views.stream().select("page", "at"))
        return app

    def ran(app: ps.App) -> dict[str, list[str]]:
        graph = Graph(app, spark).analyse()
        Runner(app, graph).once()
        assert {verify(app, graph, name).verdict for name in app.definitions} == {"equal"}
        return {name: [row["page"] for row in app.log.topic(name).rows()] for name in app.definitions}

    first = declared("b", "a", "d")
    # Without state, an event time that is none is nobody's business.
    first.topics["views"].append(
        [{"page": "1", "ms": 1.0, "at": at(0)}, {"page": "2", "ms": 1.0, "at": None}]
    )
    assert ran(first) == {"a": ["1", "2"], "b": ["1", "2"], "d": ["1", "2"]}
    first.topics["views"].append({"page": "3", "ms": 1.0, "at": at(0)})
    assert ran(declared("c", "d", "b")) == {"b": ["1", "2", "3"], "c": ["1", "2", "3"], "d": ["1", "2", "3"]}


WRONG: dict[str, tuple[Callable[[Any], Any], str]] = {
    "an unknown column": (
        lambda t: ps.aggregate(t.stream(), by="pge", window=ps.tumbling("1 s"), n=ps.count()),
        'no column "pge"',
    ),
    "an unknown column of an aggregate": (
        lambda t: ps.aggregate(t.stream(), by="page", n=ps.sum("mss")),
        '"mss"',
    ),
    "a key that is not in the result": (
        lambda t: ps.aggregate(t.stream(), by="ms", n=ps.count()),
        'no key column "page"',
    ),
    "two streams": (
        lambda t: t.stream().union(t.other.stream()),
        "apart from that",
    ),
    "one stream twice": (
        lambda t: t.stream().filter("ms < 1").union(t.stream().filter("ms > 2")),
        "more than once",
    ),
    "a topic that is not there": (lambda t: t.missing(), 'no topic "view"'),
    "an order without an end": (lambda t: t.stream().orderBy("ms"), "Sorting is not supported"),
    "a correction of single rows": (
        lambda t: ps.deduplicate(t.stream(), id="page", within="1 s", late="correct"),
        "late='correct'",
    ),
    "a correction of sliding windows": (
        lambda t: ps.aggregate(
            t.stream(), by="page", window=ps.sliding("1 s"), late="correct", correct_for="1 s", n=ps.count()
        ),
        "final when it comes out",
    ),
    "a key without the window": (
        lambda t: ps.aggregate(t.stream(), by="page", window=ps.tumbling("1 s"), n=ps.count()),
        "a row for every window",
    ),
    "no stream": (lambda t: 7, "it returns int"),
    "a window that is none": (
        lambda t: ps.aggregate(t.stream(), by="page", window="1 minute", n=ps.count()),  # type: ignore[arg-type]
        "window='1 minute' is none",
    ),
    "an aggregate that was not called": (
        lambda t: ps.aggregate(t.stream(), by="page", n=ps.count),  # type: ignore[arg-type]
        "is no aggregate",
    ),
    "a name instead of a topic": (lambda t: ps.stream("views"), "AttributeError"),  # type: ignore[arg-type]
    "a raw column in a session": (
        lambda t: ps.aggregate(t.stream(), by="page", window=ps.session("1 s"), n=F.count("*")),
        "is a Spark column",
    ),
    "event time that is gone": (
        lambda t: ps.aggregate(t.stream().select("page"), by="page", n=ps.count()),
        "lost its event time",
    ),
    "rows without a place": (
        lambda t: ps.aggregate(
            t.stream().union(t.stream()), by="page", window=ps.tumbling("1 s"), n=ps.count()
        ),
        "no longer say where they came from",
    ),
    "a column that Spark does not know": (lambda t: t.stream().select("nothing"), "nothing"),
    "a correction without a horizon": (
        lambda t: ps.aggregate(
            t.stream(), by="page", window=ps.tumbling("1 s"), late="correct", n=ps.count()
        ),
        "belong together",
    ),
    "a column that begins with an underscore": (
        lambda t: t.stream().withColumn("_mine", F.lit(1)),
        "names that begin with _ are ours",
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_definition_is_named_with_file_and_line(app: ps.App, spark: SparkSession, what: str) -> None:
    make, says = WRONG[what]
    topic: Any = app.topic("views", DDL, event_time="at")
    topic.other = app.topic("others", DDL, event_time="at")
    topic.missing = lambda: builds.stream_of(["view"])

    @app.view(key="page")
    def wrong() -> Any:
        return make(topic)

    with pytest.raises(ps.BadDefinition) as refused:
        Graph(app, spark).analyse()
    assert says in refused.value.message
    assert refused.value.file == __file__
    assert refused.value.line is not None
    assert f"{__file__}:{refused.value.line}:" in str(refused.value)


def test_a_circle_is_refused(app: ps.App, spark: SparkSession) -> None:
    streams: dict[str, Any] = {}

    @app.stream()
    def one() -> DataFrame:
        found: DataFrame = streams["two"].stream()
        return found

    @app.stream()
    def two() -> DataFrame:
        return one.stream()

    streams["two"] = two
    with pytest.raises(ps.BadDefinition, match="one → two → one"):
        Graph(app, spark).analyse()


def test_an_unaggregated_view_with_two_rows_for_a_key_points_to_latest(
    app: ps.App, spark: SparkSession
) -> None:
    views = app.topic("views", DDL, event_time="at")

    @app.view(key="page")
    def plain() -> DataFrame:
        return views.stream()

    views.append([{"page": "/", "ms": 1.0, "at": at(0)}, {"page": "/", "ms": 2.0, "at": at(1)}])
    with pytest.raises(ps.QueryFailed, match=r"ps\.latest"):
        Runner(app, Graph(app, spark).analyse(), failures_max=1).once()


def test_a_failure_that_passes_is_passed(app: ps.App, spark: SparkSession, tmp_path: Path) -> None:
    """Spark tries a task four times by itself: five failures are one of the query, and one more."""
    views = app.topic("views", DDL, event_time="at")
    troubles = tmp_path / "troubles"
    troubles.mkdir()
    for number in range(5):
        (troubles / str(number)).touch()

    def calm() -> bool:
        for left in sorted(troubles.iterdir()):
            left.unlink()
            raise OSError("the disk was busy")
        return True

    @app.view(key="page")
    def newest() -> DataFrame:
        careful = F.udf(lambda ms: ms if calm() else None, "double")
        return ps.latest(views.stream().withColumn("ms", careful("ms")), by="page")

    views.append({"page": "/", "ms": 3.0, "at": at(0)})
    runner = Runner(app, Graph(app, spark).analyse())
    runner.once()
    (supervised,) = runner.supervised
    assert (supervised.restarts, supervised.failures, supervised.given_up) == (1, 1, False)
    assert "the disk was busy" in (supervised.last_error or "")
    assert [row["ms"] for row in app.read("newest")] == [3.0]
    assert failures.last(app, "newest") is None


def test_long_sessions_are_not_late_for_those_who_read_them(app: ps.App, spark: SparkSession) -> None:
    """They come out in the order in which they end: the long one, which began first, after the short one."""
    views = app.topic("views", DDL, event_time="at", lateness="0 seconds")

    @app.stream()
    def visits() -> DataFrame:
        return ps.aggregate(views.stream(), by="page", window=ps.session("30 minutes"), n=ps.count())

    @app.view(key="window")
    def per_hour() -> DataFrame:
        return ps.aggregate(visits.stream(), by=[], window=ps.tumbling("1 hour"), visits=ps.count())

    minutes = {"/long": range(0, 150, 20), "/short": [70], "/end": [600]}
    for minute, page in sorted((minute, page) for page, many in minutes.items() for minute in many):
        views.append({"page": page, "ms": 1.0, "at": at(60 * minute)})
        Runner(app, Graph(app, spark).analyse()).once() if minute in (120, 600) else None
    found = {(row["page"], row["n"]) for row in app.log.topic("visits").rows()}
    assert found == {("/long", 8), ("/short", 1)}
    assert len(reading.late(app, "per_hour")) == 0
    assert sum(row["visits"] for row in app.read("per_hour")) == 2


def test_a_program_hears_of_a_query_that_was_given_up(app: ps.App, spark: SparkSession) -> None:
    views = app.topic("views", DDL, event_time="at")

    @app.view(key="page")
    def failing() -> DataFrame:
        return ps.latest(views.stream().where(F.raise_error(F.lit("no luck")).isNull()), by="page")

    views.append({"page": "/", "ms": 3.0, "at": at(0)})
    with pytest.raises(ps.QueryFailed, match="no luck"):
        Runner(app, Graph(app, spark).analyse(), failures_max=1).run()


def test_rows_are_found_by_their_number_or_not_at_all(app: ps.App, spark: SparkSession) -> None:
    views = app.topic("views", DDL, event_time="at")
    app.view(key="page", name="newest")(lambda: ps.latest(views.stream(), by="page"))
    for page in ("/a", "/b", "/c"):
        views.append({"page": page, "ms": 1.0, "at": at(0)})
    Runner(app, Graph(app, spark).analyse()).once()
    rows = app.read("newest")
    assert [rows[0]["page"], rows[-1]["page"]] == ["/a", "/c"]
    assert [row["page"] for row in rows[1:]] == ["/b", "/c"]
    for beside in (3, -4):
        with pytest.raises(IndexError):
            rows[beside]
    now = datetime.now(UTC)
    with pytest.raises(ps.BadOption, match='did you mean "page"'):
        app.read("newest", as_of=now, where={"pge": 1})
    with pytest.raises(ps.BadOption, match="contradict"):
        app.read("newest", as_of=now, after=views.append({"page": "/", "ms": 1.0, "at": at(0)}))
    wrong: Any = "10 minutes ago"
    with pytest.raises(ps.BadOption, match="is no time"):
        app.read("newest", as_of=wrong)
