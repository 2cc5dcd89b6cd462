"""How far behind a group is, in records and in seconds, and how long it has before records expire."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from penstock.errors import UnknownGroup
from penstock.log.port import GroupInfo, PartitionLag

if TYPE_CHECKING:
    from penstock.log.embedded import EmbeddedLog


def describe(log: EmbeddedLog, group: str, topic: str) -> GroupInfo:
    """Raises UnknownGroup when nobody ever joined that group on that topic."""
    store = log.groups_store()
    committed = store.committed(group, topic)
    members = store.members(group, topic)
    if not committed and not members:
        raise UnknownGroup(group, topic=topic, known=(name for name, _ in store.groups()))
    owners = {partition: member.member for member in members for partition in member.partitions}
    lags = tuple(
        _lag(log, topic, partition, owners.get(partition), committed.get(partition))
        for partition in range(log.settings(topic).partitions)
    )
    return GroupInfo(group, topic, tuple(members), lags)


def _lag(
    log: EmbeddedLog, topic: str, partition: int, owner: str | None, committed: int | None
) -> PartitionLag:
    start, end = log.bounds(topic, partition)
    next_offset = max(committed if committed is not None else start, start)
    oldest_us = _time_of(log, topic, partition, next_offset) if next_offset < end else None
    seconds = 0.0 if oldest_us is None else max(0.0, (log.clock.now_us() - oldest_us) / 1e6)
    expires = None if oldest_us is None else _expires_in_s(log, topic, partition, next_offset)
    return PartitionLag(partition, owner, committed, start, end, max(0, end - next_offset), seconds, expires)


def _time_of(log: EmbeddedLog, topic: str, partition: int, offset: int) -> int | None:
    for batch in log.read(topic, partition, offset, until=offset + 1):
        return int(batch.column("_timestamp").cast(pa.int64())[0].as_py())
    # A gap that compaction left: the next record there is.
    for batch in log.read(topic, partition, offset):
        return int(batch.column("_timestamp").cast(pa.int64())[0].as_py())
    return None


def _expires_in_s(log: EmbeddedLog, topic: str, partition: int, offset: int) -> float | None:
    """By age exactly; by size at the rate at which the partition has grown so far."""
    settings = log.settings(topic)
    part = log.partition(topic, partition)
    head, live = part.head(), part.manifest()
    at = max(number for number, entry in enumerate(live.segments) if entry.base <= offset)
    entry = live.segments[at]
    last_us = entry.last_time_us if entry.sealed else head.last_time_us
    limits = []
    if settings.archive or settings.compacted:
        return None
    if settings.retention_ms is not None:
        limits.append((last_us - log.clock.now_us()) / 1e6 + settings.retention_ms / 1e3)
    if settings.retention_bytes is not None:
        sizes = [e.size_bytes if e.sealed else head.written_bytes for e in live.segments]
        first_us = live.segments[0].first_time_us or head.last_time_us
        rate = sum(sizes) / max((head.last_time_us - first_us) / 1e6, 1.0)
        limits.append((settings.retention_bytes - sum(sizes[at:]) + sizes[at]) / max(rate, 1e-9))
    return max(0.0, min(limits)) if limits else None
