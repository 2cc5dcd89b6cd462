"""A disk in memory that forgets what was not synced: a power loss after every single operation.

It keeps what a file system promises and nothing more:

- a write or a truncation survives once `sync` of that file has returned; before that any
  part of it may, in pieces of 512 bytes, in any order;
- a file or folder that was made, renamed or removed is so for good once `sync_folder` of
  the folder it stands in has returned; before that any of these changes may survive, each
  rename whole or not at all (one between two folders with the sync of either);
- shared memory survives as it was at some earlier moment, zeroed, or not at all;
- locks are gone.

Every operation goes into `trace`, so one run of a program yields every crash:

>>> from penstock.clock import ManualClock
>>> from penstock.log.embedded import EmbeddedLog
>>> from penstock.log.log import Log
>>> disk = CrashingDisk()
>>> with Log(EmbeddedLog(Path("/log"), disk=disk, clock=ManualClock())) as log:
...     _ = log.create_topic("clicks", "page STRING").append({"page": "/"})
>>> for at in range(len(disk.trace)):
...     after = Log(EmbeddedLog(Path("/log"), disk=disk.after_power_loss(at=at), clock=ManualClock()))
>>> [event["page"] for event in after.topic("clicks").events()]  # it was acknowledged
['/']

Consumer groups are kept in SQLite, which has its own way to the disk: they are outside of
this, and need a home folder that exists.

For one thread: a lock that is taken is refused at once, and nobody ever waits.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import pyarrow as pa

from penstock.errors import LockTimeout
from penstock.testing.volatile import (
    FileNode,
    FolderNode,
    Kind,
    Memory,
    Mode,
    Node,
    Operation,
    Survivors,
    World,
)


class CrashingDisk:
    """Implements `penstock.log.disk.Disk`. `root` and what is above it exist from the start."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._start(World.empty(root), boot=1)

    def _start(self, world: World, *, boot: int) -> None:
        self._boot = boot
        self._base = world
        self._world = world.copy()
        self._held: set[Path] = set()
        self._replayed: tuple[int, World] | None = None
        self.trace: list[Operation] = []

    # ---- crashes ----------------------------------------------------------------------------

    def after_power_loss(
        self, *, at: int | None = None, mode: Mode = "synced", memory: Memory = "zeroed", seed: int = 0
    ) -> CrashingDisk:
        """What the next boot finds when the power fails just after operation number `at` (default: the last).

        With mode "torn" that operation, like every other one that was not synced, may have
        happened in part. The same arguments give the same disk.
        """
        chance = random.Random(f"{seed}/{at}/{mode}/{memory}")
        survivors = Survivors(self._world_at(at), mode, memory, chance).world()
        return self._made_of(survivors, boot=self._boot + 1)

    def after_kill(self, *, at: int | None = None) -> CrashingDisk:
        """What other processes find when the writing one is killed just after operation number `at`.

        The machine runs on: everything written is there, synced or not, and so is shared memory.
        """
        return self._made_of(self._world_at(at).copy(), boot=self._boot)

    def _made_of(self, world: World, *, boot: int) -> CrashingDisk:
        disk = CrashingDisk.__new__(CrashingDisk)
        disk._start(world, boot=boot)
        return disk

    def _world_at(self, at: int | None) -> World:
        count = len(self.trace) if at is None else at + 1
        if not 0 <= count <= len(self.trace):
            raise IndexError(f"operation {at} of {len(self.trace)}")
        done, world = self._replayed or (0, self._base.copy())
        if done > count:
            done, world = 0, self._base.copy()
        for operation in self.trace[done:count]:
            world.apply(operation)
        self._replayed = (count, world)
        return world

    # ---- the Disk protocol --------------------------------------------------------------------

    def boot_id(self) -> str:
        return f"boot {self._boot}"

    def open(self, path: Path, *, create: bool = False) -> CrashingFile:
        node = self._world.find(path)
        if node is None and create:
            node = self._made("create", path)
        if not isinstance(node, FileNode):
            raise (FileNotFoundError if node is None else IsADirectoryError)(str(path))
        return CrashingFile(self, path, node)

    def lock(self, path: Path, what: str) -> CrashingLock:
        return CrashingLock(self._held, path, what)

    def shared(self, path: Path, size_bytes: int) -> CrashingMemory:
        node = self._world.find(path) or self._made("create", path)
        assert isinstance(node, FileNode), "shared memory is kept in a file"
        if size_bytes > len(node.content) or not node.memory:
            missing = bytes(max(0, size_bytes - len(node.content)))
            self.do(Operation("share", path, node.number, len(node.content), missing))
        return CrashingMemory(self, path, node)

    def read(self, path: Path) -> bytes:
        file = self.open(path)
        return bytes(memoryview(file.map()))

    def exists(self, path: Path) -> bool:
        return self._world.find(path) is not None

    def names(self, folder: Path) -> list[str]:
        node = self._world.find(folder)
        return sorted(node.entries) if isinstance(node, FolderNode) else []

    def make_folder(self, path: Path) -> None:
        for folder in [*reversed(path.parents), path]:
            if self._world.find(folder) is None:
                self._made("folder", folder)

    def rename(self, old: Path, new: Path) -> None:
        if not self.exists(old) or not self.exists(new.parent):
            raise FileNotFoundError(str(old))
        self.do(Operation("rename", old, target=new))

    def remove(self, path: Path) -> None:
        if self.exists(path):
            self.do(Operation("remove", path))

    def remove_folder(self, path: Path) -> None:
        node = self._world.find(path)
        if not isinstance(node, FolderNode):
            raise FileNotFoundError(str(path))
        for name in sorted(node.entries):
            if isinstance(self._world.find(path / name), FolderNode):
                self.remove_folder(path / name)
            else:
                self.remove(path / name)
        self.remove(path)

    def sync_folder(self, path: Path) -> None:
        if not isinstance(self._world.find(path), FolderNode):
            raise FileNotFoundError(str(path))
        self.do(Operation("sync_folder", path))

    def sync_all(self, syncs: Sequence[Callable[[], None]]) -> None:
        for sync in syncs:  # one after the other: so the power is lost between any two of them
            sync()

    # ---- recording ----------------------------------------------------------------------------

    def do(self, operation: Operation) -> None:
        """Make a change and remember it."""
        self._world.apply(operation)
        self.trace.append(operation)

    def _made(self, kind: Kind, path: Path) -> Node | None:
        if not isinstance(self._world.find(path.parent), FolderNode):
            raise FileNotFoundError(str(path))
        self.do(Operation(kind, path, len(self._world.nodes)))
        return self._world.find(path)


