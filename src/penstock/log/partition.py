"""The writing side of one partition: a folder of segments that many processes append to.

    lock            held per append; whoever holds it may write
    head            shared memory: where the active segment ends, and up to where readers may see
    manifest.json   the live segment files
    *.arrows        the records; *.index and everything else is derived from them

An append writes frames past the head, then moves the head: a process that dies in
between leaves bytes that the next holder of the lock cuts off. The sync happens
outside the lock and covers everything written before it, whoever wrote it (group
commit across processes); only then does the visible end move, and only then is
the append acknowledged.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import numpy as np

from penstock.clock import Clock
from penstock.errors import Damaged, SegmentMissing, StorageError, SyncFailed, UnknownTopic
from penstock.log import active, index, manifest, recovery, segment
from penstock.log.active import ActiveSegment
from penstock.log.disk import Disk
from penstock.log.frame import BrokenFrame, PendingFrame
from penstock.log.head import DELETED, FAILED, Head, SharedHead
from penstock.log.manifest import Manifest, SegmentEntry
from penstock.log.settings import TopicSettings

LOCK_TIMEOUT_S = 10.0
_ROLLING = b"roll"


class StaleSettings(Exception):
    """The topic was altered since the caller read its settings."""


@dataclass(frozen=True, slots=True)
class Extent:
    """Offsets [first, end) of one append, and what must be synced before it is acknowledged."""

    first: int
    end: int
    base: int
    generation: int
    end_bytes: int
    cuts: int
    rolled: bool = False


@dataclass(frozen=True, slots=True)
class Committed:
    """What the ledger says about one partition's share of an atomic append."""

    end: int
    written_bytes: int
    frames: int
    time_us: int


class Transactions(Protocol):
    """What the ledger knows, as seen from one partition."""

    def outcome(self, transaction: str) -> Committed | None:
        """This partition's share if the transaction, which may still be open here, was committed."""

    def was_committed(self, transaction: str) -> bool: ...


