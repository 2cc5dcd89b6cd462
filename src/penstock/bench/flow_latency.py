"""How long from an append until the row is in SQLite, while a thousand events a second go by."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

import penstock as ps
from penstock.app import reading
from penstock.app.graph import Graph
from penstock.app.runner import Runner
from penstock.bench.flow_jobs import FlowBench
from penstock.bench.report import Result

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_RATE = 1_000
_EVERY_S = 0.01
_WARM_S = 10.0
_VISIBLE_S = 30.0
_FIRST_S = 120.0
_LOOK_S = 0.002
_AIMS_MS = {"stateless": (150.0, 300.0), "windowed": (400.0, 800.0)}
_DDL = "id BIGINT NOT NULL, page STRING NOT NULL, at TIMESTAMP NOT NULL"

_APP = """
import penstock as ps

app = ps.App("first")
events = app.topic("events", "page STRING NOT NULL, at TIMESTAMP NOT NULL", event_time="at")


@app.view(key=["page", "window"])
def counted():
    return ps.aggregate(events.stream(), by="page", window=ps.tumbling("1 minute"), n=ps.count())
"""


def measure(bench: FlowBench, kind: str, *, trigger: str, probes: int) -> Iterator[Result]:
    """p50 and p99; the aims are for the shortest interval."""
    home = Path(tempfile.mkdtemp(dir=bench.folder))
    app = _app(home, kind)
    runner = Runner(app, Graph(app, bench.session).analyse(), every=trigger)
    runner.start()
    stopping = threading.Event()
    load = threading.Thread(target=_produce, args=(app.topics["events"], stopping), daemon=True)
    load.start()
    try:
        time.sleep(_WARM_S)
        took_ms = [_probe(app, kind, number) for number in range(probes)]
    finally:
        stopping.set()
        load.join()
        runner.stop()
        app.close()
        shutil.rmtree(home)
    for quantile, aim in zip((50, 99), _AIMS_MS[kind], strict=True):
        name = f"append to SQLite, {kind}, every {trigger}, p{quantile}"
        result = Result(name, float(np.percentile(took_ms, quantile)), "ms", settings={"probes": probes})
        yield result.at_most(aim) if trigger == "0 seconds" else result


def _app(home: Path, kind: str) -> ps.App:
    app = ps.App("latency", home=home)
    events = app.topic("events", _DDL, event_time="at")
    if kind == "stateless":

        @app.view(key="id", name="seen")
        def copied() -> DataFrame:
            return events.stream().select("id", "page", "at")
    else:

        @app.view(key=["page", "window"], name="seen")
        def counted() -> DataFrame:
            return ps.aggregate(events.stream(), by="page", window=ps.tumbling("1 minute"), n=ps.count())

    return app


def _produce(topic: ps.Topic, stopping: threading.Event) -> None:
    number, began = 0, time.monotonic()
    while not stopping.is_set():
        due = int((time.monotonic() - began) * _RATE)
        now = datetime.now(UTC)
        rows = [{"id": n, "page": f"/{n % 100}", "at": now} for n in range(number, due)]
        if rows:
            topic.append(rows)
        number = due
        stopping.wait(_EVERY_S)


def _probe(app: ps.App, kind: str, number: int) -> float:
    """Milliseconds from one append until its row can be read."""
    name = f"/probe-{number}"
    probe = {"id": -1 - number, "page": name, "at": datetime.now(UTC)}
    spec = reading.spec(app, "seen")
    where = {"id": probe["id"]} if kind == "stateless" else {"page": name}
    time.sleep(0.05 + (number * 37 % 100) / 1_000)  # not in step with the batches
    began = time.perf_counter()
    app.topics["events"].append(probe)
    while not app.store.rows(spec, where=where)[0].num_rows:
        if time.perf_counter() - began > _VISIBLE_S:
            break
        time.sleep(_LOOK_S)
    return (time.perf_counter() - began) * 1_000


def first_result(bench: FlowBench) -> Result:
    """Seconds from `penstock run` to the first row in the store."""
    home = Path(tempfile.mkdtemp(dir=bench.folder))
    file = home / "first.py"
    file.write_text(_APP)
    data = home / "data"
    app = ps.App("first", home=data)
    topic = app.topic("events", "page STRING NOT NULL, at TIMESTAMP NOT NULL", event_time="at")
    topic.append([{"page": "/", "at": datetime.now(UTC)}] * 1_000)
    began = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "penstock", "run", str(file), "--home", str(data)],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    try:
        while not _has_rows(app) and time.perf_counter() - began < _FIRST_S:
            time.sleep(0.05)
        took = time.perf_counter() - began
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(60)
        app.close()
        shutil.rmtree(home)
    return Result("penstock run to first result", took, "s").at_most(20)


def _has_rows(app: ps.App) -> bool:
    if app.store.progress("counted") is None:
        return False
    return bool(app.store.rows(reading.spec(app, "counted"))[0].num_rows)
