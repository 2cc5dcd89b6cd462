"""How long a topic takes to open, and that its length does not matter."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from pathlib import Path

from penstock.bench.report import Result, Setting
from penstock.bench.workbench import Workbench, timed_s
from penstock.log.embedded import EmbeddedLog
from penstock.log.frame import PendingFrame
from penstock.log.topic import Topic
from penstock.opening import open_log

_FEW_BATCHES = 100
_BATCHES_AT_ONCE = 1_000
_OPENINGS = 21
_RATIO_MAX = 2.0


def measure(bench: Workbench) -> Iterator[Result]:
    few = _opening_ms(bench, _FEW_BATCHES)
    many = _opening_ms(bench, bench.sizes.open_batches)
    settings: dict[str, Setting] = {"median_of": _OPENINGS, "events_per_batch": 1, "segments": 1}
    yield Result(f"open a topic of {_FEW_BATCHES} batches", few, "ms", settings=settings)
    yield Result(f"open a topic of {bench.sizes.open_batches:,} batches", many, "ms", settings=settings)
    yield Result("open, long topic : short topic", many / few, "ratio", settings=settings).at_most(_RATIO_MAX)


def _opening_ms(bench: Workbench, batches: int) -> float:
    """Open the log, ask for the bounds, read the last record."""
    bench.progress(f"open a topic of {batches:,} batches")
    # One segment however long: no roll merges the small batches on the way.
    with bench.topic(durability="os", segment_bytes=1 << 40) as topic:
        _fill(bench, topic, batches)
        took_s = [timed_s(lambda: _open_and_read(bench.home, topic.name)) for _ in range(_OPENINGS)]
    return statistics.median(took_s) * 1_000


def _fill(bench: Workbench, topic: Topic, batches: int) -> None:
    """One-record batches, a thousand under each lock: a million single appends would take minutes."""
    assert isinstance(bench.log.port, EmbeddedLog)
    partition = bench.log.port.partition(topic.name, 0)
    # A frame gets its offset and checksum anew each time it is written.
    frame = PendingFrame(bench.sample.table.slice(0, 1))
    for start in range(0, batches, _BATCHES_AT_ONCE):
        partition.append([frame] * min(_BATCHES_AT_ONCE, batches - start), topic.settings)
    # Opening syncs a folder; it should not have to wait for a gigabyte of ours on its way to the disk.
    partition.active(partition.head()).sync()


def _open_and_read(home: Path, name: str) -> None:
    with open_log(home) as log:
        topic = log.topic(name)
        _, end = topic.bounds()[0]
        (last,) = topic.read(partition=0, start=end - 1)
        assert last.num_rows == 1, "the last record is one record"
