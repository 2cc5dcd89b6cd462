"""Arrow columns in the forms that SQL stores hold, and back without loss.

Times are ISO text in UTC with six digits of fraction, so that people can read them and text sorts
as time; dates are ISO text, decimals plain digits, lists, maps and structs JSON text.
"""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.log import rows as log_rows
from penstock.log.decode import decode
from penstock.log.json_rows import from_json, to_json
from penstock.schema import ArrowArray, ArrowType, RecordSchema

_is = pa.types


def whole(column: ArrowArray) -> ArrowArray:
    """A column in one piece."""
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def column_of(value: object, dtype: ArrowType) -> ArrowArray:
    """One value as a column. Raises ValueError for 1.5 as a whole number, which Arrow would take for 1."""
    if isinstance(value, float) and _is.is_integer(dtype) and not value.is_integer():
        raise ValueError(f"{value} is no whole number")
    return pa.array([value], dtype)


def as_text(column: ArrowArray) -> ArrowArray:
    """Times, dates, decimals and nested values as text; other columns as they are."""
    dtype = column.type
    if _is.is_timestamp(dtype):
        return column.cast(pa.timestamp("us")).cast(pa.string())
    if _is.is_date(dtype):
        return column.cast(pa.string())
    if _is.is_decimal(dtype):
        return _digits(column)
    return _json_text(column) if _is.is_nested(dtype) else column


def from_text(dtype: ArrowType, values: list[Any]) -> ArrowArray:
    """The column of type `dtype` that `as_text` made these texts of."""
    if _is.is_nested(dtype):
        return from_parsed(dtype, [None if text is None else json.loads(text) for text in values])
    if _is.is_timestamp(dtype):
        return pa.array(values, pa.string()).cast(pa.timestamp("us")).cast(dtype)
    return pa.array(values, pa.string()).cast(dtype)


def is_text(dtype: ArrowType) -> bool:
    """Whether `as_text` makes text of it."""
    return bool(
        _is.is_timestamp(dtype) or _is.is_date(dtype) or _is.is_decimal(dtype) or _is.is_nested(dtype)
    )


def from_parsed(dtype: ArrowType, values: list[Any]) -> ArrowArray:
    """A nested column of parsed JSON."""
    schema = RecordSchema(pa.schema([pa.field("value", dtype)]))
    return log_rows.encode(schema, [from_json(schema, {"value": value}) for value in values]).column(0)


def values_of(column: ArrowArray) -> list[Any]:
    """A column of numbers, booleans, text or bytes as Python values."""
    if column.null_count and not (_is.is_string(column.type) or _is.is_binary(column.type)):
        return list(column.to_pylist())  # NumPy would make NaN of null
    return list(column.to_numpy(zero_copy_only=False).tolist())


def _digits(column: ArrowArray) -> ArrowArray:
    text = column.cast(pa.string())
    if not pc.any(pc.match_substring(text, "E")).as_py():
        return text
    return pa.array([None if each is None else f"{each:f}" for each in column.to_pylist()], pa.string())


def _json_text(column: ArrowArray) -> ArrowArray:
    decoded = decode(pa.RecordBatch.from_arrays([column], names=["value"]))
    texts = [
        None if row["value"] is None else json.dumps(to_json(row["value"]), ensure_ascii=False)
        for row in decoded
    ]
    return pa.array(texts, pa.string())
