"""A log read again gives the same rows and calls the same ones late, in whatever batches it is read."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from tests.flow import oracle
from tests.flow.world import SECOND, START_US, World, aggregates, app_at, at, late_pairs, plain

import penstock as ps
from penstock.app.app import AppTopic
from penstock.app.graph import Graph
from penstock.app.runner import Runner
from penstock.flow import history


def define(app: ps.App, topic: AppTopic, suffix: str) -> None:
    @app.view(key=["case", "window"], name=f"windows{suffix}")
    def windows() -> DataFrame:
        return ps.aggregate(topic.stream(), by="case", window=ps.hopping(12, 6), **aggregates())

    @app.view(key=["case", "window"], name=f"sessions{suffix}")
    def sessions() -> DataFrame:
        return ps.aggregate(topic.stream(), by="case", window=ps.session(3), **aggregates())


def rows(app: ps.App, name: str) -> list[dict[str, Any]]:
    return sorted((plain(row) for row in app.read(name)), key=lambda row: (row["case"], row["window_start"]))


def test_a_replay_of_skewed_partitions_finds_the_same_rows_late(home: Path, spark: SparkSession) -> None:
    """Ten records in partition 0 for one in partition 1: row limits per partition would lose most of them."""
    world = World(home, 21)
    define(world.app, world.topic, "")
    world.analyse(spark)
    for rows_max in (1_000_000, 70, 150):
        world.write(50)
        world.once(rows_max=rows_max)

    other = app_at("other", home, world.clock)
    define(other, world.declare_topic(other), "_again")
    graph = Graph(other, spark).analyse()
    Runner(other, graph, rows_max=40).once()
    for name in ("windows", "sessions"):
        again = f"{name}_again"
        live, replayed = (history.batches(world.app.log, f"{each}.batches") for each in (name, again))
        assert len(replayed) > len(live) + 3, "the replay was cut as the live run was"
        assert Counter(late_pairs(other, again)) == Counter(late_pairs(world.app, name))
        assert rows(other, again) == rows(world.app, name)
        assert len(late_pairs(other, again)) > 20


def test_a_lost_checkpoint_is_rebuilt_with_the_late_rows_it_had(home: Path, spark: SparkSession) -> None:
    """Idle ticks made rows late that a second reading would take: the record of batches keeps them so."""
    world = World(home, 22)
    define(world.app, world.topic, "")
    world.analyse(spark)
    world.write(30)
    world.once(rows_max=60)
    world.clock.advance(60)
    world.once(ticks=True)
    newest = max(r.at for r in world.records if r.at is not None and r.at < world.clock.now_us())
    place = (0, sum(r.partition == 0 for r in world.records))
    world.append([{"at": at((newest - START_US) / SECOND + 2)}])  # newer than all, yet the clock went on
    world.write(30)
    world.once()
    before = {name: Counter(world.late(name)) for name in ("windows", "sessions")}
    assert all(any(pair.place == place for pair in late) for late in before.values())

    for query in world.graph.queries():
        query.forget_state()
    world.write(20)
    world.once()
    for name, late in before.items():
        assert not late - Counter(world.late(name)), "a late pair is gone"
        assert Counter(world.late(name)) == Counter(_expected_late(world, name))
        assert world.verify(name).verdict == "equal"


def _expected_late(world: World, name: str) -> list[oracle.Late]:
    model = world.model(name)
    if name == "windows":
        return oracle.windowed(model, size=12 * SECOND, hop=6 * SECOND)[2]
    return oracle.sessions(model, gap=3 * SECOND)[1]
