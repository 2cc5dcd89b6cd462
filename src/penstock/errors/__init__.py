"""Every error Penstock raises on purpose.

PenstockError
├── BadInput                  the caller can fix it; nothing was stored
│   ├── UnknownTopic
│   ├── TopicExists
│   ├── BadName
│   ├── BadSchema             a schema that cannot be read
│   ├── IncompatibleSchema    a schema change that would lose data
│   ├── SchemaRefused         a schema registry does not take it
│   ├── BadRecord             wrong type, missing or unknown column, missing key
│   │   └── SubjectForgotten  something personal of a subject that was forgotten
│   ├── UnknownSubject        nobody to forget
│   ├── RecordTooLarge
│   ├── BadOption             an option or a value outside its range
│   │   ├── BadQuery          a text query that cannot be read
│   │   └── BadPattern        a binding's pattern that cannot be read
│   ├── BadDefinition         a view or stream that cannot be built; says file and line
│   ├── UnknownView
│   ├── UnknownGroup
│   ├── SeveralRowsPerKey     an unaggregated view with two rows for one key in a batch
│   ├── PositionLost          a feed cannot go on from a position; subscribe anew
│   ├── ChannelClosed         sent to a channel that takes nothing more
│   ├── DefinitionChanged     what is stored was made by another plan
│   ├── UnknownQueue
│   ├── UnknownExchange
│   ├── QueueDiffers          a queue or exchange exists with other settings
│   ├── MessageTooLarge
│   ├── Unroutable            no queue is bound for a message's key
│   ├── UnknownDelivery       a delivery that was settled before
│   ├── CommandRefused        an aggregate's state does not allow a command; nothing was recorded
│   ├── UnknownAggregate      no event of it was ever recorded, or not by then
│   ├── VersionOutOfRange     an aggregate has no such version
│   ├── UnreadableEvent       a stored event that the declared classes do not fit (any more)
│   └── NotSupported          this topic or backend does not offer that
├── OffsetOutOfRange          asked for what the log does not hold (any more)
│   └── RecordsLost           retention overtook a consumer; says how many
├── ChangesLost               a captured database has no longer kept what comes after our position
├── EventsLost                published events are missing from the store they came from
├── Contended                 somebody else has it now; trying again may work
│   ├── LockTimeout
│   ├── BufferFull            a bounded producer with overflow="error"
│   ├── ChannelFull           a bounded channel that rejects, or had no room in time
│   ├── NotOwner              a commit by a member that lost the partition
│   ├── CommandConflict       others were faster, also after a command was decided again
│   ├── QueueFull             a queue of limited length, with overflow="reject" or after waiting
│   ├── DeliveryExpired       the lease of a delivery ended; the message is delivered again
│   ├── NoReply               a request that nobody answered in time
│   └── ViewBehind            a view does not show an append within the time given
├── Fenced                    a newer instance of this producer took over
├── QueryFailed               a query could not be finished, also not after several tries
├── StorageError              the disk said no; nothing was acknowledged
│   ├── DiskFull
│   ├── SyncFailed
│   └── Unreachable           a server does not answer; what was under way may have arrived or not
├── NotAllowed                a server refuses this user
├── SealBroken                a personal value that was not sealed where it is
└── Damaged                   bytes on disk are not what was written
    └── SegmentMissing

Each carries its facts as attributes, says what happened, and what to do (`hint`).
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from penstock.errors.erasure import SealBroken as SealBroken
from penstock.errors.erasure import SubjectForgotten as SubjectForgotten
from penstock.errors.erasure import UnknownSubject as UnknownSubject
from penstock.errors.queue import DeliveryExpired as DeliveryExpired
from penstock.errors.queue import MessageTooLarge as MessageTooLarge
from penstock.errors.queue import NoReply as NoReply
from penstock.errors.queue import QueueDiffers as QueueDiffers
from penstock.errors.queue import QueueFull as QueueFull
from penstock.errors.queue import UnknownDelivery as UnknownDelivery
from penstock.errors.queue import UnknownExchange as UnknownExchange
from penstock.errors.queue import UnknownQueue as UnknownQueue
from penstock.errors.queue import Unroutable as Unroutable
from penstock.errors.roots import BadInput as BadInput
from penstock.errors.roots import BadRecord as BadRecord
from penstock.errors.roots import Contended as Contended
from penstock.errors.roots import PenstockError as PenstockError
from penstock.errors.sourcing import CommandConflict as CommandConflict
from penstock.errors.sourcing import CommandRefused as CommandRefused
from penstock.errors.sourcing import EventsLost as EventsLost
from penstock.errors.sourcing import UnknownAggregate as UnknownAggregate
from penstock.errors.sourcing import UnreadableEvent as UnreadableEvent
from penstock.errors.sourcing import VersionOutOfRange as VersionOutOfRange


class UnknownTopic(BadInput):
    def __init__(self, topic: str, *, known: Iterable[str] = ()) -> None:
        self.topic = topic
        close = difflib.get_close_matches(topic, list(known), n=1)
        self.did_you_mean = close[0] if close else None
        hint = (
            f'did you mean "{self.did_you_mean}"?'
            if close
            else f"create it with: penstock topic create {topic}"
        )
        super().__init__(f'there is no topic "{topic}".', hint=hint)


class TopicExists(BadInput):
    def __init__(self, topic: str) -> None:
        self.topic = topic
        super().__init__(
            f'topic "{topic}" exists already.', hint=f"change it with: penstock topic alter {topic}"
        )


class BadName(BadInput):
    def __init__(self, kind: str, name: str) -> None:
        self.kind, self.name = kind, name
        super().__init__(
            f"{name!r} is no {kind} name.",
            hint="use 1 to 249 characters out of a-z, A-Z, 0-9, '.', '_' and '-', and not '.' or '..' alone",
        )


class BadSchema(BadInput):
    """The declared schema cannot be read, or names something it does not have."""


class IncompatibleSchema(BadInput):
    def __init__(self, column: str, reason: str) -> None:
        self.column, self.reason = column, reason
        super().__init__(
            f'column "{column}": {reason}.',
            hint="nullable columns may be added and types widened; for anything else create a new topic",
        )


class SchemaRefused(BadInput):
    """A schema registry does not take a schema, as a rule because older records could not be read by it."""

    def __init__(self, registry: str, subject: str, reason: str) -> None:
        self.registry, self.subject, self.reason = registry, subject, reason
        super().__init__(
            f'{registry} refuses the schema of "{subject}": {reason}.',
            hint="add columns that may be null; for anything else create a new topic",
        )


class RecordTooLarge(BadRecord):
    def __init__(self, topic: str, *, row: int, size_bytes: int, size_bytes_max: int) -> None:
        self.topic, self.size_bytes, self.size_bytes_max = topic, size_bytes, size_bytes_max
        super().__init__(
            f'record {row} has {size_bytes:,} bytes; topic "{topic}" takes at most {size_bytes_max:,}.',
            row=row,
            hint="store the large part elsewhere and send a reference, "
            f"or: penstock topic alter {topic} --max-record-bytes N",
        )


class BadOption(BadInput):
    """A value outside its range, or options that contradict each other."""


class BadQuery(BadOption):
    """A text query that cannot be read. `position` counts characters from 1."""

    def __init__(self, query: str, position: int, reason: str, *, hint: str = "") -> None:
        self.query, self.position, self.reason = query, position, reason
        shown = query if len(query) <= 80 else f"{query[:77]}..."
        super().__init__(f"the query {shown!r} fails at character {position}: {reason}.", hint=hint)


class BadPattern(BadOption):
    def __init__(self, pattern: str, reason: str) -> None:
        self.pattern, self.reason = pattern, reason
        super().__init__(
            f"the pattern {pattern!r} cannot be bound: {reason}.",
            hint='write words between dots: "orders.*.paid" (one word) or "orders.#" (any number of words)',
        )


class BadDefinition(BadInput):
    """A view or stream that cannot be run as it is written."""

    def __init__(
        self, message: str, *, hint: str = "", file: str | None = None, line: int | None = None
    ) -> None:
        self.file, self.line = file, line
        super().__init__(f"{file}:{line}: {message}" if file else message, hint=hint)


class UnknownView(BadInput):
    def __init__(self, view: str, *, known: Iterable[str] = (), defined: bool = False) -> None:
        self.view = view
        close = difflib.get_close_matches(view, list(known), n=1)
        if defined:
            super().__init__(f'view "{view}" has not run yet.', hint="run it with: penstock run APP")
            return
        hint = f'did you mean "{close[0]}"?' if close else "it has: " + (", ".join(known) or "none")
        super().__init__(f'the app has no view or stream "{view}".', hint=hint)


class UnknownGroup(BadInput):
    """`topic` is None where no topic was asked for in particular."""

    def __init__(self, group: str, *, known: Iterable[str], topic: str | None = None) -> None:
        self.group, self.topic = group, topic
        names = sorted(set(known))
        close = difflib.get_close_matches(group, names, n=1)
        self.did_you_mean = close[0] if close else None
        listed = f"there are: {', '.join(names)}" if names else "a group begins when a consumer joins it"
        where = f' on topic "{topic}"' if topic is not None else ""
        super().__init__(
            f'there is no group "{group}"{where}.', hint=f'did you mean "{close[0]}"?' if close else listed
        )


class SeveralRowsPerKey(BadInput):
    def __init__(self, view: str, key: Iterable[str]) -> None:
        self.view, self.key = view, tuple(key)
        super().__init__(
            f'view "{view}" has several rows for one key ({", ".join(self.key)}) in one batch.',
            hint="say it with ps.latest(stream, by=...), or aggregate them",
        )


class PositionLost(BadInput):
    """What changed since a position of a feed can no longer be told."""

    def __init__(self, topic: str, reason: str) -> None:
        self.topic, self.reason = topic, reason
        super().__init__(
            f'the feed of "{topic}" cannot go on: {reason}.',
            hint="forget its rows and subscribe anew, without after=",
        )


class DefinitionChanged(BadInput):
    def __init__(self, query: str, kind: str = "view") -> None:
        self.query = query
        anew = f"build it anew beside the old one with: penstock rebuild APP {query}"
        other = "what a stream has said cannot be taken back: define the new one under another name"
        super().__init__(
            f'"{query}" is not defined as it was when it last ran: it cannot go on.',
            hint=anew if kind == "view" else other,
        )


class ChannelClosed(BadInput):
    def __init__(self) -> None:
        super().__init__("this channel is closed; the message was not sent.", hint="open a new channel")


class NotSupported(BadInput):
    """This topic or this backend does not offer what was asked."""


class OffsetOutOfRange(PenstockError):
    def __init__(self, topic: str, partition: int, offset: int, *, start: int, end: int) -> None:
        self.topic, self.partition, self.offset = topic, partition, offset
        self.start, self.end = start, end
        holds = f"holds {start} to {end - 1}" if end > start else f"is empty and starts at {start}"
        super().__init__(
            f'offset {offset} is outside topic "{topic}" partition {partition}, which {holds}.',
            hint=f"begin at {start} (earliest), or raise the topic's retention"
            if offset < start
            else f"begin at {end} (latest) and wait for more",
        )


class RecordsLost(OffsetOutOfRange):
    """Retention removed records that this consumer had not read."""

    def __init__(self, topic: str, partition: int, offset: int, *, start: int, end: int) -> None:
        super().__init__(topic, partition, offset, start=start, end=end)
        self.missed = start - offset
        self.message = (
            f'{self.missed:,} records of topic "{topic}" partition {partition} '
            f"(offsets {offset} to {start - 1}) were removed by retention before they were read."
        )
        self.hint = 'go on with on_lost="earliest" or on_lost="latest", or raise the topic\'s retention'


class ChangesLost(PenstockError):
    """A captured database does not have the changes after our position any more."""

    def __init__(self, capture: str, source: str, reason: str) -> None:
        self.capture, self.source, self.reason = capture, source, reason
        super().__init__(
            f'capture "{capture}" cannot go on: {reason}. Changes of {source} may be missing from there on.',
            hint=f"read the tables anew with: penstock capture resnapshot SOURCE --name {capture}",
        )


class LockTimeout(Contended):
    def __init__(self, what: str, *, waited_s: float, holder: str = "") -> None:
        self.what, self.waited_s, self.holder = what, waited_s, holder
        by = f" (held by {holder})" if holder else ""
        super().__init__(
            f"{what} was not free within {waited_s:g} s{by}.",
            hint="another process is writing or stuck; try again, or look at it with: penstock doctor",
        )


class BufferFull(Contended):
    def __init__(self, topic: str, *, buffered_bytes: int, buffered_bytes_max: int) -> None:
        self.topic, self.buffered_bytes = topic, buffered_bytes
        self.buffered_bytes_max = buffered_bytes_max
        super().__init__(
            f'the producer of "{topic}" holds {buffered_bytes:,} of {buffered_bytes_max:,} bytes.',
            hint='slow down, raise buffer_bytes, or choose overflow="block"',
        )


class ChannelFull(Contended):
    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        super().__init__(
            f"{capacity:,} messages wait in this channel already; the message was not sent.",
            hint='send it later, raise capacity, or choose overflow="block" or "drop_oldest"',
        )


class NotOwner(Contended):
    def __init__(self, group: str, topic: str, partitions: Iterable[int]) -> None:
        self.group, self.topic, self.partitions = group, topic, tuple(partitions)
        listed = ", ".join(map(str, self.partitions))
        super().__init__(
            f'this member of group "{group}" no longer owns partition {listed} of "{topic}"; '
            "its commit was refused.",
            hint="another member reads on from the last commit; poll more often than the lease",
        )


class ViewBehind(Contended):
    def __init__(self, view: str, topic: str, *, read: bool, published: bool = True) -> None:
        self.view, self.topic = view, topic
        why = "its follower has not stored it yet" if read else "no batch has read so far"
        why = why if published else "its events are not published yet"
        super().__init__(
            f'view "{view}" does not show that position of topic "{topic}" in time: {why}.',
            hint=f"is `penstock run` running? `penstock explain APP {view}` says what it waits for",
        )


class Fenced(PenstockError):
    def __init__(self, producer: str, *, epoch: int, current: int) -> None:
        self.producer, self.epoch, self.current = producer, epoch, current
        super().__init__(
            f'producer "{producer}" of epoch {epoch} was replaced by epoch {current}; nothing was stored.',
            hint="a newer instance runs; stop this one",
        )


class QueryFailed(PenstockError):
    def __init__(self, query: str, reason: str) -> None:
        self.query, self.reason = query, reason
        super().__init__(
            f'"{query}" failed again and again: {reason}',
            hint="what it had stored is whole; mend the cause and run it again",
        )


class StorageError(PenstockError):
    """The disk refused. Nothing was acknowledged."""


class DiskFull(StorageError):
    def __init__(self, path: object) -> None:
        self.path = path
        super().__init__(
            f"no space left to write {path}.",
            hint="free space or shorten retention; reading goes on, writing resumes when there is room",
        )


class SyncFailed(StorageError):
    def __init__(self, path: object, reason: str) -> None:
        self.path, self.reason = path, reason
        super().__init__(
            f"{path} could not be written to stable storage ({reason}); nothing was acknowledged.",
            hint="check the disk; the next append starts from the last durable record",
        )


class Unreachable(StorageError):
    """A server does not answer. What was under way may have arrived or not."""

    def __init__(
        self, server: str, reason: str, *, hint: str = "", retry_after_s: float | None = None
    ) -> None:
        self.server, self.reason = server, reason
        self.retry_after_s = retry_after_s  # where the server has said when it may be asked again
        super().__init__(f"{server} does not answer: {reason}.", hint=hint)


class NotAllowed(PenstockError):
    """A server refuses what was asked, or who asked."""

    def __init__(self, server: str, reason: str, *, hint: str = "") -> None:
        self.server, self.reason = server, reason
        super().__init__(
            f"{server} refuses: {reason}.",
            hint=hint or "check the user and password, and what they may do there",
        )


class Damaged(PenstockError):
    """Stored bytes fail their checks. They are never served."""

    def __init__(
        self,
        topic: str,
        partition: int,
        segment: str,
        *,
        first: int,
        last: int | None,
        reason: str,
        hint: str = "",
    ) -> None:
        self.topic, self.partition, self.segment = topic, partition, segment
        self.first, self.last, self.reason = first, last, reason
        offsets = f"offsets {first} to {last}" if last is not None else f"offsets from {first} on"
        super().__init__(
            f'topic "{topic}" partition {partition}, segment {segment}, {offsets}: {reason}.',
            hint=hint
            or "restore that file from a backup, or read on after it (--from an offset past the damage)",
        )


class SegmentMissing(Damaged):
    """A segment that the log needs is not on disk."""


def as_object(error: PenstockError) -> dict[str, object]:
    """For programs: type, message and hint, and whatever facts the error has."""
    facts = {name: _plain(value) for name, value in vars(error).items() if name not in ("message", "hint")}
    return {"type": type(error).__name__, "message": error.message, "hint": error.hint, **facts}


def _plain(value: object) -> object:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(inner) for inner in value]
    if isinstance(value, dict):
        return {str(key): _plain(inner) for key, inner in value.items()}
    return str(value)
