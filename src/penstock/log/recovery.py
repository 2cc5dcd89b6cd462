"""Putting a partition right after power loss, and rebuilding what is derived.

Only the active segment can be torn: a segment is synced before it is sealed. Its
frames are checked one by one; the first one that is not whole marks the end, and
what follows is cut. But a bad frame inside what is known to have been synced is
damage, not a torn tail, and is refused.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from penstock.errors import Damaged, SegmentMissing
from penstock.log import frame, index, manifest, segment
from penstock.log.frame import BrokenFrame
from penstock.log.head import Head
from penstock.log.manifest import Manifest, SegmentEntry
from penstock.log.segment import Located

if TYPE_CHECKING:
    from penstock.log.partition import Partition


def recover(partition: Partition, hint: Head | None) -> Head:
    """The head, found from the segments alone. Called while holding the lock.

    `hint` is the head of an earlier boot: a lower bound for what was synced.
    """
    partition.current_settings()  # raises where a topic of this name is just being made, by somebody else
    live = manifest.load(partition.disk, partition.folder) or rebuild_manifest(partition)
    active = live.active
    if hint and hint.base > active.base:
        raise SegmentMissing(
            partition.topic, partition.number, segment.file_name(hint.base, hint.generation),
            first=hint.base, last=None, reason="the segment last written to is missing",
        )  # fmt: skip
    synced = (
        hint.synced_bytes if hint and (hint.base, hint.generation) == (active.base, active.generation) else 0
    )
    frames, start = _whole_frames(partition, active, synced)
    kept = _without_uncommitted(partition, frames)
    if len(kept) < len(frames) and frames[len(kept)].position < synced:
        # Such records are synced as committed only after their commit record.
        first = frames[len(kept)].header.base
        raise _damaged(partition, active, first, "the ledger does not know an atomic append that happened")
    _remove_orphans(partition, live)
    return _restored(partition, live, kept, start, hint)


def _remove_orphans(partition: Partition, live: Manifest) -> None:
    """Remove what a crash left of files not yet live, or live no more: a rebuilt manifest would trust them.

    But records past the active segment are written only once the manifest names their file.
    """
    named = {entry.file for entry in live.segments}
    for name in partition.disk.names(partition.folder):
        parsed = segment.parse_name(name)
        if not parsed or name in named:
            continue
        orphan = SegmentEntry(name, *parsed)
        if orphan.base > live.active.base and _holds_records(partition, orphan):
            raise _damaged(partition, orphan, orphan.base, "the manifest is older than this file")
        partition.disk.remove(partition.folder / name)
        partition.disk.remove(index.path_of(partition.folder / name))


def _holds_records(partition: Partition, entry: SegmentEntry) -> bool:
    data = _map(partition, entry)
    try:
        frame.check(data, segment.read_start(data).first_frame_at)
    except BrokenFrame:
        return False
    return True


def _whole_frames(partition: Partition, active: SegmentEntry, synced_bytes: int) -> tuple[list[Located], int]:
    """Every whole frame of the active segment, and where the first one starts."""
    data = _map(partition, active)
    try:
        header = segment.read_start(data)
    except BrokenFrame as error:
        raise _damaged(partition, active, active.base, str(error)) from error
    found: list[Located] = []
    end = active.base
    try:
        for located in segment.scan(data, header.first_frame_at, data.size, base=active.base):
            found.append(located)
            end = located.header.end
        problem = "the file is shorter than it was"
    except BrokenFrame as error:
        problem = str(error)
    if (found[-1].ends_at if found else header.first_frame_at) < synced_bytes:
        raise _damaged(partition, active, end, problem)
    return found, header.first_frame_at


def _without_uncommitted(partition: Partition, frames: list[Located]) -> list[Located]:
    """An atomic append without a commit record can only be the last thing that was written."""
    for number, located in enumerate(frames):
        transaction = located.header.transaction
        if transaction and not partition.transactions.was_committed(transaction):
            return frames[:number]
    return frames


def _restored(
    partition: Partition, live: Manifest, frames: list[Located], start: int, hint: Head | None
) -> Head:
    active = live.active
    last = frames[-1] if frames else None
    size = last.position + last.header.size_bytes if last else start
    path = partition.folder / active.file
    file = partition.disk.open(path)
    try:
        file.truncate(size)
        file.sync()  # readers may see these bytes from now on
    finally:
        file.close()
    index.rebuild(partition.disk, path, index.entries_of(frames))
    end = last.header.end if last else active.base
    newest = last.header.time_us_max if last else max((s.last_time_us for s in live.sealed), default=0)
    return Head(
        base=active.base, generation=active.generation, written_bytes=size, next_offset=end,
        visible_offset=end, visible_bytes=size, synced_bytes=size, frames=len(frames), last_time_us=newest,
        files=hint.files + 1 if hint else 1, cuts=hint.cuts + 1 if hint else 0,
    )  # fmt: skip


def rebuild_manifest(partition: Partition) -> Manifest:
    """From the files, while holding the lock."""
    found = manifest.rebuild(partition.disk, partition.folder)
    if found is None:
        raise SegmentMissing(
            partition.topic, partition.number, "(all)", first=0, last=None, reason="no segment file is left"
        )
    manifest.store(partition.disk, partition.folder, found)
    return found


def rebuild_index(partition: Partition, path: Path, size_bytes: int) -> index.Entries:
    """From the segment. A frame that is damaged is refused here, as it would be on reading."""
    parsed = segment.parse_name(path.name)
    assert parsed, "segments are named by us"
    entry = SegmentEntry(path.name, *parsed)
    data = _map(partition, entry)
    found: list[Located] = []
    try:
        header = segment.read_start(data)
        found.extend(segment.scan(data, header.first_frame_at, min(size_bytes, data.size), base=entry.base))
    except BrokenFrame as error:
        end = found[-1].header.end if found else entry.base
        raise _damaged(partition, entry, end, str(error)) from error
    entries = index.entries_of(found)
    index.rebuild(partition.disk, path, entries)
    return entries


def _map(partition: Partition, entry: SegmentEntry) -> pa.Buffer:
    try:
        file = partition.disk.open(partition.folder / entry.file)
    except FileNotFoundError as error:
        raise SegmentMissing(
            partition.topic, partition.number, entry.file,
            first=entry.base, last=entry.last, reason="the file is missing",
        ) from error  # fmt: skip
    try:
        return file.map()
    finally:
        file.close()


def _damaged(partition: Partition, entry: SegmentEntry, first: int, reason: str) -> Damaged:
    return Damaged(partition.topic, partition.number, entry.file, first=first, last=entry.last, reason=reason)
