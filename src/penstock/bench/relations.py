"""What `bench joins` and `bench patterns` have in common: a job of ours, and the same on plain Spark."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.bench import machine, workbench
from penstock.bench.report import Report, Result
from penstock.bench.workbench import Progress

if TYPE_CHECKING:
    from penstock.bench.flow_jobs import Job
    from penstock.bench.relation_jobs import RelationBench

_PEER = "plain Spark on JSON files"


@dataclass(frozen=True, slots=True)
class Sizes:
    events: int
    peer_events: int  # what is slow is measured on fewer; the rate counts
    searches: int = 1_000
    texts: int = 400_000


QUICK = Sizes(200_000, 50_000, texts=50_000)
FULL = Sizes(4_000_000, 500_000)


Measured = Callable[["RelationBench", Sizes, Progress], Iterable[Result]]


def run(
    name: str, measured: Measured, *, quick: bool, home: Path | None, progress: Progress | None
) -> Report:
    """Some minutes. Works in a folder of its own in `home` and removes it."""
    from penstock.bench.relation_jobs import RelationBench
    from penstock.flow.session import start_session

    tell = progress or _to_stderr(name)
    with workbench.scratch(home) as folder:
        facts = machine.describe(folder)
        tell("start Spark")
        bench = RelationBench(start_session("bench"), folder)
        return Report(name, facts, list(measured(bench, QUICK if quick else FULL, tell)))


def rates(
    bench: RelationBench, jobs: Sequence[Job], aims: Mapping[str, float], sizes: Sizes, tell: Progress
) -> Iterator[Result]:
    """Events/s with the start of the query, and what its state takes."""
    from penstock.bench.flow_jobs import events

    for job in jobs:
        tell(f"{job.name}: {sizes.events:,} events")
        bench.job(job, events(sizes.peer_events, keys=job.keys))  # compiles what is compiled once
        ran = bench.job(job, events(sizes.events, keys=job.keys))
        tell(f"{job.name}: plain Spark, {sizes.peer_events:,} events")
        some = events(sizes.peer_events, keys=job.keys)
        peer = sizes.peer_events / min(bench.plain(job, some) for _ in range(2))
        settings = {"keys": job.keys, "events": sizes.events}
        found = Result(job.name, sizes.events / ran.seconds, "events/s", settings=settings).beside(
            _PEER, peer
        )
        yield found.at_least(aims[job.name]) if job.name in aims else found
        yield Result(f"{job.name}: state", ran.state_bytes / 1e6, "MB", settings=settings)


def _to_stderr(name: str) -> Progress:
    def tell(step: str) -> None:
        print(f"bench {name}: {step}", file=sys.stderr, flush=True)

    return tell
