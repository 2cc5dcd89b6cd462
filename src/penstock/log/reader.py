"""The reading side of one partition: batches in offset order, every byte checked.

A reader never goes past the visible end, never skips what is missing or damaged,
and never holds a lock: sealed segments do not change, and a file that maintenance
replaced in the meantime is found again through the new manifest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.errors import Damaged, OffsetOutOfRange, SegmentMissing
from penstock.log import frame, index, recovery
from penstock.log.frame import BrokenFrame, FrameHeader
from penstock.log.head import Head
from penstock.log.manifest import Manifest, SegmentEntry
from penstock.log.partition import Partition
from penstock.log.segment import SegmentForm, SegmentReader
from penstock.log.settings import TopicSettings

_UTC_US = pa.timestamp("us", tz="UTC")


@dataclass(slots=True)
class _Cursor:
    """Where the last read of an Arrow segment stopped, so that the next one need not search."""

    file: str
    offset: int
    position: int


class PartitionReader:
    """Not thread-safe; make one per thread. Cheap to make, cheaper to keep."""

    def __init__(self, partition: Partition, settings: Callable[[int], TopicSettings]) -> None:
        self._partition = partition
        self._settings = settings
        self._manifest: tuple[int, Manifest] | None = None
        self._open: SegmentReader | None = None
        self._cursor: _Cursor | None = None
        self._wanted: tuple[TopicSettings, pa.Schema] | None = None
        self._number = pa.array([], pa.int32())

    def bounds(self) -> tuple[int, int]:
        """First offset held, and the offset the next visible record will have."""
        head = self._partition.head()
        return self._live(head).start, head.visible_offset

    def read(self, offset: int, *, until: int | None = None) -> Iterator[pa.RecordBatch]:
        """Everything from `offset` up to `until`, or up to what is visible now.

        Raises OffsetOutOfRange at once, Damaged or SegmentMissing where the reading meets it.
        """
        head = self._partition.head()
        live = self._live(head)
        end = head.visible_offset
        if not live.start <= offset <= end:
            raise OffsetOutOfRange(
                self._partition.topic, self._partition.number, offset, start=live.start, end=end
            )
        return self._batches(head, offset, end if until is None else min(until, end))

    def offset_at(self, time_us: int) -> int:
        """The first record appended at or after that time; the end if there is none yet."""
        head = self._partition.head()
        while True:
            # A segment begun after we looked at the head holds nothing that this head knows.
            for entry in (s for s in self._live(head).segments if s.base <= head.base):
                if entry.sealed and entry.last_time_us < time_us:
                    continue
                try:
                    found = self._offset_in(head, entry, time_us)
                except (FileNotFoundError, SegmentMissing) as error:
                    self._look_again(head, entry, error)
                    break
                if found is not None:
                    return found
            else:
                return head.visible_offset

    def close(self) -> None:
        if self._open:
            self._open.close()
            self._open = None

    # ---- from segment to segment ------------------------------------------------------------

    def _batches(self, head: Head, offset: int, end: int) -> Iterator[pa.RecordBatch]:
        settings = self._settings(head.settings)
        wanted = self._read_schema(settings)
        while offset < end:
            entry = self._entry_for(head, offset)
            stop = end if entry.end is None else min(entry.end, end)
            try:
                for batch in self._read_segment(head, entry, offset, stop):
                    last = batch.column(1)[-1].as_py()
                    yield batch if batch.schema.equals(wanted) else _in_current_form(batch, settings)
                    offset = last + 1
            except (FileNotFoundError, SegmentMissing) as error:
                self._look_again(head, entry, error)
                continue
            offset = max(offset, stop)

    def _entry_for(self, head: Head, offset: int) -> SegmentEntry:
        live = self._live(head)
        for entry in reversed(live.segments):
            if entry.base <= offset:
                if entry.end is not None and offset >= entry.end:
                    following = next((s for s in live.segments if s.base > offset), None)
                    raise SegmentMissing(
                        self._partition.topic, self._partition.number, f"after {entry.file}",
                        first=entry.end, last=following.base - 1 if following else None,
                        reason="no file holds these records",
                    )  # fmt: skip
                return entry
        raise OffsetOutOfRange(
            self._partition.topic, self._partition.number, offset, start=live.start, end=head.visible_offset
        )

    def _live(self, head: Head) -> Manifest:
        if self._manifest is None or self._manifest[0] != head.files:
            self._manifest = (head.files, self._partition.manifest())
        return self._manifest[1]

    def _look_again(self, head: Head, entry: SegmentEntry, error: Exception) -> None:
        """A file is gone: replaced by maintenance, or really missing?"""
        self._manifest = (head.files, self._partition.manifest())
        if any(s.file == entry.file for s in self._manifest[1].segments):
            raise SegmentMissing(
                self._partition.topic, self._partition.number, entry.file,
                first=entry.base, last=entry.last, reason="the file is missing",
            ) from error  # fmt: skip

    def _read_segment(
        self, head: Head, entry: SegmentEntry, offset: int, stop: int
    ) -> Iterator[pa.RecordBatch]:
        if entry.archived:
            from penstock.log import archive  # pyarrow.parquet is slow to import

            stored = archive.read(self._partition, entry, offset, stop)
            return (shown for batch in stored if (shown := _between(batch, offset, stop)).num_rows)
        return self._read_frames(head, entry, offset, stop)

    # ---- inside an Arrow segment ---------------------------------------------------------------

    def _read_frames(
        self, head: Head, entry: SegmentEntry, offset: int, stop: int
    ) -> Iterator[pa.RecordBatch]:
        reader = self._reader(entry)
        limit = entry.size_bytes if entry.sealed else head.visible_bytes
        position = self._position_of(head, entry, offset)
        data, at = reader.bytes_at(position, limit)
        while offset < stop and position < limit:
            try:
                header = frame.check(data, at)
                batch = frame.decode(data, at, header, reader.header.schema)
            except (BrokenFrame, pa.ArrowException) as error:
                raise self._damaged(head, entry, position, offset, str(error)) from error
            position, at = position + header.size_bytes, at + header.size_bytes
            self._cursor = _Cursor(entry.file, header.end, position)
            shown = self._with_places(batch, header, reader.form)
            if header.base < offset or header.end > stop:
                shown = _between(shown, offset, stop)
            if shown.num_rows:
                yield shown
            offset = header.end

    def _reader(self, entry: SegmentEntry) -> SegmentReader:
        if self._open is None or self._open.name != entry.file:
            self.close()
            try:
                self._open = SegmentReader(self._partition.disk, self._partition.folder / entry.file)
            except BrokenFrame as error:
                raise Damaged(
                    self._partition.topic, self._partition.number, entry.file,
                    first=entry.base, last=entry.last, reason=str(error),
                ) from error  # fmt: skip
        return self._open

    def _position_of(self, head: Head, entry: SegmentEntry, offset: int) -> int:
        cursor = self._cursor
        if cursor and cursor.file == entry.file and cursor.offset == offset:
            return cursor.position
        frames = entry.frames if entry.sealed else head.frames
        if offset == entry.base or frames == 0:
            return self._reader(entry).header.first_frame_at

        def right(entries: index.Entries) -> int | None:
            number = index.frame_holding(entries, offset)
            header = self._header_at(head, entry, entries, number)
            # Before the first frame there may be a gap that compaction left.
            first = int(entries["position"][number]) == self._reader(entry).header.first_frame_at
            return number if header and (header.base <= offset or first) else None

        entries, number = self._search(head, entry, right)
        return int(entries["position"][number])

    def _search(
        self, head: Head, entry: SegmentEntry, right: Callable[[index.Entries], int | None]
    ) -> tuple[index.Entries, int]:
        """Ask the index; when the frames contradict it, build it anew and ask again."""
        path = self._partition.folder / entry.file
        frames, size = (entry.frames, entry.size_bytes) if entry.sealed else (head.frames, head.visible_bytes)
        entries = index.read(self._partition.disk, path, frames)
        number = right(entries) if entries is not None else None
        if entries is None or number is None:
            entries = recovery.rebuild_index(self._partition, path, size)
            number = right(entries)
        assert number is not None, "an index made from the segment fits the segment"
        return entries, number

    def _header_at(
        self, head: Head, entry: SegmentEntry, entries: index.Entries, number: int
    ) -> FrameHeader | None:
        """The header that entry `number` points at, if it says the same as the entry."""
        limit = entry.size_bytes if entry.sealed else head.visible_bytes
        position = int(entries["position"][number])
        if not 0 < position < limit:
            return None
        try:
            header = frame.read_header(*self._reader(entry).bytes_at(position, limit))
        except BrokenFrame:
            return None
        said = (int(entries["offset"][number]), int(entries["time_us"][number]))
        return header if said == (header.base, header.time_us_max) else None

    def _offset_in(self, head: Head, entry: SegmentEntry, time_us: int) -> int | None:
        """The first offset in this segment appended at or after `time_us`."""
        if entry.archived:
            start, stop = entry.base, entry.end or entry.base
        elif head.frames == 0 and not entry.sealed:
            return None
        else:
            start, stop = self._offsets_around(head, entry, time_us)
        if start >= stop:
            return None
        for batch in self._read_segment(head, entry, start, stop):
            found = np.flatnonzero(batch.column(2).cast(pa.int64()).to_numpy() >= time_us)
            if len(found):
                return int(batch.column(1)[int(found[0])].as_py())
        return None

    def _offsets_around(self, head: Head, entry: SegmentEntry, time_us: int) -> tuple[int, int]:
        """From the first frame that reaches `time_us` to the end of the segment; empty if none does."""

        def right(entries: index.Entries) -> int | None:
            """Only if the frame reaches that time, and stands right behind one that does not."""
            number = index.frame_at_time(entries, time_us)
            starts_at, ends_at = limit, self._reader(entry).header.first_frame_at
            if number < len(entries):
                header = self._header_at(head, entry, entries, number)
                if header is None or header.time_us_max < time_us:
                    return None
                starts_at = int(entries["position"][number])
            if number > 0:
                before = self._header_at(head, entry, entries, number - 1)
                if before is None or before.time_us_max >= time_us:
                    return None
                ends_at = int(entries["position"][number - 1]) + before.size_bytes
            return number if starts_at == ends_at else None

        limit = entry.size_bytes if entry.sealed else head.visible_bytes
        entries, number = self._search(head, entry, right)
        end = head.visible_offset if entry.end is None else entry.end
        return (int(entries["offset"][number]) if number < len(entries) else end), end

    def _damaged(self, head: Head, entry: SegmentEntry, position: int, offset: int, reason: str) -> Damaged:
        """Names the offsets of the bad frame: up to where the next one starts, if the index can tell."""
        frames = entry.frames if entry.sealed else head.frames
        entries = index.read(self._partition.disk, self._partition.folder / entry.file, frames)
        end = entry.end if entry.sealed else head.visible_offset
        if entries is not None and (entries["position"] > position).any():
            end = int(entries["offset"][entries["position"] > position][0])
        return Damaged(
            self._partition.topic, self._partition.number, entry.file,
            first=offset, last=end - 1 if end is not None and end > offset else None, reason=reason,
        )  # fmt: skip

    # ---- the form readers get ---------------------------------------------------------------------

    def _with_places(self, batch: pa.RecordBatch, header: FrameHeader, form: SegmentForm) -> pa.RecordBatch:
        """Add where and when each record was appended, from the frame header or the stored columns."""
        rows, columns = batch.num_rows, batch.columns
        if form.offset_at is not None:
            offsets = columns[form.offset_at]
        else:
            offsets = _column(pa.int64(), np.arange(header.base, header.base + rows, dtype=np.int64))
        if form.timestamp_at is not None:
            times = columns[form.timestamp_at]
        else:
            times = _column(_UTC_US, np.full(rows, header.time_us_min, dtype=np.int64))
        places = [self._partition_column(rows), offsets, times]
        return pa.RecordBatch.from_arrays(
            [*places, *(columns[at] for at in form.own)], schema=form.read_schema
        )

    def _read_schema(self, settings: TopicSettings) -> pa.Schema:
        if self._wanted is None or self._wanted[0] is not settings:
            self._wanted = (settings, settings.read_schema)
        return self._wanted[1]

    def _partition_column(self, rows: int) -> pa.Array:
        if len(self._number) < rows:
            self._number = _column(pa.int32(), np.full(rows, self._partition.number, dtype=np.int32))
        return self._number.slice(0, rows)


def _in_current_form(batch: pa.RecordBatch, settings: TopicSettings) -> pa.RecordBatch:
    """Records stored under an earlier schema, in the columns of today's."""
    user = settings.schema.adopt(batch)
    columns = [*batch.columns[:3], *user.select(list(settings.schema.names)).columns]
    if settings.compacted:
        marked = "_deleted" in batch.schema.names
        columns.append(batch.column("_deleted") if marked else pa.array(np.zeros(batch.num_rows, dtype=bool)))
    return pa.RecordBatch.from_arrays(columns, schema=settings.read_schema)


def _column(dtype: pa.DataType, values: npt.NDArray[np.integer[Any]]) -> pa.Array:
    """Without a look at the values, which for a frame of one record would take longer than all the rest."""
    return pa.Array.from_buffers(dtype, len(values), [None, pa.py_buffer(values)])


def _between(batch: pa.RecordBatch, offset: int, stop: int) -> pa.RecordBatch:
    """The rows with offsets in [offset, stop)."""
    first, last = np.searchsorted(batch.column(1).to_numpy(), [offset, stop])
    return batch.slice(int(first), int(last - first))
