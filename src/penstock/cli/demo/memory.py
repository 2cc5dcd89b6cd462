"""What the demo and everything it has started take of the machine's memory."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class Memory:
    """Of several processes, what they share counted once."""

    bytes: int
    processes: int


def used(others: Iterable[int] = ()) -> Memory | None:
    """Of this process, all below it, and `others`. None where the system does not tell."""
    if not (_PROC / "self" / "smaps_rollup").exists():
        return None
    sizes = [size for pid in {*_tree(os.getpid()), *others} if (size := _share_of(pid)) is not None]
    return Memory(sum(sizes), len(sizes))


def _tree(pid: int) -> Iterator[int]:
    yield pid
    for task in _tasks(pid):
        try:
            children = (task / "children").read_text().split()
        except OSError:  # it is gone
            continue
        for child in children:
            yield from _tree(int(child))


def _tasks(pid: int) -> list[Path]:
    try:
        return list((_PROC / str(pid) / "task").iterdir())
    except OSError:
        return []


def _share_of(pid: int) -> int | None:
    """Its proportional set size: a page that three processes have is a third of a page in each."""
    try:
        told = (_PROC / str(pid) / "smaps_rollup").read_text()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in told.splitlines() if line.startswith("Pss:")), None)
