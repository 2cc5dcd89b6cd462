"""A process that forks others and lets each kill itself, kill -9, at one exact step of a piece of work.

    python -m tests.log.kill_points      reads one JSON request a line, answers one JSON line each

A step is a call of anything that changes what is on disk or in shared memory, counted from the
start of the work: file writes, syncs, cuts, renames, removals, new files and folders, moves of a
head, and the steps of an atomic append. The child dies before the step, after it, or in the
middle of it ("torn": half of the bytes are written).
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, Self

import pyarrow as pa

import penstock as ps
from penstock.log import disk, group, head, ledger, maintenance, manifest, partition, producer
from penstock.log.embedded import EmbeddedLog
from penstock.opening import open_log

When = Literal["before", "after", "torn"]

DDL = "k BIGINT, v BIGINT, text STRING"

_STEPS: tuple[tuple[Any, str], ...] = (
    (partition.Partition, "stage"),
    (partition.Partition, "publish"),
    (ledger.Ledger, "commit"),
    (manifest, "store"),
    (head.SharedHead, "write"),
    (disk.RealFile, "write_at"),
    (disk.RealFile, "sync"),
    (disk.RealFile, "truncate"),
    (disk.RealDisk, "open"),
    (disk.RealDisk, "rename"),
    (disk.RealDisk, "remove"),
    (disk.RealDisk, "remove_folder"),
    (disk.RealDisk, "make_folder"),
    (disk.RealDisk, "sync_folder"),
)


@dataclass(frozen=True, slots=True)
class Request:
    """Do `work` in the log at `home`, and die at step number `step`."""

    home: str
    work: str
    step: int
    when: When


@dataclass(frozen=True, slots=True)
class Sweep:
    """Die at one step in so many, each in a run of its own."""

    when: When
    one_in: int = 1

    def __str__(self) -> str:
        return f"{self.when} {'each step' if self.one_in == 1 else f'one step in {self.one_in}'}"


@dataclass(frozen=True, slots=True)
class Outcome:
    """Whether the child died where it should, and the name of that step."""

    died: bool
    step_name: str
    failed: str = ""


# ---- what can be interrupted ---------------------------------------------------------------------


def records(value: int) -> list[dict[str, object]]:
    """Enough keys that every partition gets some."""
    return [{"k": k, "v": value, "text": "x" * 50} for k in range(16)]


def append_atomically(log: ps.Log) -> None:
    writer = log.producer("p")
    value = int(writer.position() or b"-1") + 1
    writer.append({"a": records(value), "b": records(value)}, position=b"%d" % value)


def append(log: ps.Log) -> None:
    log.topic("a").append(records(100))


def add_partitions(log: ps.Log) -> None:
    log.alter_topic("a", partitions=4)


def add_column(log: ps.Log) -> None:
    log.alter_topic("a", schema=f"{DDL}, more STRING")


def create(log: ps.Log) -> None:
    log.create_topic("c", DDL, key="k", partitions=2, if_missing=True)


def delete(log: ps.Log) -> None:
    with contextlib.suppress(ps.UnknownTopic):
        log.delete_topic("a")


def maintain(log: ps.Log) -> None:
    """Merging for a topic that keeps everything, compaction for one that keeps the latest."""
    assert isinstance(log.port, EmbeddedLog)
    for name in log.topics():
        for number in log.topic(name).bounds():
            log.port.maintain(name, number)


def archive(log: ps.Log) -> None:
    assert isinstance(log.port, EmbeddedLog)
    for number in log.topic("a").bounds():
        maintenance.run(
            log.port.partition("a", number),
            log.topic("a").settings,
            log.port.groups_store(),
            archive_now=True,
        )


WORK: dict[str, Callable[[ps.Log], None]] = {
    work.__name__: work
    for work in (append_atomically, append, add_partitions, add_column, create, delete, maintain, archive)
}


# ---- the child -----------------------------------------------------------------------------------


class _Killer:
    """Counts steps and dies at one. Nested steps count one by one, in the order they begin."""

    def __init__(self, step: int, when: When, names: int) -> None:
        self._step, self._when, self._names = step, when, names
        self._count = 0

    def watch(self, owner: Any, name: str) -> None:
        original = getattr(owner, name)
        label = f"{getattr(owner, '__name__', owner)}.{name}"

        @functools.wraps(original)
        def watched(*args: Any, **options: Any) -> Any:
            number, self._count = self._count, self._count + 1
            if number != self._step:
                return original(*args, **options)
            os.write(self._names, label.encode())
            if self._when == "before":
                die()
            if self._when == "torn":
                self._tear(original, args)
            result = original(*args, **options)
            die()
            return result

        setattr(owner, name, watched)

    def _tear(self, original: Callable[..., Any], args: tuple[Any, ...]) -> None:
        if original is _WRITE_FILE:
            file, position, data = args
            original(file, position, memoryview(data)[: len(data) // 2])
            die()
        if original is _WRITE_HEAD:
            shared = args[0]._shared
            args[0]._shared = _HalfView(shared)
            original(*args)
            die()


class _HalfView:
    """Shared memory that takes only the first half of what is written into it."""

    def __init__(self, shared: Any) -> None:
        self.view = self
        self._into = shared.view

    def __getitem__(self, where: slice) -> Any:
        return self._into[where]

    def __setitem__(self, where: slice, data: bytes) -> None:
        half = len(data) // 2
        self._into[where.start : where.start + half] = data[:half]


_WRITE_FILE = disk.RealFile.write_at
_WRITE_HEAD = head.SharedHead.write


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _run(request: Request, names: int) -> None:
    killer = _Killer(request.step, request.when, names)
    for owner, name in _STEPS:
        if request.when != "torn" or getattr(owner, name) in (_WRITE_FILE, _WRITE_HEAD):
            killer.watch(owner, name)
    log = open_log(request.home)
    WORK[request.work](log)


def _fork(request: Request) -> Outcome:
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(reading)
            _run(request, writing)
        except BaseException as error:
            os.write(writing, f" failed: {error!r}".encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        name, _, failed = pipe.read().partition(" failed: ")
    _, status = os.waitpid(pid, 0)
    return Outcome(os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL, name, failed)


# ---- asking for it from a test -------------------------------------------------------------------


class KillPoints:
    """The process above, as a test uses it. A context manager."""

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.log.kill_points"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2],
        )  # fmt: skip
        return self

    def run(self, home: Path, work: str, step: int, when: When) -> Outcome:
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write(json.dumps(asdict(Request(str(home), work, step, when))) + "\n")
        self._process.stdin.flush()
        return Outcome(**json.loads(self._process.stdout.readline()))

    def sweep(self, make_home: Callable[[], Path], work: str, sweep: Sweep) -> Iterator[tuple[Path, str]]:
        """Dies at each step in turn, each time in a home of its own; yields that and the step's name."""
        for step in range(0, 10_000, sweep.one_in):
            home = make_home()
            outcome = self.run(home, work, step, sweep.when)
            assert not outcome.failed, outcome.failed
            if not outcome.died and not outcome.step_name:
                return
            yield home, f"{sweep.when} step {step}, {outcome.step_name}"
        raise AssertionError("the work never ends")

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin and self._process.stdout
        self._process.stdin.close()
        self._process.wait(10)
        self._process.stdout.close()


def main() -> None:
    # Imported before the first fork, so that a child begins at once; Arrow brings pandas when first used.
    assert {group.__name__, producer.__name__} <= set(sys.modules)
    assert len(pa.array([1])) == 1
    for line in sys.stdin:
        print(json.dumps(asdict(_fork(Request(**json.loads(line))))), flush=True)


if __name__ == "__main__":
    main()
