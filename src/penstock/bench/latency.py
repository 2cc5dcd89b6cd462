"""`penstock bench latency`: from an append to its row in the result's topic, at a thousand events a second.

The same two jobs, a projection and a count by key and minute, as micro-batches from the embedded log, as
micro-batches from a real Kafka on this machine, and in real-time mode from that Kafka. An event carries the
moment of its append; whoever reads the results in another process subtracts. A key comes once in a second,
so that a row of the count stands for one event. Topics are `durability="os"`, which is Kafka's own default:
real-time mode writes a thousand times a second, and a disk does not sync as often.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import penstock as ps
from penstock.bench import machine, workbench
from penstock.bench.child import Child, Line
from penstock.bench.report import Report, Result
from penstock.bench.workbench import Progress
from penstock.opening import is_kafka, open_log

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_RATE = 1_000
_EVERY_S = 0.005
_KEYS = 1_000
_FIRST_S_MAX = 180.0
_HELD = 16  # slots for the tasks of real-time mode
_AIMS_MS = {"stateless": 20.0, "windowed count": 75.0}
_DDL = "page BIGINT NOT NULL, at TIMESTAMP NOT NULL"


@dataclass(frozen=True, slots=True)
class Sizes:
    warm_s: float
    measured_s: float


QUICK, FULL = Sizes(10, 10), Sizes(30, 60)


def run(*, quick: bool, home: Path | None = None, progress: Progress | None = None) -> Report:
    """About ten minutes, or three if `quick`. Works in a folder of its own in `home` and removes it."""
    sizes = QUICK if quick else FULL
    return measure(sizes, home=home, progress=progress or _to_stderr)


def measure(sizes: Sizes, *, home: Path | None, progress: Progress) -> Report:
    from penstock.flow import connector
    from penstock.flow.session import start_session
    from penstock.kafka.cluster import Cluster

    with workbench.scratch(home) as folder:
        facts = machine.describe(folder)
        progress("start Kafka and Spark")
        cluster = Cluster(folder / "kafka")
        url = cluster.up(port=0).url
        try:
            session = start_session("bench", settings=connector.with_connector({}), held=_HELD)
            return Report("latency", facts, list(_measured(session, folder, url, sizes, progress)))
        finally:
            cluster.down(delete=True)


def _measured(
    session: SparkSession, folder: Path, url: str, sizes: Sizes, progress: Progress
) -> Iterator[Result]:
    batches, realtime = (("embedded, micro-batches", None), ("Kafka, micro-batches", url)), "Kafka, real-time"
    for way, log in (*batches, (realtime, url)):
        for job, aim in _AIMS_MS.items():
            progress(f"{way}, {job}")
            app = _app(folder / way / job, log, job, realtime=way == realtime)
            took_ms = _took_ms(session, app, sizes)
            yield from _results(f"{way}, {job}", took_ms, aim=aim if way == realtime else None)


def _results(name: str, took_ms: list[float], *, aim: float | None) -> Iterator[Result]:
    settings = {"events": len(took_ms), "events_per_s": _RATE, "ms_max": round(max(took_ms), 1)}
    yield Result(f"{name}, p50", float(np.percentile(took_ms, 50)), "ms", settings=settings)
    p99 = Result(f"{name}, p99", float(np.percentile(took_ms, 99)), "ms", settings=settings)
    yield p99 if aim is None else p99.at_most(aim)


def _app(home: Path, log: str | None, job: str, *, realtime: bool) -> ps.App:
    latency = "realtime" if realtime else "batches"
    app = ps.App(f"{latency}-{job.replace(' ', '-')}", home=home, log=log)
    events = app.topic(
        f"{app.name}-events", _DDL, key="page", event_time="at", lateness="5 seconds", durability="os"
    )
    result = f"{app.name}-results"
    if job == "stateless":

        @app.stream(name=result, key="page", latency=latency, durability="os")
        def copied() -> DataFrame:
            return events.stream().select("page", "at")
    elif realtime:

        @app.stream(name=result, key=["page", "window"], latency=latency, durability="os")
        def counted() -> DataFrame:
            from penstock.bench.flow_jobs import newest_count

            return newest_count(events.stream())
    else:

        @app.view(name=result, key=["page", "window"])
        def viewed() -> DataFrame:
            window = ps.tumbling("1 minute")
            return ps.aggregate(events.stream(), by="page", window=window, n=ps.count(), at=ps.max("at"))

    return app


def _took_ms(session: SparkSession, app: ps.App, sizes: Sizes) -> list[float]:
    from penstock.app.graph import Graph
    from penstock.app.runner import Runner

    runner = Runner(app, Graph(app, session).analyse())
    (events,), (result,) = app.topics, app.definitions
    runner.start()
    try:
        with Child(_receive, app.address, result, sizes.warm_s, sizes.measured_s) as hearing:
            hearing.hear()
            with Child(_send, app.address, events):
                return list(hearing.hear(_FIRST_S_MAX + sizes.warm_s + sizes.measured_s))
    finally:
        runner.stop()
        app.close()


def _send(_: Line, address: str, name: str) -> None:
    """At a steady pace, a few in each append, until this process is ended."""
    with open_log(address) as log:
        topic, number, began = log.topic(name), 0, time.monotonic()
        while True:
            due = int((time.monotonic() - began) * _RATE)
            now = datetime.now(UTC)
            if due > number:
                topic.append([{"page": n % _KEYS, "at": now} for n in range(number, due)])
            number = due
            time.sleep(_EVERY_S)


def _receive(line: Line, address: str, name: str, warm_s: float, measured_s: float) -> None:
    """Milliseconds from its append, of every row that comes once the first ones are `warm_s` past."""
    found: list[float] = []
    began: float | None = None
    arrivals = _from_kafka(address, name) if is_kafka(address) else _from_folder(address, name)
    next(arrivals)
    line.say("ready")
    for times_us in arrivals:
        now_us, now_s = time.time_ns() // 1_000, time.monotonic()
        began = began or (now_s if times_us else None)
        if began is not None and now_s - began > warm_s:
            found += [(now_us - each) / 1_000 for each in times_us]
        if began is not None and found and now_s - began > warm_s + measured_s:
            break
    line.say(found)


def _from_folder(address: str, name: str) -> Iterator[list[int]]:
    with open_log(address) as log:
        topic = log.topic(name)
        ends = {n: end for n, (_, end) in topic.bounds().items()}
        while True:
            topic.wait(ends, 0.1)
            found = list(topic.read(start=dict(ends)))
            for batch in found:
                ends[batch.column("_partition")[0].as_py()] = batch.column("_offset")[-1].as_py() + 1
            yield [at for batch in found for at in _micros(batch.column("at"))]


def _micros(column: Any) -> list[int]:
    import pyarrow as pa

    return [each for each in column.cast(pa.int64()).to_pylist() if each is not None]


def _from_kafka(address: str, name: str) -> Iterator[list[int]]:
    """As any consumer of Kafka reads."""
    import orjson
    from confluent_kafka import OFFSET_END, Consumer, TopicPartition

    from penstock.kafka.address import Address

    options = {"group.id": "bench", "isolation.level": "read_committed", "fetch.wait.max.ms": 10}
    consumer = Consumer({**Address.parse(address).client(), **options})
    consumer.assign([TopicPartition(name, 0, OFFSET_END)])
    while True:
        first = consumer.poll(0.1)
        came = [] if first is None else [first, *consumer.consume(1_000, timeout=0)]
        values = [message.value() for message in came if message.error() is None]
        times = [orjson.loads(value).get("at") for value in values if value is not None]
        yield [_us(text) for text in times if text]


def _us(text: str) -> int:
    return round(datetime.fromisoformat(text).timestamp() * 1_000_000)


def _to_stderr(step: str) -> None:
    print(f"bench latency: {step}", file=sys.stderr, flush=True)
