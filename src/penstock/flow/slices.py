"""The pieces of a batch that Spark's tasks read, each with the watermarks its records met."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import pyarrow as pa

from penstock.flow.offset import NEVER_US, Offset
from penstock.flow.plan import Cuts, Scan, begin_of, read_times
from penstock.flow.times import Bools, Ints, Steps, event_times
from penstock.log.log import Log

_TIMESTAMP = pa.timestamp("us", tz="UTC")
_PLACE = frozenset({"_partition", "_offset", "_timestamp"})
_ROWS_MIN = 32_768  # a smaller slice is not worth a task
_ROWS_LARGE = 16_384
_ROWS_SENT = 65_536  # small appends are joined to batches of this size on their way to Spark


@dataclass(frozen=True, slots=True)
class Slice:
    """Offsets [start, end) of one partition. `floors[i]` is the least watermark from `floor_from[i]` on."""

    topic: str
    partition: int
    start: int
    end: int
    clock: str
    processed_us: int
    timeless: bool
    steps: Steps
    cuts: Cuts
    floor_from: Ints
    floors: Ints


def slices_of(
    log: Log, scan: Scan, past: Sequence[Offset], *, tasks: int, steps: Steps | None = None
) -> list[Slice]:
    """The slices of consecutive batches. Each batch has its own floor: the watermark at its start.

    `steps`: the watermarks in them, where they are known from planning.
    """
    return [
        piece
        for _, batches in groupby(past, key=lambda batch: batch.lenient)
        for piece in _slices_of(log, scan, list(batches), tasks, steps)
    ]


def _slices_of(log: Log, scan: Scan, past: Sequence[Offset], tasks: int, steps: Steps | None) -> list[Slice]:
    start, end = past[0].start, past[-1].end
    lateness_us = scan.lateness_us(log)
    starts = [batch.start for batch in past]
    if past[0].lenient:
        steps = Steps(np.zeros(0, np.int64), np.zeros(0, np.int64), NEVER_US)
    elif steps is None:
        times = read_times(log, scan, starts, end.ends, declared=end.declared)
        steps = times.steps(lateness_us=lateness_us, clock_us=start.clock_us)
    timeless = {topic: scan.is_timeless(log, topic) for topic in scan.topics}
    rows_each = max(_ROWS_MIN, -(-sum(batch.rows for batch in past) // tasks))
    return [
        Slice(
            topic, p, first, last, scan.clock, past[-1].processed_us, timeless[topic], steps,
            Cuts.of(starts, topic, p), *_floors(past, topic, p, lateness_us),
        )
        for topic in scan.topics
        for p, partition_end in enumerate(end.ends[topic])
        for first, last in _pieces(begin_of(start, topic, p), partition_end, rows_each)
    ]  # fmt: skip


def _pieces(start: int, end: int, rows_each: int) -> Iterator[tuple[int, int]]:
    for first in range(start, end, rows_each):
        yield first, min(first + rows_each, end)


def _floors(past: Sequence[Offset], topic: str, partition: int, lateness_us: int) -> tuple[Ints, Ints]:
    starts = np.array([begin_of(batch.start, topic, partition) for batch in past], np.int64)
    floors = [NEVER_US if batch.lenient else batch.start.watermark_us(lateness_us) for batch in past]
    return starts, np.array(floors, np.int64)


def read_slice(
    log: Log,
    piece: Slice,
    schema: pa.Schema,
    *,
    names: Mapping[str, str] | None = None,
    odd: bool,
    undated: bool = False,
    tables: Collection[str] = (),
) -> Iterator[pa.RecordBatch]:
    """Its records with the system columns that `schema` asks for.

    `names`: the topic's columns by the names that `schema` has for them; those of other topics are NULL.
    `odd`: only those behind the watermark or without a usable event time (`_time_usable` tells which);
    otherwise only those with one, or with `undated` all of them. Of `tables`, all are read, and none is odd.
    """
    is_table = piece.topic in tables
    if is_table and odd:
        return
    for batch in _joined(log.port.read(piece.topic, piece.partition, piece.start, until=piece.end)):
        yield _prepared(log, piece, batch, schema, names=names, odd=odd, undated=undated, is_table=is_table)


def _joined(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Small appends joined, large ones as they are."""
    waiting: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        if not waiting and batch.num_rows >= _ROWS_LARGE:
            yield batch
            continue
        waiting.append(batch)
        rows += batch.num_rows
        if rows >= _ROWS_SENT:
            yield from pa.Table.from_batches(waiting).combine_chunks().to_batches()
            waiting, rows = [], 0
    if waiting:
        yield from pa.Table.from_batches(waiting).combine_chunks().to_batches()


