"""A disk seen through `strace`: what a child process did to its files, and what power loss may leave of it.

The writes are replayed up to each operation in turn: all of them, only what was synced, or the synced ones
and a random choice of the others, torn at sectors.
"""

from __future__ import annotations

import random
import re
import shutil
import subprocess
import sys
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

SECTOR = 512


# ---- what the child did --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Write:
    file: str
    position: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Cut:
    file: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Create:
    file: str


@dataclass(frozen=True, slots=True)
class Remove:
    file: str


@dataclass(frozen=True, slots=True)
class Sync:
    file: str  # "" is the folder


@dataclass(frozen=True, slots=True)
class Acknowledge:
    offset: int


Operation = Write | Cut | Create | Remove | Sync | Acknowledge

_CALL = re.compile(r"^(?:\[pid +\d+\] |\d+ +)?(?P<name>\w+)\((?P<words>.*)\) += (?P<result>-?\d+)")


def trace(child: str, folder: Path, *words: str, ignored: Collection[str]) -> list[Operation]:
    """Everything the program `child` did to the files of `folder`, in order. Skips where that cannot be seen.

    What it writes to `folder / "acks"` is a number that it acknowledges. `ignored`: names of files and
    folders in it of which nothing needs to survive.
    """
    if shutil.which("strace") is None:
        pytest.skip("there is no strace on this machine (apt-get install strace)")
    output = folder.with_name("trace")
    folder.mkdir()
    done = subprocess.run(
        [
            "strace", "-f", "-y", "-xx", "-s", "100000", "-o", output,
            "-e", "trace=pwrite64,write,fdatasync,fsync,ftruncate,unlink,unlinkat,openat,rename",
            sys.executable, "-c", child, folder, *words,
        ],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if "ptrace" in done.stderr or "PTRACE" in done.stderr:
        pytest.skip(f"strace may not trace here: {done.stderr.strip().splitlines()[0]}")
    assert done.returncode == 0, done.stderr
    lines = output.read_text().splitlines()
    return [
        each
        for each in operations(lines, folder)
        if getattr(each, "file", "").split("/")[0] not in {*ignored, "acks"}
    ]


def operations(lines: list[str], folder: Path) -> Iterator[Operation]:
    existing: set[str] = set()
    for line in lines:
        assert "unfinished" not in line, "the child has one thread, so that calls do not interleave"
        match = _CALL.match(line)
        if not match or match["result"].startswith("-"):
            continue
        found = _operation(match["name"], match["words"], int(match["result"]), folder)
        if isinstance(found, Create):
            if found.file in existing:
                continue
            existing.add(found.file)
        if isinstance(found, Remove):
            existing.discard(found.file)
        if found is not None:
            yield found


def _operation(name: str, words: str, result: int, folder: Path) -> Operation | None:
    file = _file_of(words, folder)
    if file is None:
        return None
    match name:
        case "openat":
            return Create(file) if "O_CREAT" in words else None
        case "unlink" | "unlinkat":
            return Remove(file)
        case "fsync" | "fdatasync":
            return Sync(file)
        case "ftruncate":
            return Cut(file, int(words.rsplit(", ", 1)[1]))
        case "pwrite64":
            _, text, rest = words.split('"')
            return Write(file, int(rest.rsplit(", ", 1)[1]), bytes.fromhex(text.replace("\\x", ""))[:result])
        case "write" if file == "acks":
            return Acknowledge(int(bytes.fromhex(words.split('"')[1].replace("\\x", ""))))
    raise AssertionError(f"{name} of {file} is not understood")


def _file_of(words: str, folder: Path) -> str | None:
    """The file in `folder` that a call is about; "" for the folder itself."""
    # A descriptor is followed by its path in angle brackets, a path comes in quotes.
    found = re.search(r"<([^>]*)>" if words[0].isdigit() else r'"([^"]*)"', words)
    name = bytes.fromhex(found[1].replace("\\x", "")).decode() if found else ""
    if name == str(folder):
        return ""
    return name.removeprefix(f"{folder}/") if name.startswith(f"{folder}/") else None


# ---- what a disk may have kept of it -------------------------------------------------------------


@dataclass(slots=True)
class Disk:
    """Files as the operating system sees them, and what of them is certain to survive."""

    files: dict[str, bytearray] = field(default_factory=dict)
    synced: dict[str, bytes] = field(default_factory=dict)  # content as of the last sync
    entries: set[str] = field(default_factory=set)  # names as of the last sync of the folder
    unsynced: list[Write | Cut] = field(default_factory=list)
    acknowledged: int = 0

    def do(self, operation: Operation) -> None:
        match operation:
            case Acknowledge(offset):
                self.acknowledged = offset
            case Create(file):
                self.files.setdefault(file, bytearray())
            case Remove(file):
                self.files.pop(file, None)
            case Sync(""):
                self.entries = set(self.files)
            case Sync(file):
                self.synced[file] = bytes(self.files[file])
                self.unsynced = [each for each in self.unsynced if each.file != file]
            case Write() | Cut():
                apply(self.files[operation.file], operation)
                self.unsynced.append(operation)

    def everything(self) -> dict[str, bytes]:
        return {file: bytes(content) for file, content in self.files.items()}

    def only_synced(self) -> dict[str, bytes]:
        """A name that was not synced is gone, one whose removal was not synced is back."""
        return {file: self.synced.get(file, b"") for file in self.entries}

    def some(self, chance: random.Random) -> dict[str, bytes]:
        """What was synced, and any of the rest, in any order of sectors."""
        kept = {file: bytearray(self.synced.get(file, b"")) for file in self.entries | set(self.files)}
        for operation in self.unsynced:
            for piece in _sectors(operation):
                if chance.random() < 0.5 and operation.file in kept:
                    apply(kept[operation.file], piece)
        return {file: bytes(content) for file, content in kept.items()}


def apply(content: bytearray, operation: Write | Cut) -> None:
    if isinstance(operation, Cut):
        del content[operation.size_bytes :]
        content.extend(bytes(operation.size_bytes - len(content)))
        return
    end = operation.position + len(operation.data)
    content.extend(bytes(max(0, end - len(content))))
    content[operation.position : end] = operation.data


def _sectors(operation: Write | Cut) -> Iterator[Write | Cut]:
    if isinstance(operation, Cut):
        yield operation
        return
    at, data = operation.position, operation.data
    while data:
        length = SECTOR - at % SECTOR
        yield Write(operation.file, at, data[:length])
        at, data = at + length, data[length:]


def restore(folder: Path, files: dict[str, bytes]) -> None:
    """What a new process starts with."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for file, content in files.items():
        (folder / file).write_bytes(content)


def short(operation: Operation) -> str:
    if isinstance(operation, Write):
        return f"Write({operation.file}, {operation.position}, {len(operation.data)} bytes)"
    return str(operation)
