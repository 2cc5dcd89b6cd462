"""The change envelope, one for all sources.

op                 c: inserted, u: updated, d: deleted, r: read by a snapshot, t: the table was emptied
before, after      the row; of `before` at least the key, more where the source tells it
position           where the source had it, as text
transaction        its id there, and `transaction_order` counts the changes within it, of all tables, from 1
committed_at       when it was committed; of `r`, when the snapshot was taken
schema_version     counts the forms of the table that were seen, from 1
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.schema import ArrowArray

INSERT, UPDATE, DELETE, READ, TRUNCATE = "c", "u", "d", "r", "t"
COMMITTED_AT = "committed_at"

_ABOUT = (
    pa.field("position", pa.string()),
    pa.field("transaction", pa.string()),
    pa.field("transaction_order", pa.int64()),
    pa.field(COMMITTED_AT, pa.timestamp("us", tz="UTC")),
    pa.field("schema_version", pa.int32()),
)


def schema_of(columns: pa.Schema) -> pa.Schema:
    """The columns of the envelope of a table."""
    row = pa.struct([column.with_nullable(True) for column in columns])
    return pa.schema([pa.field("op", pa.string()), pa.field("before", row), pa.field("after", row), *_ABOUT])


def changes_of(
    columns: pa.Schema,
    ops: ArrowArray,
    before: ArrowArray | None,
    after: ArrowArray | None,
    *,
    positions: Any,
    committed_at: Any,
    transactions: Any = None,
    orders: Any = None,
) -> pa.RecordBatch:
    """An envelope of columns. `before` and `after` are struct arrays; None: of none. A scalar is for all.

    The schema version is for the engine to fill.
    """
    schema = schema_of(columns)
    given = [ops, before, after, positions, transactions, orders, committed_at, None]
    arrays = [_whole(value, field.type, len(ops)) for value, field in zip(given, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _whole(value: Any, dtype: Any, count: int) -> ArrowArray:
    if value is None:
        return pa.nulls(count, dtype)
    if isinstance(value, pa.Array | pa.ChunkedArray):
        found = value.combine_chunks() if isinstance(value, pa.ChunkedArray) else value
        return found if found.type == dtype else found.cast(dtype)
    if isinstance(value, list | tuple | np.ndarray):
        return pa.array(value, dtype)
    return pa.repeat(pa.scalar(value, dtype), count)


def struct_of(columns: pa.Schema, arrays: Sequence[ArrowArray], *, present: ArrowArray | None = None) -> Any:
    """Rows as a struct array; a row is null where `present` is false."""
    fields = [column.with_nullable(True) for column in columns]
    absent = None if present is None else pc.invert(present)
    return pa.StructArray.from_arrays(list(arrays), fields=fields, mask=absent)


def table_records(rows: pa.RecordBatch, columns: pa.Schema, key: Sequence[str]) -> pa.Table:
    """What the changes do to a table of the log: rows by key, and `_deleted`.

    An update that changes the key deletes the old one first. "t" must have been told as deletes.
    """
    ops = rows.column("op")
    gone = np.asarray(pc.equal(ops, DELETE))
    told = np.asarray(pc.is_in(ops, pa.array([INSERT, UPDATE, READ])))
    moved = told & _key_changed(rows, key)
    up, down = np.flatnonzero(told), np.flatnonzero(gone | moved)
    if len(up) == rows.num_rows and not len(down):  # most steps, and the way of a single commit
        return _upserts(rows.column("after"), columns)
    records = pa.concat_tables(
        [_deletes(rows.column("before").take(pa.array(down)), columns, key),
         _upserts(rows.column("after").take(pa.array(up)), columns)]
    )  # fmt: skip
    if not len(down):
        return records
    order = np.argsort(np.concatenate([down * 2, up * 2 + 1]), kind="stable")
    return records.take(pa.array(order))


def _key_changed(rows: pa.RecordBatch, key: Sequence[str]) -> Any:
    before, after = rows.column("before"), rows.column("after")
    changed = np.zeros(rows.num_rows, bool)
    for name in key:
        differs = pc.not_equal(pc.struct_field(before, name), pc.struct_field(after, name))
        changed |= np.asarray(pc.fill_null(differs, False))
    return changed


def _upserts(after: Any, columns: pa.Schema) -> pa.Table:
    return _marked(after.flatten(), columns, deleted=False)


def _deletes(before: Any, columns: pa.Schema, key: Sequence[str]) -> pa.Table:
    arrays = [
        pc.struct_field(before, column.name) if column.name in key else pa.nulls(len(before), column.type)
        for column in columns
    ]
    return _marked(arrays, columns, deleted=True)


def _marked(arrays: list[Any], columns: pa.Schema, *, deleted: bool) -> pa.Table:
    marks = pa.array(np.full(len(arrays[0]), deleted))
    fields = [
        *(column.with_nullable(True) for column in columns),
        pa.field("_deleted", pa.bool_(), nullable=False),
    ]
    return pa.table([*arrays, marks], schema=pa.schema(fields))
