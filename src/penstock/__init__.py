"""Event streams in Python: a durable, typed, partitioned event log, embedded in your program.

>>> import tempfile
>>> import penstock as ps
>>> log = ps.open_log(tempfile.mkdtemp())
>>> clicks = log.create_topic("clicks", "user STRING, page STRING", key="user")
>>> clicks.append({"user": "ann", "page": "/"}).offset
0
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.errors import BadInput as BadInput
    from penstock.errors import BadName as BadName
    from penstock.errors import BadOption as BadOption
    from penstock.errors import BadRecord as BadRecord
    from penstock.errors import BadSchema as BadSchema
    from penstock.errors import BufferFull as BufferFull
    from penstock.errors import Contended as Contended
    from penstock.errors import Damaged as Damaged
    from penstock.errors import DiskFull as DiskFull
    from penstock.errors import Fenced as Fenced
    from penstock.errors import IncompatibleSchema as IncompatibleSchema
    from penstock.errors import LockTimeout as LockTimeout
    from penstock.errors import NotOwner as NotOwner
    from penstock.errors import NotSupported as NotSupported
    from penstock.errors import OffsetOutOfRange as OffsetOutOfRange
    from penstock.errors import PenstockError as PenstockError
    from penstock.errors import RecordsLost as RecordsLost
    from penstock.errors import RecordTooLarge as RecordTooLarge
    from penstock.errors import SegmentMissing as SegmentMissing
    from penstock.errors import StorageError as StorageError
    from penstock.errors import SyncFailed as SyncFailed
    from penstock.errors import TopicExists as TopicExists
    from penstock.errors import UnknownTopic as UnknownTopic
    from penstock.log.consumer import Consumer as Consumer
    from penstock.log.event import Event as Event
    from penstock.log.log import AtomicProducer as AtomicProducer
    from penstock.log.log import Log as Log
    from penstock.log.log import open_log as open_log
    from penstock.log.once import once as once
    from penstock.log.port import Position as Position
    from penstock.log.producer import Producer as Producer
    from penstock.log.topic import Topic as Topic

    __version__: str

# Imported when first asked for, so that `import penstock` and `penstock --help` stay fast.
_HOMES = {
    "AtomicProducer": "penstock.log.log",
    "Consumer": "penstock.log.consumer",
    "Event": "penstock.log.event",
    "Log": "penstock.log.log",
    "Position": "penstock.log.port",
    "Producer": "penstock.log.producer",
    "Topic": "penstock.log.topic",
    "once": "penstock.log.once",
    "open_log": "penstock.log.log",
}

__all__ = [
    "AtomicProducer",
    "BadInput",
    "BadName",
    "BadOption",
    "BadRecord",
    "BadSchema",
    "BufferFull",
    "Consumer",
    "Contended",
    "Damaged",
    "DiskFull",
    "Event",
    "Fenced",
    "IncompatibleSchema",
    "LockTimeout",
    "Log",
    "NotOwner",
    "NotSupported",
    "OffsetOutOfRange",
    "PenstockError",
    "Position",
    "Producer",
    "RecordTooLarge",
    "RecordsLost",
    "SegmentMissing",
    "StorageError",
    "SyncFailed",
    "Topic",
    "TopicExists",
    "UnknownTopic",
    "__version__",
    "once",
    "open_log",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        found: Any = _version()
    elif name in __all__:
        found = getattr(importlib.import_module(_HOMES.get(name, "penstock.errors")), name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def _version() -> str:
    from importlib import metadata

    try:
        return metadata.version("penstock")
    except metadata.PackageNotFoundError:  # run from a source tree that was never installed
        return "0+unknown"
