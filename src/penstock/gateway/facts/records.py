"""The records of a topic, a page at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from heapq import heapify, heappop, heapreplace
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from penstock.app.app import App
from penstock.errors import BadOption, OffsetOutOfRange
from penstock.follow.where import Where
from penstock.gateway import cursor, filter
from penstock.log.event import events_of
from penstock.log.json_rows import to_json
from penstock.log.port import from_us
from penstock.log.settings import SYSTEM_FIELDS
from penstock.log.topic import Topic
from penstock.places import offsets_of, parse_place

T = TypeVar("T")
_FURTHER = 8  # times as far back, while too little is found


@dataclass(frozen=True, slots=True)
class Record:
    """`value` is the record as JSON has it; of a delete only the key is filled."""

    partition: int
    offset: int
    time: str
    value: dict[str, Any]
    deleted: bool = False


@dataclass(frozen=True, slots=True)
class Page:
    """`next`: where the next page begins. `at_end`: there was nothing more when this was read.

    It holds fewer than were asked for where they are large.
    """

    topic: str
    records: tuple[Record, ...]
    next: str
    at_end: bool
    scanned: int  # records that were looked at


@dataclass(frozen=True, slots=True)
class Wish:
    """What is asked for. `start`: a place (see `penstock.places`) or a cursor; `last`: the newest so many."""

    start: str = "earliest"
    partition: int | None = None
    where: str | None = None
    limit: int = 100
    last: int | None = None


def columns_of(topic: Topic) -> pa.Schema:
    """What a filter may name."""
    return pa.schema([*SYSTEM_FIELDS, *topic.settings.schema.arrow])


def page(app: App, name: str, wish: Wish, *, now: datetime, scanned_max: int, size_bytes_max: int) -> Page:
    """By append time over all partitions. Raises UnknownTopic, OffsetOutOfRange, BadQuery."""
    topic = app.log.topic(name)
    where = filter.where(wish.where, columns_of(topic))
    bounds = topic.bounds()
    if wish.last is not None:
        return _newest(topic, wish.last, wish.partition, bounds, where, scanned_max, size_bytes_max)
    ends = {number: end for number, (_, end) in bounds.items()}
    starts = places_of(topic, wish.start, wish.partition, now=now)
    chosen = Chosen(wish.limit, size_bytes_max)
    return _taken(topic, starts, ends, where, chosen, scanned_max=scanned_max)


def _newest(
    topic: Topic,
    last: int,
    partition: int | None,
    bounds: dict[int, tuple[int, int]],
    where: Where | None,
    scanned_max: int,
    size_bytes_max: int,
) -> Page:
    """The newest so many that are wanted: further back, until they are found or too many were looked at."""
    bounds = _only(bounds, partition, topic.name)
    ends = {number: end for number, (_, end) in bounds.items()}
    width, most = last, max(last, scanned_max // len(bounds))
    while True:
        starts = {number: max(first, end - width) for number, (first, end) in bounds.items()}
        chosen = Chosen(last, size_bytes_max, newest=True)
        found = _taken(topic, starts, ends, where, chosen, scanned_max=scanned_max)
        older = [number for number, (first, _) in bounds.items() if starts[number] > first]
        if where is None or not older or width >= most:
            return found
        is_full = chosen.left_out or len(chosen.rows) == last
        if is_full and _is_past(topic, chosen, {number: starts[number] for number in older}):
            return found
        width = min(most, width * _FURTHER)


def _is_past(topic: Topic, chosen: Chosen, starts: dict[int, int]) -> bool:
    """Whether all that lies before `starts` is older than what was chosen."""
    batch, at, _ = chosen.rows[0]
    oldest = batch.column("_timestamp")[at].as_py()
    return all(topic.offset_of(number, oldest) >= start for number, start in starts.items())


def places_of(topic: Topic, start: str, partition: int | None, *, now: datetime) -> dict[int, int]:
    """The next offset of each partition that `start` means."""
    if not cursor.is_one(start):
        return offsets_of(topic, parse_place(start, now=now), partition)
    given, bounds = cursor.read(start), topic.bounds()
    for number, offset in given.items():
        if number not in bounds:
            raise BadOption(
                f'topic "{topic.name}" has no partition {number}.', hint=f"choose 0 to {len(bounds) - 1}"
            )
        first, end = bounds[number]
        if not first <= offset <= end:
            raise OffsetOutOfRange(topic.name, number, offset, start=first, end=end)
    # A partition that was added since begins at its beginning.
    places = {number: given.get(number, first) for number, (first, _) in bounds.items()}
    return _only(places, partition, topic.name)


def _only(places: dict[int, T], partition: int | None, name: str) -> dict[int, T]:
    if partition is None:
        return places
    if partition not in places:
        raise BadOption(
            f'topic "{name}" has no partition {partition}.', hint=f"choose 0 to {len(places) - 1}"
        )
    return {partition: places[partition]}


@dataclass(slots=True)
class Chosen:
    """Rows for one answer: at most so many, of at most so many bytes in all, though always one.

    `newest`: those that came first make room, else there is no more room.
    """

    rows_max: int
    size_bytes_max: int
    newest: bool = False
    rows: deque[tuple[pa.RecordBatch, int, int]] = field(default_factory=deque)
    size_bytes: int = 0
    left_out: bool = False  # there was no room for all

    def add(self, batch: pa.RecordBatch, at: int) -> None:
        size = batch.slice(at, 1).nbytes
        self.rows.append((batch, at, size))
        self.size_bytes += size
        while self.newest and len(self.rows) > 1 and self._is_over:
            self.size_bytes -= self.rows.popleft()[2]
            self.left_out = True

    @property
    def _is_over(self) -> bool:
        return len(self.rows) > self.rows_max or self.size_bytes > self.size_bytes_max

    @property
    def is_full(self) -> bool:
        return not self.newest and (len(self.rows) >= self.rows_max or self.size_bytes >= self.size_bytes_max)

    def records(self, topic: str) -> tuple[Record, ...]:
        return tuple(record_of(topic, batch, at) for batch, at, _ in self.rows)


@dataclass(slots=True)
class _Budget:
    left: int


@dataclass(slots=True)
class _Part:
    """One partition being read: its rows that are wanted, one after the other."""

    topic: Topic
    number: int
    next: int
    end: int
    where: Where | None
    budget: _Budget
    rows: Iterator[tuple[int, int, pa.RecordBatch, int]] = field(init=False)
    whole: bool = False  # read up to its end

    def __post_init__(self) -> None:
        self.rows = self._rows()

    def _rows(self) -> Iterator[tuple[int, int, pa.RecordBatch, int]]:
        for batch in self.topic.read(partition=self.number, start=self.next, end=self.end):
            if self.budget.left <= 0:
                return
            piece = batch.slice(0, self.budget.left)
            self.budget.left -= piece.num_rows
            offsets = piece.column("_offset").to_numpy()
            times = piece.column("_timestamp").cast(pa.int64()).to_numpy()
            for at in (
                range(piece.num_rows) if self.where is None else np.flatnonzero(self.where.holds(piece))
            ):
                self.next = int(offsets[at])
                yield int(times[at]), self.next, piece, int(at)
            self.next = int(offsets[-1]) + 1
            if piece.num_rows < batch.num_rows:
                return
        self.next, self.whole = self.end, True


def _taken(
    topic: Topic,
    starts: dict[int, int],
    ends: dict[int, int],
    where: Where | None,
    chosen: Chosen,
    *,
    scanned_max: int,
) -> Page:
    budget = _Budget(scanned_max)
    parts = {n: _Part(topic, n, at, max(at, ends[n]), where, budget) for n, at in starts.items()}
    heads = [(*row[:2], number, row) for number, part in parts.items() if (row := next(part.rows, None))]
    heapify(heads)
    while heads and not chosen.is_full:
        _, _, number, (_, _, batch, at) = heads[0]
        chosen.add(batch, at)
        following = next(parts[number].rows, None)
        if following is None:
            heappop(heads)
        else:
            heapreplace(heads, (*following[:2], number, following))
    at_end = not heads and all(part.whole for part in parts.values())
    places = {number: part.next for number, part in parts.items()}
    return Page(
        topic.name, chosen.records(topic.name), cursor.written(places), at_end, scanned_max - budget.left
    )


def record_of(topic: str, batch: pa.RecordBatch, at: int) -> Record:
    """A row of a batch that was read."""
    (event,) = events_of(topic, batch.slice(at, 1))
    value: Any = to_json(event.value)
    return Record(event.partition, event.offset, str(to_json(from_us(event.time_us))), value, event.deleted)
