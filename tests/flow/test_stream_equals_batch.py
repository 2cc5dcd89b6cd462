"""What comes out of a stream is what a naive model makes of the log, and what verify recomputes.

Each test runs the policies of one kind of window over a log that hypothesis generates: events out of order,
twice, late, without a time or with one far ahead, idle gaps, a declared watermark, batches of random sizes,
partitions with rates of 10 to 1. A case is one key of one definition: rows, revisions and late pairs must all
agree.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession
from tests.flow import oracle
from tests.flow.world import SECOND, World, aggregates, values_of

import penstock as ps

Say = Callable[[str], None]
CORRECT_S = 8

one_log = settings(  # with some forty cases in it; a failing seed is printed
    max_examples=1, derandomize=True, deadline=None, phases=[Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.differing_executors],
)  # fmt: skip
# Not 0: hypothesis begins with what is simplest, and all tests would have the same log.
seeds = st.integers(0, 2**32 - 1).filter(bool)


def fresh(home: Path) -> Path:
    """A failing log is run again."""
    home.mkdir(exist_ok=True)
    return Path(tempfile.mkdtemp(dir=home))


def behind(late: list[oracle.Late]) -> int:
    return sum(pair.reason == "late" for pair in late)


def sure(world: World, name: str, got: dict[Any, Any], wanted: dict[Any, Any]) -> int:
    """Rows by key are the same; returns how many cases that were."""
    differing = {
        k: (got.get(k), wanted.get(k)) for k in got.keys() | wanted.keys() if got.get(k) != wanted.get(k)
    }
    shown = dict(sorted(differing.items(), key=str)[:5])
    assert not differing, f"{name}: {len(differing)} rows differ, as {shown} (stream, oracle)"
    return len({key[0] for key in wanted})


def sure_of_late(world: World, name: str, wanted: list[oracle.Late], *, rows_kept: bool = True) -> None:
    got, expected = Counter(world.late(name)), Counter(wanted)
    assert got == expected, (
        f"{name}: only stream {list(got - expected)[:3]}, only oracle {list(expected - got)[:3]}"
    )
    from penstock.app import reading

    for row in reading.late(world.app, name):
        number = row["row"] and row["row"]["n"]
        place = world.topics.index(row["topic"]) * world.partitions + row["partition"], row["offset"]
        assert number == (world.numbers[place] if rows_kept else None)


def values(rows: list[oracle.Record], *, gathered: bool) -> tuple[Any, ...]:
    many, total, newest = oracle.values(rows)
    return many, total, "gathered" if gathered else newest


def sure_of_batch(world: World, name: str) -> None:
    found = world.verify(name)
    assert found.verdict == "equal", (found.reason, found.differing, found.differences[:3])


def by_window(world: World, name: str) -> dict[Any, Any]:
    return {
        (row["case"], row["window_start"], row["window_end"]): (
            *values_of(row), row["final"], row.get("revision", 0),
        )
        for row in world.rows(name)
    }  # fmt: skip


def expected_windows(
    model: oracle.Model,
    rows: dict[Any, list[oracle.Record]],
    revisions: dict[Any, int],
    *,
    final_only: bool,
    gathered: bool = False,
) -> dict[Any, Any]:
    closed = model.closed()
    return {
        key: (
            *values(found, gathered=gathered),
            closed is not None and key[-1] <= closed,
            revisions.get(key, 0),
        )
        for key, found in rows.items()
        if not final_only or model.out(key[-1])
    }


@pytest.mark.parametrize(("size_s", "hop_s"), [(10, None), (12, 4)], ids=["tumbling", "hopping"])
@one_log
@given(seed=seeds)
def test_windows_are_right_under_every_policy(
    home: Path, spark: SparkSession, report: Say, size_s: int, hop_s: int | None, seed: int
) -> None:
    world = World(fresh(home), seed)
    window = ps.hopping(size_s, hop_s) if hop_s else ps.tumbling(size_s)

    def define(name: str, **options: Any) -> None:
        @world.app.view(key=["case", "window"], name=name)
        def view() -> DataFrame:
            wanted = aggregates(gathered=name.endswith("gathered"))
            return ps.aggregate(world.topic.stream(), by="case", window=window, **options, **wanted)

    define("divert")
    define("final", emit="final")
    define("drop", late="drop")
    define("correct", late="correct", correct_for=CORRECT_S)
    define("final_gathered", emit="final")
    define("correct_gathered", late="correct", correct_for=CORRECT_S)
    world.live(spark)
    cases = 0
    for name in world.app.definitions:
        model = world.model(name)
        rows, revisions, late = oracle.windowed(
            model, size=size_s * SECOND, hop=hop_s and hop_s * SECOND,
            correct=CORRECT_S * SECOND if name.startswith("correct") else 0,
        )  # fmt: skip
        final, gathered = name.startswith("final"), name.endswith("gathered")
        assert (world.graph.analysed[name].columns is None) == gathered
        wanted = expected_windows(model, rows, revisions, final_only=final, gathered=gathered)
        cases += sure(world, name, by_window(world, name), wanted)
        sure_of_late(world, name, late, rows_kept=name != "drop")
        sure_of_batch(world, name)
        assume(behind(late) >= 5)  # or the log shows nothing
    assume(any(row["revision"] for row in world.rows("correct_gathered")))
    assert cases >= 40
    report(f"stream = oracle = batch, {type(window).__name__.lower()}: {cases} cases")


@one_log
@given(seed=seeds)
def test_sessions_are_right_under_every_policy(
    home: Path, spark: SparkSession, report: Say, seed: int
) -> None:
    world = World(fresh(home), seed)
    gap_s = 3

    def define(name: str, **options: Any) -> None:
        @world.app.view(key=["case", "window"], name=name)
        def view() -> DataFrame:
            session = ps.session(gap_s)
            return ps.aggregate(world.topic.stream(), by="case", window=session, **options, **aggregates())

    define("divert")
    define("live", emit="live")
    define("drop", late="drop")
    define("correct", late="correct", correct_for=CORRECT_S)
    world.live(spark)
    cases = 0
    for name in ("divert", "live", "drop", "correct"):
        model = world.model(name)
        rows, late = oracle.sessions(
            model, gap=gap_s * SECOND, correct=CORRECT_S * SECOND if name == "correct" else 0
        )
        wanted = expected_windows(model, rows, {}, final_only=name in ("divert", "drop"))
        got = by_window(world, name)
        if name == "correct":  # how often a session was opened again depends on the batches
            got = {key: (*row[:-1], 0) for key, row in got.items()}
        cases += sure(world, name, got, wanted)
        sure_of_late(world, name, late, rows_kept=name != "drop")
        sure_of_batch(world, name)
        assume(behind(late) >= 5)
    assume(behind(world.late("correct")) < behind(world.late("live")))
    assert cases >= 40
    report(f"stream = oracle = batch, session: {cases} cases")


@one_log
@given(seed=seeds)
def test_sliding_windows_are_right_under_every_policy(
    home: Path, spark: SparkSession, report: Say, seed: int
) -> None:
    world = World(fresh(home), seed)

    def define(name: str, **options: Any) -> None:
        @world.app.view(key=["case", "at", "event"], name=name)
        def view() -> DataFrame:
            window = ps.sliding("8 seconds")
            return ps.aggregate(world.topic.stream(), by="case", window=window, **options, **aggregates())

    define("divert")
    define("drop", late="drop")
    world.live(spark)
    cases = 0
    for name in ("divert", "drop"):
        rows, late = oracle.sliding(world.model(name), size=8 * SECOND)
        got = {
            (row["case"], row["at"], row["event_partition"], row["event_offset"]): values_of(row)
            for row in world.rows(name)
        }
        cases += sure(world, name, got, {key: oracle.values(found) for key, found in rows.items()})
        sure_of_late(world, name, late, rows_kept=name != "drop")
        sure_of_batch(world, name)
        assume(behind(late) >= 5)
    assert cases >= 40
    report(f"stream = oracle = batch, sliding: {cases} cases")


@one_log
@given(seed=seeds)
def test_what_has_no_window_is_never_late(home: Path, spark: SparkSession, report: Say, seed: int) -> None:
    world = World(fresh(home), seed)

    @world.app.view(key="case")
    def totals() -> DataFrame:
        return ps.aggregate(world.topic.stream(), by="case", **aggregates())

    @world.app.view(key="case")
    def totals_gathered() -> DataFrame:
        return ps.aggregate(world.topic.stream(), by="case", **aggregates(gathered=True))

    @world.app.view(key="case")
    def newest() -> DataFrame:
        return ps.latest(world.topic.stream(), by="case")

    world.live(spark)
    cases = 0
    for name in ("totals", "totals_gathered"):
        groups = oracle.grouped(world.model(name))
        gathered = name.endswith("gathered")
        assert (world.graph.analysed[name].columns is None) == gathered
        wanted = {key: values(rows, gathered=gathered) for key, rows in groups.items()}
        cases += sure(world, name, {(row["case"],): values_of(row) for row in world.rows(name)}, wanted)
    last = {key: (world.numbers[r.place], r.at) for key, r in oracle.latest(world.model("newest")).items()}
    got = {(row["case"],): (row["n"], row["at"]) for row in world.rows("newest")}
    cases += sure(world, "newest", got, last)
    for name in world.app.definitions:
        late = world.model(name).useless()
        assume(late)
        sure_of_late(world, name, late)
        sure_of_batch(world, name)
    assert cases >= 40
    report(f"stream = oracle = batch, without windows: {cases} cases")


@one_log
@given(seed=seeds)
def test_repeats_are_left_out_and_order_is_made(
    home: Path, spark: SparkSession, report: Say, seed: int
) -> None:
    world = World(fresh(home), seed)

    def define(name: str, operator: Callable[[DataFrame], DataFrame]) -> None:
        @world.app.stream(name=name)
        def stream() -> DataFrame:
            return operator(world.topic.stream())

    define("once", lambda df: ps.deduplicate(df, id=["case", "id"], within="6 seconds"))
    define("once_drop", lambda df: ps.deduplicate(df, id=["case", "id"], within="6 seconds", late="drop"))
    define("ordered", ps.in_order)
    define("ordered_drop", lambda df: ps.in_order(df, by="case", late="drop"))
    world.live(spark)
    cases = 0
    for name in ("once", "once_drop", "ordered", "ordered_drop"):
        model = world.model(name)
        rows, late = (
            oracle.deduplicated(model, within=6 * SECOND)
            if name.startswith("once")
            else oracle.in_order(model)
        )
        wanted = {(*r.key, world.numbers[r.place]): (r.at, r.x) for r in rows}
        found = world.topic_rows(name)
        assert len(found) == len(wanted), "a row came out twice, or not at all"
        got = {(row["case"], row["n"]): (row["at"], row["x"]) for row in found}
        cases += sure(world, name, got, wanted)
        if name == "ordered":
            assert [row["n"] for row in found] == [world.numbers[r.place] for r in rows]
        sure_of_late(world, name, late, rows_kept=not name.endswith("drop"))
        sure_of_batch(world, name)
        assume(behind(late) >= 5)
    assert cases >= 40
    report(f"stream = oracle = batch, deduplicate and in_order: {cases} cases")
