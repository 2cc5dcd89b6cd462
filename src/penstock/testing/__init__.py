"""What Penstock is tested with, for testing programs built on it.

running        an app in virtual time, its events in the order you choose; in pytest: the fixture `flow`
Run            what it gives: feed, advance, view, late, changes, verify
CrashingDisk   a disk in memory that loses power, or whose process is killed, after any operation
FaultyDisk     a disk that is full, or fails to sync, read or open, at the operation you choose
LogContract    the tests that every log passes
QueueContract  the tests that every queue passes
find_traces    where a text can be read in everything under a folder, decoded, and opened with the keys there
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.erasure.traces import find_traces as find_traces
    from penstock.testing.crashing_disk import CrashingDisk as CrashingDisk
    from penstock.testing.faulty_disk import FaultyDisk as FaultyDisk
    from penstock.testing.flow import Run as Run
    from penstock.testing.flow import running as running
    from penstock.testing.log_contract import LogContract as LogContract
    from penstock.testing.queue_contract import QueueContract as QueueContract

__all__ = ["CrashingDisk", "FaultyDisk", "LogContract", "QueueContract", "Run", "find_traces", "running"]

_HOMES = {
    "CrashingDisk": "penstock.testing.crashing_disk",
    "FaultyDisk": "penstock.testing.faulty_disk",
    "find_traces": "penstock.erasure.traces",
    "LogContract": "penstock.testing.log_contract",  # needs pytest
    "QueueContract": "penstock.testing.queue_contract",
    "Run": "penstock.testing.flow",  # needs pyspark
    "running": "penstock.testing.flow",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
