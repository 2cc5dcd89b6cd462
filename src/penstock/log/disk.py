"""The one door to the file system: everything the log writes, syncs, renames, locks or waits on.

Because all of it goes through `Disk`, a test can lose power after every single
write (`penstock.testing.CrashingDisk`) or make a sync fail (`FaultyDisk`).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Protocol

import pyarrow as pa

from penstock import fork
from penstock.errors import DiskFull, LockTimeout, StorageError, SyncFailed
from penstock.fork import Forking
from penstock.log import signal, writeback

_WRITE_BACK_BYTES = 4 << 20
_WRITE_BYTES = 256 << 10  # a larger write finds fewer of its pages in the processor's cache: 3 times slower
_NO_SPACE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_MORE_HANDLES = "raise the limit of open files (ulimit -n)"
_OTHER_HOME = "choose a folder that you may write: --home or PENSTOCK_HOME"
_HINTS = {
    errno.EMFILE: _MORE_HANDLES,
    errno.ENFILE: _MORE_HANDLES,
    errno.EACCES: _OTHER_HOME,
    errno.EPERM: _OTHER_HOME,
    errno.EROFS: _OTHER_HOME,
    errno.ENOTDIR: _OTHER_HOME,
}
_LOCK_PAUSE_S_MAX = 0.002
_SYNCS_MAX = 4  # at once


class File(Protocol):
    """One open file. Writes are not durable before `sync` returns."""

    path: Path

    def write_at(self, position: int, data: bytes | memoryview) -> None:
        """Write all of it. Raises DiskFull or StorageError; part of it may then be in the file."""

    def sync(self) -> None:
        """Everything written before this call survives power loss. Raises SyncFailed."""

    def truncate(self, size_bytes: int) -> None: ...

    def size(self) -> int: ...

    def read_at(self, position: int, length: int) -> pa.Buffer: ...

    def map(self) -> pa.Buffer:
        """The file as it is now, read-only; stays valid after `close` and after the file is removed."""

    def close(self) -> None: ...


class Lock(Protocol):
    """A lock between processes and between threads; a process that dies lets go of it."""

    def acquire(self, timeout_s: float) -> None:
        """Raises LockTimeout when it is not free within `timeout_s`."""

    def try_acquire(self) -> bool: ...

    def release(self) -> None: ...

    def close(self) -> None: ...


class Shared(Protocol):
    """A few bytes of memory that all processes of this boot see at once. Not durable."""

    view: memoryview

    def wait(self, word: int, seen: int, timeout_s: float) -> None:
        """Sleep until 32-bit word number `word` differs from `seen`, is woken, or time is up."""

    def wake(self, word: int) -> None: ...

    def close(self) -> None: ...


class Disk(Protocol):
    def boot_id(self) -> str:
        """Changes when the machine starts anew: what was only in memory is gone then."""

    def open(self, path: Path, *, create: bool = False) -> File:
        """Raises FileNotFoundError if it is not there and `create` is false, StorageError for the rest."""

    def lock(self, path: Path, what: str) -> Lock: ...

    def shared(self, path: Path, size_bytes: int) -> Shared: ...

    def read(self, path: Path) -> bytes: ...

    def exists(self, path: Path) -> bool: ...

    def names(self, folder: Path) -> list[str]:
        """What is in a folder, sorted; empty if there is no such folder."""

    def make_folder(self, path: Path) -> None: ...

    def rename(self, old: Path, new: Path) -> None: ...

    def remove(self, path: Path) -> None:
        """Remove a file; no error if it is gone already."""

    def remove_folder(self, path: Path) -> None:
        """Remove a folder and all that is in it."""

    def sync_folder(self, path: Path) -> None:
        """A create, rename or remove in `path` is durable only after this."""

    def sync_all(self, syncs: Sequence[Callable[[], None]]) -> None:
        """Call each of them, which sync a file each; in any order, or at once. Raises what one has raised."""


def replace(disk: Disk, path: Path, content: bytes) -> None:
    """Replace a small file: after a crash it has the old content or the new, never a mix."""
    beside = path.with_name(path.name + ".new")
    disk.remove(beside)
    file = disk.open(beside, create=True)
    try:
        file.write_at(0, content)
        file.sync()
    finally:
        file.close()
    disk.rename(beside, path)
    disk.sync_folder(path.parent)


@contextlib.contextmanager
def storage_errors(path: Path, *, reading: bool = False, syncing: bool = False) -> Iterator[None]:
    """Turn what the system says into our errors, except a file that is not there or a folder not ours."""
    try:
        yield
    except OSError as error:
        if isinstance(error, FileNotFoundError if reading else PermissionError if syncing else ()):
            raise
        reason = os.strerror(error.errno) if error.errno else str(error)
        if syncing:  # also when it is for lack of space: what was written before is lost then
            raise SyncFailed(path, reason) from error
        if error.errno in _NO_SPACE:
            raise DiskFull(path) from error
        hint = _HINTS.get(error.errno or 0, "check the disk")
        done = "read" if reading else "written"
        raise StorageError(f"{path} could not be {done} ({reason}).", hint=hint) from error


class RealFile:
    def __init__(self, path: Path, *, create: bool) -> None:
        self.path = path
        self._fd = os.open(path, os.O_RDWR | (os.O_CREAT if create else 0), 0o644)
        self._waiting_bytes = 0  # written since the kernel was last asked to begin

    def write_at(self, position: int, data: bytes | memoryview) -> None:
        rest = memoryview(data).cast("B")
        self._waiting_bytes += len(rest)
        with storage_errors(self.path):
            while rest:
                written = os.pwrite(self._fd, rest[:_WRITE_BYTES], position)
                if written == 0:
                    raise OSError(errno.EIO, "wrote nothing")
                rest, position = rest[written:], position + written
        if self._waiting_bytes >= _WRITE_BACK_BYTES:
            writeback.begin(self._fd, max(position - self._waiting_bytes, 0), self._waiting_bytes)
            self._waiting_bytes = 0

    def sync(self) -> None:
        with storage_errors(self.path, syncing=True):
            os.fdatasync(self._fd)
        self._waiting_bytes = 0

    def truncate(self, size_bytes: int) -> None:
        with storage_errors(self.path):
            os.ftruncate(self._fd, size_bytes)

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def read_at(self, position: int, length: int) -> pa.Buffer:
        with storage_errors(self.path, reading=True):
            return pa.py_buffer(os.pread(self._fd, length, position))

    def map(self) -> pa.Buffer:
        size = self.size()
        if size == 0:
            return pa.py_buffer(b"")
        with storage_errors(self.path, reading=True):
            return pa.py_buffer(mmap.mmap(self._fd, size, prot=mmap.PROT_READ))

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class RealLock(Forking):
    """flock: between processes, and (with a mutex) between the threads of this one."""

    def __init__(self, path: Path, what: str) -> None:
        self._path, self._what = path, what
        self._mutex = threading.Lock()
        self._fd = -1
        fork.tell(self)

    def acquire(self, timeout_s: float) -> None:
        if not self._mutex.acquire(timeout=timeout_s):
            raise LockTimeout(self._what, waited_s=timeout_s, holder="another thread of this process")
        try:
            self._acquire_between_processes(timeout_s)
        except BaseException:
            if self._fd >= 0:
                fcntl.flock(self._fd, fcntl.LOCK_UN)  # it was ours already where an interrupt came right then
            self._mutex.release()
            raise

    def _acquire_between_processes(self, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        pause_s = 0.00005
        while not self._try_flock():
            if time.monotonic() > deadline:
                raise LockTimeout(self._what, waited_s=timeout_s, holder=self._holder())
            time.sleep(pause_s)
            pause_s = min(pause_s * 1.5, _LOCK_PAUSE_S_MAX)

    def try_acquire(self) -> bool:
        if not self._mutex.acquire(blocking=False):
            return False
        taken = False
        try:
            taken = self._try_flock()
        finally:
            if not taken:
                self._mutex.release()
        return taken

    @property
    def is_held(self) -> bool:
        """By a thread of this process."""
        return self._mutex.locked()

    def _try_flock(self) -> bool:
        if self._fd < 0:
            self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def _holder(self) -> str:
        """Who has it, from the kernel's own table; empty where that cannot be known."""
        with contextlib.suppress(OSError, ValueError, IndexError):
            inode = str(os.fstat(self._fd).st_ino)
            for line in Path("/proc/locks").read_text().splitlines():
                fields = line.split()
                if "->" not in fields and fields[5].rsplit(":", 1)[1] == inode:
                    return f"process {fields[4]}"
        return ""

    def release(self) -> None:
        if self._fd < 0:
            return  # a child forked while its parent held it: it is the parent's to release
        try:
            fcntl.flock(self._fd, fcntl.LOCK_UN)
        finally:
            self._mutex.release()

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1

    def after_fork_in_child(self) -> None:
        # The descriptor is the parent's lock too, and would keep it when the parent is gone.
        self._mutex = threading.Lock()
        self.close()


