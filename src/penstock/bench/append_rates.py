"""Events per second into a topic: from dicts, dataclasses and Arrow, buffered, and by several processes."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from penstock.bench import peers, sample
from penstock.bench.child import Child, Line
from penstock.bench.report import Result
from penstock.bench.workbench import Workbench
from penstock.log.settings import Durability
from penstock.log.topic import Topic
from penstock.opening import open_log

_DICTS_PER_S = 700_000
_ARROW_PER_S = 10_000_000
_PARTITIONS = 4
_WRITERS = 4
_WRITER_ROWS = 1_000
_DURABILITIES: tuple[Durability, ...] = ("fsync", "os")


def measure(bench: Workbench) -> Iterator[Result]:
    for durability in _DURABILITIES:
        yield _dicts(bench, durability)
        yield _dataclasses(bench, durability)
        yield _arrow(bench, durability)
        yield _arrow_by_key(bench, durability)
    yield _send(bench)
    yield _processes(bench)


def _dicts(bench: Workbench, durability: Durability) -> Result:
    bench.progress(f"append dicts, {durability}")
    events, each = bench.sample.dicts[: bench.sizes.row_events], bench.sizes.rows_each
    chunks = [events[start : start + each] for start in range(0, len(events), each)]
    value = bench.rate_into(len(events), lambda topic: _append_all(topic, chunks), durability=durability)
    settings = bench.settings(events=len(events), events_per_append=each, durability=durability)
    found = Result(f"append dicts, {durability}", value, "events/s", settings=settings).at_least(_DICTS_PER_S)
    synchronous: peers.Synchronous = "FULL" if durability == "fsync" else "OFF"
    return found.beside(f"SQLite WAL, {synchronous}", peers.sqlite_rate(bench, chunks, synchronous))


def _dataclasses(bench: Workbench, durability: Durability) -> Result:
    bench.progress(f"append dataclasses, {durability}")
    events, each = bench.sample.objects[: bench.sizes.row_events], bench.sizes.rows_each
    chunks = [events[start : start + each] for start in range(0, len(events), each)]
    value = bench.rate_into(len(events), lambda topic: _append_all(topic, chunks), durability=durability)
    settings = bench.settings(events=len(events), events_per_append=each, durability=durability)
    return Result(f"append dataclasses, {durability}", value, "events/s", settings=settings)


def _arrow(bench: Workbench, durability: Durability) -> Result:
    bench.progress(f"append Arrow, {durability}")
    batches = arrow_batches(bench)
    events = peers.rows_in(batches)
    value = bench.rate_into(events, lambda topic: _append_all(topic, batches), durability=durability)
    settings = bench.settings(events=events, events_per_append=bench.sizes.batch_rows, durability=durability)
    found = Result(f"append Arrow, {durability}", value, "events/s", settings=settings)
    if durability == "fsync":
        return found.beside("plain file, write and fsync", peers.file_rate(bench, batches, sync=True))
    return found.at_least(_ARROW_PER_S).beside("pyarrow.ipc stream", peers.ipc_write_rate(bench, batches))


def _arrow_by_key(bench: Workbench, durability: Durability) -> Result:
    bench.progress(f"append Arrow by key, {durability}")
    batches = arrow_batches(bench)
    events = peers.rows_in(batches)
    options: dict[str, Any] = {"durability": durability, "partitions": _PARTITIONS, "key": "user_id"}
    value = bench.rate_into(events, lambda topic: _append_all(topic, batches), **options)
    settings = bench.settings(events=events, events_per_append=bench.sizes.batch_rows, **options)
    return Result(
        f"append Arrow by key to {_PARTITIONS} partitions, {durability}", value, "events/s", settings=settings
    )


def _send(bench: Workbench) -> Result:
    bench.progress("send through a buffered producer")
    events = bench.sample.dicts[: bench.sizes.row_events]
    value = bench.rate_into(len(events), lambda topic: _send_all(topic, events))
    settings = bench.settings(events=len(events), durability="fsync", flushed=True)
    return Result("producer.send, fsync", value, "events/s", settings=settings)


def _processes(bench: Workbench) -> Result:
    bench.progress(f"{_WRITERS} processes write one topic")
    alone = max(_written_by(bench, 1) for _ in range(bench.sizes.attempts))
    together = max(_written_by(bench, _WRITERS) for _ in range(bench.sizes.attempts))
    events = _WRITERS * bench.sizes.writer_events
    settings = bench.settings(events=events, events_per_append=_WRITER_ROWS, partitions=1, durability="fsync")
    found = Result(f"{_WRITERS} processes append dicts to one topic", together, "events/s", settings=settings)
    return found.beside("one process", alone)


def _written_by(bench: Workbench, writers: int) -> float:
    """Events per second of all of them together."""
    events = bench.sizes.writer_events
    with bench.topic() as topic:
        crew = [Child(_write, bench.home, topic.name, events) for _ in range(writers)]
        try:
            for child in crew:
                child.hear()
            began = time.perf_counter()
            for child in crew:
                child.say("go")
            for child in crew:
                child.hear()
            return writers * events / (time.perf_counter() - began)
        finally:
            for child in crew:
                child.end()


def _write(line: Line, home: Path, name: str, events: int) -> None:
    chunk = sample.make(min(events, _WRITER_ROWS)).dicts
    with open_log(home) as log:
        topic = log.topic(name)
        line.say("ready")
        line.hear()
        for _ in range(_parts(events, _WRITER_ROWS)):
            topic.append(chunk)
        line.say("done")


def arrow_batches(bench: Workbench) -> list[pa.RecordBatch]:
    """The sample's batches, over and over, as many as are to be written."""
    ours = bench.sample.batches(bench.sizes.batch_rows)
    return list(itertools.islice(itertools.cycle(ours), _parts(bench.sizes.arrow_events, ours[0].num_rows)))


def _append_all(topic: Topic, chunks: Sequence[Any]) -> None:
    for chunk in chunks:
        topic.append(chunk)


def _send_all(topic: Topic, events: Sequence[Any]) -> None:
    with topic.producer() as producer:
        for event in events:
            producer.send(event)


def _parts(events: int, each: int) -> int:
    return max(1, events // each)
