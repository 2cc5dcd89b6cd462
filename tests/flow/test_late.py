"""What late means, by example: each pair of a row and a window is counted, diverted or dropped."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from tests.flow.world import World, app_at, at

import penstock as ps
from penstock.app import reading
from penstock.app.graph import Graph
from penstock.app.runner import Runner

Scene = Callable[..., World]


@pytest.fixture
def scene(home: Path, spark: SparkSession) -> Scene:
    """One topic, and one view "counts" of the given kind of window over it."""

    def make(window: Any, *, lateness_s: float = 0, **options: Any) -> World:
        world = World(home, 1, partitions=1, lateness_s=lateness_s)

        @world.app.view(key=["window"])
        def counts() -> DataFrame:
            return ps.aggregate(world.topic.stream(), window=window, many=ps.count(), **options)

        world.analyse(spark)
        return world

    return make


def append(world: World, *seconds: float | None) -> None:
    """One after the other: each meets the watermark of those before it."""
    for each in seconds:
        world.append([{"at": None if each is None else at(each)}])
        world.clock.advance(0.01)


def windows(world: World) -> list[tuple[float, float, int]]:
    """(start, end, many), in seconds."""
    return [
        (_seconds(row["window_start"]), _seconds(row["window_end"]), row["many"])
        for row in world.app.read("counts")
    ]


def left_out(world: World) -> list[tuple[float | None, float | None, float, str]]:
    """(time of the row, end of the window, watermark, reason) of each late pair."""
    return [
        (
            row["row"] and row["row"]["at"] and _seconds(row["row"]["at"]),
            row["window_end"] and _seconds(row["window_end"]),
            _seconds(row["watermark"]),
            row["reason"],
        )
        for row in reading.late(world.app, "counts")
    ]


def _seconds(moment: datetime) -> float:
    return (moment - at(0)) / timedelta(seconds=1)


def test_a_row_can_be_counted_in_three_windows_and_late_for_one(scene: Scene) -> None:
    world = scene(ps.hopping(40, 10))
    append(world, 85, 75)
    world.once()
    assert windows(world) == [(50, 90, 2), (60, 100, 2), (70, 110, 2), (80, 120, 1)]
    assert left_out(world) == [(75, 80, 85, "late")]
    assert world.verify("counts").verdict == "equal"


@pytest.mark.parametrize(("lateness_s", "is_late"), [(1, True), (2, False)])
def test_eight_seconds_past_is_late_after_ten_past_unless_lateness_allows_it(
    scene: Scene, lateness_s: int, is_late: bool
) -> None:
    world = scene(ps.tumbling(1), lateness_s=lateness_s)
    append(world, 5, 10, 8)
    world.once()
    assert left_out(world) == ([(8, 9, 9, "late")] if is_late else [])
    assert ((8, 9, 1) in windows(world)) is not is_late


def test_rows_of_one_append_are_not_late_by_each_other(scene: Scene) -> None:
    world = scene(ps.tumbling(10))
    world.append([{"at": at(100)}, {"at": at(1)}])
    world.once()
    assert windows(world) == [(0, 10, 1), (100, 110, 1)]
    assert left_out(world) == []


def test_corrections_are_numbered_and_what_is_beyond_the_horizon_is_diverted(scene: Scene) -> None:
    world = scene(ps.tumbling(10), late="correct", correct_for="30 seconds")
    append(world, 5, 12)
    world.once()
    append(world, 6)
    world.once()
    assert [(row["many"], row["final"], row["revision"]) for row in world.app.read("counts")] == [
        (2, True, 1),
        (1, False, 0),
    ]
    append(world, 7, 45, 3)
    world.once()
    assert [(row["many"], row["revision"]) for row in world.app.read("counts")] == [(3, 2), (1, 0), (1, 0)]
    assert left_out(world) == [(3, 10, 45, "late")]
    assert world.verify("counts").verdict == "equal"


def test_a_closed_session_is_opened_again_and_numbered(scene: Scene) -> None:
    world = scene(ps.session(10), late="correct", correct_for="1 minute")
    append(world, 0, 30)
    world.once()
    append(world, 5)
    world.once()
    found = {(_seconds(row["window_start"]), row["many"], row["final"]) for row in world.app.read("counts")}
    assert found == {(0, 2, True), (30, 1, False)}
    assert [row["revision"] for row in world.app.read("counts")] == [1, 0]
    assert left_out(world) == []
    assert world.verify("counts").verdict == "equal"


def test_a_dropped_row_leaves_its_place_and_nothing_else(scene: Scene) -> None:
    world = scene(ps.tumbling(10), late="drop")
    append(world, 5, 20, 6)
    world.once()
    (row,) = reading.late(world.app, "counts")
    assert row["row"] is None
    assert (row["partition"], row["offset"], _seconds(row["window_end"])) == (0, 2, 10)
    assert windows(world) == [(0, 10, 1), (20, 30, 1)]
    assert world.verify("counts").verdict == "equal"


def test_a_time_far_ahead_or_none_is_diverted_and_drags_no_watermark(scene: Scene) -> None:
    world = scene(ps.tumbling(10))
    append(world, 5, 86_400, None, 6)
    world.once()
    assert windows(world) == [(0, 10, 2)]
    assert [(time, end, reason) for time, end, _, reason in left_out(world)] == [
        (86_400, None, "no usable event time"),
        (None, None, "no usable event time"),
    ]
    assert not world.app.read("counts")[0]["final"]


def test_a_declared_watermark_closes_windows_and_makes_what_still_comes_late(scene: Scene) -> None:
    world = scene(ps.tumbling(10), lateness_s=30)
    append(world, 5)
    world.once()
    assert not world.app.read("counts")[0]["final"]
    world.declare(at(10))
    world.clock.advance(1)
    append(world, 7, 11)
    world.once()
    assert [(row["many"], row["final"]) for row in world.app.read("counts")] == [(1, True), (1, False)]
    assert left_out(world) == [(7, 10, 10, "late")]
    assert world.verify("counts").verdict == "equal"


def test_an_idle_topic_closes_its_windows_after_idle_after(scene: Scene) -> None:
    world = scene(ps.tumbling(10), lateness_s=5, emit="final")
    world.clock.advance(5)
    append(world, 5)
    world.clock.advance(18)
    world.once(ticks=True)
    assert len(world.app.read("counts")) == 0, "idle_after is 20 seconds"
    world.clock.advance(5)
    world.once(ticks=True)
    assert windows(world) == [(0, 10, 1)]
    append(world, 7)
    world.once(ticks=True)
    # The clock stops where the last window must have closed: 5 s, size, lateness and a second more. The
    # watermark is that less the lateness.
    assert left_out(world) == [(7, 10, 16, "late")]
    assert world.verify("counts").verdict == "equal"


def test_a_device_an_hour_wrong_and_hours_offline_counts_when_it_happened(
    home: Path, spark: SparkSession
) -> None:
    world = World(home, 1)  # for its clock
    app = app_at("devices", home, world.clock)
    readings = app.topic(
        "readings", "device STRING, occurred TIMESTAMP, sent TIMESTAMP",
        event_time=ps.corrected_time("occurred", "sent"), lateness="4 hours",
    )  # fmt: skip

    @app.view(key="window")
    def per_minute() -> DataFrame:
        return ps.aggregate(readings.stream(), window=ps.tumbling("1 minute"), many=ps.count())

    hour = 3_600
    world.clock.advance(3 * hour + 5)
    readings.append({"device": "right", "occurred": at(3 * hour + 4), "sent": at(3 * hour + 5)})
    world.clock.advance(1)
    # Occurred at 10:00:06, sent when it was back at 13:00:06; its clock says an hour more.
    readings.append({"device": "wrong", "occurred": at(6 + hour), "sent": at(6 + 4 * hour)})
    # Sent before it occurred: an absurd clock.
    readings.append({"device": "absurd", "occurred": at(6 + 4 * hour), "sent": at(6 + hour)})
    Runner(app, graph := Graph(app, spark).analyse()).once()
    found = [(_seconds(row["window_start"]), row["many"]) for row in app.read("per_minute")]
    assert found == [(0, 1), (3 * hour, 1)]
    assert [row["row"]["device"] for row in reading.late(app, "per_minute")] == ["absurd"]
    assert set(graph.analysed) == {"per_minute"}
