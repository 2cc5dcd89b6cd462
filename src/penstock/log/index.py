"""Where each frame of a segment starts: derived from the segment, never needed for correctness.

`<segment>.index`: 24 bytes a frame (first offset, position in the file, latest append
time), in order. It makes seeking by offset or time independent of the log's length.
Whoever uses an entry checks it against the frame it points at; an index that is
lost or wrong is built anew from the segment.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from penstock.log.disk import Disk, File
from penstock.log.segment import Located

SUFFIX = ".index"
ENTRY = np.dtype([("offset", "<i8"), ("position", "<i8"), ("time_us", "<i8")])

Entries = npt.NDArray[np.void]


def path_of(segment: Path) -> Path:
    return segment.with_suffix(SUFFIX)


def entries_of(frames: Iterable[Located]) -> Entries:
    return np.array([(f.header.base, f.position, f.header.time_us_max) for f in frames], dtype=ENTRY)


def write(file: File, entries: Entries, *, at_entry: int) -> None:
    file.write_at(at_entry * ENTRY.itemsize, entries.tobytes())


def read(disk: Disk, segment: Path, frames: int) -> Entries | None:
    """The first `frames` entries, or None when the file is missing or too short to be right."""
    try:
        file = disk.open(path_of(segment))
    except FileNotFoundError:
        return None
    try:
        if file.size() < frames * ENTRY.itemsize:
            return None
        # Mapped: a look-up touches only the pages the search visits.
        mapped = file.map()
    finally:
        file.close()
    return np.frombuffer(mapped, dtype=ENTRY, count=frames)


def rebuild(disk: Disk, segment: Path, entries: Entries) -> None:
    file = disk.open(path_of(segment), create=True)
    try:
        # Never cut: somebody may have it mapped. Entries past the last frame are not looked at.
        write(file, entries, at_entry=0)
    finally:
        file.close()


def frame_holding(entries: Entries, offset: int) -> int:
    """Number of the frame that holds `offset`, or the one before the gap it falls into."""
    # Not np.searchsorted: it would first copy the whole strided column.
    return max(bisect_right(entries["offset"], offset) - 1, 0)


def frame_at_time(entries: Entries, time_us: int) -> int:
    """Number of the first frame with a record appended at or after `time_us`; len(entries) if none."""
    return bisect_left(entries["time_us"], time_us)