class Partition:
    """Thread-safe. One object per partition and process; any number of processes."""

    def __init__(
        self,
        disk: Disk,
        clock: Clock,
        folder: Path,
        *,
        topic: str,
        number: int,
        settings: Callable[[], TopicSettings],
        transactions: Transactions,
        lock_timeout_s: float = LOCK_TIMEOUT_S,
    ) -> None:
        self.disk, self.clock, self.folder = disk, clock, folder
        self.topic, self.number = topic, number
        self.current_settings = settings
        self.transactions = transactions
        self._lock_timeout_s = lock_timeout_s
        self._lock = disk.lock(folder / "lock", f'partition {number} of topic "{topic}"')
        self._maintenance = disk.lock(
            folder / "maintenance.lock", f'maintenance of "{topic}" partition {number}'
        )
        self._head = SharedHead(disk, folder / "head")
        self._syncing = threading.Lock()
        self._active: ActiveSegment | None = None

    # ---- reading the head -------------------------------------------------------------

    def head(self) -> Head:
        """The head, recovered or settled first if a crash left something open."""
        head = self._head.read()
        if head is None:
            with self.locked() as recovered:
                return recovered
        if head.has(DELETED):
            raise UnknownTopic(self.topic)
        if head.transaction and self._lock.try_acquire():
            # Nobody is at work, so whoever began this died. What is visible stays readable if settling fails.
            try:
                with contextlib.suppress(StorageError):
                    head = self._settled(None)
            finally:
                self._lock.release()
        return head

    def await_shown(self) -> None:
        """Return when all that is committed can be read: who committed it may be on the way to showing it."""
        if self.head().transaction:
            with self.locked():
                pass

    def is_deleted(self) -> bool:
        """Whether the topic is gone; faster than the head."""
        return self._head.has(DELETED)

    def manifest(self) -> Manifest:
        """Raises Damaged when it is gone and cannot be rebuilt."""
        found = manifest.load(self.disk, self.folder)
        if found is None:
            with self.locked():
                found = self._load_or_rebuild()
        return found

    # ---- locking ----------------------------------------------------------------------

    @contextlib.contextmanager
    def locked(self, settings: TopicSettings | None = None) -> Iterator[Head]:
        """Hold the partition with everything a crash may have left behind put right.

        Raises StaleSettings when `settings` is given and out of date.
        """
        self._lock.acquire(self._lock_timeout_s)
        try:
            yield self._settled(settings)
        finally:
            self._lock.release()

    def _settled(self, settings: TopicSettings | None) -> Head:
        head = self._head.read()
        if head is None:
            head = self.update(recovery.recover(self, self._head.before_restart()))
        if head.has(DELETED):
            raise UnknownTopic(self.topic)
        if head.transaction == _ROLLING:
            head = self.update(self._after_broken_roll(head))
        elif head.transaction:
            head = self.update(self._after_broken_transaction(head))
        if head.has(FAILED):
            head = self.update(self._after_failed_sync(head))
        self._cut_leftovers(head)
        if settings is not None and head.settings != settings.version:
            head = self._check_settings(head, settings)
        return head

    def _check_settings(self, head: Head, settings: TopicSettings) -> Head:
        # An alteration raises the number first and holds all locks; if the file still
        # says what we know, that alteration died half-way and did not happen.
        if self.current_settings().version != settings.version:
            raise StaleSettings
        return self.update(replace(head, settings=settings.version))

    def update(self, head: Head) -> Head:
        """Only while holding the lock."""
        self._head.write(head)
        return head

    # ---- putting right what a crash left ------------------------------------------------

    def _cut_leftovers(self, head: Head) -> None:
        file = self.active(head).file
        size = file.size()
        if size > head.written_bytes:
            file.truncate(head.written_bytes)
        elif size < head.written_bytes:
            raise Damaged(
                self.topic, self.number, segment.file_name(head.base, head.generation),
                first=head.base, last=head.next_offset - 1,
                reason=f"the file has {size} bytes where {head.written_bytes} were written",
            )  # fmt: skip

    def _after_broken_roll(self, head: Head) -> Head:
        live = self._load_or_rebuild()
        if (live.active.base, live.active.generation) == (head.base, head.generation):
            # A file that the manifest does not name would stand in the way if that is ever rebuilt.
            self._remove_segment(_following(head))
            return replace(head, transaction=b"")
        self.disk.sync_folder(self.folder)  # the manifest was renamed, but perhaps not for good yet
        return self._head_of_new_segment(head, live.active)

    def _after_broken_transaction(self, head: Head) -> Head:
        share = self.transactions.outcome(head.transaction.decode())
        return self._with_transaction(head, share) if share else self._without_transaction(head)

    def _without_transaction(self, head: Head) -> Head:
        """Back to `head`, and for good: without a sync the cut bytes could be back after power loss, and by
        then the ledger may no longer remember that they were never committed. Where that fails the file is
        given up before the next append.
        """
        flags = head.flags
        try:
            self._cut_leftovers(head)
            self.active(head).sync()
        except StorageError:
            flags |= FAILED
        return replace(head, transaction=b"", flags=flags)

    def _with_transaction(self, head: Head, share: Committed) -> Head:
        return replace(
            head, transaction=b"", next_offset=share.end, frames=share.frames,
            written_bytes=share.written_bytes, visible_offset=share.end, visible_bytes=share.written_bytes,
            synced_bytes=share.written_bytes,
            last_time_us=share.time_us,
        )  # fmt: skip

    def _after_failed_sync(self, head: Head) -> Head:
        """Give up what was never acknowledged and go on in a fresh file.

        After a failed sync the kernel may call the lost pages clean, so a later
        successful sync of the same file would prove nothing.
        """
        entries = self.index_of(head)
        frames = int(np.count_nonzero(entries["offset"] < head.visible_offset))
        self.active(head).file.truncate(head.visible_bytes)
        kept = replace(
            head, cuts=head.cuts + 1, written_bytes=head.visible_bytes, next_offset=head.visible_offset,
            frames=frames,
        )  # fmt: skip
        fresh = self._switch_segment(kept, self.current_settings(), sync=False)
        return replace(fresh, flags=head.flags & ~FAILED)  # not before there is a fresh file

    # ---- appending ----------------------------------------------------------------------

    def append(self, frames: Sequence[PendingFrame], settings: TopicSettings) -> Extent:
        """Write frames. Acknowledge them only after `finish`."""
        with self.locked(settings) as head:
            rolled = self.roll_if_due(head, frames, settings)
            written = self.write(rolled or head, frames)
            if settings.durability == "os":
                written = replace(
                    written, visible_offset=written.next_offset, visible_bytes=written.written_bytes
                )
            self.update(written)
            first = (rolled or head).next_offset
        return Extent(
            first, written.next_offset, written.base, written.generation, written.written_bytes, written.cuts,
            rolled=rolled is not None,
        )  # fmt: skip

    def write(self, head: Head, frames: Sequence[PendingFrame]) -> Head:
        """Put frames behind `head`; the head on disk is not moved. Only while holding the lock."""
        target = self.active(head)
        time_us = max(self.clock.now_us(), head.last_time_us)
        position, offset, entries = head.written_bytes, head.next_offset, []
        try:
            for pending in frames:
                target.file.write_at(position, pending.place(offset, time_us))
                entries.append((offset, position, time_us))
                position, offset = position + pending.size_bytes, offset + pending.rows
            index.write(target.index_file, np.array(entries, dtype=index.ENTRY), at_entry=head.frames)
        except StorageError:
            # Best effort: the next holder of the lock cuts what is left here.
            with contextlib.suppress(StorageError):
                target.file.truncate(head.written_bytes)
            raise
        return replace(
            head,
            written_bytes=position,
            next_offset=offset,
            frames=head.frames + len(frames),
            last_time_us=time_us,
        )

    def finish(self, extent: Extent, settings: TopicSettings) -> None:
        """Return when the append survives power loss (or at once where the topic asks for no more).

        Raises SyncFailed: then the records are given up and no reader has seen them.
        """
        if settings.durability == "os":
            return
        with self._syncing:
            seen = self.head()
            if seen.cuts != extent.cuts:
                raise SyncFailed(self.folder, "another append found the disk failing")
            if self._is_synced(seen, extent):
                return
            try:
                self.active(seen).sync()
            except SyncFailed:
                self._mark_failed(seen)
                raise
            self._show_synced(seen, extent)

    def _is_synced(self, head: Head, extent: Extent) -> bool:
        # A roll syncs before it switches, so a newer segment means an older one is on disk.
        same = (head.base, head.generation) == (extent.base, extent.generation)
        return not same or head.synced_bytes >= extent.end_bytes

    def _show_synced(self, seen: Head, extent: Extent) -> None:
        with self.locked() as head:
            if head.cuts != extent.cuts:
                raise SyncFailed(self.folder, "another append found the disk failing")
            if (head.base, head.generation) == (seen.base, seen.generation) and (
                head.synced_bytes < seen.written_bytes
            ):
                self.update(
                    replace(
                        head,
                        synced_bytes=seen.written_bytes,
                        visible_bytes=max(head.visible_bytes, seen.written_bytes),
                        visible_offset=max(head.visible_offset, seen.next_offset),
                    )
                )

    def _mark_failed(self, seen: Head) -> None:
        self._lock.acquire(self._lock_timeout_s)
        try:
            head = self._head.read()
            if head and (head.base, head.generation, head.cuts) == (seen.base, seen.generation, seen.cuts):
                self.update(replace(head, flags=head.flags | FAILED))
        finally:
            self._lock.release()

    # ---- this partition's share of an atomic append (the caller holds the lock) ----------

    def stage(self, head: Head, frames: Sequence[PendingFrame], transaction: str) -> Head:
        """Write frames that count only if `transaction` is committed, which needs a sync of them before."""
        self.update(replace(head, transaction=transaction.encode()))
        return self.write(head, frames)

    def publish(self, staged: Head) -> None:
        """The transaction is committed: show its records."""
        self.update(
            self._with_transaction(
                staged,
                Committed(staged.next_offset, staged.written_bytes, staged.frames, staged.last_time_us),
            )
        )

    def abandon(self, head: Head) -> None:
        """The transaction did not happen: back to `head`."""
        self.update(self._without_transaction(head))

    # ---- segments -------------------------------------------------------------------------

    def roll_if_due(self, head: Head, frames: Sequence[PendingFrame], settings: TopicSettings) -> Head | None:
        """A fresh segment when the active one is full, old, or of another schema.

        Only while holding the lock.
        """
        size = sum(frame.size_bytes for frame in frames)
        full = head.frames > 0 and head.written_bytes + size > settings.segment_bytes
        if not (full or self._is_old(head, settings) or self.active(head).schema != settings.stored):
            return None
        return self.update(self._switch_segment(head, settings))

    def _is_old(self, head: Head, settings: TopicSettings) -> bool:
        return (
            head.frames > 0 and self.clock.now_us() - self._first_time_us(head) > settings.segment_age_us_max
        )

    def roll(self, head: Head, settings: TopicSettings) -> Head:
        """Seal the active segment unless it is empty. Only while holding the lock."""
        return self.update(self._switch_segment(head, settings)) if head.frames else head

    def _switch_segment(self, head: Head, settings: TopicSettings, *, sync: bool = True) -> Head:
        self.update(replace(head, transaction=_ROLLING))
        if sync:
            self._sync_before_sealing(head)
        live = self._load_or_rebuild()
        replacing = head.frames == 0  # an empty segment is not worth sealing
        fresh = _following(head)
        active.create(self.disk, self.folder, settings, self.number, fresh)
        if replacing:
            after = live.swap((live.active,), (fresh,))
        else:
            after = live.with_active(fresh, sealing=self._sealed_entry(head, live.active))
        manifest.store(self.disk, self.folder, after)
        if replacing:
            self._remove_segment(live.active)
        return self._head_of_new_segment(head, fresh)

    def _sync_before_sealing(self, head: Head) -> None:
        sealing = self.active(head)
        try:
            sealing.sync()
        except SyncFailed:
            self.update(replace(head, flags=head.flags | FAILED))
            raise
        sealing.index_file.sync()

    def _head_of_new_segment(self, head: Head, entry: SegmentEntry) -> Head:
        size = active.size_of(self.disk, self.folder / entry.file)
        return replace(
            head, transaction=b"", base=entry.base, generation=entry.generation, next_offset=entry.base,
            visible_offset=entry.base, written_bytes=size, visible_bytes=size, synced_bytes=size, frames=0,
            files=head.files + 1,
        )  # fmt: skip

    def _sealed_entry(self, head: Head, entry: SegmentEntry) -> SegmentEntry:
        return replace(
            entry, end=head.next_offset, size_bytes=head.written_bytes, frames=head.frames,
            rows=head.next_offset - entry.base,
            first_time_us=self._first_time_us(head), last_time_us=head.last_time_us,
        )  # fmt: skip

    def _first_time_us(self, head: Head) -> int:
        current = self.active(head)
        if not current.first_time_us:
            current.first_time_us = int(self.index_of(head)["time_us"][0])
        return current.first_time_us

    def index_of(self, head: Head) -> index.Entries:
        """Of the active segment; rebuilt when it is gone."""
        path = self.folder / segment.file_name(head.base, head.generation)
        entries = index.read(self.disk, path, head.frames)
        if entries is None or (len(entries) and entries["offset"][0] != head.base):
            entries = recovery.rebuild_index(self, path, head.written_bytes)
        return entries

    def active(self, head: Head) -> ActiveSegment:
        """The segment being appended to, open for writing."""
        current = self._active
        if current is None or current.key != (head.base, head.generation):
            key = (head.base, head.generation)
            name = segment.file_name(*key)
            try:
                current = self._active = ActiveSegment(self.disk, self.folder / name, key)
            except (FileNotFoundError, BrokenFrame) as error:
                missing = isinstance(error, FileNotFoundError)
                raise (SegmentMissing if missing else Damaged)(
                    self.topic, self.number, name, first=head.base, last=head.next_offset - 1,
                    reason="the file is missing" if missing else str(error),
                ) from error  # fmt: skip
        return current

    def _load_or_rebuild(self) -> Manifest:
        found = manifest.load(self.disk, self.folder)
        if found is None:
            found = recovery.rebuild_manifest(self)
        return found

    def _remove_segment(self, entry: SegmentEntry) -> None:
        self.disk.remove(self.folder / entry.file)
        self.disk.remove(index.path_of(self.folder / entry.file))

    # ---- changes to sealed segments -----------------------------------------------------------

    @contextlib.contextmanager
    def maintaining(self) -> Iterator[bool]:
        """True for the one process that may rewrite sealed segments now."""
        mine = self._maintenance.try_acquire()
        try:
            yield mine
        finally:
            if mine:
                self._maintenance.release()

    def swap_segments(self, old: tuple[SegmentEntry, ...], new: tuple[SegmentEntry, ...]) -> None:
        """Make `new` (written and synced) live in the place of `old`, then remove the old files."""
        with self.locked() as head:
            manifest.store(self.disk, self.folder, self._load_or_rebuild().swap(old, new))
            self.update(replace(head, files=head.files + 1))
        for entry in old:
            self._remove_segment(entry)

    def close(self) -> None:
        self._active = None
        self._lock.close()
        self._maintenance.close()
        self._head.close()


def _following(head: Head) -> SegmentEntry:
    """The segment that comes after the one `head` is in; in its place if that is empty."""
    generation = head.generation + 1 if head.frames == 0 else 0
    return SegmentEntry(segment.file_name(head.next_offset, generation), head.next_offset, generation)
