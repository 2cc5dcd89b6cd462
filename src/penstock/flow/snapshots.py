"""Snapshots of a table and the changes between them: `ps.differentiate` and `ps.integrate`.

Each is the other's inverse. Changes have the form of `table.changes()`: the key, `op` ("insert", "update" or
"delete"), and the row `before` and `after`. Needs no Spark.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import BadInput, BadSchema
from penstock.flow.ordering import Ints, groups
from penstock.schema import did_you_mean

_OPS = np.array(["insert", "update", "delete"])


def differentiate(snapshots: Iterable[pa.Table], *, key: str | Sequence[str]) -> Iterator[pa.Table]:
    """What each snapshot changed, the first against an empty table.

    >>> tables = [pa.table({"id": [1], "name": [name]}) for name in ("Ann", "Anna")]
    >>> [change["op"] for batch in differentiate(tables, key="id") for change in batch.to_pylist()]
    ['insert', 'update']
    """
    keys = [key] if isinstance(key, str) else list(key)
    before: pa.Table | None = None
    for snapshot in snapshots:
        after = snapshot.combine_chunks()
        _check(after, keys)
        if before is not None and before.column_names != after.column_names:
            raise BadSchema(
                f"a snapshot has {', '.join(after.column_names)}, the one before "
                f"{', '.join(before.column_names)}.", hint="give all of them the same columns",
            )  # fmt: skip
        yield _between(after.slice(0, 0) if before is None else before.cast(after.schema), after, keys)
        before = after


def integrate(changes: Iterable[pa.Table], *, key: str | Sequence[str]) -> Iterator[pa.Table]:
    """The table after each batch of changes, in the order in which its keys were last inserted.

    Of several changes of a key in one batch, the last counts.
    """
    keys = [key] if isinstance(key, str) else list(key)
    rows: pa.Table | None = None
    for batch in changes:
        _check_changes(batch, keys)
        fields = list(batch.schema.field("after").type)
        known = pa.schema(fields).empty_table() if rows is None else rows
        rows = _applied(known, batch.combine_chunks(), keys)
        yield rows


def _between(before: pa.Table, after: pa.Table, keys: list[str]) -> pa.Table:
    codes = groups(pa.concat_tables([before.select(keys), after.select(keys)]).combine_chunks(), keys)
    old, new = codes[: len(before)], codes[len(before) :]
    was, is_ = _places(old, codes), _places(new, codes)
    # Deletes come first, then the rows of the new snapshot in its order.
    (gone,) = np.nonzero(is_[old] < 0)
    left = np.concatenate([gone, was[new]])
    right = np.concatenate([np.full(len(gone), -1), np.arange(len(after))])
    differs = ~_same(before, after, left, right)
    left, right = left[differs], right[differs]
    op = _OPS[np.where(right < 0, 2, np.where(left < 0, 0, 1))]
    own = [pc.if_else(pa.array(right < 0), _taken(before[k], left), _taken(after[k], right)) for k in keys]
    images = [_structs(before, left), _structs(after, right)]
    return pa.table([*own, pa.array(op, pa.string()), *images], names=[*keys, "op", "before", "after"])


def _applied(rows: pa.Table, batch: pa.Table, keys: list[str]) -> pa.Table:
    own = pa.concat_tables([rows.select(keys), batch.select(keys).cast(rows.select(keys).schema)])
    codes = groups(own.combine_chunks(), keys)
    old, new = codes[: len(rows)], codes[len(rows) :]
    last = _places(new, codes)  # the later one stays
    deleted = pc.is_null(batch["after"]).to_numpy()
    after = pa.RecordBatch.from_struct_array(_whole(batch["after"]))
    both = pa.concat_tables([rows, pa.Table.from_batches([after]).cast(rows.schema)]).combine_chunks()
    changed = last[old]
    kept = np.where(changed < 0, np.arange(len(rows)), len(rows) + changed)
    kept = kept[(changed < 0) | ~np.append(deleted, True)[changed]]
    added = np.flatnonzero((last[new] == np.arange(len(new))) & (_places(old, codes)[new] < 0) & ~deleted)
    return both.take(pa.array(np.concatenate([kept, len(rows) + added])))


def _places(codes: Ints, every: Ints) -> Ints:
    """For each code, the number of the last row that has it; -1 for none."""
    found = np.full(every.max(initial=-1) + 1, -1)
    found[codes] = np.arange(len(codes))
    return found


def _same(before: pa.Table, after: pa.Table, left: Ints, right: Ints) -> Any:
    """Which pairs of rows are there in both and equal; NULL equals NULL."""
    (both,) = np.nonzero((left >= 0) & (right >= 0))
    equal = np.ones(len(both), bool)
    for name in after.column_names:
        pair = [_taken(rows[name], numbers[both]) for rows, numbers in ((before, left), (after, right))]
        if pa.types.is_nested(pair[0].type):
            values = zip(*(each.to_pylist() for each in pair), strict=True)
            equal &= np.array([one == other for one, other in values], bool)
        else:
            together = pa.table({"x": pa.chunked_array([*pair])})
            codes = groups(together.combine_chunks(), ["x"])
            equal &= codes[: len(both)] == codes[len(both) :]
    same = np.zeros(len(left), bool)
    same[both] = equal
    return same


def _taken(column: Any, numbers: Ints) -> Any:
    return _whole(column).take(pa.array(numbers, pa.int64(), mask=numbers < 0))


def _whole(column: Any) -> Any:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _structs(rows: pa.Table, numbers: Ints) -> Any:
    arrays = [_taken(column, numbers) for column in rows.columns]
    return pa.StructArray.from_arrays(arrays, fields=list(rows.schema), mask=pa.array(numbers < 0))


def _check(snapshot: pa.Table, keys: list[str]) -> None:
    if not keys:
        raise BadInput("what identifies a row?", hint='say key="id"')
    for name in keys:
        if name not in snapshot.column_names:
            raise BadSchema(f'there is no column "{name}".', hint=did_you_mean(name, snapshot.column_names))
        if pa.types.is_nested(snapshot.schema.field(name).type):
            raise BadSchema(f'"{name}" is no plain value, and cannot be a key.', hint="choose other columns")
    codes = groups(snapshot, keys)
    if len(np.unique(codes)) < len(codes):
        raise BadInput(
            f"several rows of a snapshot have the same {', '.join(keys)}.",
            hint="name all columns that identify a row",
        )


def _check_changes(batch: pa.Table, keys: list[str]) -> None:
    for name in (*keys, "after"):
        if name not in batch.column_names:
            raise BadSchema(
                f'changes have a column "{name}", and these have none.',
                hint=did_you_mean(name, batch.column_names) or "take what table.changes() gives",
            )
    if not pa.types.is_struct(batch.schema.field("after").type):
        raise BadSchema('"after" is no row.', hint="take what table.changes() gives")
