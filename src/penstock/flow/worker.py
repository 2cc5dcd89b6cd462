"""What a task finds in a worker of a cluster. It is sent there whole: nothing of ours may be there yet."""

from __future__ import annotations

import importlib
import socket
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

_PAUSE_S = 0.1


class Look(NamedTuple):
    """What one worker has."""

    host: str
    python: str
    missing: list[str]
    unseen: str | None  # why the folder cannot be used there


def looking(
    modules: Sequence[str], folder: Path | None
) -> Callable[[int], tuple[str, str, list[str], str | None]]:
    """A task that tries to import `modules` and to write into `folder`; it gives the parts of a Look."""

    def look(number: int) -> tuple[str, str, list[str], str | None]:
        unseen = _unseen(folder / str(number)) if folder is not None else None
        found = socket.gethostname(), sys.executable, _missing(modules), unseen
        time.sleep(_PAUSE_S)  # a worker that is quick must not take another's task
        return found

    return look


def _missing(modules: Sequence[str]) -> list[str]:
    missing = set()
    for name in modules:
        try:
            importlib.import_module(name)
        except ImportError as error:
            missing.add(error.name or name)
    return sorted(missing)


def _unseen(file: Path) -> str | None:
    try:
        file.touch()
    except OSError as error:
        return error.strerror or str(error)
    return None
