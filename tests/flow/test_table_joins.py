"""Events and tables: the stream, a naive model and verify agree on every row."""

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
from tests.flow.world import SECOND, us
from tests.flow.world_of_tables import TableWorld, TwoTables, Version, newest

import penstock as ps

Say = Callable[[str], None]
WAIT_S = 6


def enriched(world: TableWorld, name: str, *, wait_s: int = 0) -> tuple[Counter[Any], list[oracle.Late]]:
    """(case, event, version, when that was certain)."""
    model = world.model(name)
    rows, late = model.rows_in_time()
    events = [row for row in rows if row.partition < world.partitions]
    versions = world.versions(model)
    found: Counter[Any] = Counter()
    for event in events:
        assert event.at is not None
        known = versions.get((event.key[0], event.id), [])
        due, version = awaited(known, event.at, event.at + wait_s * SECOND)
        if model.out(due):
            found[*event.key, world.numbers[event.place], version and version.place, due] += 1
    return found, [each for each in late if each.place[0] < world.partitions]


def diverted(
    world: TableWorld, found: Counter[Any], late: list[oracle.Late]
) -> tuple[Counter[Any], list[oracle.Late]]:
    """Events without a row are among the late ones."""
    places, met = {number: place for place, number in world.numbers.items()}, world.model("diverting").met
    missing = [places[key[1]] for key in found if key[2] is None]
    late = [*late, *(oracle.Late(place, None, met[place], "no row in users") for place in missing)]
    return Counter({key: many for key, many in found.items() if key[2] is not None}), late


def awaited(known: list[Version], at: int, end: int) -> tuple[int, Version | None]:
    """When a version is valid, from `at` on, and which."""
    for moment in sorted({at, *(v.start for v in known if at < v.start <= end)}):
        valid = [version for version in known if version.start <= moment]
        newest = max(valid, key=lambda v: (v.start, v.arrival), default=None)
        if newest and not newest.deleted:
            return moment, newest
    return end, None


@pytest.mark.timeout(600)
@one_log
@given(seed=seeds)
def test_each_event_meets_the_version_valid_at_its_time(
    home: Path, spark: SparkSession, report: Say, seed: int
) -> None:
    world = TableWorld(fresh(home), seed)

    def define(name: str, **options: Any) -> None:
        @world.app.stream(name=name)
        def stream() -> DataFrame:
            on = {"case": "case", "id": "id"}
            return ps.enrich(world.topic.stream(), world.table, on=on, **options)

    define("plain")
    define("diverting", missing="divert")
    define("waiting", missing=f"wait {WAIT_S} seconds", late="drop")
    world.live(spark, appends=90)
    cases = 0
    for name, wait_s in (("plain", 0), ("diverting", 0), ("waiting", WAIT_S)):
        wanted, late = enriched(world, name, wait_s=wait_s)
        if name == "diverting":
            wanted, late = diverted(world, wanted, late)
        got = Counter(
            (
                row["case"], row["n"], None if row["version_offset"] is None
                else (world.partitions + row["version_partition"], row["version_offset"]),
                row["enriched_at"] if wait_s else row["at"],
            )
            for row in world.topic_rows(name)
        )  # fmt: skip
        assert got == wanted, (name, list((got - wanted).items())[:3], list((wanted - got).items())[:3])
        assert sum(key[2] is not None for key in wanted) > 50
        assert (sum(key[2] is None for key in wanted) > 20) == (name != "diverting")
        cases += len({(key[0], key[1]) for key in wanted})
        assume(behind(late) >= 5)
        sure_of_late(world, name, late, rows_kept=name != "waiting")
        sure_of_batch(world, name)
    assert cases >= 200
    report(f"stream = model = batch, enrich: {cases} events")


def changes_of(known: list[Version]) -> list[tuple[str, Any, Any]]:
    """One by one as they came: a version that begins before the newest one changes nothing."""
    found: list[tuple[str, Any, Any]] = []
    row: Any = None
    begun: int | None = None
    for version in known:
        if begun is not None and version.start < begun:
            continue
        before, begun = row, version.start
        row = None if version.deleted else version.row["x"]
        if before is not None or row is not None:
            found.append(("delete" if row is None else "insert" if before is None else "update", before, row))
    return found


@pytest.mark.timeout(600)
@one_log
@given(seed=seeds)
def test_joined_tables_are_the_join_of_their_newest_rows(
    home: Path, spark: SparkSession, report: Say, seed: int
) -> None:
    world = TwoTables(fresh(home), seed)

    def define(name: str, **options: Any) -> None:
        @world.app.view(key="order", name=name)
        def view() -> DataFrame:
            on = {"case": "case", "id": "id"}
            return ps.join_tables(world.orders, world.table, on=on, **options)

    define("inner")
    define("left", how="left")

    @world.app.stream(key="order")
    def changes() -> DataFrame:
        return world.orders.changes()

    world.live(spark, appends=300)
    cases = 0
    for name in ("inner", "left"):
        model = world.model(name)
        users = world.versions(model, first=world.partitions)
        wanted = {}
        for (order,), known in world.versions(model, first=0, key=("order",)).items():
            row = newest(known)
            user = row and newest(users.get((row["case"], row["id"]), []))
            if row and (user or name == "left"):
                wanted[order] = (
                    row["id"],
                    row["x"],
                    user and user["x"],
                    user and user["at"] and us(user["at"]),
                )
        got = {
            row["order"]: (row["id"], row["x"], row["x_users"], row["at_users"]) for row in world.rows(name)
        }
        assert got == wanted
        cases += len(wanted)
        sure_of_batch(world, name)
    told: dict[int, list[Any]] = {}
    for row in world.app.log.topic("changes").rows():
        images = (row[side] and row[side]["x"] for side in ("before", "after"))
        told.setdefault(row["order"], []).append((row["op"], *images))
    versions = world.versions(world.model("changes"), first=0, key=("order",))
    assert told == {order: found for (order,), known in versions.items() if (found := changes_of(known))}
    sure_of_batch(world, "changes")
    assert cases + len(told) >= 200
    report(f"stream = model = batch, join_tables: {cases} rows, changes: {len(told)} keys")
