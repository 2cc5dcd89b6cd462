"""Processing one partition's events on several threads without breaking order per key.

Each key has its worker, so its events stay in order; a partition's progress is the
longest stretch without a gap, so a crash never skips an event that a slow worker had.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import zlib
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from penstock.errors import BadOption, NotOwner, NotSupported
from penstock.log.event import Event

if TYPE_CHECKING:
    from penstock.log.consumer import Consumer

_QUEUED_PER_WORKER = 64
_PAUSE_S = 0.1
_STOP = None


class Progress:
    """Which events of a partition are done; knows the end of the stretch without a gap. Thread-safe."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._open: dict[int, deque[int]] = {}
        self._done: dict[int, set[int]] = {}

    def begin(self, event: Event) -> None:
        with self._mutex:
            self._open.setdefault(event.partition, deque()).append(event.offset)

    def finish(self, event: Event) -> None:
        with self._mutex:
            self._done.setdefault(event.partition, set()).add(event.offset)

    def prefix(self) -> dict[int, int]:
        """For each partition, the offset up to which every event is done."""
        with self._mutex:
            return {part: end for part in self._open if (end := self._advance(part)) is not None}

    def _advance(self, partition: int) -> int | None:
        waiting, done = self._open[partition], self._done.get(partition, set())
        end = None
        while waiting and waiting[0] in done:
            offset = waiting.popleft()
            done.discard(offset)
            end = offset + 1
        return end


class _Workers:
    def __init__(self, count: int, handler: Callable[[Event], Any], progress: Progress) -> None:
        self._handler, self._progress = handler, progress
        self.failure: BaseException | None = None
        self.processed = 0
        self._given = 0
        self._finished = threading.Event()
        self._counting = threading.Lock()
        self._queues: list[queue.Queue[Event | None]] = [
            queue.Queue(_QUEUED_PER_WORKER) for _ in range(count)
        ]
        self._threads = [
            threading.Thread(target=self._work, args=(q,), name=f"penstock-worker-{n}", daemon=True)
            for n, q in enumerate(self._queues)
        ]
        for thread in self._threads:
            thread.start()

    def give(self, worker: int, event: Event, meanwhile: Callable[[], None]) -> None:
        """Blocks while that worker's queue is full, but keeps the lease."""
        self._put(worker, event, meanwhile)
        self._given += 1

    def drain(self, meanwhile: Callable[[], None]) -> None:
        """Wait until everything given is processed, or something failed; keeps the lease."""
        while self.failure is None and self.processed < self._given:
            self._finished.wait(_PAUSE_S)
            self._finished.clear()
            meanwhile()

    def stop(self, meanwhile: Callable[[], None]) -> None:
        """Let the workers finish what is queued, or drop it after a failure; keeps the lease."""
        for worker in range(len(self._queues)):
            self._put(worker, _STOP, meanwhile)
        for thread in self._threads:
            while thread.is_alive():
                thread.join(_PAUSE_S)
                meanwhile()

    def _put(self, worker: int, item: Event | None, meanwhile: Callable[[], None]) -> None:
        while True:
            try:
                return self._queues[worker].put(item, timeout=_PAUSE_S)
            except queue.Full:
                meanwhile()

    def _work(self, events: queue.Queue[Event | None]) -> None:
        while (event := events.get()) is not _STOP:
            if self.failure is not None:
                continue
            try:
                self._handler(event)
            except BaseException as error:
                self.failure = error
                self._finished.set()
                continue
            self._progress.finish(event)
            with self._counting:
                self.processed += 1
            self._finished.set()


def process(consumer: Consumer, handler: Callable[[Event], Any], parallel: int) -> int:
    """See `Consumer.process`."""
    if parallel < 1:
        raise BadOption(f"parallel={parallel}.", hint="use at least 1")
    if parallel > 1 and consumer.delivery == "exactly_once":
        raise NotSupported(
            "exactly_once needs the events of a partition one after the other.",
            hint="use parallel=1 and more members in the group, up to one per partition",
        )
    progress = Progress()
    workers = _Workers(parallel, handler, progress)
    key = consumer.topic.settings.key

    def note_progress() -> None:
        consumer.mark_done(progress.prefix())

    consumer.track_outside(note_progress)
    try:
        more = True
        while more:
            for event in consumer:
                progress.begin(event)
                workers.give(_worker_of(event, key, parallel), event, consumer.keep_lease)
                if workers.failure is not None:
                    break
            workers.drain(consumer.keep_lease)
            more = workers.failure is None and consumer.more_to_read()
    finally:
        workers.stop(consumer.keep_lease)
        with contextlib.suppress(NotOwner):  # who has it now reads on from the last commit
            consumer.commit()
        consumer.track_outside(None)
    failure, workers.failure = workers.failure, None
    if failure is None:
        return workers.processed
    try:
        raise failure
    finally:
        del failure  # its traceback leads back here, and would keep the consumer alive


def _worker_of(event: Event, key: tuple[str, ...], workers: int) -> int:
    if not key:
        return event.offset % workers
    return zlib.crc32(repr([event[column] for column in key]).encode()) % workers
