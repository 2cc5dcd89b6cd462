"""Reading offsets that were seen before: all of them, or an error.

A log's `read` ends where the log ends. To a batch that was planned further that would be a loss, silently:
Kafka may show less for a moment when a partition has moved, and for good after an unclean election.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from penstock.errors import Contended
from penstock.log.log import Log


def records(log: Log, topic: str, partition: int, begin: int, end: int) -> Iterator[pa.RecordBatch]:
    check(topic, partition, end, found=log.port.bounds(topic, partition)[1])
    yield from log.port.read(topic, partition, begin, until=end)


def check(topic: str, partition: int, end: int, *, found: int) -> None:
    """Whether a partition that ends at `found` still has what came before `end`."""
    if found < end:
        raise Contended(
            f'topic "{topic}" partition {partition} ends at offset {found}, and had reached {end} before.',
            hint="it may have moved and not be whole yet; if this stays, the cluster has lost records: "
            "rebuild from what is there",
        )
