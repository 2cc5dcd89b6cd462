"""Power loss while a group commits, at every single file operation of a real run.

A child process commits offsets through a GroupStore under `strace`. Its writes are then replayed
up to each operation in turn: all of them, only what was synced, or the synced ones and a random
choice of the others, torn at sectors. Whatever was left, the database must open and hold every
commit that was acknowledged by then, and none that was never made.
"""

from __future__ import annotations

import random
import re
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from penstock.clock import SystemClock
from penstock.log.group import GroupStore

COMMITS = 60
SECTOR = 512
CHOICES = 2  # random choices of unsynced writes at each operation

_CHILD = """
import os, sys
from pathlib import Path
from penstock.clock import SystemClock
from penstock.log.group import GroupStore
from penstock.log.settings import TopicSettings
from penstock.schema import RecordSchema

topic = TopicSettings("t", RecordSchema.of("k BIGINT"), partitions=2)
store = GroupStore(Path(sys.argv[1]) / "groups.db", SystemClock(), "boot")
acks = os.open(Path(sys.argv[1]) / "acks", os.O_WRONLY | os.O_CREAT)
member = store.join("g", "t", lease_s=30, settings=lambda: topic)
# Otherwise SQLite copies the write-ahead log into the database only every thousand pages.
store._open().execute("PRAGMA wal_autocheckpoint=12")
for offset in range(1, int(sys.argv[2]) + 1):
    member.poll()
    member.commit({0: offset, 1: 2 * offset})
    os.write(acks, b"%d\\n" % offset)
    if offset % 20 == 0:
        store.hold("view", "t", {0: offset}, reason="x" * 6_000)
if sys.argv[3] == "leaving":
    member.leave()
    store.close()
"""


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


def trace(folder: Path, *, ending: str) -> list[Operation]:
    """Everything the child did to its files, in order. Skips the test where that cannot be seen."""
    if shutil.which("strace") is None:
        pytest.skip("there is no strace on this machine (apt-get install strace)")
    output = folder.with_name("trace")
    folder.mkdir()
    done = subprocess.run(
        [
            "strace", "-f", "-y", "-xx", "-s", "100000", "-o", output,
            "-e", "trace=pwrite64,write,fdatasync,fsync,ftruncate,unlink,unlinkat,openat,rename",
            sys.executable, "-c", _CHILD, folder, str(COMMITS), ending,
        ],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if "ptrace" in done.stderr or "PTRACE" in done.stderr:
        pytest.skip(f"strace may not trace here: {done.stderr.strip().splitlines()[0]}")
    assert done.returncode == 0, done.stderr
    return list(operations(output.read_text().splitlines(), folder))


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
        if found is not None and getattr(found, "file", "") not in {"acks", "groups.db-shm"}:
            yield found


def _operation(name: str, words: str, result: int, folder: Path) -> Operation | None:
    file = _file_of(words, folder)
    if file is None or file.startswith("members"):
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


# ---- the test ------------------------------------------------------------------------------------


def committed_in(folder: Path, files: dict[str, bytes]) -> dict[int, int]:
    """What a new process finds, starting with these files."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for file, content in files.items():
        (folder / file).write_bytes(content)
    store = GroupStore(folder / "groups.db", SystemClock(), "the next boot")
    try:
        found = store.committed("g", "t")
        with store._reading() as db:
            assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        return found
    finally:
        store.close()


@pytest.mark.parametrize("ending", ["leaving", "dying"])
def test_every_acknowledged_commit_survives_power_loss_at_any_moment(
    in_memory: Path, report: Callable[[str], None], ending: str
) -> None:
    disk, chance, states = Disk(), random.Random(7), 0
    done = trace(in_memory / "traced", ending=ending)
    assert sum(isinstance(each, Acknowledge) for each in done) == COMMITS
    assert any(isinstance(each, Write) and each.file == "groups.db" for each in done[len(done) // 2 :])
    for number, operation in enumerate(done):
        disk.do(operation)
        if isinstance(operation, Acknowledge):
            continue
        kept = [disk.everything(), disk.only_synced(), *(disk.some(chance) for _ in range(CHOICES))]
        for files in kept:
            try:
                found = committed_in(in_memory / "replayed", files)
            except (sqlite3.Error, AssertionError) as error:
                raise AssertionError(f"after operation {number}, {_short(operation)}: {error}") from error
            at = found.get(0, 0)
            assert disk.acknowledged <= at <= disk.acknowledged + 1, f"after {number}, {_short(operation)}"
            assert found.get(1, 0) == 2 * at, "a commit is whole"
            states += 1
    report(
        f"power loss while a group commits ({ending}): {len(done)} operations, {states} states, "
        f"{COMMITS} commits, 0 lost"
    )


def _short(operation: Operation) -> str:
    if isinstance(operation, Write):
        return f"Write({operation.file}, {operation.position}, {len(operation.data)} bytes)"
    return str(operation)
