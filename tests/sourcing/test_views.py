"""Views of events: another question, or another answer, is replayed while the view that is there serves."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from tests.sourcing.carts import Cart, ItemAdded

import penstock as ps
from penstock.app import reading, rebuild
from penstock.app.aggregates import AppAggregates
from penstock.app.graph import Graph
from penstock.app.runner import Runner
from penstock.sourcing import Receipt

Counts = dict[str, int]


def shop(home: Path, *, doubled: bool = False, another: bool = False) -> AppAggregates[Cart]:
    app = ps.App("shop", home=home)
    carts = app.aggregates("carts", Cart)

    def added() -> DataFrame:
        return ps.aggregate(carts.stream(ItemAdded), by="item", n=ps.sum("quantity"))

    @app.view(key="item")
    def per_item() -> DataFrame:
        counted = added()
        return counted.withColumn("n", counted.n * 2) if doubled else counted

    if another:
        app.view(key="item", name="per_item_too")(added)
    return carts


def run(carts: AppAggregates[Cart], spark: SparkSession) -> Graph:
    carts.publish()
    graph = Graph(carts.app, spark).analyse()
    Runner(carts.app, graph).once()
    return graph


def counts(app: ps.App, view: str = "per_item", after: Receipt | None = None) -> Counts:
    return {row["item"]: row["n"] for row in app.read(view, after=after)}


@contextmanager
def read_meanwhile(app: ps.App) -> Iterator[list[Counts]]:
    """What somebody else finds in the view, again and again, while its successor is being made."""
    found: list[Counts] = []
    over = threading.Event()

    def read() -> None:
        while not over.wait(0.01):
            rows = counts(app)
            if any(rebuild.SUFFIX in topic for topic in app.log.topics()) and not over.is_set():
                found.append(rows)

    thread = threading.Thread(target=read)
    thread.start()
    try:
        yield found
    finally:
        over.set()
        thread.join()


def test_events_are_replayed_into_a_new_view_while_the_old_one_serves(
    home: Path, spark: SparkSession
) -> None:
    carts = shop(home)
    for number in range(20):
        carts[f"cart {number % 3}"].add("apple" if number % 2 else "pear", number)
    run(carts, spark)
    assert (old := counts(carts.app)) == {"apple": 100, "pear": 90}

    more = shop(home, another=True)
    receipt = more["cart 1"].add("plum", 5)
    run(more, spark)
    assert counts(more.app, after=receipt) == {**old, "plum": 5}, "it has gone on"
    assert counts(more.app, "per_item_too", after=receipt) == counts(more.app)

    changed = shop(home, doubled=True)
    graph = Graph(changed.app, spark).analyse()
    with read_meanwhile(ps.App("shop", home=home)) as seen:
        newer = rebuild.prepare(changed.app, graph, "per_item")
    assert seen, "nobody could read"
    assert all(rows == {**old, "plum": 5} for rows in seen)
    assert counts(changed.app) == {**old, "plum": 5}, "until the swap"
    newer.swap()
    reading.catch_up(changed.app, reading.spec(changed.app, "per_item"))  # as `penstock rebuild` does
    assert counts(changed.app) == {"apple": 200, "pear": 180, "plum": 10}
    assert changed.book.recorded() == 21, "nothing was recorded for it"
    for each in (carts, more, changed):
        each.app.close()
