"""What happens to sealed segments: merged, compacted, archived, and removed when their time is over.

Runs after a segment was sealed, in the process that sealed it (upkeep.py), and on request. Nothing
here is needed for correctness: each step writes new files beside the old ones and makes
them live by replacing the manifest, so a crash leaves the one or the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import pyarrow as pa

from penstock.log import compaction, index, segment
from penstock.log.frame import PendingFrame, event_range, read_header
from penstock.log.group import GroupStore
from penstock.log.manifest import SegmentEntry
from penstock.log.partition import Partition
from penstock.log.reader import PartitionReader
from penstock.log.segment import Located
from penstock.log.settings import TopicSettings

_SMALL_FRAME_BYTES = 64 << 10
_MERGED_ROWS = 50_000
_MERGED_BYTES = 1 << 20
_TIMESTAMP = pa.field("_timestamp", pa.timestamp("us", tz="UTC"), nullable=False)
_OFFSET = pa.field("_offset", pa.int64(), nullable=False)


@dataclass(frozen=True, slots=True)
class Done:
    """What one run of maintenance did to a partition."""

    merged_segments: int = 0
    compacted_records: int = 0  # older values and outdated deletes removed
    archived_segments: int = 0
    expired_segments: int = 0
    expired_records: int = 0
    held_by: tuple[str, ...] = ()  # who still needs records that retention would remove
    busy: bool = False  # another process is at it


def run(
    partition: Partition,
    settings: TopicSettings,
    groups: GroupStore,
    *,
    force: bool = False,
    archive_now: bool = False,
) -> Done:
    """Whatever the topic's settings ask for. `force` compacts even where little would be gained."""
    with partition.maintaining() as mine:
        if not mine:
            return Done(busy=True)
        done = Done()
        if settings.compacted:
            done = replace(done, compacted_records=_compact(partition, settings, force=force))
        else:
            done = replace(done, merged_segments=_merge(partition, settings))
        done = _expire(partition, settings, groups, done)
        if archive_now:
            done = replace(done, archived_segments=done.archived_segments + _archive(partition, settings))
        return done


# ---- merging small batches --------------------------------------------------------------------


def _merge(partition: Partition, settings: TopicSettings) -> int:
    small = [
        entry
        for entry in partition.manifest().sealed
        if not entry.rewritten and entry.frames > 1 and entry.size_bytes < entry.frames * _SMALL_FRAME_BYTES
    ]
    for entry in small:
        merged = rewrite(partition, settings, (entry,), read(partition, settings, entry), keep_offsets=False)
        partition.swap_segments((entry,), (merged,))
    return len(small)


def read(partition: Partition, settings: TopicSettings, entry: SegmentEntry) -> Iterator[pa.RecordBatch]:
    """All records of one sealed segment, checked, with their places."""
    reader = PartitionReader(partition, lambda _: settings)
    try:
        assert entry.end is not None, "only sealed segments are rewritten"
        yield from reader.read(entry.base, until=entry.end)
    finally:
        reader.close()


def rewrite(
    partition: Partition,
    settings: TopicSettings,
    old: tuple[SegmentEntry, ...],
    batches: Iterable[pa.RecordBatch],
    *,
    keep_offsets: bool,
    compacted_to: int = 0,
) -> SegmentEntry:
    """One new segment with these records in the place of `old`; written and synced, not yet live."""
    first, last = old[0], old[-1]
    generation = max(entry.generation for entry in old) + 1
    name = segment.file_name(first.base, generation)
    places = [_OFFSET, _TIMESTAMP] if keep_offsets else [_TIMESTAMP]
    schema = pa.schema([*places, *settings.stored])
    start = segment.start_bytes(
        schema,
        topic=partition.topic,
        partition=partition.number,
        base=first.base,
        generation=generation,
        end=last.end,
    )
    path = partition.folder / name
    partition.disk.remove(path)
    file = partition.disk.open(path, create=True)
    frames: list[Located] = []
    position, rows = len(start), 0
    try:
        file.write_at(0, start)
        for batch in _in_large_pieces(batches):
            located, data = _frame(settings, schema, batch, position)
            file.write_at(position, data)
            frames.append(located)
            position, rows = position + len(data), rows + batch.num_rows
        file.sync()
    finally:
        file.close()
    index.rebuild(partition.disk, path, index.entries_of(frames))
    partition.disk.sync_folder(partition.folder)
    return SegmentEntry(
        name, first.base, generation, end=last.end, size_bytes=position, frames=len(frames), rows=rows,
        first_time_us=first.first_time_us, last_time_us=last.last_time_us,
        rewritten=True, compacted_to=compacted_to,
    )  # fmt: skip


