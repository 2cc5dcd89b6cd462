"""`penstock bench sourcing`: commands, publication, and loading what has a long history."""

from __future__ import annotations

import os
import statistics
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import penstock as ps
from penstock.app.aggregates import AppAggregates
from penstock.bench import machine, postgres_server, workbench
from penstock.bench.report import Report, Result, Setting
from penstock.bench.workbench import Progress, timed_s
from penstock.errors import NotSupported
from penstock.sourcing import Aggregate, applies, command

_RATIO_MAX = 2.0
_SHORT = 100
_EVERY = 100  # events between two snapshots
_AGGREGATES = 50  # that get commands in turn
_TURNS = 3
_AT_ONCE = 100  # events of one command, where many are needed soon


Give = Callable[[int], None]
"""Gives a command to one of the aggregates."""


@dataclass(frozen=True, slots=True)
class Sizes:
    commands: int
    published: int
    long: int  # events of the aggregate with a long history
    loads: int


QUICK = Sizes(commands=500, published=20_000, long=10_000, loads=21)
FULL = Sizes(commands=1_000, published=100_000, long=10_000, loads=101)


@dataclass(frozen=True)
class Counted:
    amount: int


@dataclass
class Counter(Aggregate):
    total: int = 0

    @command
    def count(self, amount: int, times: int = 1) -> list[Counted]:
        return [Counted(amount)] * times

    @applies
    def _counted(self, event: Counted) -> None:
        self.total += event.amount


def run(*, quick: bool, home: Path | None = None, progress: Progress | None = None) -> Report:
    """About a minute, or half of one with `quick`. Works in a folder inside `home` and removes it."""
    return measure(QUICK if quick else FULL, home=home, progress=progress or _to_stderr)


def measure(sizes: Sizes, *, home: Path | None, progress: Progress) -> Report:
    with workbench.scratch(home) as folder:
        facts = machine.describe(folder)
        results = [*_on_sqlite(folder, sizes, progress), *_on_postgres(folder, sizes, progress)]
    return Report("sourcing", facts, results)


def _on_sqlite(folder: Path, sizes: Sizes, progress: Progress) -> Iterator[Result]:
    with _counters(folder / "sqlite", None) as counters:
        progress("commands on SQLite")
        with _library(folder / "library.db") as alone:
            yield _commands(counters, sizes, "SQLite", alone)
        progress("publication")
        yield _publication(counters, sizes)
        progress("loading")
        yield from _loading(counters, sizes)
        counters.app.close()


def _on_postgres(folder: Path, sizes: Sizes, progress: Progress) -> Iterator[Result]:
    try:
        with postgres_server.throwaway() as url:
            progress("commands on PostgreSQL")
            with _counters(folder / "postgres", url) as counters:
                yield _commands(counters, sizes, "PostgreSQL")
    except NotSupported as error:
        progress(f"not on PostgreSQL: {error.message}")


@contextmanager
def _counters(home: Path, store: str | None) -> Iterator[AppAggregates[Counter]]:
    app = ps.App("bench", home=home)
    try:
        yield app.aggregates("counters", Counter, store=store, snapshot_every=_EVERY)
    finally:
        app.close()


def _commands(
    counters: AppAggregates[Counter], sizes: Sizes, store: str, alone: Give | None = None
) -> Result:
    """One after the other, each on an aggregate that is loaded for it; what returns survives power loss.

    In turns with the peer, so that what else the machine does at the moment meets both; the best turn counts.
    """

    def give(number: int) -> None:
        counters[f"one of {number}"].count(1)

    everybody = [give] if alone is None else [give, alone]
    for each in everybody:
        _give(each, _AGGREGATES)  # what is opened and made by the first of them is not measured
    turns = [[timed_s(lambda: _give(each, sizes.commands)) for each in everybody] for _ in range(_TURNS)]  # noqa: B023
    rates = [sizes.commands / min(took_s) for took_s in zip(*turns, strict=True)]
    settings: dict[str, Setting] = {
        "commands": sizes.commands, "aggregates": _AGGREGATES, "best_of": _TURNS, "synced": True,
    }  # fmt: skip
    found = Result(f"commands, {store}", rates[0], "commands/s", settings=settings)
    return found if alone is None else found.beside("eventsourcing alone", rates[1])


def _give(give: Give, commands: int) -> None:
    for number in range(commands):
        give(number % _AGGREGATES)


@contextmanager
def _library(path: Path) -> Iterator[Give]:
    """The same by the library as it comes: its own aggregates, its own application, the same SQLite."""
    from eventsourcing.application import Application
    from eventsourcing.domain import Aggregate as Plain
    from eventsourcing.domain import event

    class Total(Plain):
        total: int

        def __init__(self) -> None:
            self.total = 0

        @event("Counted")
        def count(self, amount: int) -> None:
            self.total += amount

    app = Application[object](  # type: ignore[type-var]
        env={**os.environ, "PERSISTENCE_MODULE": "eventsourcing.sqlite", "SQLITE_DBNAME": str(path)}
    )
    made = [Total() for _ in range(_AGGREGATES)]
    app.save(*made)

    def give(number: int) -> None:
        total: Total = app.repository.get(made[number].id)
        total.count(1)
        app.save(total)

    try:
        yield give
    finally:
        app.close()


def _publication(counters: AppAggregates[Counter], sizes: Sizes) -> Result:
    for number in range(sizes.published // _AT_ONCE):
        counters[f"published {number % 10}"].count(1, times=_AT_ONCE)
    waiting = counters.book.recorded() - counters.publisher().published()
    settings: dict[str, Setting] = {"events": waiting, "synced": True}
    return Result("events published", waiting / timed_s(counters.publish), "events/s", settings=settings)


def _loading(counters: AppAggregates[Counter], sizes: Sizes) -> Iterator[Result]:
    """With as many events behind the last snapshot as there can be, in both."""
    for id, events in (("short", _SHORT), ("long", sizes.long)):
        for _ in range(events // _AT_ONCE):
            counters[id].count(1, times=_AT_ONCE)
        counters[id].count(1, times=_EVERY - 1)
    short, long = _load_ms(counters, "short", sizes), _load_ms(counters, "long", sizes)
    settings: dict[str, Setting] = {"median_of": sizes.loads, "snapshot_every": _EVERY}
    yield Result(f"load an aggregate of {_SHORT} events", short, "ms", settings=settings)
    yield Result(f"load an aggregate of {sizes.long:,} events", long, "ms", settings=settings)
    ratio = Result("load, long history : short history", long / short, "ratio", settings=settings)
    yield ratio.at_most(_RATIO_MAX)


def _load_ms(counters: AppAggregates[Counter], id: str, sizes: Sizes) -> float:
    return statistics.median(timed_s(lambda: counters[id]) for _ in range(sizes.loads)) * 1_000


def _to_stderr(step: str) -> None:
    print(f"bench sourcing: {step}", file=sys.stderr, flush=True)