class CrashingFile:
    """Implements `penstock.log.disk.File`."""

    def __init__(self, disk: CrashingDisk, path: Path, node: FileNode) -> None:
        self.path = path
        self._disk, self._node = disk, node

    def write_at(self, position: int, data: bytes | memoryview) -> None:
        self._disk.do(Operation("write", self.path, self._node.number, position, bytes(data)))

    def sync(self) -> None:
        self._disk.do(Operation("sync", self.path, self._node.number))

    def lose_unsynced(self) -> None:
        """As after a failed fsync: what was not synced can still be read, but no later sync saves it."""
        self._disk.do(Operation("lost", self.path, self._node.number))

    def truncate(self, size_bytes: int) -> None:
        self._disk.do(Operation("truncate", self.path, self._node.number, size_bytes))

    def size(self) -> int:
        return len(self._node.content)

    def read_at(self, position: int, length: int) -> pa.Buffer:
        return pa.py_buffer(bytes(self._node.content[position : position + length]))

    def map(self) -> pa.Buffer:
        return pa.py_buffer(bytes(self._node.content))

    def close(self) -> None:
        pass


class CrashingLock:
    """Implements `penstock.log.disk.Lock` between all users of one CrashingDisk."""

    def __init__(self, held: set[Path], path: Path, what: str) -> None:
        self._held, self._path, self._what = held, path, what

    def acquire(self, timeout_s: float) -> None:
        if not self.try_acquire():
            raise LockTimeout(self._what, waited_s=0, holder="another user of this disk")

    def try_acquire(self) -> bool:
        if self._path in self._held:
            return False
        self._held.add(self._path)
        return True

    def release(self) -> None:
        self._held.discard(self._path)

    def close(self) -> None:
        pass


class CrashingMemory:
    """Implements `penstock.log.disk.Shared`: every store to `view` is an operation."""

    def __init__(self, disk: CrashingDisk, path: Path, node: FileNode) -> None:
        self._disk, self._path, self._node = disk, path, node
        self.view = cast(memoryview, _Watched(self, memoryview(bytes(node.content))))

    def content(self) -> bytearray:
        return self._node.content

    def store(self, position: int, data: bytes) -> None:
        self._disk.do(Operation("share", self._path, self._node.number, position, data))

    def wait(self, word: int, seen: int, timeout_s: float) -> None:
        pass

    def wake(self, word: int) -> None:
        pass

    def close(self) -> None:
        pass


class _Watched:
    """As much of a memoryview as the log uses; what is stored goes through the disk's trace."""

    def __init__(self, memory: CrashingMemory, form: memoryview) -> None:
        self._memory, self._form = memory, form

    def __len__(self) -> int:
        return len(self._form)

    def __getitem__(self, key: Any) -> Any:
        return cast(Any, memoryview(bytes(self._memory.content()))).cast(self._form.format)[key]

    def __setitem__(self, key: Any, value: Any) -> None:
        changed = bytearray(self._memory.content())
        cast(Any, memoryview(changed)).cast(self._form.format)[key] = value
        first = (key.start or 0) if isinstance(key, slice) else key
        count = len(value) if isinstance(key, slice) else 1
        at, size = first * self._form.itemsize, count * self._form.itemsize
        self._memory.store(at, bytes(changed[at : at + size]))

    def cast(self, form: str) -> _Watched:
        return _Watched(self._memory, cast(Any, self._form).cast(form))

    def release(self) -> None:
        pass
