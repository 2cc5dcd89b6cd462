"""Members of consumer groups that are held for HTTP clients.

A client joins, polls, commits and leaves, each by a request. A member that does not poll within its lease
is closed, and others take over its partitions, as with any consumer. What was polled and not committed is
delivered again to whoever comes next: at least once.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from penstock.app.app import App
from penstock.errors import NotOwner, OffsetOutOfRange, RecordsLost
from penstock.gateway.facts.records import Chosen, Record
from penstock.gateway.refusals import BadRequest, Busy
from penstock.log.port import Assignment, Member
from penstock.log.topic import Topic


class UnknownMember(BadRequest):
    def __init__(self, member: str) -> None:
        self.member = member
        super().__init__(
            404, f'there is no member "{member}": it left, or its lease ran out.', hint="join the group anew"
        )


@dataclass(frozen=True, slots=True)
class Joined:
    """`lease_s`: poll at least so often."""

    member: str
    group: str
    topic: str
    lease_s: float


@dataclass(frozen=True, slots=True)
class Polled:
    """`partitions`: those that are this member's, each with the next offset to commit when all is processed.

    `waiting`: there are more members than partitions, and this one stands by.
    """

    records: tuple[Record, ...]
    partitions: dict[str, int]
    waiting: bool


@dataclass(slots=True)
class _Held:
    member: Member
    topic: Topic
    group: str
    start: str
    lease_s: float
    polled_s: float
    next: dict[int, int] = field(default_factory=dict)
    terms: dict[int, int] = field(default_factory=dict)
    mutex: threading.Lock = field(default_factory=threading.Lock)


class Members:
    """Thread-safe. `now_s`: a clock that never goes back."""

    def __init__(
        self,
        app: App,
        *,
        members_max: int,
        answer_bytes_max: int,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._app, self._most, self._now_s = app, members_max, now_s
        self._answer_bytes_max = answer_bytes_max
        self._held: dict[str, _Held] = {}
        self._mutex = threading.Lock()

    def __len__(self) -> int:
        return len(self._held)

    def join(self, group: str, topic: str, *, start: str, lease_s: float) -> Joined:
        """`start`: "earliest" or "latest", where the group has not committed yet."""
        self.close_expired()
        opened = self._app.log.topic(topic)
        if len(self._held) >= self._most:
            raise Busy(f"{self._most} members are held already", retry_after_s=5)
        member = self._app.log.port.join(group, topic, lease_s=lease_s)
        name = secrets.token_hex(16)
        with self._mutex:
            self._held[name] = _Held(member, opened, group, start, lease_s, self._now_s())
        return Joined(name, group, topic, lease_s)

    def poll(self, name: str, *, limit: int, start: Mapping[int, int] | None = None) -> Polled:
        """Renew the lease and read on, from `start` where it is given. Raises UnknownMember, RecordsLost."""
        held = self._found(name)
        with held.mutex:
            held.polled_s = self._now_s()
            assignment = held.member.poll()
            _take(held, assignment)
            own = {number: at for number, at in (start or {}).items() if number in held.next}
            _check(held, own)
            held.next.update(own)
            records = _read(held, Chosen(limit, self._answer_bytes_max))
            return Polled(records, {str(n): at for n, at in held.next.items()}, assignment.waiting)

    def commit(self, name: str, offsets: Mapping[int, int]) -> None:
        """The group goes on from there after a crash. Raises NotOwner and OffsetOutOfRange."""
        held = self._found(name)
        with held.mutex:
            foreign = [number for number in offsets if number not in held.next]
            if foreign:
                raise NotOwner(held.group, held.topic.name, foreign)
            _check(held, offsets)
            held.member.commit(offsets)

    def topic_of(self, name: str) -> str:
        return self._found(name).topic.name

    def leave(self, name: str) -> None:
        held = self._found(name)
        with self._mutex:
            self._held.pop(name, None)
        with held.mutex:
            held.member.leave()

    def close_expired(self) -> None:
        """Of clients that have not polled within their lease."""
        now_s = self._now_s()
        with self._mutex:
            gone = [name for name, held in self._held.items() if now_s - held.polled_s > held.lease_s]
            members = [self._held.pop(name).member for name in gone]
        for member in members:
            member.leave()

    def close(self) -> None:
        with self._mutex:
            held, self._held = list(self._held.values()), {}
        for each in held:
            each.member.leave()

    def _found(self, name: str) -> _Held:
        self.close_expired()
        with self._mutex:
            held = self._held.get(name)
        if held is None:
            raise UnknownMember(name)
        return held


def _check(held: _Held, offsets: Mapping[int, int]) -> None:
    bounds = held.topic.bounds() if offsets else {}
    for number, offset in offsets.items():
        start, end = bounds[number]
        if not start <= offset <= end:
            raise OffsetOutOfRange(held.topic.name, number, offset, start=start, end=end)


def _take(held: _Held, assignment: Assignment) -> None:
    """Begin with partitions that are new, let go of those that are not ours any more."""
    revoked = [number for number, owned in assignment.partitions.items() if owned.revoked]
    if revoked:
        held.member.release(revoked)
    kept = {number: owned for number, owned in assignment.partitions.items() if not owned.revoked}
    for number in [n for n in held.next if n not in kept or held.terms[n] != kept[n].term]:
        del held.next[number], held.terms[number]
    for number, owned in kept.items():
        if number not in held.next:
            begin = held.topic.offset_of(number, held.start) if owned.committed is None else owned.committed
            held.next[number], held.terms[number] = begin, owned.term


def _read(held: _Held, chosen: Chosen) -> tuple[Record, ...]:
    before = dict(held.next)
    try:
        return _chosen(held, chosen)
    except RecordsLost as lost:  # nobody is told what was read of the others: it comes again
        held.next = {**before, lost.partition: lost.start}
        raise
    except BaseException:
        held.next = before
        raise


def _chosen(held: _Held, chosen: Chosen) -> tuple[Record, ...]:
    for number in sorted(held.next):
        for batch in _batches(held, number):
            offsets = batch.column("_offset")
            for at in range(batch.num_rows):
                chosen.add(batch, at)
                held.next[number] = offsets[at].as_py() + 1
                if chosen.is_full:
                    return chosen.records(held.topic.name)
    return chosen.records(held.topic.name)


def _batches(held: _Held, number: int) -> Iterator[pa.RecordBatch]:
    try:
        yield from held.topic.read(partition=number, start=held.next[number])
    except OffsetOutOfRange as error:
        if held.next[number] >= error.start:
            raise
        lost = RecordsLost(held.topic.name, number, held.next[number], start=error.start, end=error.end)
        lost.hint = "reset the group, or commit the start of the partition to go on there"
        raise lost from error
