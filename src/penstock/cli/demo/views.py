"""The demo's Spark job: page views per page and five seconds, and carts that nobody checks out.

It runs as an actor of its own. At the end it reads what is left and compares both with their recomputation
from the log.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import penstock as ps
from penstock.cli.demo.actors import SCHEMA, TOPIC, TOPIC_OPTIONS, say
from penstock.opening import is_kafka

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

NAME = "views_per_page"
LEFT = "carts_left"
APP = "demo"
_REPORT_S = 0.5


def declare(home: str, address: str) -> ps.App:
    app = ps.App(APP, home=home, log=address if is_kafka(address) else None)
    page_views = app.topic(TOPIC, SCHEMA, **TOPIC_OPTIONS)

    @app.view(key=["page", "window"], name=NAME)
    def views_per_page() -> DataFrame:
        return ps.aggregate(page_views.stream(), by="page", window=ps.tumbling("5 seconds"), views=ps.count())

    @app.stream(name=LEFT)
    def carts_left() -> DataFrame:
        views, cart, checkout = page_views.stream(), ps.step("cart"), ps.step("checkout")
        return (
            ps.pattern(by="user_id")
            .first("cart", views, where=cart.page == "/cart")
            .then_not("checkout", views, where=checkout.page == "/checkout")
            .within("2 seconds")
            .emit(since=cart.at)
        )

    return app


def run(home: str, address: str, stopping: threading.Event) -> None:
    """Run until told to stop, then to the end, then prove it."""
    from penstock.app.graph import Graph
    from penstock.app.runner import Runner
    from penstock.app.verify import verify

    app = declare(home, address)
    graph = Graph(app, app.start_spark()).analyse()
    runner = Runner(app, graph)
    runner.start()
    while any(query.stored is None for query in graph.queries()) and not stopping.wait(_REPORT_S):
        runner.look()  # what is compiled once is, before others take the machine
    say(ready=True)
    while not stopping.wait(_REPORT_S):
        runner.look()
        say(view=_seen(app))
    runner.stop()
    Runner(app, graph).once()
    found = [verify(app, graph, name) for name in (NAME, LEFT)]
    say(view=_seen(app))
    say(
        verified={one.name: {"verdict": one.verdict, "rows": one.rows, "late": one.left_out} for one in found}
    )
    app.close()


def _seen(app: ps.App) -> dict[str, Any]:
    """The newest window, and how many there are."""
    from penstock.app import reading

    if app.store.progress(NAME) is None:
        return {"windows": 0, "final": 0, "late": 0, "newest": None, "counts": {}, "left": 0}
    rows = list(app.read(NAME))
    newest = max((row["window_start"] for row in rows), default=None)
    late = reading.late_count(app, [NAME])
    return {
        "windows": len({row["window_start"] for row in rows}),
        "final": len({row["window_start"] for row in rows if row["final"]}),
        "late": late,
        "newest": newest and newest.strftime("%H:%M:%S"),
        "counts": {row["page"]: row["views"] for row in rows if row["window_start"] == newest},
        "left": sum(end for _, end in app.log.topic(LEFT).bounds().values()),
    }
