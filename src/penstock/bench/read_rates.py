"""Events per second out of a topic: as Arrow, as rows, as events of a group, beside a stalled consumer."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path

from penstock.bench import peers
from penstock.bench.append_rates import arrow_batches
from penstock.bench.child import Child, Line
from penstock.bench.report import Result
from penstock.bench.workbench import Workbench
from penstock.log.topic import Topic
from penstock.opening import open_log

_ARROW_PER_S = 20_000_000
_ROWS_PER_S = 1_000_000


def measure(bench: Workbench) -> Iterator[Result]:
    yield _arrow(bench)
    yield from _python(bench)
    yield _beside_a_stalled_consumer(bench)


def _arrow(bench: Workbench) -> Result:
    bench.progress("read as Arrow")
    batches = arrow_batches(bench)
    events = peers.rows_in(batches)
    with bench.topic(durability="os") as topic:
        for batch in batches:
            topic.append(batch)
        value = bench.rate(events, lambda: exhaust(topic.read()))
    settings = bench.settings(events=events, cached=True, checksums="every byte")
    found = Result("read as Arrow", value, "events/s", settings=settings).at_least(_ARROW_PER_S)
    return found.beside("pyarrow.ipc stream, no checksums", peers.ipc_read_rate(bench, batches))


def _python(bench: Workbench) -> Iterator[Result]:
    events = bench.sample.dicts[: bench.sizes.row_events]
    settings = bench.settings(events=len(events), cached=True)
    with bench.topic(durability="os") as topic:
        topic.append(bench.sample.table.slice(0, len(events)))
        bench.progress("read as rows")
        value = bench.rate(len(events), lambda: exhaust(topic.rows()))
        found = Result("read as rows (dicts)", value, "events/s", settings=settings).at_least(_ROWS_PER_S)
        yield found.beside("SQLite, SELECT as dicts", peers.sqlite_read_rate(bench, events))
        bench.progress("read through a consumer group")
        numbers = itertools.count()
        value = bench.rate(len(events), lambda: _consume(topic, f"reader-{next(numbers)}"))
        yield Result("read as events of a consumer group", value, "events/s", settings=settings)


def _beside_a_stalled_consumer(bench: Workbench) -> Result:
    bench.progress("a stalled consumer beside a fast one")
    with bench.topic(durability="os") as topic:
        for batch in bench.sample.batches(1_000)[: max(1, bench.sizes.stall_events // 1_000)]:
            topic.append(batch)
        events = sum(end - first for first, end in topic.bounds().values())
        numbers = itertools.count()
        alone = bench.rate(events, lambda: _consume(topic, f"alone-{next(numbers)}"))
        with Child(_stall, bench.home, topic.name) as stalled:
            stalled.hear()
            beside = bench.rate(events, lambda: _consume(topic, f"beside-{next(numbers)}"))
    settings = bench.settings(events=events, events_per_append=1_000, stalled_after_events=1)
    found = Result("consumer beside a stalled one", beside, "events/s", settings=settings)
    return found.beside("the same consumer alone", alone)


def _consume(topic: Topic, group: str) -> None:
    with topic.consume(group=group, follow=False) as consumer:
        exhaust(consumer)


def _stall(line: Line, home: Path, name: str) -> None:
    """Take one event and do nothing more."""
    with open_log(home) as log, log.topic(name).consume(group="stalled") as consumer:
        next(consumer)
        line.say("stalled")
        line.hear()


def exhaust(items: Iterable[object]) -> None:
    for _ in items:
        pass
