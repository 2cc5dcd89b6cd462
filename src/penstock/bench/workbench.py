"""A place to measure in: fresh topics, the same events for everybody, the best of a few attempts."""

from __future__ import annotations

import contextlib
import functools
import gc
import itertools
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from penstock.bench.report import Setting
from penstock.bench.sample import DDL, Sample
from penstock.log.log import Log, home_of
from penstock.log.topic import Topic
from penstock.opening import open_log

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much of everything. The best of `attempts` counts: the machine may be busy with other things."""

    attempts: int
    sample_events: int
    row_events: int  # written and read as Python objects
    arrow_events: int
    spark_events: int  # of a Spark job, which takes a second to start
    writer_events: int  # by each of the processes that write one topic
    latency_events: int
    open_batches: int
    stall_events: int
    memory_bytes: int
    rows_each: int = 10_000  # events per append from Python objects
    batch_rows: int = 50_000  # events per Arrow batch


@dataclass(frozen=True, slots=True)
class Workbench:
    folder: Path
    sizes: Sizes
    sample: Sample
    progress: Progress
    log: Log
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    @property
    def home(self) -> Path:
        return self.folder / "log"

    @contextlib.contextmanager
    def topic(self, ddl: str = DDL, **options: Any) -> Iterator[Topic]:
        """A fresh topic, gone afterwards."""
        topic = self.log.create_topic(f"bench-{next(self._numbers)}", ddl, **options)
        try:
            yield topic
        finally:
            self.log.delete_topic(topic.name)

    def rate(self, events: int, attempt: Callable[[], object]) -> float:
        """Events per second of the best attempt; each handles `events` of them."""
        return events / min(timed_s(attempt) for _ in range(self.sizes.attempts))

    def rate_into(self, events: int, attempt: Callable[[Topic], object], **options: Any) -> float:
        """The same, each attempt with a topic of its own."""
        took_s = []
        for _ in range(self.sizes.attempts):
            with self.topic(**options) as topic:
                took_s.append(timed_s(functools.partial(attempt, topic)))
        return events / min(took_s)

    def settings(self, **more: Setting) -> dict[str, Setting]:
        """What belongs to every rate, and `more`."""
        return {"event_bytes": round(self.sample.event_bytes, 1), "best_of": self.sizes.attempts, **more}


def timed_s(attempt: Callable[[], object]) -> float:
    gc.collect()  # the last attempt's garbage is not this one's
    began = time.perf_counter()
    attempt()
    return time.perf_counter() - began


@contextlib.contextmanager
def scratch(home: Path | None) -> Iterator[Path]:
    """A folder inside the data directory, gone afterwards."""
    parent = home_of(home)
    missing = not parent.exists()
    parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="bench-", dir=parent))
    try:
        yield folder
    finally:
        shutil.rmtree(folder)
        if missing:
            with contextlib.suppress(OSError):  # somebody else keeps something there by now
                parent.rmdir()


@contextlib.contextmanager
def opened(folder: Path, sizes: Sizes, sample: Sample, progress: Progress) -> Iterator[Workbench]:
    gc.freeze()  # the sample is no garbage: looking through it again and again would be measured too
    try:
        with open_log(folder / "log") as log:
            yield Workbench(folder, sizes, sample, progress, log)
    finally:
        gc.unfreeze()
