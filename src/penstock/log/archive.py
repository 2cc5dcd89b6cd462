"""Sealed segments as Parquet: smaller, open to other tools, readable here at the same offsets."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from penstock.errors import Damaged
from penstock.log import disk as disks
from penstock.log import index, manifest, segment
from penstock.log.disk import Disk
from penstock.log.manifest import SegmentEntry

if TYPE_CHECKING:
    from penstock.log.partition import Partition

SUFFIX = ".parquet"
_ROW_GROUP_ROWS = 64_000


def write(
    partition: Partition, entry: SegmentEntry, schema: pa.Schema, batches: Iterator[pa.RecordBatch]
) -> SegmentEntry:
    """Write and sync the Parquet form of a sealed segment; the caller makes it live."""
    generation = entry.generation + 1
    name = segment.file_name(entry.base, generation, SUFFIX)
    facts = {
        b"penstock": ",".join(
            map(str, (entry.base, entry.end, entry.rows, entry.first_time_us, entry.last_time_us))
        ).encode()
    }
    content = io.BytesIO()
    with pq.ParquetWriter(
        content, schema.with_metadata(facts), compression="zstd", write_page_checksum=True
    ) as writer:
        for batch in batches:
            writer.write_batch(batch.cast(schema), row_group_size=_ROW_GROUP_ROWS)
    data = content.getvalue()
    path = partition.folder / name
    partition.disk.remove(path)
    file = partition.disk.open(path, create=True)
    try:
        file.write_at(0, data)
        file.sync()
    finally:
        file.close()
    archived = replace(
        entry, file=name, generation=generation, size_bytes=len(data), frames=0, rewritten=True,
        checksum=xxhash.xxh3_64_hexdigest(data),
    )  # fmt: skip
    # Beside it, what the manifest says: Parquet cannot tell whether it is as it was written.
    disks.replace(partition.disk, index.path_of(path), manifest.packed([archived]))
    return archived


def entry_of(disk: Disk, path: Path) -> SegmentEntry | None:
    """For rebuilding the manifest: what stands beside the file or, if that is lost, in it."""
    known = manifest.unpacked(disk, index.path_of(path))
    if known:
        return known[0]
    parsed = segment.parse_name(path.name)
    data = disk.read(path)
    try:
        facts = (pq.read_schema(pa.BufferReader(data)).metadata or {})[b"penstock"].decode()
        base, end, rows, first_us, last_us = map(int, facts.split(","))
    except (OSError, KeyError, ValueError, pa.ArrowException):
        return None
    assert parsed, "the caller looks only at segment names"
    return SegmentEntry(
        path.name, base, parsed[1], end=end, size_bytes=len(data), rows=rows, first_time_us=first_us,
        last_time_us=last_us, rewritten=True, checksum=xxhash.xxh3_64_hexdigest(data),
    )  # fmt: skip


def read(partition: Partition, entry: SegmentEntry, offset: int, stop: int) -> Iterator[pa.RecordBatch]:
    """Records with offsets in [offset, stop), with their places as the first columns."""
    file = partition.disk.open(partition.folder / entry.file)
    try:
        data = file.map()
    finally:
        file.close()
    if xxhash.xxh3_64_hexdigest(memoryview(data)) != entry.checksum:
        raise Damaged(
            partition.topic, partition.number, entry.file, first=entry.base, last=entry.last,
            reason="the checksum of the archive file does not match",
        )  # fmt: skip
    parquet = pq.ParquetFile(pa.BufferReader(data))
    for group in range(parquet.num_row_groups):
        statistics = _offsets_of(parquet, group)
        if statistics.max < offset or statistics.min >= stop:
            continue
        yield from parquet.iter_batches(row_groups=[group])


def _offsets_of(parquet: pq.ParquetFile, group: int) -> pq.Statistics:
    columns = parquet.schema_arrow.names
    return parquet.metadata.row_group(group).column(columns.index("_offset")).statistics
