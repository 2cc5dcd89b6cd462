"""The segment being appended to: its open files, and how it comes to be."""

from __future__ import annotations

import threading
from pathlib import Path

from penstock.errors import SyncFailed
from penstock.log import index, manifest, segment
from penstock.log.disk import Disk, File
from penstock.log.manifest import Manifest, SegmentEntry
from penstock.log.settings import TopicSettings


class ActiveSegment:
    """Open files of the active segment. Another thread may still sync them after a roll,
    so they are closed when the last one lets go, not before."""

    def __init__(self, disk: Disk, path: Path, key: tuple[int, int]) -> None:
        self.key = key
        self.file: File = disk.open(path)
        self.index_file: File = disk.open(index.path_of(path), create=True)
        self.schema = segment.read_start_of(self.file).schema
        self.first_time_us = 0
        self._syncing = threading.Lock()
        self._failed = False

    def sync(self) -> None:
        """Everything written is durable. After one failure never again: what was lost may pass for clean."""
        with self._syncing:
            if self._failed:
                raise SyncFailed(self.file.path, "an earlier sync failed")
            try:
                self.file.sync()
            except SyncFailed:
                self._failed = True
                raise

    def __del__(self) -> None:
        for name in ("file", "index_file"):
            if file := getattr(self, name, None):
                file.close()


def create(disk: Disk, folder: Path, settings: TopicSettings, number: int, entry: SegmentEntry) -> None:
    """An empty segment, synced; it counts once the manifest names it."""
    start = segment.start_bytes(
        settings.stored, topic=settings.name, partition=number, base=entry.base, generation=entry.generation
    )
    path = folder / entry.file
    disk.remove(path)  # what a roll that died may have left
    disk.remove(index.path_of(path))
    file = disk.open(path, create=True)
    try:
        file.write_at(0, start)
        file.sync()
    finally:
        file.close()
    disk.open(index.path_of(path), create=True).close()
    disk.sync_folder(folder)


def create_partition(disk: Disk, folder: Path, settings: TopicSettings, number: int) -> None:
    """An empty partition. The topic exists only once its settings are stored, after this."""
    disk.make_folder(folder)
    entry = SegmentEntry(segment.file_name(0, 0), 0, 0)
    create(disk, folder, settings, number, entry)
    manifest.store(disk, folder, Manifest((entry,)))


def size_of(disk: Disk, path: Path) -> int:
    file = disk.open(path)
    try:
        return file.size()
    finally:
        file.close()
