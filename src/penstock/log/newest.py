"""The last record of a partition, wherever it lies: the end may be past it."""

from __future__ import annotations

import pyarrow as pa

from penstock.log.port import LogPort


def last_record(
    port: LogPort, topic: str, partition: int, *, until: int | None = None
) -> pa.RecordBatch | None:
    """One row, or None if there is no record (before `until`)."""
    start, end = port.bounds(topic, partition)
    end = end if until is None else min(until, end)
    width = 1
    while start < end:
        found = None
        for batch in port.read(topic, partition, max(start, end - width), until=end):
            found = batch
        if found is not None and found.num_rows:
            return found.slice(found.num_rows - 1)
        if end - width <= start:
            return None
        width *= 4
    return None