def _prepared(
    log: Log,
    piece: Slice,
    batch: pa.RecordBatch,
    schema: pa.Schema,
    *,
    names: Mapping[str, str] | None,
    odd: bool,
    undated: bool,
    is_table: bool = False,
) -> pa.RecordBatch:
    times, usable = event_times(log.port.settings(piece.topic), batch, piece.clock)
    met = _watermarks(piece, batch)
    keep = ~usable | (times <= met) if odd else usable | undated | is_table
    if is_table:  # what has no usable time there must not move Spark's watermark, and be no NULL either
        times = np.where(usable, times, met)
    whole = _with_system_columns(batch, schema, piece, names=names, times=times, usable=usable, met=met)
    return whole if keep.all() else whole.filter(pa.array(keep))


def _watermarks(piece: Slice, batch: pa.RecordBatch) -> Ints:
    appended = piece.cuts.appended(batch)
    if appended[0] == appended[-1]:  # one append, as large ones are
        met = np.full(len(appended), piece.steps.met_by(appended[:1])[0])
    else:
        met = piece.steps.met_by(appended)
    if len(piece.floors) == 1:
        return np.where(met > piece.floors[0], met, piece.floors[0])
    places = np.asarray(batch.column("_offset"))
    index = np.searchsorted(piece.floor_from, places, side="right") - 1
    floors: Ints = piece.floors[np.maximum(index, 0)]
    return np.where(met > floors, met, floors)


def _with_system_columns(
    batch: pa.RecordBatch,
    schema: pa.Schema,
    piece: Slice,
    *,
    names: Mapping[str, str] | None,
    times: Ints,
    usable: Bools,
    met: Ints,
) -> pa.RecordBatch:
    made = {
        "_topic": lambda: pa.repeat(pa.scalar(piece.topic), len(batch)),
        "_watermark": lambda: _timestamps(met),
        # Spark's watermark must not know of times that ours does not.
        "_event_time": lambda: _timestamps(np.full(len(batch), NEVER_US) if piece.timeless else times),
        "_processed": lambda: _timestamps(np.full(len(batch), piece.processed_us)),
        "_time_usable": lambda: pa.array(usable),
        "_heartbeat": lambda: pa.array(np.zeros(len(batch), np.bool_)),
    }

    def own(field: pa.Field) -> pa.Array:
        name = field.name if names is None or field.name in _PLACE else names.get(field.name)
        return pa.nulls(len(batch), field.type) if name is None else batch.column(name).cast(field.type)

    columns = [made[field.name]() if field.name in made else own(field) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _timestamps(times: Ints) -> pa.Array:
    return pa.array(times, pa.int64()).cast(_TIMESTAMP)


def heartbeat(schema: pa.Schema, time_column: str, clock_us: int) -> pa.RecordBatch:
    """A row that is no record: it only shows Spark what time it is."""
    values = {"_heartbeat": True, time_column: clock_us}
    columns = [pa.array([values.get(field.name)], _plain_type(field)).cast(field.type) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _plain_type(field: pa.Field) -> pa.DataType:
    return pa.int64() if pa.types.is_timestamp(field.type) else field.type
