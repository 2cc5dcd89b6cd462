"""The kernel of patterns against the reference: random patterns over random events in random batches."""

from __future__ import annotations

import math
import random
from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from tests.flow.operators.events import collected
from tests.flow.operators.pattern_world import (
    FOREVER,
    MS,
    Event,
    Turn,
    by_user,
    compiled,
    emitted,
    event,
    inputs,
    reference,
)

from penstock.flow import pattern_reference
from penstock.flow.expressions import Expression, matched_at, step
from penstock.flow.pattern import Definition, PatternBuilder, any_of, pattern
from penstock.flow.pattern_columns import can_matter

NAMES = ["one", "two", "three", "four"]


@st.composite
def conditions(
    draw: st.DrawFn, name: str, before: list[tuple[str, bool]], *, place: int
) -> Expression | None:
    """About the event itself, and sometimes about those before it; `before` says which steps are repeated."""
    own, number = step(name), draw(st.integers(0, 2))
    found: list[Expression] = [own.x >= number, own.x != number, own.x.is_null(), own.x.is_in([0, 2])]
    for earlier, repeated in before:
        other = step(earlier).last() if repeated else step(earlier)
        found += [own.x != other.x, (own.x >= other.x) | own.y.is_null(), own.x + other.x < number + 2]
        found += [own.y <= other.y, step(earlier).count() > number, own.at - other.at > own.at - own.at]
    if not name.startswith("not"):
        found += [own.count() <= number + 1, own.first().x == own.x]
        found += [own.x > own.previous().x, own.x != own.previous().x] if place else []
    first, second = draw(st.sampled_from(found)), draw(st.sampled_from(found))
    return draw(st.sampled_from([None, None, first, first, first & second]))


@st.composite
def definitions(draw: st.DrawFn) -> Definition:
    found: PatternBuilder = pattern(by="user")
    before: list[tuple[str, bool]] = []
    for place, name in enumerate(NAMES[: draw(st.integers(1, 4))]):
        among = draw(
            st.sampled_from(["a", "a", "b", any_of("a", "b"), any_of(("b", step(name).x == 1), "a")])
        )
        where = draw(conditions(name, before, place=place))
        strict = "strict" if draw(st.integers(0, 3)) == 0 else "relaxed"
        add = found.then if place else found.first
        found = add(name, among, where=where, contiguity=strict)  # type: ignore[arg-type]
        repeat = draw(st.sampled_from([None, None, None, ("times", 2), ("at_least", 1), ("at_least", 2)]))
        if repeat:
            found = getattr(found, repeat[0])(repeat[1])
        before.append((name, repeat is not None))
        if draw(st.integers(0, 3)) == 0:
            absent = f"not_{name}"
            found = found.then_not(
                absent, draw(st.sampled_from(["a", "b"])), where=draw(conditions(absent, before, place=place))
            )
    named = draw(st.sampled_from([name for name, _ in before]))
    policies = ["skip_past_last", "skip_to_next", "no_skip", f"skip_to_last:{named}"]
    policies += [f"skip_to_first:{named}"] if named != "one" else []
    found = found.within(f"{draw(st.integers(2, 30))} ms").after_match(draw(st.sampled_from(policies)))
    found = found.timeout() if draw(st.booleans()) else found
    columns: dict[str, Expression] = {"known": matched_at(), "x": step("one").first().x * 2}
    for name, _ in before:
        columns |= {name: step(name).collect("_offset"), f"{name}_last": step(name).last().at}
    return found.defined(**columns)


def turns(seed: int) -> list[Turn]:
    """Events that are all later than the watermark of the batch before them, many of them at one time.

    Out of a seed: drawn one by one they are ten times as slow, and most are all alike.
    """
    chance = random.Random(seed)
    found: list[Turn] = []
    watermark, number = 0, 0
    for _ in range(chance.randint(1, 5)):
        rows: list[tuple[int, Event]] = []
        for _ in range(chance.randint(0, 12)):
            each = event(
                chance.choice("aab"),
                watermark + chance.randint(1, 12),
                chance.choice(["ann", "ann", "ann", "bob", None]),
                x=chance.choice([None, 0, 1, 2]),
                y=chance.choice([None, 0.5, 1.5, math.nan]),
            )
            rows.append((number, each))
            number += 1
        watermark += chance.randint(0, 15)
        found.append(Turn(chance.sample(rows, len(rows)), watermark * MS))
    return found


@settings(max_examples=500, deadline=None)
@given(definition=definitions(), seed=st.integers(0, 2**32))
def test_the_kernel_finds_what_the_reference_finds(definition: Definition, seed: int) -> None:
    found = turns(seed)
    every = [pair for turn in found for pair in turn.events]
    # The order within a key is compared too: what was known first comes first.
    assert emitted(definition, found) == reference(definition, every, found[-1].watermark_us)
    assert emitted(definition, [*found, Turn([], FOREVER)]) == reference(definition, every, FOREVER)


def test_spark_runs_the_reference_key_by_key(spark: SparkSession) -> None:
    definition = (
        pattern(by="user").first("one", "a")
        .then("two", any_of("b", "a"), where=step("two").x > step("one").x)
        .then_not("three", "b", where=step("three").x.is_null()).within("5 ms").timeout()
        .defined(known=matched_at(), x=step("two").x, all=step("one").collect("_offset"),
              took=step("two").at - step("one").at)
    )  # fmt: skip
    events = [
        (number, event("ab"[number % 2], number * 7 % 40, ["ann", "bob", None][number % 3], x=number % 5))
        for number in range(60)
    ]
    tables = _whole_tables(definition, events)
    found = pattern_reference.batch(
        compiled(definition), [spark.createDataFrame(each) for each in tables], 35 * MS
    )
    wanted = emitted(definition, [Turn(events, 35 * MS)])
    assert len(wanted) > 10
    assert _sorted(by_user(collected(found))) == _sorted(wanted)


def test_spark_leaves_out_what_fits_no_step_and_nothing_else(spark: SparkSession) -> None:
    rows = [(number, event("a", number, x=x)) for number, x in enumerate([None, 0, 1, 2, 3])]
    one = pattern(by="user").first("one", "a", where=step("one").x == 0)
    two = one.then("two", "a", where=(step("two").x > 1) & (step("two").x > step("one").x))

    def kept(built: PatternBuilder) -> list[int] | None:
        definition = built.within("5 ms").defined(x=step("one").x)
        column = can_matter(compiled(definition), 0)
        (table,) = inputs(definition, rows)
        return (
            None
            if column is None
            else [row["_offset"] for row in collected(spark.createDataFrame(table).where(column))]
        )

    assert kept(two) == [1, 3, 4]
    assert kept(two.then("any", "a")) is None
    assert kept(one.then("next", "a", where=step("next").x == 1, contiguity="strict")) is None


def _whole_tables(definition: Definition, events: list[tuple[int, Event]]) -> list[pa.Table]:
    return [
        each.append_column("extra", pa.nulls(len(each), pa.string())) for each in inputs(definition, events)
    ]


def _sorted(rows: list[dict[str, Any]]) -> list[str]:
    return sorted(str(row) for row in rows)
