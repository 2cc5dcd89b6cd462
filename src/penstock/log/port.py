"""The log port: what every log keeps, whether embedded or a Kafka cluster.

The port promises only what all backends keep:

- Offsets grow within a partition, but may have gaps (compaction, transaction markers).
- The end of a partition may move between two calls, and may lie past the last record.
- A returned append survives what the backend says it survives (`durability`).
- An atomic append becomes visible whole in each partition or not at all, in several partitions
  possibly at different moments, and possibly after the call returned, as a plain append may:
  `wait` for its position is how to read one's own writes.

Anything more is a capability that a program can ask for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Protocol

import pyarrow as pa

from penstock.erasure.keys import KeyRing
from penstock.log.settings import TopicSettings

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

Parts = Mapping[int, Sequence[pa.RecordBatch]]
"""Record batches by partition, in the topic's stored form."""


@dataclass(frozen=True, slots=True)
class Position:
    """Where an append ended: for each partition it touched, the offset after its last record.

    Reading up to it shows the append (`app.read(view, after=position)`).
    """

    topic: str
    ends: Mapping[int, int]
    firsts: Mapping[int, int] = field(default_factory=dict, compare=False, repr=False)

    @property
    def partition(self) -> int:
        """The partition of an append that touched one."""
        (partition,) = self.ends
        return partition

    @property
    def offset(self) -> int:
        """The offset of the first record of an append that touched one partition."""
        return self.firsts[self.partition]


@dataclass(frozen=True, slots=True)
class AtomicResult:
    """What an atomic append did. `duplicate`: it was stored before, and nothing changed now."""

    positions: tuple[Position, ...]
    sequence: int
    duplicate: bool = False


@dataclass(frozen=True, slots=True)
class ProducerPosition:
    """How far a producer is: its epoch, and the sequence and position of its last atomic append."""

    epoch: int
    sequence: int
    position: bytes | None


@dataclass(frozen=True, slots=True)
class Owned:
    """One partition in a member's hands. `term` changes when somebody else had it in between."""

    term: int
    committed: int | None  # None where the group has not committed yet
    revoked: bool = False  # to be committed and released


@dataclass(frozen=True, slots=True)
class Assignment:
    """What a group member may read now, and from where."""

    partitions: Mapping[int, Owned]
    waiting: bool = False  # more members than partitions: this one stands by


@dataclass(frozen=True, slots=True)
class MemberInfo:
    member: str
    partitions: tuple[int, ...]
    waiting: bool


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """How far behind a group is in one partition."""

    partition: int
    owner: str | None
    committed: int | None
    start: int
    end: int
    records: int  # not yet read; an upper bound where offsets have gaps
    seconds: float  # age of the oldest record not yet read, 0 when there is none
    expires_in_s: float | None  # until retention takes that record, None when it will not


@dataclass(frozen=True, slots=True)
class GroupInfo:
    group: str
    topic: str
    members: tuple[MemberInfo, ...]
    lag: tuple[PartitionLag, ...]


class Member(Protocol):
    """One consumer in a group. Used by one thread; `commit` may come from others."""

    member: str

    def poll(self) -> Assignment:
        """Renew the lease and learn what this member may read. Called at least once per lease."""

    def commit(self, offsets: Mapping[int, int]) -> None:
        """The group goes on from these offsets after a crash. Durable on return.

        Raises NotOwner, and commits nothing, if a partition was taken over since the last poll.
        """

    def release(self, partitions: Iterable[int]) -> None:
        """Hand over revoked partitions, after the last commit for them."""

    def leave(self) -> None:
        """Others take over at once."""


class LogPort(Protocol):
    """A log. Thread-safe."""

    capabilities: frozenset[str]
    keys: KeyRing  # of the subjects that personal columns belong to

    def create_topic(self, settings: TopicSettings) -> TopicSettings:
        """Raises TopicExists."""

    def alter_topic(self, name: str, settings: TopicSettings) -> TopicSettings:
        """Replace the settings by compatible ones.

        With the capability `ordered-growth` it waits for appends under way, so that no record goes
        to the old partition of a key that has moved; elsewhere writers must be at rest for that.
        """

    def delete_topic(self, name: str) -> None: ...

    def topics(self) -> list[str]: ...

    def settings(self, name: str) -> TopicSettings:
        """Raises UnknownTopic."""

    def append(self, settings: TopicSettings, parts: Parts) -> Position:
        """Store records; on return they are as durable as the topic asks for.

        Raises StaleAppend when the topic was altered meanwhile; it tells what is stored already.
        """

    def open_producer(self, producer: str) -> ProducerPosition:
        """Take over a producer id. Older instances of it are fenced, and what they stored can be read.

        Only through this port can then be appended for it, until `close_producer`.
        """

    def close_producer(self, producer: str) -> None:
        """Free what is kept for an open producer; its position stays stored."""

    def producer_position(self, producer: str) -> ProducerPosition:
        """What is stored of it, also after any crash, retention or compaction."""

    def append_atomically(
        self,
        producer: str,
        epoch: int,
        sequence: int,
        parts: Mapping[str, tuple[TopicSettings, Parts]],
        position: bytes | None,
    ) -> AtomicResult:
        """Store records of several partitions and topics and a position: all of it or nothing.

        Raises Fenced for an old epoch. A sequence that was stored before changes nothing.
        """

    def bounds(self, topic: str, partition: int) -> tuple[int, int]:
        """First offset held, and one past the last visible one."""

    def read(
        self, topic: str, partition: int, offset: int, *, until: int | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Visible records from `offset` on, up to `until`, which was an end once, or to the end as it is now.

        Columns: `_partition`, `_offset`, `_timestamp`, then the topic's own, then
        `_deleted` where the topic is compacted. Raises OffsetOutOfRange.
        """

    def offset_at(self, topic: str, partition: int, time_us: int) -> int:
        """The first record appended at or after that time; the end if there is none yet."""

    def wait(self, topic: str, ends: Mapping[int, int], timeout_s: float) -> bool:
        """Sleep until a partition reaches past `ends`; False when time is up."""

    def hold(self, name: str, topic: str, offsets: Mapping[int, int], *, reason: str) -> None:
        """With the capability `holds`: how far somebody without a group has read, by name and for all to see.

        The embedded log's retention takes nothing from there on, and says for whom.
        """

    def join(self, group: str, topic: str, *, lease_s: float) -> Member: ...

    def committed(self, group: str, topic: str) -> dict[int, int]: ...

    def reset(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        """Move a group that has no members. Raises Contended if it has some."""

    def groups(self) -> list[tuple[str, str]]:
        """(group, topic) pairs with members or commits."""

    def group(self, group: str, topic: str) -> GroupInfo: ...

    def close(self) -> None: ...


class StaleAppend(Exception):
    """The topic was altered during an append. What is in `stored` is stored; the rest is not."""

    def __init__(self, stored: Mapping[int, tuple[int, int]]) -> None:
        super().__init__("the topic was altered")
        self.stored = stored


def from_us(time_us: int) -> datetime:
    return _EPOCH + timedelta(microseconds=time_us)


def to_us(moment: datetime) -> int:
    return (moment - _EPOCH) // timedelta(microseconds=1)
