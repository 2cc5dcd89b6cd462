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
    from penstock import capture as capture
    from penstock import sourcing as sourcing
    from penstock.app.app import App as App
    from penstock.app.derived import stream as stream
    from penstock.app.feed import Change as Change
    from penstock.app.feed import Feed as Feed
    from penstock.capture.outbox import outbox as outbox
    from penstock.clock import corrected_time as corrected_time
    from penstock.direct.channel import Channel as Channel
    from penstock.direct.message import Received as Received
    from penstock.direct.receiver import Receiver as Receiver
    from penstock.errors import BadDefinition as BadDefinition
    from penstock.errors import BadInput as BadInput
    from penstock.errors import BadName as BadName
    from penstock.errors import BadOption as BadOption
    from penstock.errors import BadPattern as BadPattern
    from penstock.errors import BadQuery as BadQuery
    from penstock.errors import BadRecord as BadRecord
    from penstock.errors import BadSchema as BadSchema
    from penstock.errors import BufferFull as BufferFull
    from penstock.errors import ChangesLost as ChangesLost
    from penstock.errors import ChannelClosed as ChannelClosed
    from penstock.errors import ChannelFull as ChannelFull
    from penstock.errors import CommandConflict as CommandConflict
    from penstock.errors import CommandRefused as CommandRefused
    from penstock.errors import Contended as Contended
    from penstock.errors import Damaged as Damaged
    from penstock.errors import DefinitionChanged as DefinitionChanged
    from penstock.errors import DeliveryExpired as DeliveryExpired
    from penstock.errors import DiskFull as DiskFull
    from penstock.errors import EventsLost as EventsLost
    from penstock.errors import Fenced as Fenced
    from penstock.errors import IncompatibleSchema as IncompatibleSchema
    from penstock.errors import LockTimeout as LockTimeout
    from penstock.errors import MessageTooLarge as MessageTooLarge
    from penstock.errors import NoReply as NoReply
    from penstock.errors import NotAllowed as NotAllowed
    from penstock.errors import NotOwner as NotOwner
    from penstock.errors import NotSupported as NotSupported
    from penstock.errors import OffsetOutOfRange as OffsetOutOfRange
    from penstock.errors import PenstockError as PenstockError
    from penstock.errors import PositionLost as PositionLost
    from penstock.errors import QueryFailed as QueryFailed
    from penstock.errors import QueueDiffers as QueueDiffers
    from penstock.errors import QueueFull as QueueFull
    from penstock.errors import RecordsLost as RecordsLost
    from penstock.errors import RecordTooLarge as RecordTooLarge
    from penstock.errors import SchemaRefused as SchemaRefused
    from penstock.errors import SealBroken as SealBroken
    from penstock.errors import SegmentMissing as SegmentMissing
    from penstock.errors import SeveralRowsPerKey as SeveralRowsPerKey
    from penstock.errors import StorageError as StorageError
    from penstock.errors import SubjectForgotten as SubjectForgotten
    from penstock.errors import SyncFailed as SyncFailed
    from penstock.errors import TopicExists as TopicExists
    from penstock.errors import UnknownAggregate as UnknownAggregate
    from penstock.errors import UnknownDelivery as UnknownDelivery
    from penstock.errors import UnknownExchange as UnknownExchange
    from penstock.errors import UnknownGroup as UnknownGroup
    from penstock.errors import UnknownQueue as UnknownQueue
    from penstock.errors import UnknownSubject as UnknownSubject
    from penstock.errors import UnknownTopic as UnknownTopic
    from penstock.errors import UnknownView as UnknownView
    from penstock.errors import Unreachable as Unreachable
    from penstock.errors import UnreadableEvent as UnreadableEvent
    from penstock.errors import Unroutable as Unroutable
    from penstock.errors import VersionOutOfRange as VersionOutOfRange
    from penstock.errors import ViewBehind as ViewBehind
    from penstock.flow.aggregate import aggregate as aggregate
    from penstock.flow.aggregates import approx_distinct as approx_distinct
    from penstock.flow.aggregates import approx_percentile as approx_percentile
    from penstock.flow.aggregates import collect as collect
    from penstock.flow.aggregates import count as count
    from penstock.flow.aggregates import first as first
    from penstock.flow.aggregates import last as last
    from penstock.flow.aggregates import max as max
    from penstock.flow.aggregates import mean as mean
    from penstock.flow.aggregates import min as min
    from penstock.flow.aggregates import percentile as percentile
    from penstock.flow.aggregates import rate as rate
    from penstock.flow.aggregates import sum as sum
    from penstock.flow.expressions import col as col
    from penstock.flow.expressions import step as step
    from penstock.flow.lookup import lookup as lookup
    from penstock.flow.operators import deduplicate as deduplicate
    from penstock.flow.operators import in_order as in_order
    from penstock.flow.operators import latest as latest
    from penstock.flow.pattern import any_of as any_of
    from penstock.flow.pattern import pattern as pattern
    from penstock.flow.relations import join_within as join_within
    from penstock.flow.searching import search as search
    from penstock.flow.snapshots import differentiate as differentiate
    from penstock.flow.snapshots import integrate as integrate
    from penstock.flow.source import LogSource as LogSource
    from penstock.flow.tables import enrich as enrich
    from penstock.flow.tables import join_tables as join_tables
    from penstock.flow.windows import hopping as hopping
    from penstock.flow.windows import session as session
    from penstock.flow.windows import sliding as sliding
    from penstock.flow.windows import tumbling as tumbling
    from penstock.follow import to as to
    from penstock.log.consumer import Consumer as Consumer
    from penstock.log.event import Event as Event
    from penstock.log.log import AtomicProducer as AtomicProducer
    from penstock.log.log import Log as Log
    from penstock.log.once import once as once
    from penstock.log.port import Position as Position
    from penstock.log.producer import Producer as Producer
    from penstock.log.topic import Topic as Topic
    from penstock.opening import open_log as open_log
    from penstock.queue.bridge import Bridge as Bridge
    from penstock.queue.bridge import bridge as bridge
    from penstock.queue.consumer import QueueConsumer as QueueConsumer
    from penstock.queue.delivery import DeadLetter as DeadLetter
    from penstock.queue.delivery import Delivery as Delivery
    from penstock.queue.exchange import Exchange as Exchange
    from penstock.queue.message import Message as Message
    from penstock.queue.message import message as message
    from penstock.queue.opening import open_queues as open_queues
    from penstock.queue.queue import Queue as Queue
    from penstock.queue.queues import Queues as Queues

    __version__: str

