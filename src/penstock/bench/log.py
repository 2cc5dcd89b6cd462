"""`penstock bench log`: the embedded log on this machine, beside plain files, Arrow's format and SQLite."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from penstock.bench import (
    against_kafka,
    append_rates,
    log_latency,
    machine,
    memory,
    open_time,
    read_rates,
    sample,
    workbench,
)
from penstock.bench.report import Report, Result
from penstock.bench.workbench import Progress, Sizes, Workbench

QUICK = Sizes(
    attempts=3, sample_events=100_000, row_events=100_000, arrow_events=2_000_000,
    spark_events=1_000_000, writer_events=20_000, latency_events=2_000, open_batches=50_000,
    stall_events=100_000, memory_bytes=300_000_000,
)  # fmt: skip
FULL = Sizes(
    attempts=5, sample_events=300_000, row_events=300_000, arrow_events=6_000_000,
    spark_events=8_000_000, writer_events=50_000, latency_events=5_000, open_batches=1_000_000,
    stall_events=300_000, memory_bytes=2_000_000_000,
)  # fmt: skip


def run(
    *,
    quick: bool,
    home: Path | None = None,
    progress: Progress | None = None,
    against: Literal["kafka"] | None = None,
) -> Report:
    """Measure everything: about three minutes, or one with `quick`; or what others do, beside them.

    Works in a folder of its own inside `home` (default: the data directory) and removes it.
    """
    sizes, tell = QUICK if quick else FULL, progress or _to_stderr
    return measure(sizes, home=home, progress=tell, against=against)


def measure(
    sizes: Sizes, *, home: Path | None, progress: Progress, against: Literal["kafka"] | None = None
) -> Report:
    results = against_kafka.measure if against == "kafka" else _results
    with workbench.scratch(home) as folder:
        facts = machine.describe(folder)
        progress(f"make {sizes.sample_events:,} events")
        with workbench.opened(folder, sizes, sample.make(sizes.sample_events), progress) as bench:
            return Report("log", facts, list(results(bench)))


def _results(bench: Workbench) -> Iterator[Result]:
    yield from append_rates.measure(bench)
    yield from read_rates.measure(bench)
    yield from log_latency.measure(bench)
    yield from open_time.measure(bench)
    yield from memory.measure(bench)


def _to_stderr(step: str) -> None:
    print(f"bench log: {step}", file=sys.stderr, flush=True)
