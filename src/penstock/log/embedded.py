"""The embedded log: the log port on plain files, without a server.

<home>/log.json              marks a log, with the format's version
<home>/ledger/               atomic appends and producer positions
<home>/groups.db             consumer groups (SQLite)
<home>/keys.db               the keys of subjects (SQLite), once something personal is stored
<home>/topics/<name>/        topic.json, signal, and a folder per partition
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
import threading
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from penstock import fork
from penstock.clock import Clock, SystemClock
from penstock.erasure.keys import KeyRing, KeyStore
from penstock.erasure.opening import open_keys
from penstock.errors import (
    BadOption,
    Contended,
    NotSupported,
    PenstockError,
    StorageError,
    TopicExists,
    UnknownTopic,
)
from penstock.fork import Forking
from penstock.log import active, atomic, framing, maintenance, partition, settings
from penstock.log import ledger as ledgers
from penstock.log.disk import Disk, RealDisk
from penstock.log.disk import replace as replace_file
from penstock.log.group import GroupStore
from penstock.log.head import DELETED
from penstock.log.ledger import Ledger, ProducerState
from penstock.log.opened import OpenTopic
from penstock.log.partition import Extent, Partition, StaleSettings
from penstock.log.port import (
    AtomicResult,
    GroupInfo,
    Member,
    Parts,
    Position,
    ProducerPosition,
    StaleAppend,
)
from penstock.log.settings import TopicSettings
from penstock.log.upkeep import Upkeep

FORMAT = 1
_FRAME_BYTES = 4 << 20
_READERS_KEPT = 64


class EmbeddedLog(Forking):
    """Thread-safe; any number of processes may open the same home."""

    capabilities = frozenset({"durable-ack", "ordered-growth", "archive", "compaction", "retention", "holds"})

    def __init__(
        self,
        home: Path,
        *,
        disk: Disk | None = None,
        clock: Clock | None = None,
        keys: KeyStore | None = None,
        upkeep_beside: bool = False,
    ) -> None:
        """`upkeep_beside`: sealed segments are merged and compacted in a thread; no append waits for that."""
        self.home = Path(home)
        self.disk: Disk = disk or RealDisk()
        self.clock: Clock = clock or SystemClock()
        self._open_or_create()
        self.ledger = Ledger(self.disk, self.home / "ledger")
        self.keys = KeyRing(keys or open_keys(beside=self.home))
        self._topics: dict[str, OpenTopic] = {}
        self._mutex = threading.Lock()
        self._groups: GroupStore | None = None
        self._upkeep = Upkeep(self._maintain, beside=upkeep_beside)
        self._upkeep_beside = upkeep_beside
        fork.tell(self)

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
        self.disk.sync_folder(self.home)  # whoever created it may have died just before

    def _create(self, marker: Path) -> None:
        new = [folder for folder in (self.home, *self.home.parents) if not self.disk.exists(folder)]
        self.disk.make_folder(self.home / "topics")
        for folder in new or [self.home]:
            # A new folder is durable only after its parent is synced; one that we may not read is not new.
            with contextlib.suppress(PermissionError):
                self.disk.sync_folder(folder.parent)
        lock = self.disk.lock(self.home / "create.lock", f"the log in {self.home}")
        lock.acquire(partition.LOCK_TIMEOUT_S)
        try:
            if not self.disk.exists(marker):
                ledgers.create(self.disk, self.home / "ledger")
                self.disk.sync_folder(self.home)  # the marker may not outlive the folder it vouches for
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
        wanted = replace(wanted, id=uuid.uuid4().hex)
        with self._changing_topics():
            if self.disk.exists(folder / settings.NAME):
                raise TopicExists(wanted.name)
            if self.disk.exists(folder):  # of a creation or deletion that died
                self.groups_store().forget_topic(wanted.name)
                self.disk.rename(folder, self._grave())
            self.disk.make_folder(folder)
            for number in range(wanted.partitions):
                active.create_partition(self.disk, folder / str(number), wanted, number)
            self.disk.sync_folder(folder)
            self.disk.sync_folder(folder.parent)
            settings.store(self.disk, folder, wanted)
        return wanted

    @contextlib.contextmanager
    def _changing_topics(self) -> Iterator[None]:
        """One process at a time creates, alters or deletes topics."""
        lock = self.disk.lock(self.home / "topics.lock", "the list of topics")
        lock.acquire(partition.LOCK_TIMEOUT_S)
        try:
            yield
        finally:
            lock.release()
            lock.close()

    def alter_topic(self, name: str, wanted: TopicSettings) -> TopicSettings:
        topic = self._topic(name)
        with self._changing_topics(), contextlib.ExitStack() as stack:
            heads = [(p, stack.enter_context(p.locked())) for p in topic.partitions()]
            current = topic.reload()
            ends = tuple(head.next_offset for _, head in heads)
            altered = settings.altered(current, wanted, ends=ends, now_us=self.clock.now_us())
            for p, head in heads:
                p.update(replace(head, settings=altered.version))
            for number in range(current.partitions, altered.partitions):
                active.create_partition(self.disk, topic.folder / str(number), altered, number)
            self.disk.sync_folder(topic.folder)
            settings.store(self.disk, topic.folder, altered)
            topic.reload()
        topic.signal()
        return altered

    def delete_topic(self, name: str) -> None:
        topic = self._topic(name)
        grave = self._grave()
        with self._changing_topics(), contextlib.ExitStack() as stack:
            heads = [(p, stack.enter_context(p.locked())) for p in topic.partitions()]
            self.disk.remove(topic.folder / settings.NAME)  # from here on it does not exist
            self.disk.sync_folder(topic.folder)
            for p, head in heads:
                p.update(replace(head, flags=head.flags | DELETED))
            # Before the name is free: a new topic must not inherit its groups, even if this dies here.
            self.groups_store().forget_topic(name)
            self.disk.rename(topic.folder, grave)
        topic.signal()
        with self._mutex:
            self._topics.pop(name, None)
        for leftover in self.disk.names(grave.parent):  # also what an earlier delete did not get to
            with contextlib.suppress(FileNotFoundError):
                self.disk.remove_folder(grave.parent / leftover)

    def _grave(self) -> Path:
        """Where the folder of a deleted topic goes; what is there may be removed at any time."""
        graves = self.home / "deleted"
        self.disk.make_folder(graves)
        return graves / uuid.uuid4().hex

    def _topic(self, name: str) -> OpenTopic:
        with self._mutex:
            topic = self._topics.get(name)
            if topic is None or topic.is_deleted():
                settings.check_name("topic", name)
                folder = self.home / "topics" / name
                found = settings.load(self.disk, folder)
                if found is None:
                    raise UnknownTopic(name, known=self.topics())
                topic = self._topics[name] = OpenTopic(self.disk, self.clock, self.ledger, folder, found)
            return topic

    # ---- appending ------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _writing(self, wanted: TopicSettings) -> Iterator[OpenTopic]:
        """The topic that was asked for, and not another one that was given its name since."""
        topic = self._topic(wanted.name)
        if topic.id != wanted.id:
            raise StaleAppend({})
        try:
            topic.make_durable()
            yield topic
        except (StorageError, FileNotFoundError) as error:
            if topic.is_deleted():  # its files went away under our hands
                raise UnknownTopic(wanted.name, known=self.topics()) from error
            raise

    def append(self, wanted: TopicSettings, parts: Parts) -> Position:
        with self._writing(wanted) as topic:
            return self._append(topic, wanted, parts)

    def _append(self, topic: OpenTopic, wanted: TopicSettings, parts: Parts) -> Position:
        framed = {number: framing.frames(wanted, batches) for number, batches in sorted(parts.items())}
        extents: dict[int, Extent] = {}
        try:
            for number, frames in framed.items():
                extents[number] = topic.partition(number).append(frames, wanted)
        except StaleSettings:
            topic.reload()
            self._finish(topic, extents, wanted)
            raise StaleAppend(_ranges(extents)) from None
        except (StorageError, Contended) as error:
            self._finish(topic, extents, wanted)
            raise error.after_storing(_ranges(extents)) from None
        self._finish(topic, extents, wanted)
        self._upkeep.ask((wanted.name, number) for number, extent in extents.items() if extent.rolled)
        return framing.position_of(wanted.name, _ranges(extents))

    def _finish(self, topic: OpenTopic, extents: Mapping[int, Extent], wanted: TopicSettings) -> None:
        """Make all of it durable; where that fails for one partition, the others hold their part."""
        stored: dict[int, tuple[int, int]] = {}
        failed: StorageError | Contended | None = None
        try:
            for number, extent in extents.items():
                try:
                    topic.partition(number).finish(extent, wanted)
                    stored[number] = (extent.first, extent.end)
                except (StorageError, Contended) as error:
                    failed = failed or error
        finally:
            topic.signal()
        if failed:
            raise failed.after_storing(stored)

    # ---- the atomic append with a position -----------------------------------------------------

    def open_producer(self, producer: str) -> ProducerPosition:
        settings.check_name("producer", producer)
        epoch = self.ledger.new_epoch(producer)  # ours, also where somebody has taken over from us since
        state = self.ledger.state(producer)
        for share in state.shares:
            with contextlib.suppress(UnknownTopic, BadOption):
                self._topic(share.topic).partition(share.partition).await_shown()
        return ProducerPosition(epoch, state.sequence, state.position)

    def close_producer(self, producer: str) -> None:
        pass  # an open producer is a record in the ledger, nothing more

    def producers(self) -> list[str]:
        return self.ledger.producers()

    def producer_position(self, producer: str) -> ProducerPosition:
        state = self.ledger.state(producer)
        for share in state.shares:
            # A crash may have come between the commit and showing the records: show them now.
            with contextlib.suppress(UnknownTopic, BadOption):  # deleted, and perhaps made anew and smaller
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
        state = ProducerState(epoch, sequence, position)
        with contextlib.ExitStack() as stack:
            opened = {name: stack.enter_context(self._writing(parts[name][0])) for name in sorted(parts)}
            done = atomic.append(self.ledger, opened, producer, state, parts)
        for topic in opened.values():
            topic.signal()
        with contextlib.suppress(PenstockError, OSError):  # as in _maintain
            self.ledger.rewrite_if_due(self._settle_all)
        self._upkeep.ask(done.rolled)
        return done.result

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

    def hold(self, name: str, topic: str, offsets: Mapping[int, int], *, reason: str) -> None:
        self.groups_store().hold(name, topic, offsets, reason=reason)

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
        from penstock.log import lag  # it reads through this log

        return lag.describe(self, group, topic)

    # ---- maintenance ------------------------------------------------------------------------------------

    def maintain(self, topic: str, number: int) -> maintenance.Done:
        """Merge, compact, archive and expire sealed segments of a partition, as its topic asks for."""
        opened = self._topic(topic)
        opened.make_durable()
        return maintenance.run(opened.partition(number), self.settings(topic), self.groups_store())

    def _maintain(self, topic: str, number: int) -> None:
        """The append has happened, so what stops the upkeep now must not pass for a failed append.

        Nothing is hidden: whoever reads, appends or asks for upkeep next meets it again.
        """
        with contextlib.suppress(PenstockError, OSError, StaleSettings, sqlite3.Error):
            self.maintain(topic, number)

    def partition(self, topic: str, number: int) -> Partition:
        """For maintenance commands and tests: the partition behind the port."""
        return self._topic(topic).partition(number)

    def after_fork_in_child(self) -> None:
        # Another thread of the parent may have been in the middle of anything; what counts is on disk.
        self._mutex = threading.Lock()
        self._topics = {}
        self.ledger = Ledger(self.disk, self.home / "ledger")
        self._upkeep = Upkeep(self._maintain, beside=self._upkeep_beside)

    def close(self) -> None:
        self._upkeep.finish()
        with self._mutex:
            for topic in self._topics.values():
                topic.close()
            self._topics.clear()
            if self._groups:
                self._groups.close()
                self._groups = None
        self.keys.close()
        self.ledger.close()


def _ranges(extents: Mapping[int, Extent]) -> dict[int, tuple[int, int]]:
    return {number: (extent.first, extent.end) for number, extent in extents.items()}
