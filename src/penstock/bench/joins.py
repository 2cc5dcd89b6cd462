"""`penstock bench joins`: streams and tables joined on this machine, beside Spark's own joins."""

from __future__ import annotations

from pathlib import Path

from penstock.bench import machine, relations, workbench
from penstock.bench.report import Report
from penstock.bench.workbench import Progress

AIMS = {
    "interval join, 10 k keys": 100_000.0,
    "interval join, 1 M keys": 50_000.0,
    "enrich, 10 k keys": 120_000.0,
    "enrich, 1 M keys": 60_000.0,
}


def run(*, quick: bool, home: Path | None = None, progress: Progress | None = None) -> Report:
    """Some minutes. Works in a folder of its own in `home` and removes it."""
    from penstock.bench.relation_jobs import JOINS, RelationBench
    from penstock.flow.session import start_session

    sizes = relations.QUICK if quick else relations.FULL
    tell = progress or relations.to_stderr("joins")
    with workbench.scratch(home) as folder:
        facts = machine.describe(folder)
        tell("start Spark")
        bench = RelationBench(start_session("bench"), folder)
        return Report("joins", facts, list(relations.rates(bench, JOINS, AIMS, sizes, tell)))
