"""An app of three stages that kills itself, kill -9 and Spark with it, at one exact step.

    python -m tests.flow.kill_points HOME STEP NAME COUNT [MODULE]

MODULE declares another app. It dies when the query NAME reaches STEP for the COUNT-th time:

    planned     Spark has written down what the batch is, and nothing was computed
    computed    before the atomic append
    staged      inside it, before its commit record
    committed   inside it, after its commit record and before anyone can read the records
    stored      after it, before Spark writes down that the batch is done

or, with NAME "store", when a follower's transaction does: begun, removed, written, noted, committed.
"""

from __future__ import annotations

import functools
import importlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame

import penstock as ps
from penstock.app import reading
from penstock.app.graph import Graph
from penstock.app.runner import Runner
from penstock.flow.commit import Committer
from penstock.flow.offset import Offset
from penstock.flow.output import BATCHES
from penstock.follow.sqlite import SQLiteStore
from penstock.log.ledger import Ledger
from penstock.log.log import AtomicProducer

START = datetime(2026, 11, 1, 10, 0, tzinfo=UTC)
ROWS_MAX = 10
QUERIES = ("cleaned", "closed", "totals", "live")
STEPS = ("planned", "computed", "staged", "committed", "stored")
STORE_STEPS = ("begun", "removed", "written", "noted", "committed")
_NEVER_REACHED_S = 200.0
_PLACES = ("_topic", "_partition", "_offset", "_timestamp")


@dataclass(frozen=True, slots=True)
class Kill:
    """Where a process dies, and whether the last files of its checkpoints are lost with it."""

    step: str
    name: str
    count: int = 1
    loses_files: bool = False

    def __str__(self) -> str:
        lost = " and loses files" if self.loses_files else ""
        return f"{self.name} {self.step} {self.count}{lost}"


# ---- the app ---------------------------------------------------------------------------------------


def declare(home: Path) -> ps.App:
    """A copy, its closed windows, their sums; and beside them a windowed view with late rows."""
    app = ps.App("pipeline", home=home)
    events = app.topic(
        "events", "id BIGINT, k STRING, v BIGINT, straggler BOOLEAN, at TIMESTAMP", event_time="at",
        lateness="2 seconds", idle_after="1 day",
    )  # fmt: skip

    @app.stream(idle_after="1 day")
    def cleaned() -> DataFrame:
        return events.stream().filter("NOT straggler")

    @app.stream(idle_after="1 day")
    def closed() -> DataFrame:
        return ps.aggregate(
            cleaned.stream(), by="k", window=ps.tumbling("5 seconds"), emit="final",
            n=ps.count(), v=ps.sum("v"),
        )  # fmt: skip

    @app.view(key="k")
    def totals() -> DataFrame:
        return ps.aggregate(closed.stream(), by="k", n=ps.sum("n"), v=ps.sum("v"), windows=ps.count())

    @app.view(key=["k", "window"])
    def live() -> DataFrame:
        return ps.aggregate(
            events.stream(), by="k", window=ps.tumbling("5 seconds"), n=ps.count(), v=ps.sum("v")
        )

    return app


def event(number: int) -> dict[str, Any]:
    """Two a second, a little out of order; every seventh comes far too late."""
    straggler = number % 7 == 6
    behind = 20.0 if straggler else (number * 37 % 15) / 10
    return {
        "id": number, "k": "abc"[number % 3], "v": number * 11 % 100, "straggler": straggler,
        "at": START + timedelta(seconds=number / 2 - behind),
    }  # fmt: skip


def feed(app: ps.App, numbers: range) -> None:
    for number in numbers:
        app.log.topic("events").append(event(number))


def feed_the_end(app: ps.App, number: int) -> None:
    """One event far ahead, which closes the windows of all others."""
    app.log.topic("events").append({**event(number), "straggler": False, "at": START + timedelta(hours=1)})


# ---- the process that dies -------------------------------------------------------------------------


