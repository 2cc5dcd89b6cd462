"""What there is to say about the partitions of a topic."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.log.log import Log
    from penstock.log.partition import Partition


@dataclass(frozen=True, slots=True)
class PartitionFacts:
    """One partition. What only the embedded log can tell is None elsewhere."""

    partition: int
    start: int
    end: int
    records: int
    bytes: int | None = None
    segments: int | None = None
    archived: int | None = None  # of the segments
    first_us: int | None = None
    last_us: int | None = None


def facts_of(log: Log, topic: str) -> list[PartitionFacts]:
    """Each partition of a topic. Raises UnknownTopic."""
    from penstock.log.embedded import EmbeddedLog

    count = log.port.settings(topic).partitions
    if isinstance(log.port, EmbeddedLog):
        return [_embedded(log.port.partition(topic, number)) for number in range(count)]
    bounds = [(number, *log.port.bounds(topic, number)) for number in range(count)]
    return [PartitionFacts(number, start, end, end - start) for number, start, end in bounds]


def _embedded(partition: Partition) -> PartitionFacts:
    head, live = partition.head(), partition.manifest()
    sealed = [entry for entry in live.segments if entry.sealed]
    in_active = max(head.visible_offset - head.base, 0)
    times = [time for entry in sealed if entry.rows for time in (entry.first_time_us, entry.last_time_us)]
    if in_active and head.frames:
        times += [int(partition.index_of(head)["time_us"][0]), head.last_time_us]
    return PartitionFacts(
        partition.number,
        live.start,
        head.visible_offset,
        records=sum(entry.rows for entry in sealed) + in_active,
        bytes=sum(entry.size_bytes for entry in sealed) + head.visible_bytes,
        segments=len(live.segments),
        archived=sum(entry.archived for entry in sealed),
        first_us=times[0] if times else None,
        last_us=times[-1] if times else None,
    )
