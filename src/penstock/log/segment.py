"""One file of a partition: a standard Arrow IPC stream of frames.

`<base offset>-<generation>.arrows`; the generation grows when a sealed segment is
rewritten (small batches merged, or compacted). The first message is the schema and
carries what the segment covers, so the manifest can be rebuilt from the files alone.

A rewritten segment stores the `_timestamp` of each row, and a compacted one its
`_offset`, because neither follows from the frame header any more.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from penstock.log import frame
from penstock.log.disk import Disk, File
from penstock.log.frame import BrokenFrame, FrameHeader
from penstock.log.settings import SYSTEM_FIELDS

SUFFIX = ".arrows"
_MAP_BYTES_MIN = 256 << 10
_START_BYTES = 64 << 10  # enough for all but the widest schemas


@dataclass(frozen=True, slots=True)
class SegmentHeader:
    """What a segment says about itself in its schema message."""

    schema: pa.Schema
    topic: str
    partition: int
    base: int
    generation: int
    end: int | None  # known when the file was written in one piece
    first_frame_at: int


@dataclass(frozen=True, slots=True)
class Located:
    """A frame and where it stands in its file."""

    position: int
    header: FrameHeader

    @property
    def ends_at(self) -> int:
        return self.position + self.header.size_bytes


def file_name(base: int, generation: int, suffix: str = SUFFIX) -> str:
    return f"{base:020d}-{generation:04d}{suffix}"


def parse_name(name: str) -> tuple[int, int] | None:
    """(base, generation) of a segment's file name, or None for any other file."""
    stem, dot, suffix = name.partition(".")
    base, dash, generation = stem.partition("-")
    if not (dot and dash and base.isdecimal() and generation.isdecimal() and suffix in ("arrows", "parquet")):
        return None
    return int(base), int(generation)


def start_bytes(
    schema: pa.Schema, *, topic: str, partition: int, base: int, generation: int = 0, end: int | None = None
) -> bytes:
    """The bytes every segment file starts with."""
    facts: dict[str, object] = {
        "topic": topic, "partition": partition, "base": base, "generation": generation, "end": end
    }  # fmt: skip
    return frame.seal_schema(schema, facts)


def read_start(data: pa.Buffer) -> SegmentHeader:
    """Raises BrokenFrame."""
    schema, facts, size = frame.open_schema(data)
    end = facts["end"]
    return SegmentHeader(
        schema, str(facts["topic"]), int(str(facts["partition"])), int(str(facts["base"])),
        int(str(facts["generation"])), None if end is None else int(str(end)), size,
    )  # fmt: skip


class SegmentForm:
    """How the columns of a segment become those that readers get: places first, then its own."""

    def __init__(self, stored: pa.Schema) -> None:
        self.offset_at = _place_of("_offset", stored)
        self.timestamp_at = _place_of("_timestamp", stored)
        self.own = [at for at in range(len(stored)) if at not in (self.offset_at, self.timestamp_at)]
        self.read_schema = pa.schema([*SYSTEM_FIELDS, *(stored.field(at) for at in self.own)])


def _place_of(name: str, schema: pa.Schema) -> int | None:
    return schema.names.index(name) if name in schema.names else None


def read_start_of(file: File) -> SegmentHeader:
    """The same, reading little more than needed. Raises BrokenFrame."""
    data = file.read_at(0, min(file.size(), _START_BYTES))
    needed = 8 + int.from_bytes(memoryview(data)[4:8], "little", signed=True)
    return read_start(data if needed <= data.size else file.read_at(0, min(file.size(), needed)))


class SegmentReader:
    """Bytes of one segment file for reading; grows with the file. Not thread-safe."""

    def __init__(self, disk: Disk, path: Path) -> None:
        self.name = path.name
        self._file: File = disk.open(path)
        self._mapped = pa.py_buffer(b"")
        self.header = read_start_of(self._file)
        self.form = SegmentForm(self.header.schema)

    def bytes_at(self, position: int, limit: int) -> tuple[pa.Buffer, int]:
        """A buffer and where `position` is in it; it reaches to `limit` or to the end of the file.

        Small new tails are read, long stretches are mapped: mapped pages belong to
        the page cache, so reading any amount needs no memory of our own.
        """
        if limit > self._mapped.size and limit - position >= _MAP_BYTES_MIN:
            self._mapped = self._file.map()
        if limit <= self._mapped.size:
            return self._mapped.slice(0, limit), position
        return self._file.read_at(position, limit - position), 0

    def close(self) -> None:
        self._file.close()


def scan(data: pa.Buffer, position: int, limit: int, *, base: int) -> Iterator[Located]:
    """Every frame from `position` up to `limit`, each checked and in offset order. Raises BrokenFrame."""
    expected = base
    bounded = data.slice(0, limit)
    while position < limit:
        header = frame.check(bounded, position)
        if header.base < expected or header.end < header.base + header.rows:
            raise BrokenFrame(f"offset {header.base} where {expected} was due")
        yield Located(position, header)
        position, expected = position + header.size_bytes, header.end
