"""Which files make up a partition: `manifest.json`, replaced atomically.

A file that the manifest does not name does not exist for readers. A manifest that is
lost or unreadable is rebuilt from the segments, which say what they cover.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
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
    disks.replace(disk, folder / NAME, packed(manifest.segments))


def packed(entries: Iterable[SegmentEntry]) -> bytes:
    body = json.dumps([asdict(entry) for entry in entries])
    return json.dumps({"v": 1, "sum": xxhash.xxh3_64_hexdigest(body.encode()), "segments": body}).encode()


def load(disk: Disk, folder: Path) -> Manifest | None:
    """None when it is missing or unreadable."""
    entries = unpacked(disk, folder / NAME)
    return Manifest(entries) if entries else None


def unpacked(disk: Disk, path: Path) -> tuple[SegmentEntry, ...] | None:
    """None when it is missing or not as it was packed."""
    try:
        content = json.loads(disk.read(path))
        body = content["segments"]
        if xxhash.xxh3_64_hexdigest(body.encode()) != content["sum"]:
            return None
        return tuple(SegmentEntry(**entry) for entry in json.loads(body))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def rebuild(disk: Disk, folder: Path) -> Manifest | None:
    """What the files themselves say. None when there are none.

    Where a rewritten file and those it replaced are both there, the higher generation
    wins; a gap between two files stays a gap, which readers refuse to skip. A file that
    cannot be read keeps its place if nothing else has it, and is refused on reading.
    """
    names = [name for name in disk.names(folder) if segments.parse_name(name)]
    found = {name: _entry_of(disk, folder / name) for name in names}
    chosen: list[SegmentEntry] = []
    for entry in sorted(filter(None, found.values()), key=lambda e: (-e.generation, e.base)):
        if not any(_covers(other, entry) for other in chosen):
            chosen.append(entry)
    chosen.sort(key=lambda e: e.base)
    if not chosen:
        return None
    unreadable = [name for name, entry in found.items() if entry is None]
    return Manifest(tuple(_with_unreadable(_with_ends(disk, folder, chosen), unreadable)))


def _covers(bigger: SegmentEntry, smaller: SegmentEntry) -> bool:
    if bigger.end is None:
        return bigger.base == smaller.base
    return bigger.base <= smaller.base < bigger.end


def _with_unreadable(entries: list[SegmentEntry], names: list[str]) -> list[SegmentEntry]:
    """Put files that cannot be read into the gaps that they leave.

    One behind the last readable file stays out: as a rule it is a roll cut short before its first sync.
    """
    filled = list(entries)
    for name in reversed(names):  # of several generations the latest
        base, generation = segments.parse_name(name) or (0, 0)
        if base < entries[-1].base and not any(entry.base <= base < (entry.end or 0) for entry in filled):
            following = min(entry.base for entry in filled if entry.base > base)
            filled.append(SegmentEntry(name, base, generation, end=following))
    return sorted(filled, key=lambda entry: entry.base)


def _entry_of(disk: Disk, path: Path) -> SegmentEntry | None:
    """None when the file cannot be read."""
    if path.suffix == ".parquet":
        from penstock.log import archive  # pyarrow.parquet is slow to import

        return archive.entry_of(disk, path)
    file = disk.open(path)
    try:
        header = segments.read_start_of(file)
    except BrokenFrame:
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
        cut_short = header.end is not None and end < header.end and "_offset" not in header.schema.names
    except BrokenFrame:
        cut_short = header.end is not None
    if cut_short:
        size = data.size + 1  # readers must meet what is wrong, not end before it
    return replace(
        entry, end=header.end if header.end is not None else end, size_bytes=size, frames=frames, rows=rows,
        first_time_us=times[0], last_time_us=times[1],
    )  # fmt: skip
