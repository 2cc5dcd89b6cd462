"""Change feeds: the rows of a table or view as they are, then every change, without gap or overlap.

The current rows are the fold of the log up to one offset in each partition, and the changes are what lies
behind those offsets. A position is such a set of offsets. A subscriber that hands one in has the rows of the
fold up to there, so that fold is made again (without telling it), and the changes after it are exact.

**What compaction takes, and why nothing is missed.** Compaction takes a record only when a newer one of its
key stays, except for deletes, which go after a while. Say a subscriber comes back with position P.

- A key that has no record after P now had none, or its last one was a delete that has gone. So where offsets
  are missing after P, and one of them may have been a delete old enough to go, the feed is refused
  (PositionLost): nobody can tell which keys the subscriber must forget. How old they may be is known from
  what was read before them, or from the time in the position. Deletes stay for `tombstone_ms` and for the
  table's `history`, whichever is longer: so long somebody may be away in any case.
- A key that has a record after P: all that was between is gone at worst, and the subscriber gets the net
  result. What it had at P may be gone as well, so that the fold up to P does not show it. That can only be if
  offsets are missing before P, and only for a key whose first record after P was there so long ago that
  compaction could act on it: longer than the `history`. For such a record a "delete" is told even if the
  row does not seem to be there, and an "insert" may be of a row that the subscriber has. To take both as
  "remove it if it is there" and "put it in place of what is there" is all that is asked of a subscriber.

So within the `history` of a table every single change is told as it was, and after it no change is missed.
Who changes `history` or `tombstone_ms` of a topic should know that feeds go by what they are now.

A changelog is not compacted. If retention has taken its beginning its rows cannot be told (RecordsLost).

All records of a key are taken to be in one partition, where `append` puts them.
"""

from __future__ import annotations

import heapq
import threading
import time
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa

from penstock.app import reading as views
from penstock.app.table import AppTable
from penstock.clock import Clock
from penstock.errors import (
    BadOption,
    Damaged,
    OffsetOutOfRange,
    PositionLost,
    RecordsLost,
    StorageError,
    UnknownView,
)
from penstock.follow.gaps import UNDER_WAY_US, Gaps, clock_of, may_hide_deletes
from penstock.follow.subset import Doubt, Operation, Shape, Step, Subset, TableShape, ViewShape
from penstock.follow.token import FeedPosition
from penstock.follow.where import Wanted, check_column, where_of
from penstock.log.topic import Topic

if TYPE_CHECKING:
    from penstock.app.app import App

_WAIT_S = 0.5  # how long it may take to see that it was closed, or that the topic is gone
_PIECE_ROWS = 20_000
_PIECE_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class Change:
    """One change of the rows that a subscriber wants.

    `op` is "insert", "update", "delete", or "current": from here on the rows are those of the log as it was
    when the feed began. `row` has the chosen columns, of a delete the key. `position` is what `after=` takes;
    None before the first "current", when there is nothing yet to go on from.
    """

    op: Operation
    key: dict[str, Any] = field(default_factory=dict)
    row: dict[str, Any] = field(default_factory=dict)
    before: dict[str, Any] | None = None
    position: str | None = None


