"""The versions of a table's rows: from when each one is valid, and which of them can still be asked for.

A record is valid from its event time (its append time, where the table has none) until the next version of
its key, in the order of event time and then arrival. A record without an event time is a snapshot row: valid
from the beginning of time. A delete without one is valid from when it was appended.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.log import keys
from penstock.log.settings import TopicSettings

Ints: TypeAlias = npt.NDArray[np.int64]
Bools: TypeAlias = npt.NDArray[np.bool_]

BEGINNING_US = -62_135_596_800_000_000
"""The year 1."""

_FROM = "__from"
_ARRIVAL = ("_timestamp", "_partition", "_offset")
_FOLD_ROWS = 250_000


def fold(
    batches: Iterable[pa.RecordBatch], settings: TopicSettings, *, moment_us: int | None = None
) -> pa.Table:
    """The rows of a table after these records: its newest ones, or those valid at a moment.

    Memory is bounded by the table, not by its records.
    """
    state: pa.Table | None = None
    for fresh in _in_chunks(batches):
        stamped = fresh.append_column(_FROM, pa.array(starts(fresh, settings)))
        rows = stamped if state is None else pa.concat_tables([state, stamped])
        state = _folded(rows.combine_chunks(), settings, moment_us)
    if state is None:
        return settings.stored.empty_table().select(settings.schema.names)
    return state.filter(pc.invert(state["_deleted"])).select(settings.schema.names)


def _in_chunks(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    pending: list[pa.RecordBatch] = []
    for batch in batches:
        pending.append(batch)
        if sum(map(len, pending)) >= _FOLD_ROWS:
            yield pa.Table.from_batches(pending)
            pending = []
    if pending:
        yield pa.Table.from_batches(pending)


def starts(rows: pa.Table | pa.RecordBatch, settings: TopicSettings) -> Ints:
    """From when each record is valid, in microseconds."""
    appended = rows.column("_timestamp").cast(pa.int64())
    if settings.event_time is None:
        return np.asarray(appended, np.int64)
    times = rows.column(settings.event_time).cast(pa.int64())
    otherwise = pc.if_else(rows.column("_deleted"), appended, pa.scalar(BEGINNING_US))
    return np.asarray(pc.coalesce(times, otherwise), np.int64)


def _folded(rows: pa.Table, settings: TopicSettings, moment_us: int | None) -> pa.Table:
    codes, begins = codes_of(rows, settings.key), rows[_FROM].to_numpy()
    if moment_us is not None:
        past = begins <= moment_us
        rows, codes, begins = rows.filter(pa.array(past)), codes[past], begins[past]
    order = in_version_order(codes, begins, arrival_of(rows))
    return rows.take(pa.array(order[newest(codes[order])]))


def codes_of(rows: pa.Table, key: tuple[str, ...]) -> Ints:
    """A number for each row: equal where the keys are."""
    if not len(rows):
        return np.zeros(0, np.int64)
    digests = keys.key_digests(rows.select(list(key)).combine_chunks().to_batches()[0], key)
    order = np.lexsort([digests[:, 1], digests[:, 0]])
    differs = np.any(digests[order][1:] != digests[order][:-1], axis=1)
    codes = np.empty(len(rows), np.int64)
    codes[order] = np.concatenate([[0], np.cumsum(differs)])
    return codes


def arrival_of(rows: pa.Table) -> list[Ints]:
    """What decides between versions of one time, most important first."""
    return [rows[name].cast(pa.int64()).to_numpy() for name in _ARRIVAL]


def in_version_order(codes: Ints, starts: Ints, arrival: list[Ints]) -> Ints:
    """The row numbers by key, time and arrival."""
    return np.lexsort([*reversed(arrival), starts, codes])


def newest(codes: Ints) -> Bools:
    """Of rows in version order, the last of each key."""
    return np.append(codes[1:] != codes[:-1], np.ones(min(len(codes), 1), bool))


def needed(codes: Ints, starts: Ints, horizon_us: int) -> Bools:
    """Of rows in version order, those that a moment after the horizon can still be asked for.

    All that are newer than it, and the newest of each key that is not.
    """
    past = starts <= horizon_us
    replaced = np.zeros(len(codes), bool)
    replaced[:-1] = (codes[1:] == codes[:-1]) & past[1:]
    return ~(past & replaced)
