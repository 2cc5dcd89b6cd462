"""From the append in one process to the event in another one."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from penstock.bench.child import Child, Line
from penstock.bench.report import Result
from penstock.bench.workbench import Workbench
from penstock.log.topic import Topic
from penstock.opening import open_log

_EVENTS_PER_S = 1_000
_WARM_UP_EVENTS = 200
_P99_MS = 10.0


def measure(bench: Workbench) -> Iterator[Result]:
    bench.progress(f"latency at {_EVENTS_PER_S:,} events/s")
    best = min((_attempt(bench) for _ in range(bench.sizes.attempts)), key=lambda found: found.p99_ms)
    settings = bench.settings(
        events=bench.sizes.latency_events,
        events_per_append=1,
        events_per_s=best.events_per_s,
        durability="fsync",
        ms_max=best.ms_max,
    )
    yield Result("append to consumer, p50", best.p50_ms, "ms", settings=settings)
    yield Result("append to consumer, p99", best.p99_ms, "ms", settings=settings).at_most(_P99_MS)


@dataclass(frozen=True, slots=True)
class _Latency:
    events_per_s: int
    p50_ms: float
    p99_ms: float
    ms_max: float


def _attempt(bench: Workbench) -> _Latency:
    events = bench.sizes.latency_events + _WARM_UP_EVENTS
    with bench.topic() as topic, Child(_receive, bench.home, topic.name, events) as consumer:
        consumer.hear()
        took_s = _send_steadily(topic, bench.sample.dicts[0], events)
        took_ms = np.array(consumer.hear()[_WARM_UP_EVENTS:]) / 1e6
    p50, p99, most = np.percentile(took_ms, [50, 99, 100]).tolist()
    return _Latency(round(events / took_s), p50, p99, round(most, 2))


def _send_steadily(topic: Topic, event: dict[str, object], events: int) -> float:
    """Append at a fixed pace, and say how long it took.

    An event that waited because the append before it took long counts from when it was due.
    """
    began = time.perf_counter()
    due_ns = time.monotonic_ns()
    for _ in range(events):
        due_ns += 1_000_000_000 // _EVENTS_PER_S
        early_ns = due_ns - time.monotonic_ns()
        if early_ns > 0:
            time.sleep(early_ns / 1e9)
            sent_ns = time.monotonic_ns()
        else:
            sent_ns = due_ns
        topic.append({**event, "user_id": sent_ns})
    return time.perf_counter() - began


def _receive(line: Line, home: Path, name: str, events: int) -> None:
    took_ns = []
    with open_log(home) as log, log.topic(name).consume(group="latency") as consumer:
        consumer.assignment()  # joins before the first event is sent
        line.say("ready")
        for event in consumer:
            took_ns.append(time.monotonic_ns() - event["user_id"])
            if len(took_ns) == events:
                break
    line.say(took_ns)
