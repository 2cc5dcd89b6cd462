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
from penstock.flow.offset import Offset, Point
from penstock.log.log import Log


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


@dataclass(frozen=True, slots=True)
class Last:
    """The newest batch."""

    query: str
    number: int
    batch: Offset


def last(log: Log, topic: str) -> Last | None:
    try:
        start, end = log.port.bounds(topic, 0)
    except UnknownTopic:
        return None
    if start == end:
        return None
    batch = list(log.port.read(topic, 0, end - 1, until=end))[-1]
    record = batch.slice(batch.num_rows - 1).to_pylist()[0]
    return Last(record["query"], record["number"], Offset.from_json(json.loads(record["batch"])))


def batches(log: Log, topic: str, *, number_max: int | None = None) -> list[Offset]:
    """The batches that read something or moved the clock, oldest first."""
    found: list[Offset] = []
    for record in records(log, topic):
        if number_max is not None and record["number"] > number_max:
            break
        batch = Offset.from_json(json.loads(record["batch"]))
        if not found or batch.end != found[-1].end:
            found.append(batch)
    return found


def between(past: Sequence[Offset], start: Point, end: Point) -> list[Offset]:
    """The recorded batches from one point to another, or none if these are not recorded points."""
    first = next((i for i, batch in enumerate(past) if batch.start == start), None)
    last = next((i for i, batch in reversed(list(enumerate(past))) if batch.end == end), None)
    if first is None or last is None or last < first:
        return []
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
    return Offset(start, past[last].end, past[last].processed_us, rows=rows, lenient=lenient)
