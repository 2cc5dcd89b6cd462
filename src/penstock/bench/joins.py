"""`penstock bench joins`: streams and tables joined on this machine, beside Spark's own joins."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.bench import relations
from penstock.bench.report import Report, Result
from penstock.bench.workbench import Progress

if TYPE_CHECKING:
    from penstock.bench.relation_jobs import RelationBench

AIMS = {
    "interval join, 10 k keys": 100_000.0,
    "interval join, 1 M keys": 50_000.0,
    "enrich, 10 k keys": 120_000.0,
    "enrich, 1 M keys": 60_000.0,
}


def run(*, quick: bool, home: Path | None = None, progress: Progress | None = None) -> Report:
    return relations.run("joins", measured, quick=quick, home=home, progress=progress)


def measured(bench: RelationBench, sizes: relations.Sizes, tell: Progress) -> Iterator[Result]:
    from penstock.bench.relation_jobs import JOINS

    yield from relations.rates(bench, JOINS, AIMS, sizes, tell)
