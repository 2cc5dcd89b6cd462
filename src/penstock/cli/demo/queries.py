"""The shop's Spark job: every view and stream, told about once a second, and proved at the end."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from penstock.cli.demo.actors import say
from penstock.cli.demo.shop import app

if TYPE_CHECKING:
    from penstock.app.graph import Graph
    from penstock.app.published import Publisher
    from penstock.app.runner import Runner
    from penstock.app.status import Status, Watch

EVERY = "2 seconds"
_LOOK_S = 0.2
_TELL_S = 1.0
_DRAIN_S = 90.0


def run(_name: str, stopping: threading.Event) -> None:
    """Run until told to stop, then to the end of what there is, then prove it."""
    from penstock.app.graph import Graph
    from penstock.app.published import Publisher, Starting
    from penstock.app.runner import Runner
    from penstock.app.status import Watch

    with Starting(app):
        say(stage="Spark is starting")
        session = app.start_spark()
        say(stage="definitions are analysed")
        graph = Graph(app, session).analyse()
    say(stage="queries are starting", ready=True)
    runner = Runner(app, graph, every=EVERY)
    watch = Watch(runner)
    publisher = Publisher(runner, watch)
    runner.start()
    _go_on(runner, watch, publisher, stopping)
    _drain(runner, watch, publisher)
    runner.stop()
    publisher.tell(watch.look(), ended=True)
    _prove(graph)
    app.close()


def _go_on(runner: Runner, watch: Watch, publisher: Publisher, stopping: threading.Event) -> None:
    next_s = 0.0
    while not stopping.wait(_LOOK_S):
        runner.look()
        if time.monotonic() >= next_s:
            next_s = time.monotonic() + _TELL_S
            _tell(watch.look(), publisher)


def _drain(runner: Runner, watch: Watch, publisher: Publisher) -> None:
    """Until every query that has begun has read what there is."""
    deadline = time.monotonic() + _DRAIN_S
    while time.monotonic() < deadline:
        runner.look()
        status = watch.look()
        _tell(status, publisher)
        if all(query.lag_records == 0 for query in status.queries if query.batch is not None):
            return
        time.sleep(_LOOK_S)


def _tell(status: Status, publisher: Publisher) -> None:
    publisher.tell(status)
    say(
        queries=[
            {
                "name": query.name, "state": query.state, "begun": query.batch is not None,
                "rows_per_s": round(query.rows_per_s, 1), "batch_ms": query.batch_ms,
                "lag_s": round(query.lag_s, 3), "late": query.late, "error": query.last_error,
            }
            for query in status.queries
        ]
    )  # fmt: skip


def _prove(graph: Graph) -> None:
    """Each definition, told as soon as it is known: together they take a while."""
    from penstock.app.verify import verify

    for name in graph.analysed:
        found = verify(app, graph, name)
        say(verified={name: {
            "verdict": found.verdict, "reason": found.reason, "rows": found.rows, "late": found.left_out,
        }})  # fmt: skip