@dataclass(slots=True)
class Killer:
    """Counts how often a query reaches a step, and ends everything at one of them."""

    kill: Kill
    left: int
    appending: threading.local = field(default_factory=threading.local)

    def reached(self, step: str, name: str | None) -> None:
        if (step, name) != (self.kill.step, self.kill.name):
            return
        self.left -= 1
        if not self.left:
            os.killpg(0, signal.SIGKILL)

    def watch(self) -> None:
        commit, append, ledger_commit = Committer.commit, AtomicProducer.append, Ledger.commit

        @functools.wraps(commit)
        def watched_commit(committer: Committer, *args: Any) -> None:
            name = next(iter(committer._outputs))
            before = committer.position
            self.reached("planned", name)
            commit(committer, *args)
            if committer.position != before:
                self.reached("stored", name)

        @functools.wraps(append)
        def watched_append(producer: AtomicProducer, *args: Any, **options: Any) -> Any:
            self.appending.name = producer.id.rpartition(".")[2]
            self.reached("computed", self.appending.name)
            try:
                return append(producer, *args, **options)
            finally:
                self.appending.name = None

        @functools.wraps(ledger_commit)
        def watched_ledger(ledger: Ledger, *args: Any) -> None:
            name = getattr(self.appending, "name", None)
            self.reached("staged", name)
            ledger_commit(ledger, *args)
            self.reached("committed", name)

        watched: list[tuple[Any, str, Any]] = [
            (Committer, "commit", watched_commit),
            (AtomicProducer, "append", watched_append),
            (Ledger, "commit", watched_ledger),
        ]
        for owner, method, replacement in watched:
            setattr(owner, method, replacement)


def main(home: str, step: str, name: str, count: str, module: str = __name__) -> None:
    from penstock.flow.session import start_session

    killer = Killer(Kill(step, name, int(count)), int(count))
    app: ps.App = importlib.import_module(module).declare(Path(home))
    graph = Graph(app, start_session("dying")).analyse()
    killer.watch()
    app._store = SQLiteStore(
        app.home / "views" / f"{app.name}.db", watch=lambda reached: killer.reached(reached, "store")
    )
    runner = Runner(app, graph, rows_max=ROWS_MAX)
    runner.start()
    deadline = time.monotonic() + _NEVER_REACHED_S
    while time.monotonic() < deadline and not runner.stopping.wait(0.1):
        runner.look()
    errors = {each.query.name: each.last_error for each in runner.supervised}
    sys.exit(f"never reached: {killer.kill}; {errors}")


# ---- asking for it from a test ---------------------------------------------------------------------


def run_until_killed(home: Path, kill: Kill, *, app: str = "tests.flow.kill_points") -> None:
    """Raises AssertionError if it did not die where it should. `app`: the module that declares it."""
    said = home.with_name("dying.txt")
    arguments = [str(home), kill.step, kill.name, str(kill.count), app]
    with said.open("w") as file:
        died = subprocess.run(
            [sys.executable, "-m", "tests.flow.kill_points", *arguments],
            stdout=file, stderr=file, cwd=Path(__file__).parents[2], start_new_session=True, check=False,
        )  # fmt: skip
    assert died.returncode == -signal.SIGKILL, f"{kill}: {said.read_text()[-2_000:]}"
    if kill.loses_files:
        lose_last_files(home)


def lose_last_files(home: Path) -> None:
    """What a checkpoint wrote last is gone: it does not ask the disk to keep it."""
    for checkpoint in home.glob("flow/*/*/checkpoint-*"):
        for kind in ("offsets", "commits"):
            files = [file for file in (checkpoint / kind).glob("*") if file.name.isdigit()]
            if files:
                max(files, key=lambda file: int(file.name)).unlink()


# ---- what came out ---------------------------------------------------------------------------------


def outcome(app: ps.App) -> dict[str, Any]:
    """The rows of every view and of every derived topic, and the late ones, in a fixed order."""
    found: dict[str, Any] = {}
    for name, definition in app.definitions.items():
        rows = app.read(name) if definition.kind == "view" else topic_rows(app, name)
        found[name] = sorted(repr(row) for row in rows)
        late = (
            [(row["topic"], row["partition"], row["offset"], row["window_start"], row["reason"])]
            for row in reading.late(app, name)
        )
        found[f"{name}.late"] = sorted(map(repr, late))
    return found


def topic_rows(app: ps.App, name: str) -> list[dict[str, Any]]:
    rows = [row for batch in app.log.topic(name).read() for row in batch.to_pylist()]
    return [{column: value for column, value in row.items() if column not in _PLACES} for row in rows]


def gaps(app: ps.App) -> list[str]:
    """Where the recorded batches of a definition do not follow on one another, or do not reach the end."""
    found = []
    for name in app.definitions:
        records = topic_rows(app, f"{name}{BATCHES}")
        read = [Offset.from_json(json.loads(r["batch"])) for r in records if r["rows"]]
        found += [f"{name}: {a.end} {b.start}" for a, b in pairwise(read) if a.end != b.start]
        if [r["number"] for r in records] != list(range(len(records))):
            found.append(f"{name}: numbers {[r['number'] for r in records]}")
        for topic, ends in read[-1].end.ends.items():
            bounds = app.log.topic(topic).bounds()
            if {p: end for p, (_, end) in bounds.items()} != dict(enumerate(ends)):
                found.append(f"{name}: read {topic} up to {ends}, which has {bounds}")
    return found


if __name__ == "__main__":
    main(*sys.argv[1:])
