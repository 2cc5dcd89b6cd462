"""`penstock bench flow`: processing on this machine, beside plain Spark on the same events as JSON files."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.bench import machine, workbench
from penstock.bench.report import Report, Result
from penstock.bench.workbench import Progress

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.bench.flow_jobs import FlowBench, Job

_AIMS = {"tumbling count, drop": 1_500_000.0, "tumbling count, divert": 1_000_000.0}
_RATIO_AIM = 3.0
_PEER = "plain Spark on JSON files"
_TRIGGERS = ("0 seconds", "100 milliseconds", "500 milliseconds", "1 second")


@dataclass(frozen=True, slots=True)
class Sizes:
    native_events: int  # for what Spark computes itself
    bucket_events: int  # for our own stateful steps
    attempts: int
    probes: int
    triggers: tuple[str, ...]


QUICK = Sizes(1_000_000, 50_000, 1, 10, ("0 seconds",))
FULL = Sizes(16_000_000, 100_000, 2, 60, _TRIGGERS)


def run(*, quick: bool, home: Path | None = None, progress: Progress | None = None) -> Report:
    """About twenty minutes, or three if `quick`. Works in a folder of its own in `home` and removes it."""
    from penstock.bench.flow_jobs import FlowBench
    from penstock.flow.session import start_session

    sizes, tell = QUICK if quick else FULL, progress or _to_stderr
    with workbench.scratch(home) as folder:
        facts = machine.describe(folder)
        tell("start Spark")
        bench = FlowBench(start_session("bench"), folder)
        return Report("flow", facts, list(measured(bench, sizes, tell)))


def measured(bench: FlowBench, sizes: Sizes, tell: Progress) -> Iterator[Result]:
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
    attempts = sizes.attempts if job.native else 1
    batches = events(number, keys=job.keys)
    tell(f"{job.name}: {number:,} events")
    ours = _Timed.of(lambda some: bench.ours(job, some), batches, attempts)
    tell(f"{job.name}: plain Spark, the same events as JSON")
    plain = _Timed.of(lambda some: bench.plain(job, some), batches, attempts)
    settings = {"keys": job.keys, "events": number}
    whole = Result(job.name, ours.rate, "events/s", settings=settings).beside(_PEER, plain.rate)
    yield whole.at_least(_AIMS[job.name]) if job.name in _AIMS else whole
    if job.name in _AIMS and whole.ratio is not None:
        yield Result(f"{job.name}: times plain Spark", whole.ratio, "x").at_least(_RATIO_AIM)
    if ours.steady_rate and plain.steady_rate:
        steady = Result(f"{job.name}, once it runs", ours.steady_rate, "events/s", settings=settings)
        yield steady.beside(_PEER, plain.steady_rate)


@dataclass(frozen=True, slots=True)
class _Timed:
    """A job over a few events and over all of them: what both take is the start of the query."""

    few: int
    few_s: float
    all: int
    all_s: float

    @classmethod
    def of(
        cls, run: Callable[[list[pa.RecordBatch]], float], batches: list[pa.RecordBatch], attempts: int
    ) -> _Timed:
        few = batches[: max(1, len(batches) // 16)]
        few_s = min(run(few) for _ in range(attempts + 1))  # the first compiles what is compiled once
        all_s = min(run(batches) for _ in range(attempts))
        return cls(_rows(few), few_s, _rows(batches), all_s)

    @property
    def rate(self) -> float:
        return self.all / self.all_s

    @property
    def steady_rate(self) -> float | None:
        """Without the start; None where that is all that was measured."""
        if self.all_s < 1.2 * self.few_s:
            return None
        return (self.all - self.few) / (self.all_s - self.few_s)


def _rows(batches: list[pa.RecordBatch]) -> int:
    return sum(batch.num_rows for batch in batches)


def _to_stderr(step: str) -> None:
    print(f"bench flow: {step}", file=sys.stderr, flush=True)
