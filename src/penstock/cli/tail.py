"""Reading a topic without a group: what there is, by append time, and then what comes."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping

from penstock import places
from penstock.errors import OffsetOutOfRange, RecordsLost
from penstock.log.consumer import OnLost
from penstock.log.event import Event
from penstock.log.topic import Topic

# New partitions of a topic that is being altered are noticed after at most this long.
_LOOK_AGAIN_S = 1.0


class Tail:
    """Where a reader without a group is. `missed` counts what retention took before it was read."""

    def __init__(self, topic: Topic, place: places.Place, *, partition: int | None, on_lost: OnLost) -> None:
        self.missed = 0
        self._topic, self._only, self._on_lost = topic, partition, on_lost
        self._next = places.offsets_of(topic, place, partition)

    def read(self, *, follow: bool, before_waiting: Callable[[], object]) -> Iterator[Event]:
        """Records up to the end; with `follow`, also those still to come."""
        while True:
            ends = self._ends()
            yield from self._merged(ends)
            if not follow:
                return
            if ends == self._ends():
                before_waiting()
                self._topic.wait(self._next, _LOOK_AGAIN_S)

    def _ends(self) -> dict[int, int]:
        ends = {number: end for number, (_, end) in self._topic.bounds().items()}
        if self._only is not None:
            return {self._only: ends[self._only]}
        for number in ends:
            self._next.setdefault(number, 0)
        return ends

    def _merged(self, ends: Mapping[int, int]) -> Iterator[Event]:
        streams = [self._partition(number, end) for number, end in ends.items() if self._next[number] < end]
        return heapq.merge(*streams, key=lambda event: (event.time_us, event.partition, event.offset))

    def _partition(self, number: int, end: int) -> Iterator[Event]:
        while self._next[number] < end:
            try:
                for event in self._topic.events(partition=number, start=self._next[number], end=end):
                    yield event
                    self._next[number] = event.offset + 1
                self._next[number] = end
            except OffsetOutOfRange as error:
                if self._next[number] >= error.start:
                    raise
                self._lost(number, error)

    def _lost(self, number: int, error: OffsetOutOfRange) -> None:
        lost = RecordsLost(self._topic.name, number, self._next[number], start=error.start, end=error.end)
        if self._on_lost == "error":
            raise lost
        onward = lost.start if self._on_lost == "earliest" else lost.end
        self.missed += onward - self._next[number]
        self._next[number] = onward
