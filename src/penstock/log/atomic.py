"""The atomic append with a position, over any number of partitions and topics.

Partitions are locked in sorted order, written and synced; then one record in the ledger
is synced, and that is the commit; then the records are shown. A crash before the commit
leaves bytes that are cut off, a crash after it leaves records that whoever comes next shows.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, replace

from penstock.errors import Contended, PenstockError
from penstock.log import framing
from penstock.log.frame import Origin, PendingFrame
from penstock.log.head import Head
from penstock.log.ledger import Ledger, ProducerState, Share
from penstock.log.opened import OpenTopic
from penstock.log.partition import Committed, Partition, StaleSettings
from penstock.log.port import AtomicResult, Parts, Position, StaleAppend
from penstock.log.settings import TopicSettings


@dataclass(frozen=True, slots=True)
class Appended:
    result: AtomicResult
    rolled: tuple[tuple[str, int], ...] = ()  # partitions whose segment was sealed on the way


@dataclass(slots=True)
class _Held:
    """A partition locked for an atomic append."""

    partition: Partition
    settings: TopicSettings
    head: Head
    frames: list[PendingFrame]
    rolled: bool = False

    def roll_if_due(self) -> None:
        fresh = self.partition.roll_if_due(self.head, self.frames, self.settings)
        if fresh:
            self.head, self.rolled = fresh, True

    def share(self, staged: Head) -> Share:
        committed = Committed(staged.next_offset, staged.written_bytes, staged.frames, staged.last_time_us)
        return Share(self.partition.topic, self.partition.number, self.head.next_offset, committed)


def append(
    ledger: Ledger,
    topics: Mapping[str, OpenTopic],
    producer: str,
    state: ProducerState,
    parts: Mapping[str, tuple[TopicSettings, Parts]],
) -> Appended:
    """All of it or nothing. Raises Fenced, StaleAppend (nothing stored), StorageError."""
    state = replace(state, transaction=ledger.new_transaction())
    origin = Origin(producer, state.epoch, state.sequence, state.transaction)
    places = {
        (name, number): (wanted, framing.frames(wanted, batches, origin))
        for name, (wanted, by_partition) in parts.items()
        for number, batches in by_partition.items()
        if batches
    }
    with contextlib.ExitStack() as stack:
        # Sorted: two atomic appends that share partitions must take them in one order.
        held = [_take(stack, topics[name], number, *places[name, number]) for name, number in sorted(places)]
        if not ledger.may_begin(state.transaction):
            raise StaleAppend({})  # the ledger is being shortened: try again under a new id
        known = ledger.check(producer, state.epoch)
        if state.sequence <= known.sequence:
            return Appended(_stored_before(known, state.sequence))
        shares = _stage_and_commit(ledger, held, producer, state)
    rolled = tuple((place.partition.topic, place.partition.number) for place in held if place.rolled)
    return Appended(AtomicResult(_positions(shares), state.sequence), rolled)


def _take(
    stack: contextlib.ExitStack,
    topic: OpenTopic,
    number: int,
    wanted: TopicSettings,
    frames: list[PendingFrame],
) -> _Held:
    partition = topic.partition(number)
    try:
        head = stack.enter_context(partition.locked(wanted))
    except StaleSettings:
        topic.reload()
        raise StaleAppend({}) from None
    return _Held(partition, wanted, head, frames)


def _stage_and_commit(
    ledger: Ledger, held: list[_Held], producer: str, state: ProducerState
) -> tuple[Share, ...]:
    begun: list[_Held] = []
    staged: list[tuple[_Held, Head]] = []
    try:
        for place in held:
            place.roll_if_due()
            begun.append(place)
            staged.append((place, place.partition.stage(place.head, place.frames, state.transaction)))
        if staged:
            syncs = [place.partition.active(head).sync for place, head in staged]
            staged[0][0].partition.disk.sync_all(syncs)
        shares = tuple(place.share(head) for place, head in staged)
        ledger.commit(producer, replace(state, shares=shares))
    except Contended:
        raise  # the ledger may have it or not: the partitions keep their mark, as below
    except PenstockError:
        # A ledger that could not be put right leaves the outcome open: then the
        # partitions keep their mark and whoever comes next asks again.
        if not ledger.in_doubt():
            for place in begun:
                place.partition.abandon(place.head)
        raise
    for place, head in staged:
        place.partition.publish(head)
    return shares


def _positions(shares: tuple[Share, ...]) -> tuple[Position, ...]:
    by_topic: dict[str, dict[int, tuple[int, int]]] = {}
    for share in shares:
        by_topic.setdefault(share.topic, {})[share.partition] = (share.first, share.committed.end)
    return tuple(framing.position_of(topic, ranges) for topic, ranges in by_topic.items())


def _stored_before(state: ProducerState, sequence: int) -> AtomicResult:
    # Only the last append is remembered with its offsets.
    known = _positions(state.shares) if sequence == state.sequence else ()
    return AtomicResult(known, sequence, duplicate=True)