# Imported when first asked for, so that `import penstock` and `penstock --help` stay fast.
_HOMES = {
    "App": "penstock.app.app",
    "stream": "penstock.app.derived",
    "Change": "penstock.app.feed",
    "Feed": "penstock.app.feed",
    "aggregate": "penstock.flow.aggregate",
    "latest": "penstock.flow.operators",
    "lookup": "penstock.flow.lookup",
    "outbox": "penstock.capture.outbox",
    "deduplicate": "penstock.flow.operators",
    "in_order": "penstock.flow.operators",
    "join_within": "penstock.flow.relations",
    "pattern": "penstock.flow.pattern",
    "any_of": "penstock.flow.pattern",
    "col": "penstock.flow.expressions",
    "step": "penstock.flow.expressions",
    "search": "penstock.flow.searching",
    "differentiate": "penstock.flow.snapshots",
    "integrate": "penstock.flow.snapshots",
    "enrich": "penstock.flow.tables",
    "join_tables": "penstock.flow.tables",
    "tumbling": "penstock.flow.windows",
    "hopping": "penstock.flow.windows",
    "sliding": "penstock.flow.windows",
    "session": "penstock.flow.windows",
    "corrected_time": "penstock.clock",
    "count": "penstock.flow.aggregates",
    "sum": "penstock.flow.aggregates",
    "mean": "penstock.flow.aggregates",
    "min": "penstock.flow.aggregates",
    "max": "penstock.flow.aggregates",
    "percentile": "penstock.flow.aggregates",
    "approx_distinct": "penstock.flow.aggregates",
    "approx_percentile": "penstock.flow.aggregates",
    "first": "penstock.flow.aggregates",
    "last": "penstock.flow.aggregates",
    "collect": "penstock.flow.aggregates",
    "rate": "penstock.flow.aggregates",
    "AtomicProducer": "penstock.log.log",
    "Bridge": "penstock.queue.bridge",
    "bridge": "penstock.queue.bridge",
    "Channel": "penstock.direct.channel",
    "Received": "penstock.direct.message",
    "Receiver": "penstock.direct.receiver",
    "Consumer": "penstock.log.consumer",
    "Event": "penstock.log.event",
    "Log": "penstock.log.log",
    "LogSource": "penstock.flow.source",
    "Position": "penstock.log.port",
    "Producer": "penstock.log.producer",
    "Topic": "penstock.log.topic",
    "once": "penstock.log.once",
    "to": "penstock.follow",
    "open_log": "penstock.opening",
    "Queue": "penstock.queue.queue",
    "Queues": "penstock.queue.queues",
    "Exchange": "penstock.queue.exchange",
    "Message": "penstock.queue.message",
    "message": "penstock.queue.message",
    "Delivery": "penstock.queue.delivery",
    "DeadLetter": "penstock.queue.delivery",
    "QueueConsumer": "penstock.queue.consumer",
    "open_queues": "penstock.queue.opening",
}

