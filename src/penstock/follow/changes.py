"""Changelog records, reduced to what matters: the last change of every key.

`_op` of a record is "u" (the full row of a key), "d" (that key is gone, only its columns are
filled) or "w" (no row changed, only `_batch` and `_closed` moved on). NULL is a value of a key
like any other; so is NaN, and 0.0 and -0.0 are the same value, as in Spark and in SQL stores.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import BadRecord, BadSchema
from penstock.follow.table import REVISION, TableSpec, is_own
from penstock.schema import ArrowArray, did_you_mean

UPSERT, DELETE, PROGRESS = "u", "d", "w"
_FOLD_ROWS = 250_000  # a fold is repeated when so many records are pending, or as many as the table has


@dataclass(frozen=True, slots=True)
class Changed:
    """What a piece of a changelog does to a table; at most one change of each key."""

    upserts: pa.Table  # full rows and `_revision`
    removals: pa.Table  # keys to delete before the upserts: deleted, or not covered by a unique index
    patterns: npt.NDArray[np.int64]  # which key columns of each removal are NULL: bit n for column n
    batch: int | None
    closed_us: int | None


def changed(spec: TableSpec, records: pa.Table) -> Changed:
    """`records` have at least the columns of the changelog; others are left aside.

    SQL's unique indexes let several NULLs in. So an upsert with a NULL in its key comes with a
    removal of that key, and everything of a table without a key does.
    """
    rows = _latest(_conformed(spec, records), spec.key)
    deleted = pc.equal(rows["_op"], DELETE)
    patterns = _null_patterns(rows, spec.key)
    replaced = (patterns != 0) | _flags(deleted) if spec.key else np.ones(rows.num_rows, dtype=np.bool_)
    return Changed(
        upserts=rows.filter(pc.invert(deleted)).select(spec.values.names),
        removals=rows.filter(pa.array(replaced)).select([*spec.key, "_op"]),
        patterns=patterns[replaced],
        batch=pc.max(records["_batch"]).as_py() if records.num_rows else None,
        closed_us=_closed_us(records),
    )


def fold(
    batches: Iterable[pa.RecordBatch], key: tuple[str, ...], *, columns: pa.Schema | None = None
) -> pa.Table:
    """The table after a whole changelog: its own columns and `_revision`, in no order.

    Without any batch it has the given columns. Memory is bounded by the table, not the changelog.
    """
    state: pa.Table | None = None
    pending: list[pa.RecordBatch] = []
    rows_pending = 0
    for batch in batches:
        pending.append(batch.select([name for name in batch.schema.names if _folded(name)]))
        rows_pending += batch.num_rows
        if rows_pending >= max(_FOLD_ROWS, state.num_rows if state else 0):
            state, pending, rows_pending = _folded_once(state, pending, key), [], 0
    if pending:
        state = _folded_once(state, pending, key)
    if state is None:
        return pa.schema([*(columns or []), REVISION]).empty_table()
    return state.drop_columns(["_op"])


def _folded(name: str) -> bool:
    return is_own(name) or name in ("_op", REVISION.name)


def _folded_once(state: pa.Table | None, pending: list[pa.RecordBatch], key: tuple[str, ...]) -> pa.Table:
    fresh = pa.Table.from_batches(pending)
    rows = fresh if state is None else pa.concat_tables([state, fresh])
    check_operations(rows)
    latest = _latest(rows, key)
    return latest.filter(pc.equal(latest["_op"], UPSERT)).combine_chunks()


def _conformed(spec: TableSpec, records: pa.Table) -> pa.Table:
    wanted = pa.schema([*spec.values, pa.field("_op", pa.string())])
    for name in (*wanted.names, "_batch", "_closed"):
        if name not in records.schema.names:
            raise BadSchema(
                f'the changelog of "{spec.name}" has no column "{name}".',
                hint=did_you_mean(name, records.schema.names),
            )
    check_operations(records)
    return records.select(wanted.names).cast(wanted)


def check_operations(records: pa.Table | pa.RecordBatch) -> None:
    """Raises BadRecord for a record that no definition has written."""
    known = pc.is_in(records["_op"], pa.array([UPSERT, DELETE, PROGRESS]))
    if not pc.all(known).as_py() and records.num_rows:
        row = pc.index(known, False).as_py()
        operation = records["_op"][row].as_py()
        raise BadRecord(
            f"record {row} of the changelog has the operation {operation!r}.",
            row=row,
            column="_op",
            hint='only "u", "d" and "w" have a meaning; was this topic written by something else?',
        )


def _latest(records: pa.Table, key: tuple[str, ...]) -> pa.Table:
    """The last upsert or delete of each key, in the order of the records."""
    rows = records.filter(pc.not_equal(records["_op"], PROGRESS))
    if rows.num_rows <= 1:
        return rows
    if not key:
        return rows.slice(rows.num_rows - 1)
    names = [f"key{at}" for at in range(len(key))]
    places = pa.array(np.arange(rows.num_rows))
    keyed = pa.table([*(_comparable(rows[name]) for name in key), places], names=[*names, "place"])
    last = keyed.group_by(names, use_threads=False).aggregate([("place", "max")])["place_max"]
    if len(last) == rows.num_rows:
        return rows
    return rows.take(pa.array(np.sort(last.to_numpy())))


def _comparable(column: ArrowArray) -> ArrowArray:
    """Arrow groups floats by their bits: one zero, and one NaN."""
    if not pa.types.is_floating(column.type):
        return column
    zero, nan = pa.scalar(0.0, column.type), pa.scalar(float("nan"), column.type)
    return pc.if_else(pc.is_nan(column), nan, pc.add(column, zero))


def _null_patterns(rows: pa.Table, key: tuple[str, ...]) -> npt.NDArray[np.int64]:
    patterns = np.zeros(rows.num_rows, dtype=np.int64)
    for at, name in enumerate(key):
        if rows[name].null_count:
            patterns |= _flags(rows[name].is_null()).astype(np.int64) << at
    return patterns


def _flags(column: ArrowArray) -> npt.NDArray[np.bool_]:
    return np.asarray(column.to_numpy(), dtype=np.bool_)


def _closed_us(records: pa.Table) -> int | None:
    if not records.num_rows:
        return None
    latest: int | None = pc.max(records["_closed"]).cast(pa.int64()).as_py()
    return latest