class Feed:
    """An iterator of changes. One thread iterates; `close` may be called by any.

    Begun anew, it tells an "insert" for every row there is, then "current", then every change. Begun `after`
    a position, it tells what changed since, then "current", then every change.
    """

    def __init__(self, reading: _Reading) -> None:
        # The generator must not lead back to here: a feed that is dropped ends at once, not when Python
        # next looks for cycles.
        self._reading, self._changes = reading, reading.run()

    @property
    def is_current(self) -> bool:
        """Whether all rows that there were when it began have been told."""
        return self._reading.is_current

    @property
    def position(self) -> str | None:
        """How far it is, also past what does not concern the subscriber: what `after=` takes.

        None before the first "current" of a feed that began anew.
        """
        return self._reading.position

    def close(self) -> None:
        """End the iteration, at the latest half a second from now."""
        self._reading.closed.set()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Change:
        if self._reading.closed.is_set():
            self._changes.close()
        return next(self._changes)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Reading:
    """The log as one subscriber reads it."""

    def __init__(
        self,
        topic: Topic,
        shape: Shape,
        *,
        where: Wanted,
        columns: Sequence[str] | None,
        after: str | None,
        follow: bool,
        timeout_s: float | None,
        clock: Clock,
    ) -> None:
        condition = where_of(where, shape.columns)
        chosen = _chosen(columns, shape.columns)
        self._topic, self._follow, self._timeout_s, self._clock = topic, follow, timeout_s, clock
        self._settings = topic.settings
        self._wanted = repr((condition.said, sorted(chosen) if columns is not None else None))
        self.rows = Subset(shape, condition, chosen)
        self._doubts: dict[int, Doubt] = {}
        self._begins_us = clock.now_us()
        self._ends = self._bounds()
        self._after = self._decoded(after) if after is not None else None
        self._next = dict(self._after.ends_by_partition) if self._after else self._ends
        self._seen_us = self._after.seen_us if self._after else self._begins_us
        self.closed = threading.Event()
        self.is_current = False

    @property
    def position(self) -> str | None:
        return self._position(self._seen_us) if self._after or self.is_current else None

    # ---- the three parts of a feed ---------------------------------------------------------------

    def run(self) -> Generator[Change]:
        if self._after is None:
            yield from self._current_rows()
        else:
            self._restore()
        yield from self._read_to(self._ends, self._begins_us)
        if self.closed.is_set():  # so not all has been told
            return
        self.is_current = True
        yield Change("current", position=self.position)
        if self._follow:
            yield from self._tail()

    def _current_rows(self) -> Iterator[Change]:
        for number, end in self._ends.items():
            self._fold(number, end)
        if not self.closed.is_set():
            for key, row in self.rows.rows():
                yield Change("insert", key, row)

    def _restore(self) -> None:
        """The rows that the subscriber has."""
        for number, end in self._next.items():
            if self._fold(number, end) < end and self._settings.compacted:
                self._doubts[number] = Doubt(limit_us=0)
        # Only now, since compaction may have gone on while we read.
        settled_us = self._clock.now_us() - (self._settings.history_ms or 0) * 1_000
        for doubt in self._doubts.values():
            doubt.limit_us = settled_us

    def _tail(self) -> Iterator[Change]:
        told = time.monotonic()
        while not self.closed.is_set():
            now_us = self._clock.now_us()
            ends = self._bounds()
            if ends != self._next:
                for change in self._read_to(ends, now_us):
                    yield change
                    told = time.monotonic()
                continue
            self._seen_us = now_us
            left_s = _WAIT_S if self._timeout_s is None else told + self._timeout_s - time.monotonic()
            if left_s <= 0:
                return
            self._topic.wait(self._next, min(left_s, _WAIT_S))

    # ---- reading -----------------------------------------------------------------------------------

    def _fold(self, number: int, end: int) -> int:
        """Everything up to `end`, told to nobody; how many records that was."""
        start = self._topic.offset_of(number, "earliest")
        if start > 0 and not self._settings.compacted:
            error = RecordsLost(self._topic.name, number, 0, start=start, end=end)
            error.hint = "rebuild the view, and raise the retention of its changelog"
            raise error
        count = 0
        for batch in self._batches(number, start, end):
            deque(self.rows.apply(batch), maxlen=0)
            count += batch.num_rows
            if self.closed.is_set():
                break
        return count

    def _read_to(self, ends: dict[int, int], now_us: int) -> Iterator[Change]:
        """What happened up to `ends`, which were seen at `now_us`, by append time."""
        steps = [self._steps(number, end) for number, end in ends.items() if self._next[number] < end]
        for step in heapq.merge(*steps, key=lambda step: step[:3]):
            if self.closed.is_set():
                return
            self._next = {**self._next, step.partition: step.offset + 1}
            # What is still to be read was appended later than this, or after we looked.
            self._seen_us = min(step.time_us, now_us)
            position = self._position(self._seen_us)
            yield Change(step.operation, step.key, step.row, step.before, position)
        if self.closed.is_set():  # perhaps before the end
            return
        self._next, self._seen_us = ends, now_us
        self._doubts = {n: doubt for n, doubt in self._doubts.items() if doubt.limit_us > now_us}

    def _steps(self, number: int, end: int) -> Iterator[Step]:
        gaps = Gaps(self._next[number], self._seen_us - UNDER_WAY_US)
        for batch in self._batches(number, self._next[number], end):
            self._check_deletes(gaps.since(batch))
            yield from self.rows.apply(batch, self._doubts.get(number))
            if self.closed.is_set():
                return
        self._check_deletes(gaps.since_last(end))

    def _check_deletes(self, gap_us: int | None) -> None:
        """Refuse to go on after a gap in which a delete may have been that has gone."""
        if may_hide_deletes(gap_us, self._settings, now_us=self._clock.now_us()):
            raise PositionLost(self._topic.name, "compaction may have removed deletes that it has not told")

    def _batches(self, number: int, start: int, end: int) -> Iterator[pa.RecordBatch]:
        """In pieces. Between them nothing of the log is held open: the next may never be asked for."""
        while start < end:
            piece = self._piece(number, start, end)
            self._check_topic()  # else these may be records of another topic
            if piece is None:
                return
            yield piece
            start = int(piece.column("_offset")[-1].as_py()) + 1

    def _piece(self, number: int, start: int, end: int) -> pa.RecordBatch | None:
        try:
            return _gathered(self._topic.read(partition=number, start=start, end=end))
        except OffsetOutOfRange as error:
            self._check_topic()
            reason = "retention has removed records that it has not told"
            raise PositionLost(self._topic.name, reason) from error
        except (StorageError, Damaged, FileNotFoundError):
            self._check_topic()  # its files went away under our hands
            raise

    # ---- where it is -------------------------------------------------------------------------------

    def _bounds(self) -> dict[int, int]:
        self._check_topic()
        return {number: end for number, (_, end) in self._topic.bounds().items()}

    def _check_topic(self) -> None:
        """Raises UnknownTopic when it was deleted, PositionLost when another one has its name."""
        if self._topic.settings.id != self._settings.id:
            raise PositionLost(self._topic.name, "its topic was deleted, and there is another of that name")

    def _position(self, seen_us: int) -> str:
        ends = (self._next[number] for number in sorted(self._next))
        return FeedPosition.of(self._settings.id, self._wanted, seen_us, ends).encode()

    def _decoded(self, after: str) -> FeedPosition:
        name = self._topic.name
        found = FeedPosition.decode(after)
        own = FeedPosition.of(self._settings.id, self._wanted, 0, self._ends.values())
        if found.topic != own.topic:
            raise PositionLost(name, "the position is one in another topic, or in one that was deleted")
        if found.wanted != own.wanted:
            raise BadOption(
                "that position is one of a feed with another where= or columns=.",
                hint="subscribe as then, or anew without after=",
            )
        if len(found.ends) != len(own.ends) or any(a > b for a, b in zip(found.ends, own.ends, strict=True)):
            raise PositionLost(name, "the log does not reach that position: it is older, or another one")
        return found


