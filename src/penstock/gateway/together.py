"""Small appends to one topic that come at the same time are stored together: one write and one sync for all.

While one write is under way, what comes for its topic waits, and is the next write. A request that comes
alone waits for nobody. Each has its own answer, and one that is refused keeps none of the others back. Only
for topics of one partition: to those of several, threads write side by side.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from penstock.app.app import App
from penstock.errors import BadInput, PenstockError
from penstock.gateway.appending import ARROW, records_of, writable
from penstock.gateway.refusals import Busy
from penstock.log.port import Position
from penstock.log.topic import Topic

BODY_BYTES_MAX = 64 << 10
_TOGETHER_MAX = 64


@dataclass(frozen=True, slots=True)
class Stored:
    """Where the records of one request are; None where it had none."""

    records: int
    position: Position | None


Outcome = Stored | PenstockError
Bodies = list[tuple[str, bytes]]  # each with its type
Write = Callable[[Callable[[str, Bodies], list[Outcome]], str, Bodies], Awaitable[list[Outcome]]]


@dataclass(frozen=True, slots=True)
class _Request:
    kind: str
    body: bytes
    answer: asyncio.Future[Stored]


class Together:
    """Used on the event loop, except for `learn`. `write`: does in a thread what waits for a sync."""

    def __init__(self, app: App, write: Write, *, waiting_max: int) -> None:
        self._app, self._write, self._most = app, write, waiting_max
        self._apt: set[str] = set()  # topics that are known to have one partition
        self._waiting: dict[str, deque[_Request]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def takes(self, topic: str, kind: str, body: bytes) -> bool:
        """Whether this is an append for here: what is not known to be is done alone."""
        return topic in self._apt and kind != ARROW and len(body) <= BODY_BYTES_MAX

    def learn(self, topic: Topic) -> None:
        """A topic as it is now. By any thread."""
        (self._apt.add if topic.settings.partitions == 1 else self._apt.discard)(topic.name)

    async def append(self, topic: str, kind: str, body: bytes) -> Stored:
        """Raises what the topic refuses, and Busy when too many wait already."""
        waiting = self._waiting.get(topic)
        if waiting is None:
            waiting = self._waiting[topic] = deque()
            task = asyncio.create_task(self._go_on(topic, waiting))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        if len(waiting) >= self._most:
            raise Busy(f'too many appends to "{topic}" wait')
        request = _Request(kind, body, asyncio.get_running_loop().create_future())
        waiting.append(request)
        return await request.answer

    async def _go_on(self, topic: str, waiting: deque[_Request]) -> None:
        """Until nobody waits any more."""
        try:
            while waiting:
                taken = [waiting.popleft() for _ in range(min(len(waiting), _TOGETHER_MAX))]
                _answer(taken, await self._stored(topic, taken))
        finally:
            del self._waiting[topic]

    async def _stored(self, topic: str, taken: list[_Request]) -> Sequence[Outcome | BaseException]:
        try:
            return await self._write(self._store, topic, [(each.kind, each.body) for each in taken])
        except (Exception, asyncio.CancelledError) as error:  # of none of them in particular
            return [error] * len(taken)

    def _store(self, name: str, bodies: Bodies) -> list[Outcome]:
        topic = writable(self._app, name)
        self.learn(topic)
        return store(topic, bodies)


def store(topic: Topic, bodies: Bodies) -> list[Outcome]:
    """All of them; for each where its records are, or why they are not stored."""
    read = [_records(topic, kind, body) for kind, body in bodies]
    every = [row for found in read if not isinstance(found, PenstockError) for row in found]
    try:
        placed = topic.append(every) if every else None
    except BadInput:  # nothing was stored: each alone, so that it says which one it was
        return [found if isinstance(found, PenstockError) else _alone(topic, found) for found in read]
    sizes = [0 if isinstance(found, PenstockError) else len(found) for found in read]
    places = _shares(placed, sizes)
    return [
        found if isinstance(found, PenstockError) else Stored(len(found), place)
        for found, place in zip(read, places, strict=True)
    ]


def _records(topic: Topic, kind: str, body: bytes) -> Any:
    try:
        return records_of(kind, body, topic.schema)
    except PenstockError as error:
        return error


def _alone(topic: Topic, records: list[dict[str, object]]) -> Outcome:
    try:
        return Stored(len(records), topic.append(records) if records else None)
    except PenstockError as error:
        return error


def _shares(placed: Position | None, sizes: list[int]) -> list[Position | None]:
    """Which part of what was stored is whose. Where others wrote between, all of it is everybody's."""
    if placed is None:
        return [None] * len(sizes)
    first, end = placed.firsts.get(0, 0), placed.ends.get(0, 0)
    if len(placed.ends) > 1 or end - first != sum(sizes):
        return [placed if size else None for size in sizes]
    starts = accumulate(sizes, initial=first)
    return [
        Position(placed.topic, {0: at + size}, firsts={0: at}) if size else None
        for at, size in zip(starts, sizes, strict=False)
    ]


def _answer(requests: list[_Request], outcomes: Sequence[Outcome | BaseException]) -> None:
    for request, outcome in zip(requests, outcomes, strict=True):
        if request.answer.done():  # who asked has left
            continue
        if isinstance(outcome, Stored):
            request.answer.set_result(outcome)
        elif isinstance(outcome, asyncio.CancelledError):  # the server ends
            request.answer.cancel()
        else:
            request.answer.set_exception(outcome)
