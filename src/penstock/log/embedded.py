"""The embedded log: the log port on plain files, without a server.

    <home>/log.json              marks a log, with the format's version
    <home>/ledger/               atomic appends and producer positions
    <home>/groups.db             consumer groups (SQLite)
    <home>/topics/<name>/        topic.json, signal, and a folder per partition
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa

from penstock.clock import Clock, SystemClock
from penstock.errors import BadOption, NotSupported, PenstockError, TopicExists, UnknownTopic
from penstock.log import ledger as ledgers
from penstock.log import maintenance, partition, settings, signal
from penstock.log.disk import Disk, RealDisk, replace as replace_file
from penstock.log.frame import Origin, PendingFrame, event_range
from penstock.log.group import GroupStore
from penstock.log.head import DELETED, Head
from penstock.log.ledger import Ledger, ProducerState, Share
from penstock.log.partition import Committed, Extent, Partition, StaleSettings
from penstock.log.port import (
    AtomicResult,
    GroupInfo,
    Member,
    Parts,
    Position,
    ProducerPosition,
    StaleAppend,
)
from penstock.log.reader import PartitionReader
from penstock.log.settings import PartitionsAdded, TopicSettings

FORMAT = 1
_FRAME_BYTES = 4 << 20
_READERS_KEPT = 64


class EmbeddedLog:
    """Thread-safe; any number of processes may open the same home."""

    capabilities = frozenset({"durable-ack", "archive", "compaction", "retention"})

    def __init__(self, home: Path, *, disk: Disk | None = None, clock: Clock | None = None) -> None:
        self.home = Path(home)
        self.disk: Disk = disk or RealDisk()
        self.clock: Clock = clock or SystemClock()
        self._open_or_create()
        self.ledger = Ledger(self.disk, self.home / "ledger")
        self._topics: dict[str, _OpenTopic] = {}
        self._mutex = threading.Lock()
        self._groups: GroupStore | None = None

    def _open_or_create(self) -> None:
        marker = self.home / "log.json"
        try:
            found = json.loads(self.disk.read(marker))["format"]
        except FileNotFoundError:
            self._create(marker)
            return
        except (ValueError, KeyError, TypeError):
            found = None
        if found != FORMAT:
            raise NotSupported(
                f"{self.home} is no log this version can read (format {found}, known {FORMAT}).",
                hint="use the Penstock that wrote it, or another --home",
            )

    def _create(self, marker: Path) -> None:
        self.disk.make_folder(self.home / "topics")
        lock = self.disk.lock(self.home / "create.lock", f"the log in {self.home}")
        lock.acquire(partition.LOCK_TIMEOUT_S)
        try:
            if not self.disk.exists(marker):
                ledgers.create(self.disk, self.home / "ledger")
                replace_file(self.disk, marker, json.dumps({"format": FORMAT}).encode())
        finally:
            lock.release()
            lock.close()

    # ---- topics ------------------------------------------------------------------------------

    def topics(self) -> list[str]:
        folder = self.home / "topics"
        return [name for name in self.disk.names(folder) if self.disk.exists(folder / name / settings.NAME)]

    def settings(self, name: str) -> TopicSettings:
        return self._topic(name).settings()

    def create_topic(self, wanted: TopicSettings) -> TopicSettings:
        folder = self.home / "topics" / wanted.name
        self.disk.make_folder(folder)
        with self._holding(folder / "create.lock", f'topic "{wanted.name}"'):
            if self.disk.exists(folder / settings.NAME):
                raise TopicExists(wanted.name)
            for number in range(wanted.partitions):
                partition.create(self.disk, folder / str(number), wanted, number)
            self.disk.sync_folder(folder)
            self.disk.sync_folder(folder.parent)
            settings.store(self.disk, folder, wanted)
        return wanted

    @contextlib.contextmanager
    def _holding(self, path: Path, what: str) -> Iterator[None]:
        lock = self.disk.lock(path, what)
        lock.acquire(partition.LOCK_TIMEOUT_S)
        try:
            yield
        finally:
            lock.release()
            lock.close()

    def alter_topic(self, name: str, wanted: TopicSettings) -> TopicSettings:
        topic = self._topic(name)
        with contextlib.ExitStack() as stack:
            stack.enter_context(self._holding(topic.folder / "create.lock", f'topic "{name}"'))
            heads = [(p, stack.enter_context(p.locked())) for p in topic.partitions()]
            current = topic.reload()
            altered = _altered(current, wanted, heads, self.clock.now_us())
            for p, head in heads:
                p.update(replace(head, settings=altered.version))
            for number in range(current.partitions, altered.partitions):
                partition.create(self.disk, topic.folder / str(number), altered, number)
            self.disk.sync_folder(topic.folder)
            settings.store(self.disk, topic.folder, altered)
            topic.reload()
        topic.signal()
        return altered

    def delete_topic(self, name: str) -> None:
        topic = self._topic(name)
        with self._holding(topic.folder / "create.lock", f'topic "{name}"'), contextlib.ExitStack() as stack:
            heads = [(p, stack.enter_context(p.locked())) for p in topic.partitions()]
            self.disk.remove(topic.folder / settings.NAME)  # from here on it does not exist
            self.disk.sync_folder(topic.folder)
            for p, head in heads:
                p.update(replace(head, flags=head.flags | DELETED))
        topic.signal()
        self.groups_store().forget_topic(name)
        with self._mutex:
            self._topics.pop(name, None)
        self.disk.remove_folder(topic.folder)

    def _topic(self, name: str) -> _OpenTopic:
        with self._mutex:
            topic = self._topics.get(name)
            if topic is None or topic.pid != os.getpid():
                settings.check_name("topic", name)
                found = settings.load(self.disk, self.home / "topics" / name)
                if found is None:
                    raise UnknownTopic(name, known=self.topics())
                topic = self._topics[name] = _OpenTopic(self, found)
            return topic

    def _gone(self, name: str) -> UnknownTopic:
        with self._mutex:
            self._topics.pop(name, None)
        return UnknownTopic(name, known=self.topics())

    # ---- appending ------------------------------------------------------------------------------

    def append(self, wanted: TopicSettings, parts: Parts) -> Position:
        topic = self._topic(wanted.name)
        framed = {number: _frames(wanted, batches) for number, batches in sorted(parts.items())}
        extents: dict[int, Extent] = {}
        try:
            for number, frames in framed.items():
                extents[number] = topic.partition(number).append(frames, wanted)
        except StaleSettings:
            topic.reload()
            self._finish(topic, extents, wanted)
            raise StaleAppend({n: (e.first, e.end) for n, e in extents.items()}) from None
        except UnknownTopic:
            raise self._gone(wanted.name) from None
        self._finish(topic, extents, wanted)
        for number, extent in extents.items():
            if extent.rolled:
                self.maintain(wanted.name, number)
        return _position(wanted.name, {n: (e.first, e.end) for n, e in extents.items()})

    def _finish(self, topic: _OpenTopic, extents: Mapping[int, Extent], wanted: TopicSettings) -> None:
        try:
            for number, extent in extents.items():
                topic.partition(number).finish(extent, wanted)
        finally:
            topic.signal()

    # ---- the atomic append with a position -----------------------------------------------------

    def open_producer(self, producer: str) -> ProducerPosition:
        settings.check_name("producer", producer)
        self.ledger.new_epoch(producer)
        return self.producer_position(producer)

    def producer_position(self, producer: str) -> ProducerPosition:
        state = self.ledger.state(producer)
        for share in state.shares:
            # A crash may have come between the commit and showing the records: show them now.
            with contextlib.suppress(UnknownTopic):
                self._topic(share.topic).partition(share.partition).head()
        return ProducerPosition(state.epoch, state.sequence, state.position)

    def append_atomically(
        self,
        producer: str,
        epoch: int,
        sequence: int,
        parts: Mapping[str, tuple[TopicSettings, Parts]],
        position: bytes | None,
    ) -> AtomicResult:
        for name, (wanted, _) in parts.items():
            self._topic(name).settings()
            settings.check_name("topic", wanted.name)
        transaction = self.ledger.new_transaction()
        origin = Origin(producer, epoch, sequence, transaction)
        places = {
            (name, number): (wanted, _frames(wanted, batches, origin))
            for name, (wanted, by_partition) in parts.items()
            for number, batches in by_partition.items()
            if batches
        }
        with contextlib.ExitStack() as stack:
            # Sorted: two atomic appends that share partitions must take them in one order.
            held = [self._take(stack, *place, *places[place]) for place in sorted(places)]
            state = self.ledger.check(producer, epoch)
            if sequence <= state.sequence:
                return _stored_before(state, sequence)
            shares = self._stage_and_commit(held, producer, ProducerState(epoch, sequence, position, transaction))
        for name in parts:
            self._topic(name).signal()
        self.ledger.rewrite_if_due(self._settle_all)
        for place in held:
            if place.rolled:
                self.maintain(place.partition.topic, place.partition.number)
        return AtomicResult(_positions(shares), sequence)

    def _take(
        self, stack: contextlib.ExitStack, name: str, number: int, wanted: TopicSettings, frames: list[PendingFrame]
    ) -> _Held:
        partition_ = self._topic(name).partition(number)
        try:
            head = stack.enter_context(partition_.locked(wanted))
        except StaleSettings:
            self._topic(name).reload()
            raise StaleAppend({}) from None
        return _Held(partition_, wanted, head, frames)

    def _stage_and_commit(self, held: list[_Held], producer: str, state: ProducerState) -> tuple[Share, ...]:
        begun: list[_Held] = []
        staged: list[tuple[_Held, Head]] = []
        try:
            for place in held:
                place.roll_if_due()
                begun.append(place)
                staged.append((place, place.partition.stage(place.head, place.frames, state.transaction)))
            shares = tuple(_share(place, head) for place, head in staged)
            self.ledger.commit(producer, replace(state, shares=shares))
        except PenstockError:
            # A ledger that could not be put right leaves the outcome open: then the
            # partitions keep their mark and whoever comes next asks again.
            if not self.ledger.in_doubt():
                for place in begun:
                    place.partition.abandon(place.head)
            raise
        for place, head in staged:
            place.partition.publish(head)
        return shares

    def _settle_all(self) -> None:
        for name in self.topics():
            with contextlib.suppress(UnknownTopic):
                for partition_ in self._topic(name).partitions():
                    with partition_.locked():
                        pass

    # ---- reading ----------------------------------------------------------------------------------

    def bounds(self, topic: str, partition: int) -> tuple[int, int]:
        with self._topic(topic).reading(partition) as reader:
            return reader.bounds()

    def read(
        self, topic: str, partition: int, offset: int, *, until: int | None = None
    ) -> Iterator[pa.RecordBatch]:
        opened = self._topic(topic)
        with opened.reading(partition) as reader:
            yield from reader.read(offset, until=until)

    def offset_at(self, topic: str, partition: int, time_us: int) -> int:
        with self._topic(topic).reading(partition) as reader:
            return reader.offset_at(time_us)

    def wait(self, topic: str, ends: Mapping[int, int], timeout_s: float) -> bool:
        return self._topic(topic).wait(ends, timeout_s)

    # ---- groups -------------------------------------------------------------------------------------

    def groups_store(self) -> GroupStore:
        with self._mutex:
            if self._groups is None:
                self._groups = GroupStore(self.home / "groups.db", self.clock, self.disk.boot_id())
            return self._groups

    def join(self, group: str, topic: str, *, lease_s: float) -> Member:
        settings.check_name("group", group)
        return self.groups_store().join(group, topic, lease_s=lease_s, settings=lambda: self.settings(topic))

    def committed(self, group: str, topic: str) -> dict[int, int]:
        return self.groups_store().committed(group, topic)

    def reset(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        settings.check_name("group", group)
        self.groups_store().reset(group, topic, offsets)

    def groups(self) -> list[tuple[str, str]]:
        return self.groups_store().groups()

    def group(self, group: str, topic: str) -> GroupInfo:
        from penstock.log import lag  # noqa: PLC0415  # it reads through this log

        return lag.describe(self, group, topic)

    # ---- maintenance ------------------------------------------------------------------------------------

    def maintain(self, topic: str, number: int) -> maintenance.Done:
        """Merge, compact, archive and expire sealed segments of a partition, as its topic asks for."""
        return maintenance.run(self._topic(topic).partition(number), self.settings(topic), self.groups_store())

    def partition(self, topic: str, number: int) -> Partition:
        """For maintenance commands and tests: the partition behind the port."""
        return self._topic(topic).partition(number)

    def close(self) -> None:
        with self._mutex:
            for topic in self._topics.values():
                topic.close()
            self._topics.clear()
            if self._groups:
                self._groups.close()
                self._groups = None
        self.ledger.close()


class _OpenTopic:
    """A topic as this process has it open."""

    def __init__(self, log: EmbeddedLog, found: TopicSettings) -> None:
        self.pid = os.getpid()
        self.name = found.name
        self.folder = log.home / "topics" / found.name
        self._log = log
        self._settings = found
        self._partitions: dict[int, Partition] = {}
        self._readers: dict[int, list[PartitionReader]] = {}
        self._mutex = threading.Lock()
        self._shared = log.disk.shared(self.folder / "signal", 4096)
        self._words = self._shared.view.cast("I")

    def settings(self) -> TopicSettings:
        """As of the last time a partition showed that they changed; refreshed here from its head."""
        if self.partition(0).head().settings not in {self._settings.version, 0}:
            self.reload()
        return self._settings

    def reload(self) -> TopicSettings:
        found = settings.load(self._log.disk, self.folder)
        if found is None:
            raise UnknownTopic(self.name)
        self._settings = found
        return found

    def at_version(self, version: int) -> TopicSettings:
        return self._settings if version in {self._settings.version, 0} else self.reload()

    def partition(self, number: int) -> Partition:
        with self._mutex:
            if number not in self._partitions:
                if number >= self._settings.partitions:
                    self.reload()
                if not 0 <= number < self._settings.partitions:
                    raise BadOption(
                        f'topic "{self.name}" has no partition {number}.',
                        hint=f"choose 0 to {self._settings.partitions - 1}",
                    )
                self._partitions[number] = Partition(
                    self._log.disk, self._log.clock, self.folder / str(number), topic=self.name, number=number,
                    settings=self.reload, transactions=_PartitionLedger(self._log.ledger, self.name, number),
                )  # fmt: skip
            return self._partitions[number]

    def partitions(self) -> list[Partition]:
        return [self.partition(number) for number in range(self.settings().partitions)]

    @contextlib.contextmanager
    def reading(self, number: int) -> Iterator[PartitionReader]:
        """A reader of this partition that nobody else uses meanwhile."""
        partition_ = self.partition(number)
        with self._mutex:
            idle = self._readers.setdefault(number, [])
            reader = idle.pop() if idle else PartitionReader(partition_, self.at_version)
        try:
            yield reader
        finally:
            with self._mutex:
                if len(idle) < _READERS_KEPT:
                    idle.append(reader)

    def signal(self) -> None:
        self._words[0] = signal.stamp()
        self._shared.wake(0)

    def wait(self, ends: Mapping[int, int], timeout_s: float) -> bool:
        monotonic = self._log.clock.monotonic
        deadline = monotonic() + timeout_s
        while True:
            seen = self._words[0]
            if any(self.partition(number).head().visible_offset > end for number, end in ends.items()):
                return True
            left = deadline - monotonic()
            if left <= 0:
                return False
            self._shared.wait(0, seen, min(left, 1.0))

    def close(self) -> None:
        for readers in self._readers.values():
            for reader in readers:
                reader.close()
        for partition_ in self._partitions.values():
            partition_.close()
        self._words.release()
        self._shared.close()


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


@dataclass(frozen=True, slots=True)
class _PartitionLedger:
    ledger: Ledger
    topic: str
    partition: int

    def outcome(self, transaction: str) -> Committed | None:
        return self.ledger.outcome(transaction, self.topic, self.partition)

    def was_committed(self, transaction: str) -> bool:
        return self.ledger.was_committed(transaction)


def _frames(wanted: TopicSettings, batches: Iterable[pa.RecordBatch], origin: Origin | None = None) -> list[PendingFrame]:
    return [
        PendingFrame(piece, event_us=event_range(wanted.event_time, piece), origin=origin)
        for batch in batches
        for piece in _pieces(batch)
    ]


def _pieces(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Frames of a size that a reader can hold easily."""
    rows = max(1, batch.num_rows * _FRAME_BYTES // max(batch.nbytes, 1))
    for start in range(0, batch.num_rows, rows):
        yield batch.slice(start, rows)


def _position(topic: str, ranges: Mapping[int, tuple[int, int]]) -> Position:
    return Position(
        topic, {n: end for n, (_, end) in ranges.items()}, firsts={n: first for n, (first, _) in ranges.items()}
    )


def _share(place: _Held, staged: Head) -> Share:
    committed = Committed(staged.next_offset, staged.written_bytes, staged.frames, staged.last_time_us)
    return Share(place.partition.topic, place.partition.number, place.head.next_offset, committed)


def _positions(shares: tuple[Share, ...]) -> tuple[Position, ...]:
    by_topic: dict[str, dict[int, tuple[int, int]]] = {}
    for share in shares:
        by_topic.setdefault(share.topic, {})[share.partition] = (share.first, share.committed.end)
    return tuple(_position(topic, ranges) for topic, ranges in by_topic.items())


def _stored_before(state: ProducerState, sequence: int) -> AtomicResult:
    # Only the last append is remembered with its offsets.
    known = _positions(state.shares) if sequence == state.sequence else ()
    return AtomicResult(known, sequence, duplicate=True)


def _altered(
    current: TopicSettings, wanted: TopicSettings, heads: list[tuple[Partition, Head]], now_us: int
) -> TopicSettings:
    """What the topic becomes, or why it cannot."""
    schema = current.schema.evolve_to(wanted.schema)
    if wanted.key != current.key:
        raise BadOption("a topic's key cannot change.", hint="create a new topic and copy the records")
    if current.compacted and not wanted.compacted:
        raise BadOption(
            "a compacted topic stays compacted: its deletes would come back as records.", hint="create a new topic"
        )
    if wanted.partitions < current.partitions:
        raise BadOption(
            f"{current.partitions} partitions cannot become {wanted.partitions}.",
            hint="partitions can only be added; create a new topic for fewer",
        )
    grown = current.grown
    if wanted.partitions > current.partitions:
        if current.compacted or wanted.compacted:
            raise BadOption(
                "a compacted topic cannot get more partitions: a key that moved would stay in its old one for ever.",
                hint="create a new topic with more partitions and copy the records",
            )
        ends = tuple(head.next_offset for _, head in heads)
        grown = (*grown, PartitionsAdded(current.partitions, wanted.partitions, ends, now_us))
    return replace(wanted, schema=schema, grown=grown, version=current.version + 1)
