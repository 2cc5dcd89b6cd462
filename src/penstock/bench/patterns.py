"""`penstock bench patterns`: patterns and saved searches on this machine, beside plain Spark."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.bench import relations
from penstock.bench.report import Report, Result
from penstock.bench.workbench import Progress

if TYPE_CHECKING:
    from penstock.bench.relation_jobs import RelationBench

AIMS = {"three failures, 10 k keys": 250_000.0, "three failures, 1 M keys": 125_000.0}
_SEARCH_AIM = 20_000.0


def run(*, quick: bool, home: Path | None = None, progress: Progress | None = None) -> Report:
    return relations.run("patterns", measured, quick=quick, home=home, progress=progress)


def measured(bench: RelationBench, sizes: relations.Sizes, tell: Progress) -> Iterator[Result]:
    from penstock.bench.relation_jobs import PATTERNS, searching

    yield from relations.rates(bench, PATTERNS, AIMS, sizes, tell)
    tell(f"{sizes.searches:,} saved searches, {sizes.texts:,} texts")
    bench.ran(searching(sizes.searches, sizes.texts // 8))  # compiles what is compiled once
    ran = bench.ran(searching(sizes.searches, sizes.texts))
    name = f"{sizes.searches:,} saved searches"
    yield Result(name, sizes.texts / ran.seconds, "events/s").at_least(_SEARCH_AIM)
