"""Reading a topic as a member of a group."""

from __future__ import annotations

import contextlib
import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal, Self, get_args

import pyarrow as pa

from penstock.clock import duration_ms
from penstock.errors import BadOption, NotOwner, OffsetOutOfRange, PenstockError, RecordsLost
from penstock.log.event import Event, events_of
from penstock.log.port import LogPort, Member, Owned
from penstock.log.topic import Start, Topic

Delivery = Literal["at_most_once", "at_least_once", "exactly_once"]
OnLost = Literal["error", "earliest", "latest"]

_POLL_S_MAX = 0.5
_CHUNK_ROWS = 500
_CHUNK_BYTES = 1 << 20


@dataclass(slots=True)
class _Reading:
    """One partition this consumer reads: fetched, handed out, processed and committed up to here."""

    term: int
    fetched: int
    handed: int
    done: int
    committed: int | None


class Consumer:
    """One member of a consumer group: iterate over it, from one thread.

    - `at_least_once` (default): an event counts as processed when the next one is asked
      for; progress is committed about every second. A crash repeats what was not committed.
    - `at_most_once`: progress is committed before events are handed out, up to 500 at a
      time. A crash loses those of them that were not processed.
    - `exactly_once`: with `ps.once(connection, event)`, which stores the effect and the
      progress in one transaction of the program's own database.
    """

    def __init__(
        self,
        topic: Topic,
        port: LogPort,
        *,
        group: str,
        start: Start,
        delivery: Delivery,
        on_lost: OnLost,
        lease: str | float,
        commit_every: str | float,
        follow: bool,
        record_type: type | None,
    ) -> None:
        _check_choice("delivery", delivery, get_args(Delivery))
        _check_choice("on_lost", on_lost, get_args(OnLost))
        self.topic, self.group, self.delivery = topic, group, delivery
        self.missed = 0  # records that retention took before this consumer could read them
        self.waiting = False  # more members than partitions: standing by
        self._port = port
        self._start, self._on_lost = start, on_lost
        # Committed before it is handed out; committing what is processed would take that back.
        self._commit_every_s = math.inf if delivery == "at_most_once" else duration_ms(commit_every) / 1_000
        lease_s = duration_ms(lease) / 1_000
        if lease_s <= 0:
            raise BadOption(f"lease={lease!r}.", hint="a member needs time between two polls")
        self._poll_every_s = min(lease_s / 3, _POLL_S_MAX)
        self._follow, self._record_type = follow, record_type
        self._readings: dict[int, _Reading] = {}
        self._turn: deque[int] = deque()
        self._batch: pa.RecordBatch | None = None  # fetched, not yet handed out
        self._ready: Iterator[Event] = iter(())
        self._ready_from = -1
        self._current: Event | None = None
        self._note_progress: Callable[[], None] | None = None
        self._next_poll = 0.0
        self._next_commit = time.monotonic() + self._commit_every_s
        self._member: Member | None = port.join(group, topic.name, lease_s=lease_s)

    # ---- iteration -----------------------------------------------------------------------------

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Event:
        self._finish_current()
        while self._member is not None:
            self._keep_up()
            event = next(self._ready, None)
            if event is not None:
                self._hand_out(event)
                return event
            if not self._next_chunk() and not self._fetch() and not self._wait():
                break
        raise StopIteration

    def _hand_out(self, event: Event) -> None:
        self._current = event
        reading = self._readings[event.partition]
        reading.handed = event.offset + 1
        if self.delivery == "at_most_once":
            reading.done = reading.handed

    def _finish_current(self) -> None:
        event, self._current = self._current, None
        if (
            self._note_progress is None
            and event is not None
            and (reading := self._readings.get(event.partition))
        ):
            reading.done = event.offset + 1

    def _keep_up(self) -> None:
        now = time.monotonic()
        if now >= self._next_poll:
            self._poll()
        if now >= self._next_commit:
            self._commit_done()

    def _fetch(self) -> bool:
        """Get the next records of the partition whose turn it is; False when all are at their end."""
        for _ in range(len(self._turn)):
            self._ready_from = self._turn[0]
            self._turn.rotate(-1)
            self._batch = self._read_one(self._ready_from, self._readings[self._ready_from])
            if self._next_chunk():
                return True
        return False

    def _next_chunk(self) -> bool:
        """Make the next few fetched records ready; small steps, so that leases are renewed in time."""
        if self._batch is None or self._batch.num_rows == 0:
            return False
        chunk, self._batch = self._batch.slice(0, _CHUNK_ROWS), self._batch.slice(_CHUNK_ROWS)
        reading = self._readings[self._ready_from]
        reading.fetched = int(chunk.column(1)[-1].as_py()) + 1
        if self.delivery == "at_most_once" and self._commit({self._ready_from: reading.fetched}):
            return True  # it went to somebody else, who reads on
        self._ready = events_of(
            self.topic.name,
            self.topic.shown(chunk),
            record_type=self._record_type,
            group=self.group,
            topic_id=self.topic.settings.id,
        )
        return True

    def _read_one(self, partition: int, reading: _Reading) -> pa.RecordBatch | None:
        while True:
            try:
                return _gathered(self._port.read(self.topic.name, partition, reading.fetched))
            except OffsetOutOfRange as error:
                if reading.fetched >= error.start:
                    raise
                self._lost(reading, RecordsLost(
                    self.topic.name, partition, reading.fetched, start=error.start, end=error.end
                ))  # fmt: skip

    def _lost(self, reading: _Reading, lost: RecordsLost) -> None:
        """Retention was faster than this consumer."""
        if self._on_lost == "error":
            raise lost
        onward = lost.start if self._on_lost == "earliest" else lost.end
        self.missed += onward - reading.fetched
        reading.fetched = reading.handed = reading.done = onward

    def _wait(self) -> bool:
        """Sleep until there may be more; False when the loop should end."""
        if not self._follow and (self._readings or self.waiting):
            return self.more_to_read()
        ends = {partition: reading.fetched for partition, reading in self._readings.items()}
        pause_s = max(min(self._next_poll, self._next_commit) - time.monotonic(), 0.001)
        self._port.wait(self.topic.name, ends, pause_s)
        return True

    def more_to_read(self) -> bool:
        """Whether this progress opens partitions that had to wait for it (a topic that grew)."""
        if self._member is None:
            return False
        before = set(self._readings)
        self._commit_done()
        self._poll()
        return not self._readings.keys() <= before

    # ---- group ------------------------------------------------------------------------------------

    def _poll(self) -> None:
        assert self._member is not None
        self._next_poll = time.monotonic() + self._poll_every_s
        assignment = self._member.poll()
        self.waiting = assignment.waiting
        mine = assignment.partitions
        for part in [p for p, r in self._readings.items() if p not in mine or mine[p].term != r.term]:
            self._drop(part)
        revoked = [part for part, owned in mine.items() if owned.revoked]
        if revoked:
            self._let_go(revoked)
        self._take({part: owned for part, owned in mine.items() if not owned.revoked})

    def _take(self, kept: Mapping[int, Owned]) -> None:
        fresh = {part: kept[part].committed for part in sorted(kept.keys() - self._readings.keys())}
        begun = {part: self._place(part, self._start) for part, offset in fresh.items() if offset is None}
        for part, offset in fresh.items():
            at = begun[part] if offset is None else offset
            self._readings[part] = _Reading(kept[part].term, at, at, at, at)
        self._turn.extend(part for part in kept if part not in self._turn)
        if begun:
            # From here on the group has a place in these partitions, whoever reads them.
            self._commit(begun)

    def _let_go(self, revoked: list[int]) -> None:
        """Commit and release, but not while an event is being processed: its next must not overtake it."""
        assert self._member is not None
        self._commit_done(revoked)
        for part in revoked:
            self._stop_reading(part)
        idle = [part for part in revoked if not self._is_busy(part)]
        self._member.release(idle)
        for part in idle:
            self._drop(part)

    def _is_busy(self, partition: int) -> bool:
        reading = self._readings.get(partition)
        return self._note_progress is not None and reading is not None and reading.done < reading.handed

    def _place(self, partition: int, start: Start) -> int:
        """The offset that `start` means, if the partition holds it."""
        offset = self.topic.offset_of(partition, start)
        if isinstance(start, int | Mapping):
            first, end = self._port.bounds(self.topic.name, partition)
            if not first <= offset <= end:
                raise OffsetOutOfRange(self.topic.name, partition, offset, start=first, end=end)
        return offset

    def _drop(self, partition: int) -> None:
        self._stop_reading(partition)
        self._readings.pop(partition, None)

    def _stop_reading(self, partition: int) -> None:
        if partition in self._turn:
            self._turn.remove(partition)
        if self._ready_from == partition:
            self._ready, self._batch = iter(()), None
        if reading := self._readings.get(partition):
            reading.fetched = reading.handed

    def _commit_done(self, only: Iterable[int] | None = None) -> tuple[int, ...]:
        """Commit what is processed, everywhere or in these partitions; returns those that others have now."""
        self._next_commit = time.monotonic() + self._commit_every_s
        if self._note_progress is not None:
            self._note_progress()
        chosen = self._readings.keys() if only is None else self._readings.keys() & set(only)
        moved = {p: r.done for p in chosen if (r := self._readings[p]).done != r.committed}
        return self._commit(moved)

    def _commit(self, offsets: dict[int, int]) -> tuple[int, ...]:
        if not offsets or self._member is None:
            return ()
        try:
            self._member.commit(offsets)
        except NotOwner as error:
            # The new owner reads on from the last commit; ours would be wrong.
            for partition in error.partitions:
                self._drop(partition)
            self._next_poll = 0.0
            left = {part: offset for part, offset in offsets.items() if part in self._readings}
            return error.partitions + self._commit(left)
        for partition, offset in offsets.items():
            self._readings[partition].committed = offset
        return ()

    # ---- control ------------------------------------------------------------------------------------

    def commit(self) -> None:
        """Commit everything handed out so far, the current event included. Durable on return.

        Raises NotOwner if a partition went to another member, which reads on from the last commit.
        """
        self._finish_current()
        lost = () if self.delivery == "at_most_once" else self._commit_done()
        if lost:
            raise NotOwner(self.group, self.topic.name, lost)

    def seek(self, to: Start, *, partition: int | None = None) -> None:
        """Go on reading from there, in one partition or in all that this member has."""
        if self._next_poll == 0.0:
            self._poll()
        if partition is not None and partition not in self._readings:
            raise NotOwner(self.group, self.topic.name, [partition])
        places = {
            part: self._place(part, to) for part in (self._readings if partition is None else [partition])
        }
        for part, offset in places.items():
            reading = self._readings[part]
            reading.fetched = reading.handed = reading.done = offset
            if self._ready_from == part:
                self._ready, self._batch = iter(()), None
        self._current = None

    def assignment(self) -> dict[int, int]:
        """The partitions this member has now, each with the next offset to process."""
        if self._member is not None and time.monotonic() >= self._next_poll:
            self._poll()
        return {partition: reading.done for partition, reading in self._readings.items()}

    def process(self, handler: Callable[[Event], Any], *, parallel: int = 1) -> int:
        """Call `handler` for every event, `parallel` at a time; returns how many were processed.

        Events with the same key are handled one after the other, in order. Only what is
        processed without a gap is committed. The first exception of a handler stops it and is raised.
        """
        from penstock.log.parallel import process  # it builds on this class

        return process(self, handler, parallel)

    def track_outside(self, note_progress: Callable[[], None] | None) -> None:
        """Somebody else knows what is processed and says so with `mark_done` before each commit."""
        self._note_progress = note_progress

    def mark_done(self, offsets: Mapping[int, int]) -> None:
        """Everything before these offsets is processed."""
        for partition, offset in offsets.items():
            if reading := self._readings.get(partition):
                reading.done = max(reading.done, offset)

    def keep_lease(self) -> None:
        """Renew the lease and commit progress while events wait to be processed."""
        if self._member is not None:
            self._keep_up()

    def close(self, *, commit: bool = True) -> None:
        """Leave the group; others take over at once."""
        if self._member is None:
            return
        if commit:
            self._commit_done()
        self._member.leave()
        self._member = None
        self._readings.clear()
        self._turn.clear()

    def __del__(self) -> None:
        # A loop that was left by `break` or an exception: others must not wait for the lease to run out.
        with contextlib.suppress(Exception):
            self.close(commit=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._finish_current()
        self.close()


def _gathered(batches: Iterator[pa.RecordBatch]) -> pa.RecordBatch | None:
    """The next batch, and what follows it while all of that is small: appends are often of one record."""
    found: list[pa.RecordBatch] = []
    rows = size_bytes = 0
    try:
        for batch in batches:
            found.append(batch)
            rows, size_bytes = rows + batch.num_rows, size_bytes + pa.ipc.get_record_batch_size(batch)
            if rows >= _CHUNK_ROWS or size_bytes >= _CHUNK_BYTES:
                break
    except PenstockError:
        if not found:
            raise  # otherwise the next fetch meets it again, after these
    return pa.concat_batches(found) if len(found) > 1 else next(iter(found), None)


def _check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise BadOption(f"{name}={value!r}.", hint=f"choose one of {', '.join(choices)}")