def _frame(
    settings: TopicSettings, schema: pa.Schema, batch: pa.RecordBatch, position: int
) -> tuple[Located, memoryview]:
    offsets, times = batch.column("_offset"), batch.column("_timestamp").cast(pa.int64())
    stored = batch.select(schema.names).cast(schema)
    pending = PendingFrame(stored, event_us=event_range(settings.event_time, batch))
    data = pending.place(
        offsets[0].as_py(), times[0].as_py(), end=offsets[-1].as_py() + 1, time_us_max=times[-1].as_py()
    )
    return Located(position, read_header(pa.py_buffer(data), 0)), data


def _in_large_pieces(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    gathered: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        gathered.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if rows >= _MERGED_ROWS or size >= _MERGED_BYTES:
            yield pa.concat_batches(gathered)
            gathered, rows, size = [], 0, 0
    if gathered:
        yield pa.concat_batches(gathered)


# ---- compacting ------------------------------------------------------------------------------------


def _compact(partition: Partition, settings: TopicSettings, *, force: bool) -> int:
    old = tuple(entry for entry in partition.manifest().sealed if not entry.archived)
    if not old or not (force or compaction.is_worthwhile(old)):
        return 0
    plan = compaction.plan(partition, settings, old, now_us=partition.clock.now_us())
    covered = plan.covered
    if not covered:
        return 0
    fresh = rewrite(
        partition, settings, covered, plan.kept(), keep_offsets=True, compacted_to=covered[-1].end or 0
    )
    partition.swap_segments(covered, (fresh,))
    return sum(entry.rows for entry in covered) - fresh.rows


# ---- retention and archive ---------------------------------------------------------------------------


def _expire(partition: Partition, settings: TopicSettings, groups: GroupStore, done: Done) -> Done:
    _seal_if_over(partition, settings)
    over = _over_retention(partition, settings)
    if not over:
        return done
    if settings.archive:
        return replace(done, archived_segments=_archive(partition, settings, only=over))
    holds = groups.holds(settings.name, partition.number)
    limit = holds[0][1] if holds else None
    free = tuple(entry for entry in over if limit is None or (entry.end or 0) <= limit)
    end = over[-1].end or 0
    held_by = tuple(f"{name} ({reason})" for name, offset, reason in holds if offset < end)
    partition.swap_segments(free, ())
    return replace(
        done, expired_segments=len(free), expired_records=sum(entry.rows for entry in free), held_by=held_by
    )


def _seal_if_over(partition: Partition, settings: TopicSettings) -> None:
    """Records in a quiet topic expire too: its active segment is sealed when its time is over."""
    if settings.retention_ms is None:
        return
    cutoff_us = partition.clock.now_us() - settings.retention_ms * 1_000
    head = partition.head()
    if head.frames and head.last_time_us < cutoff_us:
        with partition.locked(settings) as head:
            if head.frames and head.last_time_us < cutoff_us:
                partition.roll(head, settings)


def _over_retention(partition: Partition, settings: TopicSettings) -> tuple[SegmentEntry, ...]:
    """The oldest sealed segments that age or size condemn; compacted topics have neither."""
    if settings.compacted:
        return ()
    # An archive is kept where the topic asks for one; what was archived on request expires like the rest.
    live = [s for s in partition.manifest().segments if not (settings.archive and s.archived)]
    total = sum(entry.size_bytes for entry in live[:-1]) + partition.head().written_bytes
    over = []
    for entry in live[:-1]:
        too_old = settings.retention_ms is not None and (
            entry.last_time_us < partition.clock.now_us() - settings.retention_ms * 1_000
        )
        too_much = settings.retention_bytes is not None and total > settings.retention_bytes
        if not (too_old or too_much):
            break
        over.append(entry)
        total -= entry.size_bytes
    return tuple(over)


def _archive(
    partition: Partition, settings: TopicSettings, *, only: tuple[SegmentEntry, ...] | None = None
) -> int:
    from penstock.log import archive  # pyarrow.parquet is slow to import

    entries = only if only is not None else partition.manifest().sealed
    chosen = [entry for entry in entries if not entry.archived]
    for entry in chosen:
        fresh = archive.write(partition, entry, settings.read_schema, read(partition, settings, entry))
        partition.swap_segments((entry,), (fresh,))
    return len(chosen)
