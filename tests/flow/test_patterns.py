"""Patterns as streams: the kernel, batch by batch, a naive model and verify agree on every match."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from pyspark.sql import DataFrame, SparkSession
from tests.flow import oracle
from tests.flow.test_stream_equals_batch import behind, fresh, one_log, seeds, sure_of_batch, sure_of_late
from tests.flow.world import SECOND, World

import penstock as ps

Say = Callable[[str], None]
WITHIN = 8 * SECOND


def by_case(rows: list[oracle.Record]) -> dict[int, list[oracle.Record]]:
    """Each case's events in the order of their time."""
    found: dict[int, list[oracle.Record]] = {}
    for row in sorted(rows, key=lambda r: r.in_time):
        found.setdefault(row.key[0], []).append(row)
    return found


def at(record: oracle.Record) -> int:
    assert record.at is not None
    return record.at


def threes(rows: list[oracle.Record]) -> list[tuple[int, int]]:
    """When three high ones in a row began and ended; no event is in two of them."""
    found: list[tuple[int, int]] = []
    begun: list[list[oracle.Record]] = []
    for row in (row for row in rows if row.x is not None and row.x >= 6):
        begun = [[*some, row] for some in begun if at(row) - at(some[0]) <= WITHIN] + [[row]]
        whole = next((some for some in begun if len(some) == 3), None)
        if whole is not None:
            found.append((at(whole[0]), at(row)))
            begun = []
    return found


def unanswered(rows: list[oracle.Record], closed: Callable[[int], bool]) -> list[tuple[int, int]]:
    """Every a without a b in time after it, known when the time is over."""
    found = []
    for place, row in enumerate(rows):
        answers = [b for b in rows[place + 1 :] if b.id == "b" and at(b) - at(row) <= WITHIN]
        if row.id == "a" and not answers and closed(at(row) + WITHIN):
            found.append((at(row), at(row) + WITHIN))
    return found


@pytest.mark.timeout(600)
@one_log
@given(seed=seeds)
def test_matches_are_those_of_a_naive_model_and_of_verify(
    home: Path, spark: SparkSession, report: Say, seed: int
) -> None:
    world = World(fresh(home), seed, cases=110)
    x, since = ps.step("high").x, ps.step("high").first().at

    @world.app.stream()
    def three_high() -> DataFrame:
        high = ps.pattern(by="case").first("high", world.topic.stream(), where=x >= 6).times(3)
        return high.within(8).emit(since=since)

    @world.app.stream()
    def no_answer() -> DataFrame:
        stream = world.topic.stream()
        asked = ps.pattern(by="case", late="drop").first("a", stream, where=ps.step("a").id == "a")
        silent = asked.then_not("b", stream, where=ps.step("b").id == "b").within(8)
        return silent.after_match("no_skip").emit(since=ps.step("a").at)

    @world.app.stream()
    def answered() -> DataFrame:
        """A condition between steps: only verify knows better."""
        stream, a, b = world.topic.stream(), ps.step("a"), ps.step("b")
        asked = ps.pattern(by="case").first("a", stream, where=a.id == "a")
        grown = asked.then("b", stream, where=(b.id == "b") & (b.x > a.x))
        return (
            grown.within(8)
            .after_match("skip_to_next")
            .timeout()
            .emit(since=ps.step("a").at, more=ps.step("b").x - ps.step("a").x)
        )

    @world.app.stream()
    def several_low() -> DataFrame:
        """Only verify knows better."""
        low = ps.pattern(by="case").first("low", world.topic.stream(), where=ps.step("low").x <= 4)
        return low.at_least(2).within(8).emit(since=ps.step("low").first().at, many=ps.step("low").count())

    world.live(spark, appends=160)
    cases = 0
    for name in world.app.definitions:
        model = world.model(name)
        rows, late = model.rows_in_time()
        found = world.topic_rows(name)
        got = Counter((row["case"], row["since"], row["matched_at"]) for row in found)
        if name in ("three_high", "no_answer"):
            wanted: Counter[Any] = Counter()
            for case, events in by_case(rows).items():
                spans = threes(events) if name == "three_high" else unanswered(events, model.out)
                wanted.update((case, *span) for span in spans if model.out(span[1]))
            assert got == wanted, (name, list((got - wanted).items())[:3], list((wanted - got).items())[:3])
        elif name == "answered":
            assert {row["timed_out"] for row in found} == {False, True}
        cases += len({row["case"] for row in found})
        assume(behind(late) >= 5)
        sure_of_late(world, name, late, rows_kept=name != "no_answer")
        sure_of_batch(world, name)
    report(f"stream = model = batch, patterns: {cases} cases")
    assert cases >= 200
