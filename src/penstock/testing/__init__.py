"""What Penstock is tested with, for testing programs built on it.

CrashingDisk   a disk in memory that loses power, or whose process is killed, after any operation
FaultyDisk     a disk that is full, or fails to sync, read or open, at the operation you choose
LogContract    the tests that every log passes
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.testing.crashing_disk import CrashingDisk as CrashingDisk
    from penstock.testing.faulty_disk import FaultyDisk as FaultyDisk
    from penstock.testing.log_contract import LogContract as LogContract

__all__ = ["CrashingDisk", "FaultyDisk", "LogContract"]

_HOMES = {
    "CrashingDisk": "penstock.testing.crashing_disk",
    "FaultyDisk": "penstock.testing.faulty_disk",
    "LogContract": "penstock.testing.log_contract",  # needs pytest
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