__all__ = [
    "App",
    "AtomicProducer",
    "BadDefinition",
    "BadInput",
    "BadName",
    "BadOption",
    "BadPattern",
    "BadQuery",
    "BadRecord",
    "BadSchema",
    "Bridge",
    "BufferFull",
    "Change",
    "ChangesLost",
    "Channel",
    "ChannelClosed",
    "ChannelFull",
    "CommandConflict",
    "CommandRefused",
    "Consumer",
    "Contended",
    "Damaged",
    "DeadLetter",
    "DefinitionChanged",
    "Delivery",
    "DeliveryExpired",
    "DiskFull",
    "Event",
    "EventsLost",
    "Exchange",
    "Feed",
    "Fenced",
    "IncompatibleSchema",
    "LockTimeout",
    "Log",
    "LogSource",
    "Message",
    "MessageTooLarge",
    "NoReply",
    "NotAllowed",
    "NotOwner",
    "NotSupported",
    "OffsetOutOfRange",
    "PenstockError",
    "Position",
    "PositionLost",
    "Producer",
    "QueryFailed",
    "Queue",
    "QueueConsumer",
    "QueueDiffers",
    "QueueFull",
    "Queues",
    "Received",
    "Receiver",
    "RecordTooLarge",
    "RecordsLost",
    "SchemaRefused",
    "SealBroken",
    "SegmentMissing",
    "SeveralRowsPerKey",
    "StorageError",
    "SubjectForgotten",
    "SyncFailed",
    "Topic",
    "TopicExists",
    "UnknownAggregate",
    "UnknownDelivery",
    "UnknownExchange",
    "UnknownGroup",
    "UnknownQueue",
    "UnknownSubject",
    "UnknownTopic",
    "UnknownView",
    "Unreachable",
    "UnreadableEvent",
    "Unroutable",
    "VersionOutOfRange",
    "ViewBehind",
    "__version__",
    "aggregate",
    "any_of",
    "approx_distinct",
    "approx_percentile",
    "bridge",
    "capture",
    "col",
    "collect",
    "corrected_time",
    "count",
    "deduplicate",
    "differentiate",
    "enrich",
    "first",
    "hopping",
    "in_order",
    "integrate",
    "join_tables",
    "join_within",
    "last",
    "latest",
    "lookup",
    "max",
    "mean",
    "message",
    "min",
    "once",
    "open_log",
    "open_queues",
    "outbox",
    "pattern",
    "percentile",
    "rate",
    "search",
    "session",
    "sliding",
    "sourcing",
    "step",
    "stream",
    "sum",
    "to",
    "tumbling",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        found: Any = _version()
    elif name in ("capture", "sourcing"):
        found = importlib.import_module(f"penstock.{name}")
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
