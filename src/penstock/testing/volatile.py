"""Files and folders as they are, and as they may survive a power loss. The inside of CrashingDisk."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

BLOCK_BYTES = 512

Kind = Literal[
    "create", "folder", "write", "truncate", "sync", "lost", "rename", "remove", "sync_folder", "share"
]
Mode = Literal["synced", "written", "torn"]
"""What survives of that which was not synced: nothing, all of it, or a random part."""
Memory = Literal["zeroed", "stale", "kept", "missing", "mixed"]
"""What survives of shared memory: zeros, a random earlier state, the last state, nothing, or any of these."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One change of the disk, in the order they were made."""

    kind: Kind
    path: Path
    node: int = 0  # the file or folder concerned, whatever it is called by now
    position: int = 0  # of a write; the new size of a truncation
    data: bytes = b""
    target: Path | None = None  # of a rename

    def __str__(self) -> str:
        size = f" {len(self.data)} bytes at {self.position}" if self.kind in {"write", "share"} else ""
        return f"{self.kind} {self.path}{size}" + (f" to {self.target}" if self.target else "")


_Change = tuple[int, bytes | None]
"""A write at a position, or (without data) a truncation to a size."""


@dataclass(slots=True)
class FileNode:
    number: int
    content: bytearray = field(default_factory=bytearray)
    durable: bytes = b""
    pending: list[_Change] = field(default_factory=list)  # since the last sync
    memory: bool = False

    def copy(self) -> FileNode:
        return FileNode(self.number, bytearray(self.content), self.durable, list(self.pending), self.memory)


@dataclass(slots=True)
class FolderNode:
    number: int
    entries: dict[str, int] = field(default_factory=dict)
    durable: dict[str, int] = field(default_factory=dict)
    pending: list[_Entered] = field(default_factory=list)  # since the last sync

    def copy(self) -> FolderNode:
        return FolderNode(self.number, dict(self.entries), dict(self.durable), list(self.pending))


Node = FileNode | FolderNode


@dataclass(frozen=True, slots=True)
class _Entered:
    """Names set or removed in a folder at once; a rename between two folders has the same serial in both."""

    serial: int
    names: dict[str, int | None]


def _change(content: bytearray, change: _Change) -> None:
    position, data = change
    if data is None:
        del content[position:]
        content.extend(bytes(position - len(content)))
    else:
        content.extend(bytes(max(0, position - len(content))))
        content[position : position + len(data)] = data


@dataclass(slots=True)
class World:
    """Everything on the disk; node 0 is the root folder of all paths."""

    nodes: list[Node]
    serial: int = 0

    @classmethod
    def empty(cls, root: Path) -> World:
        world = cls([FolderNode(0)])
        for name in root.parts:
            parent, number = world.nodes[-1], len(world.nodes)
            assert isinstance(parent, FolderNode)
            parent.entries[name] = parent.durable[name] = number
            world.nodes.append(FolderNode(number))
        return world

    def copy(self) -> World:
        return World([node.copy() for node in self.nodes], self.serial)

    def find(self, path: Path) -> Node | None:
        node: Node = self.nodes[0]
        for name in path.parts:
            if not isinstance(node, FolderNode) or name not in node.entries:
                return None
            node = self.nodes[node.entries[name]]
        return node

    def apply(self, operation: Operation) -> None:
        match operation.kind:
            case "create" | "folder":
                self.nodes.append((FileNode if operation.kind == "create" else FolderNode)(operation.node))
                self._enter({operation.path: operation.node})
            case "remove":
                self._enter({operation.path: None})
            case "rename":
                assert operation.target is not None, "a rename has a target"
                moved = self._folder(operation.path.parent).entries[operation.path.name]
                self._enter({operation.path: None, operation.target: moved})
            case "sync_folder":
                self._sync_folder(self._folder(operation.path))
            case _:
                self._apply_to_file(operation)

    def _sync_folder(self, synced: FolderNode) -> None:
        serials = {entered.serial for entered in synced.pending}
        for folder in self.nodes:
            if isinstance(folder, FolderNode):
                for entered in [e for e in folder.pending if e.serial in serials]:
                    _rename(folder.durable, entered.names)
                    folder.pending.remove(entered)

    def _apply_to_file(self, operation: Operation) -> None:
        file = self.nodes[operation.node]
        assert isinstance(file, FileNode), "a file was written to"
        if operation.kind in {"write", "share", "truncate"}:
            change = (operation.position, None if operation.kind == "truncate" else operation.data)
            file.memory = file.memory or operation.kind == "share"
            _change(file.content, change)
            file.pending.append(change)
        elif operation.kind == "sync":
            durable = bytearray(file.durable)
            for change in file.pending:
                _change(durable, change)
            file.durable = bytes(durable)
            file.pending.clear()
        elif operation.kind == "lost":
            file.pending.clear()

    def _folder(self, path: Path) -> FolderNode:
        found = self.find(path)
        assert isinstance(found, FolderNode), f"{path} is a folder"
        return found

    def _enter(self, changes: dict[Path, int | None]) -> None:
        self.serial += 1
        for parent in {path.parent for path in changes}:
            folder = self._folder(parent)
            names = {path.name: number for path, number in changes.items() if path.parent == parent}
            _rename(folder.entries, names)
            folder.pending.append(_Entered(self.serial, names))


