"""Saved searches over a stream: what matches is what the log says, in whatever batches it is read."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from tests.flow.world import START_US, app_at, at
from tests.log.test_damage import maintain, seal

import penstock as ps
from penstock.app import reading
from penstock.app.graph import Graph
from penstock.app.runner import Runner
from penstock.app.verify import verify
from penstock.clock import ManualClock
from penstock.flow.search_match import Search
from penstock.flow.search_reference import search_reference

Say = Callable[[str], None]
WORDS = [
    "garden",
    "gardens",
    "house",
    "lake",
    "new",
    "york",
    "flat",
    "sunny",
    "old",
    "loft",
    "bright",
    "Straße",
]


def some_query(chance: random.Random) -> str:
    one, other = chance.choice(WORDS), chance.choice(WORDS)
    return chance.choice(
        [
            one, f"{one} {other}", f"{one} OR {other}", f"{one} NOT {other}", f'"{one} {other}"',
            f'"{one} {other}"~2', f"{one[:3]}*", f"{one}~1", f"({one}", f"nowhere:{one}",
            f"title:{one} price:[* TO {chance.randint(1, 900)}]",
        ]
    )  # fmt: skip


def written(app: ps.App, clock: ManualClock, chance: random.Random, *, steps: int) -> None:
    """Offers and searches by turns, often at one moment; searches change and go."""
    offers, saved = app.topics["offers"], app.topics["saved"]
    for _ in range(steps):
        if chance.random() < 0.5:
            rows = [{"id": f"s{chance.randrange(300)}", "query": some_query(chance)} for _ in range(9)]
            saved.append(rows, partition=chance.randrange(2))
            if chance.random() < 0.3:
                saved.delete({"id": f"s{chance.randrange(300)}"})
        else:
            title = " ".join(chance.choice(WORDS) for _ in range(5))
            moment = chance.choice([None, at(chance.uniform(-20, 20))])
            row: dict[str, Any] = {"title": title, "price": chance.choice([None, 100, 500]), "at": moment}
            offers.append([row, {**row, "at": at(0), "title": title.upper()}], partition=chance.randrange(2))
        clock.advance(chance.choice([0, 0, 0.2, 3]))


def table_of(app: ps.App, name: str) -> pa.Table:
    topic = app.log.topic(name)
    return pa.Table.from_batches(topic.read(), schema=topic.settings.read_schema)


def test_every_search_meets_the_events_that_came_while_it_was_in_force(
    home: Path, spark: SparkSession, report: Say
) -> None:
    chance, clock = random.Random(7), ManualClock(START_US)
    app = app_at("homes", home, clock)
    options: dict[str, Any] = {"partitions": 2, "durability": "os"}
    offers = app.topic(
        "offers", "title STRING, price BIGINT, at TIMESTAMP", event_time="at", lateness=5, **options
    )
    saved = app.topic("saved", "id STRING, query STRING", key="id", cleanup="compact", **options)

    @app.stream()
    def alerts() -> DataFrame:
        return ps.search(offers.stream(), queries=saved, fields=["title", "price"])

    graph = Graph(app, spark).analyse()
    for rows_max in (150, 400):
        written(app, clock, chance, steps=120)
        Runner(app, graph, rows_max=rows_max).once()
    events, searches = table_of(app, "offers"), table_of(app, "saved")
    dated = events.filter(events["at"].is_valid())  # those without a time are left out, and told
    wanted = search_reference(dated, searches, search=Search(("id",), ("title", "price")))
    columns = ["title", "price", "at", "query_id", "query_partition", "query_offset"]
    got = Counter(tuple(row.items()) for row in table_of(app, "alerts").select(columns).to_pylist())
    assert got == Counter(tuple(row.items()) for row in wanted.output.select(columns).to_pylist())
    left_out = {(row["topic"], row["partition"], row["offset"]): row for row in reading.late(app, "alerts")}
    unreadable = {("saved", row["_partition"], row["_offset"]) for row in wanted.misfits.to_pylist()}
    assert {place for place in left_out if place[0] == "saved"} == unreadable
    assert all(left_out[place]["row"]["query"] in left_out[place]["reason"] for place in unreadable)
    assert len(left_out) - len(unreadable) == len(events) - len(dated) > 20
    assert len(unreadable) > 50
    found = verify(app, graph, "alerts")
    assert found.verdict == "equal", (found.reason, found.differences[:3])
    cases = len({row["query_id"] for row in wanted.output.to_pylist()})
    assert cases >= 200
    report(f"stream = reference = batch, search: {cases} searches, {found.rows} matches")
    app.close()


def test_a_search_whose_old_version_was_compacted_away_cannot_be_verified(
    home: Path, spark: SparkSession
) -> None:
    app = ps.App("homes", home=home)
    offers = app.topic("offers", "title STRING")
    saved = app.topic("saved", "id STRING, query STRING", key="id", cleanup="compact")

    @app.stream()
    def alerts() -> DataFrame:
        return ps.search(offers.stream(), queries=saved, fields=["title"])

    saved.append({"id": "ann", "query": "garden"})
    offers.append({"title": "a garden"})
    saved.append({"id": "ann", "query": "lake"})
    graph = Graph(app, spark).analyse()
    Runner(app, graph).once()
    assert verify(app, graph, "alerts").verdict == "equal"
    seal(app.log, "saved")
    maintain(app.log, "saved", force=True)
    found = verify(app, graph, "alerts")
    assert found.verdict == "not verifiable"
    assert 'compaction has removed records of "saved"' in found.reason
    app.close()
