"""The records of a topic as they come, for a channel."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from penstock.errors import Damaged, PositionLost, StorageError
from penstock.follow.where import Where
from penstock.gateway import cursor, sse
from penstock.gateway.channel import Entry, Line, Places
from penstock.log.event import Event, events_of
from penstock.log.json_rows import to_json
from penstock.log.port import from_us
from penstock.log.topic import Topic

_LOOK_S = 0.5
_HANDED_BYTES = 64 << 10  # at a time


class TopicTail:
    """From the end of the topic as it is when it begins. `where`: only such records."""

    def __init__(self, topic: Topic, where: Where | None) -> None:
        self._topic, self._where, self._id = topic, where, topic.settings.id

    def run(self, line: Line) -> None:
        places = self._ends()
        line.begin({}, places, cursor.written(places))
        while not line.closed.is_set():
            try:
                places = self._step(line, places)
            except (StorageError, Damaged, OSError):
                self._ends()  # which says so if its files went away under our hands
                raise

    def _step(self, line: Line, places: dict[int, int]) -> dict[int, int]:
        self._topic.wait(places, _LOOK_S)
        ends = self._ends()
        return places if ends == places else self._read(line, {**dict.fromkeys(ends, 0), **places}, ends)

    def close(self) -> None:
        """It looks twice a second."""

    def _ends(self) -> dict[int, int]:
        if self._topic.settings.id != self._id:
            raise PositionLost(self._topic.name, "its topic was deleted, and there is another of that name")
        return {number: end for number, (_, end) in self._topic.bounds().items()}

    def _read(self, line: Line, places: dict[int, int], ends: dict[int, int]) -> dict[int, int]:
        entries: list[Entry] = []
        size = 0
        for event in merged(self._topic, places, ends, self._where):
            places[event.partition] = event.offset + 1
            id = cursor.written(places)
            entries.append(Entry(event.partition, event.offset, sse.event("record", told(event), id)))
            size += len(entries[-1].piece)
            if size >= _HANDED_BYTES:
                line.hand(entries, places, id)
                entries, size = [], 0
            if line.closed.is_set():
                break
        else:
            places = ends
        line.hand(entries, places, cursor.written(places))
        return places


def merged(topic: Topic, places: Places, ends: Places, where: Where | None) -> Iterator[Event]:
    """What lies between, by append time."""
    parts = [_of(topic, n, places.get(n, 0), end, where) for n, end in ends.items() if places.get(n, 0) < end]
    return heapq.merge(*parts, key=lambda event: (event.time_us, event.partition, event.offset))


def _of(topic: Topic, number: int, start: int, end: int, where: Where | None) -> Iterator[Event]:
    for batch in topic.read(partition=number, start=start, end=end):
        wanted = batch if where is None else batch.take(np.flatnonzero(where.holds(batch)))
        yield from events_of(topic.name, wanted)


def told(event: Event) -> dict[str, Any]:
    """A record as clients get it."""
    value = to_json(event.value)
    found = {
        "partition": event.partition,
        "offset": event.offset,
        "time": to_json(from_us(event.time_us)),
        "value": value,
    }
    return {**found, "deleted": True} if event.deleted else found


def replayed(entries: Iterable[Entry], places: Places) -> Iterator[bytes]:
    """Kept entries for a client that was at `places`, each with its own place from there on."""
    own = dict(places)
    for entry in entries:
        own[entry.partition] = entry.offset + 1
        yield b"id: %s\n%s" % (cursor.written(own).encode(), entry.piece.partition(b"\n")[2])
