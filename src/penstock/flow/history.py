"""The batches a query has stored: one record each, in the topic `<query>.batches`.

They say which watermark each input record met, so that a replay, a rebuild or verify leaves out exactly the
pairs that were late when it mattered, in whatever batches it reads.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from penstock.errors import UnknownTopic
from penstock.flow.offset import NEVER_US, Offset, Point
from penstock.log.log import Log
from penstock.log.newest import last_record
from penstock.log.port import from_us, to_us


def records(log: Log, topic: str) -> list[dict[str, Any]]:
    """Everything recorded about the batches of the version that counts, oldest first."""
    try:
        start, end = log.port.bounds(topic, 0)
    except UnknownTopic:
        return []
    table = pa.Table.from_batches(
        log.port.read(topic, 0, start, until=end), schema=log.port.settings(topic).read_schema
    )
    found: list[dict[str, Any]] = table.to_pylist()
    newest = max((record["version"] for record in found), default=0)
    return [record for record in found if record["version"] == newest]


def note(
    query: str,
    number: int,
    batch: Offset,
    *,
    rows: int,
    took_ms: int,
    version: int = 0,
    closed_us: int = NEVER_US,
) -> dict[str, Any]:
    """The record of a batch, without what a single definition made of it: `changes` and `late`."""
    return {
        "query": query,
        "version": version,
        "number": number,
        "batch": json.dumps(batch.to_json()),
        "rows": rows,
        "watermark": None if closed_us == NEVER_US else from_us(closed_us),
        "planned": from_us(batch.processed_us) if batch.processed_us else None,
        "took_ms": took_ms,
    }


@dataclass(frozen=True, slots=True)
class Last:
    """The newest batch."""

    query: str
    number: int
    batch: Offset
    watermark_us: int | None
    at_us: int  # when it was stored


def last(log: Log, topic: str) -> Last | None:
    try:
        newest = last_record(log.port, topic, 0)
    except UnknownTopic:
        return None
    if newest is None:
        return None
    (record,) = newest.to_pylist()
    return Last(
        record["query"],
        record["number"],
        Offset.from_json(json.loads(record["batch"])),
        to_us(record["watermark"]) if record["watermark"] else None,
        to_us(record["_timestamp"]),
    )


def gone(log: Log, past: Sequence[Offset]) -> str:
    """What the log no longer has of the input of these batches, in words; empty if it has all."""
    for topic, starts in past[0].start.ends.items() if past else ():
        for partition, start in enumerate(starts):
            kept = log.port.bounds(topic, partition)[0]
            if kept > start:
                return f'retention has removed topic "{topic}" before offset {kept} of partition {partition}'
    return ""


def compacted(log: Log, past: Sequence[Offset]) -> str:
    """What compaction has taken of the input of these batches, in words; empty if nothing.

    Where offsets have gaps for other reasons, as on Kafka, it says more than it knows: ask it about what is
    not as it was.
    """
    for topic, ends in past[-1].end.ends.items() if past else ():
        if not log.port.settings(topic).compacted:
            continue
        starts = past[0].start.ends[topic]
        for partition, (start, end) in enumerate(zip(starts, ends, strict=False)):
            there = sum(len(batch) for batch in log.port.read(topic, partition, start, until=end))
            if there < end - start:
                return f'compaction has removed {end - start - there} older records of "{topic}"'
    return ""


def batches(log: Log, topic: str, *, number_max: int | None = None) -> list[Offset]:
    """The batches that read something or moved the clock, oldest first."""
    found: list[Offset] = []
    for record in records(log, topic):
        if number_max is not None and record["number"] > number_max:
            break
        batch = Offset.from_json(json.loads(record["batch"]))
        known = found[-1].end if found else batch.start
        if batch.end != known:
            found.append(batch)
    return found


def as_recorded(past: Sequence[Offset], batch: Offset) -> list[Offset]:
    """The recorded batches that are replayed as one `batch`, or itself if it is no such batch."""
    first = next((i for i, each in enumerate(past) if each.start == batch.start), None)
    last = next((i for i, each in reversed(list(enumerate(past))) if each.end == batch.end), None)
    if batch.lenient or first is None or last is None or last < first:
        return [batch]
    return list(past[first : last + 1])


def chunk(
    past: Sequence[Offset], start: Point, *, rows_max: int, apart: bool = False, lenient: bool = False
) -> Offset | None:
    """The next recorded batches after `start` as one, or None where the record ends.

    `apart`: only the next one, where the moment at which a batch was planned matters.
    """
    first = next((i for i, batch in enumerate(past) if batch.start == start), None)
    if first is None:
        return None
    last, rows = first, past[first].rows
    while (
        not apart
        and last + 1 < len(past)
        and rows + past[last + 1].rows <= rows_max
        and past[last + 1].lenient == past[first].lenient
    ):
        last += 1
        rows += past[last].rows
    lenient = lenient or past[first].lenient
    together = past[first : last + 1]
    odd, unusable = any(batch.odd for batch in together), sum(batch.unusable for batch in together)
    return Offset(start, past[last].end, past[last].processed_us, odd, rows, lenient, unusable)