def _rename(entries: dict[str, int], names: dict[str, int | None]) -> None:
    for name, number in names.items():
        if number is None:
            entries.pop(name, None)
        else:
            entries[name] = number


class Survivors:
    """Picks what is left of a world after a power loss."""

    def __init__(self, before: World, mode: Mode, memory: Memory, chance: random.Random) -> None:
        self._before, self._mode, self._memory, self._chance = before, mode, memory, chance
        # Some crashes keep almost everything and some almost nothing.
        self._likely = chance.choice((0.1, 0.5, 0.9))
        self._after = World([FolderNode(0)])
        self._fates: dict[int, bool] = {}

    def world(self) -> World:
        self._folder(self._before.nodes[0], self._after.nodes[0])
        return self._after

    def _folder(self, before: Node, after: Node) -> None:
        assert isinstance(before, FolderNode) and isinstance(after, FolderNode)
        for name, number in sorted(self._entries(before).items()):
            node = self._before.nodes[number]
            if isinstance(node, FolderNode):
                self._folder(node, self._add(after, name, FolderNode(len(self._after.nodes))))
            elif (content := self._content(node)) is not None:
                kept = FileNode(len(self._after.nodes), bytearray(content), content, memory=node.memory)
                self._add(after, name, kept)

    def _add(self, folder: FolderNode, name: str, node: Node) -> Node:
        folder.entries[name] = folder.durable[name] = node.number
        self._after.nodes.append(node)
        return node

    def _entries(self, folder: FolderNode) -> dict[str, int]:
        if self._mode == "written":
            return folder.entries
        entries = dict(folder.durable)
        for entered in folder.pending:
            if self._mode == "torn" and self._survives(entered.serial):
                _rename(entries, entered.names)
        return entries

    def _content(self, file: FileNode) -> bytes | None:
        if file.memory:
            return self._memory_of(file)
        if self._mode == "written":
            return bytes(file.content)
        return file.durable if self._mode == "synced" or not file.pending else self._torn(file)

    def _torn(self, file: FileNode) -> bytes:
        """Each block as it was at any moment since the last sync; a block never written holds zeros."""
        versions = list(_versions(file))
        if self._lucky() and self._lucky():
            return versions[-1]
        sizes = [len(version) for version in versions]
        size = self._chance.choice([*sizes, sizes[-1], self._chance.randint(min(sizes), max(sizes))])
        content = bytearray()
        for at in range(0, size, BLOCK_BYTES):
            picked = versions[-1] if self._lucky() else self._chance.choice(versions)
            content += picked[at : at + BLOCK_BYTES].ljust(BLOCK_BYTES, b"\0")
        return bytes(content[:size])

    def _memory_of(self, file: FileNode) -> bytes | None:
        fate = self._memory
        if fate == "mixed":
            fate = self._chance.choice(("zeroed", "stale", "kept", "missing"))
        if fate == "missing":
            return None
        if fate == "zeroed":
            return bytes(len(file.content))
        if fate == "kept":
            return bytes(file.content)
        content = bytearray(file.durable)
        for change in file.pending[: self._chance.randint(0, len(file.pending))]:
            _change(content, change)
        return bytes(content).ljust(len(file.content), b"\0")

    def _survives(self, serial: int) -> bool:
        return self._fates.setdefault(serial, self._lucky())

    def _lucky(self) -> bool:
        return self._chance.random() < self._likely


def _versions(file: FileNode) -> Iterator[bytes]:
    """The file after its last sync and after each change since."""
    content = bytearray(file.durable)
    yield bytes(content)
    for change in file.pending:
        _change(content, change)
        yield bytes(content)
