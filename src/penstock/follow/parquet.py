"""An archive of records in Parquet files, exactly once.

`<path>/<name>/<id of the topic>/<partition>-<first offset>-<next offset>.parquet`. A file is written under
another name, synced and renamed, so what is there after a crash is whole; the names say how far the archive
is. Records keep all their columns, with `_partition`, `_offset` and `_timestamp`. Another topic of the same
name has another id, and its files are beside the old ones.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet

from penstock.errors import BadOption, Contended, PenstockError, StorageError
from penstock.follow.store import CHUNK_RECORDS, Progress, Watch, check_place, unwatched
from penstock.follow.table import TableSpec
from penstock.log.disk import Lock, RealDisk, storage_errors

_NAME = re.compile(r"(\d{5})-(\d{20})-(\d{20})\.parquet")
_UNFINISHED = ".unfinished"
_LOCK_S = 1.0


class ParquetSink:
    """One follower at a time writes the archive of a topic; a lock sees to that."""

    keyed, chunk_records = False, CHUNK_RECORDS

    def __init__(self, path: Path, *, gather_s: float = 0.0, watch: Watch = unwatched) -> None:
        self._path, self.gather_s, self._watch = path, gather_s, watch
        self._prepared: dict[str, Path] = {}  # name -> its folder
        self._locks: dict[Path, Lock] = {}
        # Offsets without records, which no file tells: up to where, after a file that ends where.
        self._passed: dict[tuple[Path, int], tuple[int, int]] = {}

    def __repr__(self) -> str:
        return f"<ParquetSink {self._path}>"

    def prepare(self, spec: TableSpec, changelog_id: str) -> Progress:
        folder = self._path / spec.name / changelog_id
        with storage_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
        self._take(folder)
        with storage_errors(folder):
            for left in folder.glob(f"*{_UNFINISHED}"):
                left.unlink()
        self._prepared[spec.name] = folder
        return self._progress(folder)

    def apply(
        self, spec: TableSpec, changes: pa.Table, *, from_offset: int, next_offset: int, partition: int = 0
    ) -> None:
        if spec.name not in self._prepared:
            raise BadOption(f'"{spec.name}" was not prepared in this archive.', hint="call prepare() first")
        folder = self._prepared[spec.name]
        if not folder.exists():
            raise Contended(f"{folder} is gone; nothing was written.", hint="prepare it, and begin anew")
        check_place(spec, self._progress(folder).at(partition), from_offset)
        self._watch("begun")
        # Its name begins where the last one ended, so that a hole in the names is a missing file.
        first = _archived(folder).at(partition)
        if changes.num_rows:
            self._write(folder / f"{partition:05}-{first:020}-{next_offset:020}.parquet", changes)
        else:
            self._passed[folder, partition] = first, next_offset
        self._watch("committed")

    def progress(self, view: str) -> Progress | None:
        folder = self._prepared.get(view)
        return self._progress(folder) if folder and folder.exists() else None

    def drop(self, view: str) -> None:
        """The files stay: an archive is not a copy that can be made again. They are only let go of."""
        self._release(self._prepared.pop(view, None))

    def close(self) -> None:
        for folder in list(self._locks):
            self._release(folder)
        self._prepared.clear()

    def _write(self, path: Path, records: pa.Table) -> None:
        unfinished = path.with_name(path.name + _UNFINISHED)
        with storage_errors(path), unfinished.open("wb") as file:
            pyarrow.parquet.write_table(records, file, compression="zstd")
            self._watch("written")
            file.flush()
            os.fsync(file.fileno())
        self._watch("synced")
        with storage_errors(path):
            unfinished.rename(path)
        # A rename is durable only after its folder is synced.
        RealDisk().sync_folder(path.parent)

    def _progress(self, folder: Path) -> Progress:
        progress = _archived(folder)
        for (place, partition), (ended, offset) in self._passed.items():
            if place == folder and ended == progress.at(partition):
                progress = progress.moved(partition, offset)
        return progress

    def _take(self, folder: Path) -> None:
        if folder in self._locks:
            return
        lock = RealDisk().lock(folder / ".lock", f"the archive {folder}")
        try:
            lock.acquire(_LOCK_S)
        except PenstockError:
            lock.close()
            raise
        self._locks[folder] = lock

    def _release(self, folder: Path | None) -> None:
        lock = self._locks.pop(folder, None) if folder else None
        if lock is not None:
            lock.release()
            lock.close()


def _archived(folder: Path) -> Progress:
    """How far the files are, by their names."""
    progress = Progress(0)
    with storage_errors(folder):
        names = sorted(path.name for path in folder.iterdir())
    for partition, first, end in (map(int, found.groups()) for found in map(_NAME.fullmatch, names) if found):
        if first != progress.at(partition):
            raise StorageError(
                f"{folder} has no file for offsets {progress.at(partition)} to {first - 1} of partition "
                f"{partition}.",
                hint="put it back, or archive to another folder, which begins anew",
            )
        progress = progress.moved(partition, end)
    return progress