def _gathered(batches: Iterable[pa.RecordBatch]) -> pa.RecordBatch | None:
    """The first of them, and small ones together: each costs as much as some hundred records."""
    held: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        held.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if rows >= _PIECE_ROWS or size >= _PIECE_BYTES:
            break
    return pa.concat_batches(held) if rows else None


def subscribe(
    app: App,
    name: str,
    *,
    where: Wanted,
    columns: Sequence[str] | None,
    after: str | None,
    follow: bool,
    timeout_s: float | None,
) -> Feed:
    topic, shape = _subscribed(app, name)
    reading = _Reading(
        topic, shape, where=where, columns=columns, after=after, follow=follow, timeout_s=timeout_s,
        clock=clock_of(app.log.port),
    )  # fmt: skip
    return Feed(reading)


def columns_of(app: App, name: str) -> pa.Schema:
    """What can be asked for of a table or view."""
    return _subscribed(app, name)[1].columns


def _subscribed(app: App, name: str) -> tuple[Topic, Shape]:
    declared, definition = app.topics.get(name) or _captured(app, name), app.definitions.get(name)
    if isinstance(declared, AppTable):
        return declared, TableShape(declared.settings)
    if declared is not None or (definition is not None and definition.kind == "stream"):
        raise BadOption(
            f'"{name}" is no table and no view.',
            hint=f"read its records: topic.consume(), penstock consume {name}",
        )
    if definition is None:
        tables = [known for known, found in app.topics.items() if isinstance(found, AppTable)]
        raise UnknownView(name, known=[*tables, *app.definitions])
    shape = ViewShape(views.spec(app, name))  # which says so if it has not run yet
    return app.log.topic(name), shape


def _captured(app: App, name: str) -> AppTable | None:
    capture, _, table = name.partition(".")
    found = app.captures[capture].table(table) if capture in app.captures else None
    return found if found is not None and found.settings.compacted else None


def _chosen(columns: Sequence[str] | None, known: pa.Schema) -> list[str]:
    if columns is None:
        return list(known.names)
    chosen = [columns] if isinstance(columns, str) else list(columns)
    for name in chosen:
        check_column(name, known)
    return chosen
