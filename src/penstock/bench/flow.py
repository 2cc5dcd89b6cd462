"""`penstock bench flow`: processing on this machine, beside plain Spark on the same events as JSON files."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.bench import machine, workbench
from penstock.bench.report import Report, Result
from penstock.bench.workbench import Progress

if TYPE_CHECKING:
    from penstock.bench.flow_jobs import FlowBench, Job

_AIMS = {"tumbling count, drop": 1_500_000.0, "tumbling count, divert": 1_000_000.0}
_RATIO_AIM = 3.0
_TRIGGERS = ("0 seconds", "100 milliseconds", "500 milliseconds", "1 second")


@dataclass(frozen=True, slots=True)
class Sizes:
    native_events: int  # for what Spark computes itself
    bucket_events: int  # for our own stateful steps
    attempts: int
    probes: int
    triggers: tuple[str, ...]


QUICK = Sizes(1_000_000, 100_000, 1, 10, ("0 seconds",))
FULL = Sizes(8_000_000, 200_000, 2, 60, _TRIGGERS)


def run(*, quick: bool, home: Path | None = None, progress: Progress | None = None) -> Report:
    """About ten minutes, or one with `quick`. Works in a folder of its own inside `home` and removes it."""
    from penstock.bench.flow_jobs import FlowBench
    from penstock.flow.session import start_session

    sizes, tell = QUICK if quick else FULL, progress or _to_stderr
    with workbench.scratch(home) as folder:
        facts = machine.describe(folder)
        tell("start Spark")
        bench = FlowBench(start_session("bench"), folder)
        return Report("flow", facts, list(_results(bench, sizes, tell)))


def _results(bench: FlowBench, sizes: Sizes, tell: Progress) -> Iterator[Result]:
    from penstock.bench import flow_latency
    from penstock.bench.flow_jobs import COUNT, JOBS, events

    for job in JOBS:
        yield from _rates(bench, job, sizes, tell)
    for trigger in sizes.triggers:
        tell(f"{COUNT.name}, every {trigger}")
        took = bench.ours(COUNT, events(sizes.native_events, keys=COUNT.keys), every=trigger)
        yield Result(f"{COUNT.name}, every {trigger}", sizes.native_events / took, "events/s")
    for kind in ("stateless", "windowed"):
        for trigger in sizes.triggers:
            tell(f"latency, {kind}, every {trigger}")
            yield from flow_latency.measure(bench, kind, trigger=trigger, probes=sizes.probes)
    tell("time to the first result")
    yield flow_latency.first_result(bench)


def _rates(bench: FlowBench, job: Job, sizes: Sizes, tell: Progress) -> Iterator[Result]:
    from penstock.bench.flow_jobs import events

    number = sizes.native_events if job.native else sizes.bucket_events
    tell(f"{job.name}: {number:,} events")
    batches = events(number, keys=job.keys)
    bench.ours(job, batches[:10])  # compiles what Spark compiles once
    ours = number / min(bench.ours(job, batches) for _ in range(sizes.attempts))
    result = Result(job.name, ours, "events/s", settings={"keys": job.keys, "events": number})
    if job.name in _AIMS:
        result = result.at_least(_AIMS[job.name])
    tell(f"{job.name}: plain Spark, the same events as JSON")
    bench.plain(job, batches[:2])
    result = result.beside("plain Spark on JSON files", number / bench.plain(job, batches))
    yield result
    if job.name in _AIMS and result.ratio is not None:
        yield Result(f"{job.name}: times plain Spark", result.ratio, "x").at_least(_RATIO_AIM)


def _to_stderr(step: str) -> None:
    print(f"bench flow: {step}", file=sys.stderr, flush=True)
