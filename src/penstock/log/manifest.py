"""Which files make up a partition: `manifest.json`, replaced atomically.

A file that the manifest does not name does not exist for readers. A manifest that is
lost or unreadable is rebuilt from the segments, which say what they cover.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import pyarrow as pa
import xxhash

from penstock.log import disk as disks
from penstock.log import segment as segments
from penstock.log.disk import Disk
from penstock.log.frame import BrokenFrame

NAME = "manifest.json"


@dataclass(frozen=True, slots=True)
class SegmentEntry:
    """One live file. `end`, `size_bytes`, `frames` and the times are known once it is sealed."""

    file: str
    base: int
    generation: int
    end: int | None = None
    size_bytes: int = 0
    frames: int = 0
    rows: int = 0
    first_time_us: int = 0
    last_time_us: int = 0
    rewritten: bool = False  # small batches merged, or compacted
    compacted_to: int = 0  # every key is the latest one as of this offset
    checksum: str = ""  # of the whole file, for formats without frames of ours

    @property
    def sealed(self) -> bool:
        return self.end is not None

    @property
    def last(self) -> int | None:
        """The last offset it covers, once that is known."""
        return None if self.end is None else self.end - 1

    @property
    def archived(self) -> bool:
        return self.file.endswith(".parquet")


@dataclass(frozen=True, slots=True)
class Manifest:
    """The live files in offset order; the last one is being appended to."""

    segments: tuple[SegmentEntry, ...]

    @property
    def active(self) -> SegmentEntry:
        return self.segments[-1]

    @property
    def sealed(self) -> tuple[SegmentEntry, ...]:
        return self.segments[:-1]

    @property
    def start(self) -> int:
        return self.segments[0].base

    def with_active(self, entry: SegmentEntry, *, sealing: SegmentEntry) -> Manifest:
        return replace(self, segments=(*self.sealed, sealing, entry))

    def swap(self, old: tuple[SegmentEntry, ...], new: tuple[SegmentEntry, ...]) -> Manifest:
        """`new` in the place of the neighbours `old`."""
        if not old:
            return self
        at = self.segments.index(old[0])
        assert self.segments[at : at + len(old)] == old, "the segments to swap must stand side by side"
        return replace(self, segments=(*self.segments[:at], *new, *self.segments[at + len(old) :]))


def store(disk: Disk, folder: Path, manifest: Manifest) -> None:
    """The commit point of every roll, rewrite, archive and expiry."""
    body = json.dumps([asdict(s) for s in manifest.segments])
    content = json.dumps({"v": 1, "sum": xxhash.xxh3_64_hexdigest(body.encode()), "segments": body})
    disks.replace(disk, folder / NAME, content.encode())


def load(disk: Disk, folder: Path) -> Manifest | None:
    """None when it is missing or unreadable."""
    try:
        content = json.loads(disk.read(folder / NAME))
        body = content["segments"]
        if xxhash.xxh3_64_hexdigest(body.encode()) != content["sum"]:
            return None
        return Manifest(tuple(SegmentEntry(**entry) for entry in json.loads(body)))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def rebuild(disk: Disk, folder: Path) -> Manifest | None:
    """What the files themselves say. None when there are none.

    Where a rewritten file and those it replaced are both there, the higher generation
    wins; a gap between two files stays a gap, which readers refuse to skip.
    """
    found = [entry for name in disk.names(folder) if (entry := _entry_of(disk, folder / name))]
    chosen: list[SegmentEntry] = []
    for entry in sorted(found, key=lambda e: (-e.generation, e.base)):
        if not any(_covers(other, entry) for other in chosen):
            chosen.append(entry)
    chosen.sort(key=lambda e: e.base)
    return Manifest(tuple(_with_ends(disk, folder, chosen))) if chosen else None


def _covers(bigger: SegmentEntry, smaller: SegmentEntry) -> bool:
    return bigger.end is not None and bigger.base <= smaller.base < bigger.end


def _entry_of(disk: Disk, path: Path) -> SegmentEntry | None:
    parsed = segments.parse_name(path.name)
    if not parsed:
        return None
    if path.suffix == ".parquet":
        from penstock.log import archive  # pyarrow.parquet is slow to import

        return archive.entry_of(disk, path)
    file = disk.open(path)
    try:
        header = segments.read_start(file.read_at(0, min(file.size(), 1 << 20)))
    except BrokenFrame:
        # A roll cut short before its first sync, or a damaged file: the gap it leaves is reported on reading.
        return None
    finally:
        file.close()
    return SegmentEntry(
        path.name, header.base, header.generation, end=header.end, rewritten=header.generation > 0
    )


def _with_ends(disk: Disk, folder: Path, entries: list[SegmentEntry]) -> list[SegmentEntry]:
    """Sealed segments know their end; find it by scanning, without trusting the next file's name."""
    following = [entry.base for entry in entries[1:]]
    sealed = [
        entry if entry.archived else sealed_facts(disk, folder, entry, before=before)
        for entry, before in zip(entries, following, strict=False)
    ]
    return [*sealed, entries[-1]]


def sealed_facts(disk: Disk, folder: Path, entry: SegmentEntry, *, before: int) -> SegmentEntry:
    """`entry` with what a scan of the file finds, up to offset `before` or the first bad byte."""
    file = disk.open(folder / entry.file)
    try:
        data: pa.Buffer = file.map()
    finally:
        file.close()
    header = segments.read_start(data)
    end, size, frames, rows, times = entry.base, header.first_frame_at, 0, 0, (0, 0)
    try:
        for found in segments.scan(data, header.first_frame_at, data.size, base=entry.base):
            if found.header.base >= before:
                break
            end, size = found.header.end, found.position + found.header.size_bytes
            frames, rows = frames + 1, rows + found.header.rows
            times = (times[0] or found.header.time_us_min, found.header.time_us_max)
    except BrokenFrame:
        pass
    return replace(
        entry, end=header.end if header.end is not None else end, size_bytes=size, frames=frames, rows=rows,
        first_time_us=times[0], last_time_us=times[1],
    )  # fmt: skip
