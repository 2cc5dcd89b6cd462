"""Two streams joined within a range of time: the stream, a naive model and verify agree on every row."""

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
AFTER_S, BEFORE_S = 6, 2


def joined(
    model: oracle.Model, lefts: list[oracle.Record], rights: list[oracle.Record], how: str
) -> Counter[Any]:
    """(case, left record, right record, when that was known), NULL for nobody."""
    found: Counter[Any] = Counter()
    met: set[tuple[int, int]] = set()
    for left in lefts:
        for right in rights:
            assert left.at is not None
            assert right.at is not None
            near = left.at - BEFORE_S * SECOND <= right.at <= left.at + AFTER_S * SECOND
            if near and (left.key, left.id) == (right.key, right.id) and left.place != right.place:
                found[*left.key, left.place, right.place, max(left.at, right.at)] += 1
                met |= {left.place, right.place}
    for rows, side, range_s in ((lefts, "left", AFTER_S), (rights, "right", BEFORE_S)):
        for row in rows if how in (side, "full") else ():
            assert row.at is not None
            due = row.at + range_s * SECOND
            if row.place not in met and model.out(due):
                place = (row.place, None) if side == "left" else (None, row.place)
                found[*row.key, *place, due] += 1
    return found


@pytest.mark.timeout(600)
@one_log
@given(seed=seeds)
def test_every_pair_and_everybody_without_a_partner_comes_once(
    home: Path, spark: SparkSession, report: Say, seed: int
) -> None:
    world = World(fresh(home), seed, topics=("events", "others"), cases=60)

    def define(name: str, **options: Any) -> None:
        @world.app.stream(name=name)
        def stream() -> DataFrame:
            left, right = (topic.stream() for topic in world.declared_topics)
            return ps.join_within(left, right, on=["case", "id"], after=AFTER_S, before=BEFORE_S, **options)

    for how in ("inner", "left", "right", "full"):
        define(how, how=how)
    define("dropping", how="left", late="drop")

    @world.app.stream()
    def itself() -> DataFrame:
        one = world.topic.stream()
        return ps.join_within(one, one, on=["case", "id"], after=AFTER_S, before=BEFORE_S)

    world.live(spark, appends=140)
    places = {number: place for place, number in world.numbers.items()}
    cases = 0
    for name in world.app.definitions:
        model = world.model(name)
        rows, late = model.rows_in_time()
        lefts = [row for row in rows if row.partition < world.partitions]
        rights = lefts if name == "itself" else [row for row in rows if row.partition >= world.partitions]
        wanted = joined(model, lefts, rights, {"dropping": "left", "itself": "inner"}.get(name, name))
        got = Counter(
            (row["case"], places.get(row["n"]), places.get(row["n_right"]), row["joined_at"])
            for row in world.topic_rows(name)
        )
        assert got == wanted, (name, list((got - wanted).items())[:3], list((wanted - got).items())[:3])
        cases += len({key[0] for key in wanted})
        assume(behind(late) >= 5)
        sure_of_late(world, name, late, rows_kept=name != "dropping")
        sure_of_batch(world, name)
    assert cases >= 200
    report(f"stream = model = batch, join_within: {cases} cases")
