"""A disk that fails where it is told to: full, not syncing, not reading, out of file handles.

>>> from penstock.errors import DiskFull
>>> from penstock.testing.crashing_disk import CrashingDisk
>>> disk = FaultyDisk(CrashingDisk())
>>> disk.fail("write", nth=2)
>>> file = disk.open(Path("/log"), create=True)
>>> file.write_at(0, b"first")
>>> try:
...     file.write_at(5, b"second")
... except DiskFull:
...     print("full")
full
>>> file.write_at(5, b"third")  # one fault, unless asked for more
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pyarrow as pa

from penstock.log.disk import Disk, File, Lock, Shared, storage_errors
from penstock.testing.crashing_disk import CrashingFile

Kind = Literal["open", "read", "write", "truncate", "sync", "make_folder", "rename", "remove", "sync_folder"]

_USUAL = {
    "open": errno.EMFILE,
    "read": errno.EIO,
    "write": errno.ENOSPC,
    "make_folder": errno.ENOSPC,
    "rename": errno.ENOSPC,
}


@dataclass(slots=True)
class _Fault:
    kind: Kind
    nth: int
    times: int
    error: int
    written_share: float
    where: Callable[[Path], bool] | None
    met: int = 0

    def strikes(self, kind: Kind, path: Path) -> bool:
        if kind != self.kind or (self.where and not self.where(path)):
            return False
        self.met += 1
        return self.nth <= self.met < self.nth + self.times


class FaultyDisk:
    """Implements `penstock.log.disk.Disk` on another disk, with faults.

    `operations` counts what could have failed: a first run without faults tells how many
    there are, further ones fail at each. Faults come as the errors a real disk gives.
    """

    def __init__(self, disk: Disk) -> None:
        self.disk = disk
        self.operations: list[tuple[Kind, Path]] = []
        self._faults: list[_Fault] = []

    def fail(
        self,
        kind: Kind,
        *,
        nth: int = 1,
        times: int = 1,
        error: int | None = None,
        written_share: float = 0.0,
        where: Callable[[Path], bool] | None = None,
    ) -> None:
        """Fail the `nth` operation of this kind from now on, and `times - 1` more. `where` picks paths.

        A failing write first writes `written_share` of its bytes. A failing sync on a
        CrashingDisk loses what was not synced, as Linux does: a later sync does not save it.
        """
        usual = _USUAL.get(kind, errno.EIO)
        self._faults.append(_Fault(kind, nth, times, error or usual, written_share, where))

    def mend(self) -> None:
        """No more faults."""
        self._faults.clear()

    @contextmanager
    def doing(self, kind: Kind, path: Path) -> Iterator[_Fault | None]:
        """Yields the fault that strikes this operation, if any; it is raised afterwards."""
        self.operations.append((kind, path))
        # Every fault counts every operation.
        striking = [fault for fault in self._faults if fault.strikes(kind, path)]
        reading = kind in {"open", "read"}
        with storage_errors(path, reading=reading, syncing=kind in {"sync", "sync_folder"}):
            yield striking[0] if striking else None
            if striking:
                raise OSError(striking[0].error, "a fault made for this test")

    # ---- the Disk protocol ---------------------------------------------------------------------

    def boot_id(self) -> str:
        return self.disk.boot_id()

    def open(self, path: Path, *, create: bool = False) -> File:
        with self.doing("open", path):
            file = self.disk.open(path, create=create)
        return FaultyFile(self, file)

    def lock(self, path: Path, what: str) -> Lock:
        return self.disk.lock(path, what)

    def shared(self, path: Path, size_bytes: int) -> Shared:
        with self.doing("open", path):
            return self.disk.shared(path, size_bytes)

    def read(self, path: Path) -> bytes:
        with self.doing("read", path):
            return self.disk.read(path)

    def exists(self, path: Path) -> bool:
        return self.disk.exists(path)

    def names(self, folder: Path) -> list[str]:
        return self.disk.names(folder)

    def make_folder(self, path: Path) -> None:
        with self.doing("make_folder", path) as fault:
            if not fault:
                self.disk.make_folder(path)

    def rename(self, old: Path, new: Path) -> None:
        with self.doing("rename", new) as fault:
            if not fault:
                self.disk.rename(old, new)

    def remove(self, path: Path) -> None:
        with self.doing("remove", path) as fault:
            if not fault:
                self.disk.remove(path)

    def remove_folder(self, path: Path) -> None:
        with self.doing("remove", path) as fault:
            if not fault:
                self.disk.remove_folder(path)

    def sync_folder(self, path: Path) -> None:
        with self.doing("sync_folder", path) as fault:
            if not fault:
                self.disk.sync_folder(path)

    def sync_all(self, syncs: Sequence[Callable[[], None]]) -> None:
        for sync in syncs:  # one after the other: the same fault strikes the same one again
            sync()


class FaultyFile:
    """Implements `penstock.log.disk.File`."""

    def __init__(self, disk: FaultyDisk, file: File) -> None:
        self.path = file.path
        self._disk, self._file = disk, file

    def write_at(self, position: int, data: bytes | memoryview) -> None:
        with self._disk.doing("write", self.path) as fault:
            view = memoryview(data).cast("B")
            written = view[: int(len(view) * fault.written_share)] if fault else view
            if not fault or written:
                self._file.write_at(position, written)

    def sync(self) -> None:
        with self._disk.doing("sync", self.path) as fault:
            if not fault:
                self._file.sync()
            elif isinstance(self._file, CrashingFile):
                self._file.lose_unsynced()

    def truncate(self, size_bytes: int) -> None:
        with self._disk.doing("truncate", self.path) as fault:
            if not fault:
                self._file.truncate(size_bytes)

    def size(self) -> int:
        return self._file.size()

    def read_at(self, position: int, length: int) -> pa.Buffer:
        with self._disk.doing("read", self.path):
            return self._file.read_at(position, length)

    def map(self) -> pa.Buffer:
        with self._disk.doing("read", self.path):
            return self._file.map()

    def close(self) -> None:
        self._file.close()