class RealShared:
    def __init__(self, path: Path, size_bytes: int) -> None:
        with storage_errors(path):
            fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
            try:
                if os.fstat(fd).st_size < size_bytes:
                    # Reserve the blocks: a page of a sparse file that meets a full disk kills the process.
                    os.posix_fallocate(fd, 0, size_bytes)
                self._map = mmap.mmap(fd, size_bytes)
            finally:
                os.close(fd)
        self.view = memoryview(self._map)
        self._address = signal.address_of(self._map)

    def wait(self, word: int, seen: int, timeout_s: float) -> None:
        signal.wait(self._address + 4 * word, self.view, word, seen, timeout_s)

    def wake(self, word: int) -> None:
        signal.wake(self._address + 4 * word)

    def close(self) -> None:
        self.view.release()
        with contextlib.suppress(BufferError):
            self._map.close()


class _Threads(Forking):
    """They wait for the disk beside who asks: two syncs at once take hardly longer than one."""

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        fork.tell(self)

    def sync_all(self, syncs: Sequence[Callable[[], None]]) -> None:
        try:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(_SYNCS_MAX - 1, thread_name_prefix="penstock-sync")
            begun = [self._pool.submit(sync) for sync in syncs[1:]]
        except RuntimeError:  # the interpreter ends, and begins no threads any more
            for sync in syncs:
                sync()
            return
        try:
            for sync in syncs[:1]:
                sync()
        finally:
            wait(begun)
        for each in begun:
            each.result()

    def after_fork_in_child(self) -> None:
        self._pool = None  # its threads are the parent's


