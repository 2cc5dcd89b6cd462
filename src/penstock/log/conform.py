"""Arrow data from outside, in a topic's own columns: cast where nothing is lost, else refused."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import BadRecord, RecordTooLarge
from penstock.log.rows import (
    REFUSALS,
    cut_short,
    family_of,
    first_refused,
    misfit,
    parts_of,
    refuse_overflow,
    verify,
)
from penstock.schema import (
    ArrowArray,
    ArrowField,
    ArrowType,
    RecordSchema,
    ddl_of,
    did_you_mean,
)

_is = pa.types


def conform(
    schema: RecordSchema, data: pa.RecordBatch | pa.Table, *, system: frozenset[str] = frozenset()
) -> list[pa.RecordBatch]:
    """Arrow data as this schema: columns by name, cast where that changes no value.

    Columns named in `system` are kept as they are, after the schema's own.
    """
    _check_columns(schema, data.schema, system)
    conformed: list[pa.RecordBatch] = []
    for batch in data.to_batches() if isinstance(data, pa.Table) else [data]:
        first = sum(done.num_rows for done in conformed)
        conformed.append(_conformed(schema, batch, system, first))
    return conformed


def _check_columns(schema: RecordSchema, given: pa.Schema, system: frozenset[str]) -> None:
    for at, name in enumerate(given.names):
        if name in given.names[:at]:
            raise misfit(name, "it occurs twice", "name each column once")
        if name not in schema.names and name not in system:
            raise misfit(name, "there is no such column", did_you_mean(name, schema.names))
    for field in schema.arrow:
        if field.name in given.names and not _fits(given.field(field.name).type, field.type):
            problem = f"expected {ddl_of(field.type)}, got Arrow {given.field(field.name).type}"
            raise misfit(field.name, problem, "cast it before appending")
        if field.name not in given.names and not field.nullable:
            raise misfit(field.name, "it is missing and NOT NULL", "add the column")


def _fits(source: ArrowType, target: ArrowType) -> bool:
    """Whether values of one type can be of the other at all; each value is checked by the cast."""
    if _is.is_dictionary(source):
        return _fits(source.value_type, target)
    if source == target or _is.is_null(source):
        return True
    family = family_of(target)
    if not any(belongs(source) for belongs in (family.belongs, *family.also_arrow)):
        return False
    if _is.is_timestamp(target):
        return bool(target.tz or not source.tz)
    given, wanted = _inner_types(source), _inner_types(target)
    absent = [field for field in (target if _is.is_struct(target) else ()) if field.name not in given]
    # A float that overflows is noticed only at the top level, so that none is narrowed further in.
    narrowed = [name for name in given if wanted.get(name) == pa.float32() != given[name]]
    fitting = given.keys() <= wanted.keys() and all(_fits(given[name], wanted[name]) for name in given)
    return fitting and not narrowed and all(field.nullable for field in absent)


def _inner_types(dtype: ArrowType) -> dict[str, ArrowType]:
    if _is.is_struct(dtype):
        return {field.name: field.type for field in dtype}
    if _is.is_map(dtype):
        return {"key": dtype.key_type, "value": dtype.item_type}
    if _is.is_list(dtype) or _is.is_large_list(dtype) or _is.is_fixed_size_list(dtype):
        return {"element": dtype.value_type}
    return {}


def _conformed(
    schema: RecordSchema, batch: pa.RecordBatch, system: frozenset[str], first: int
) -> pa.RecordBatch:
    try:
        batch.validate(full=True)
    except pa.ArrowInvalid as error:
        raise BadRecord(f"this is no valid Arrow data: {error}.", hint="rebuild the batch") from error
    kept = [field for field in batch.schema if field.name in system]
    columns = [_conformed_column(field, batch, first) for field in schema.arrow]
    columns += [batch.column(field.name) for field in kept]
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema([*schema.arrow, *kept]))


def _conformed_column(field: ArrowField, batch: pa.RecordBatch, first: int) -> ArrowArray:
    if field.name not in batch.schema.names:
        return pa.nulls(batch.num_rows, field.type)
    column = batch.column(field.name)
    try:
        return _strictly(field, column)
    except REFUSALS as refusal:
        row = first_refused(len(column), lambda low, high: _strictly(field, column[low:high]))
        value = column.slice(row, 1).to_string(indent=0, skip_new_lines=True)[1:-1]
        problem = f"{cut_short(value)} does not fit into {_ddl(field)} ({refusal})"
        raise misfit(field.name, problem, family_of(field.type).hint, row=first + row) from refusal


def _ddl(field: ArrowField) -> str:
    return ddl_of(field.type) + ("" if field.nullable else " NOT NULL")


def _strictly(field: ArrowField, column: ArrowArray) -> ArrowArray:
    source, target = column.type, field.type
    if _is.is_dictionary(source):
        return _strictly(field, column.dictionary_decode())
    if _is.is_integer(source) and _is.is_decimal(target):
        column = column.cast(pa.decimal128(20, 0))  # or Arrow asks for room that the values do not need
    cast = column if source == target else column.cast(target)
    refuse_overflow(cast, lambda: column.cast(pa.float64()))
    verify(field, cast)
    return cast


# Sizes --------------------------------------------------------------------------------------------


def check_sizes(topic: str, batch: pa.RecordBatch, *, size_bytes_max: int) -> None:
    """Raise RecordTooLarge for the first record whose values take more bytes than that."""
    # Not nbytes, which takes ten times as long; this is a little more.
    if pa.ipc.get_record_batch_size(batch) <= size_bytes_max:
        return
    if sum(map(_size_max, batch.columns)) <= size_bytes_max:
        return
    sizes = np.sum([_sizes(column) for column in batch.columns], axis=0)
    over = np.flatnonzero(sizes > size_bytes_max)
    if over.size:
        row = int(over[0])
        raise RecordTooLarge(topic, row=row, size_bytes=int(sizes[row]), size_bytes_max=size_bytes_max)


def _size_max(column: ArrowArray) -> int:
    """No value of this column takes more bytes; known much faster than the size of each."""
    dtype = column.type
    parts = [_size_max(child) for _, child in parts_of(column)]
    if _is.is_struct(dtype):
        return sum(parts)
    if parts:
        return int(np.diff(column.offsets.to_numpy()).max(initial=0)) * sum(parts)
    if _is.is_string(dtype) or _is.is_binary(dtype):
        return pc.max(pc.binary_length(column)).as_py() or 0
    return max(int(dtype.bit_width) // 8, 1)


def _sizes(column: ArrowArray) -> npt.NDArray[np.int64]:
    dtype = column.type
    parts = [_sizes(child) for _, child in parts_of(column)]
    if _is.is_struct(dtype):
        return np.asarray(np.sum(parts, axis=0), np.int64)
    if parts:
        before = np.concatenate([[0], np.cumsum(np.sum(parts, axis=0, dtype=np.int64))])
        offsets = column.offsets.to_numpy()
        return np.asarray(np.diff(before[offsets - offsets[0]]), np.int64)
    if _is.is_string(dtype) or _is.is_binary(dtype):
        lengths: ArrowArray = pc.binary_length(column)
        return np.asarray(lengths.fill_null(0), np.int64)
    return np.full(len(column), max(dtype.bit_width // 8, 1), np.int64)