_threads = _Threads()


class RealDisk:
    """The operating system's own file system."""

    def boot_id(self) -> str:
        try:
            return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        except OSError:
            # Elsewhere: the second the machine started, which a running system does not change.
            return str(round((time.time() - time.monotonic()) / 10))

    def open(self, path: Path, *, create: bool = False) -> File:
        with storage_errors(path, reading=not create):
            return RealFile(path, create=create)

    def lock(self, path: Path, what: str) -> Lock:
        return RealLock(path, what)

    def shared(self, path: Path, size_bytes: int) -> Shared:
        return RealShared(path, size_bytes)

    def read(self, path: Path) -> bytes:
        with storage_errors(path, reading=True):
            return path.read_bytes()

    def exists(self, path: Path) -> bool:
        return path.exists()

    def names(self, folder: Path) -> list[str]:
        try:
            return sorted(child.name for child in folder.iterdir())
        except FileNotFoundError:
            return []

    def make_folder(self, path: Path) -> None:
        with storage_errors(path):
            path.mkdir(parents=True, exist_ok=True)

    def rename(self, old: Path, new: Path) -> None:
        with storage_errors(new):
            old.replace(new)

    def remove(self, path: Path) -> None:
        with storage_errors(path):
            path.unlink(missing_ok=True)

    def remove_folder(self, path: Path) -> None:
        for name in self.names(path):
            child = path / name
            if child.is_dir() and not child.is_symlink():
                self.remove_folder(child)
            else:
                child.unlink(missing_ok=True)
        path.rmdir()

    def sync_folder(self, path: Path) -> None:
        with storage_errors(path, syncing=True):
            fd = os.open(path, os.O_RDONLY)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)

    def sync_all(self, syncs: Sequence[Callable[[], None]]) -> None:
        _threads.sync_all(syncs)
