"""Python rows to Arrow columns, fast and without ever changing a value.

A column of a few thousand rows is converted as a whole: the *set* of its Python types decides whether
Arrow may do it. Only when something is refused are single rows tried, to name the one that does not fit.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import functools
import operator
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, repeat
from types import NoneType
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.errors import BadRecord
from penstock.schema import (
    ArrowArray,
    ArrowField,
    ArrowType,
    RecordSchema,
    ddl_of,
    did_you_mean,
)

# Rows, their values and the new columns stay in the processor's cache.
CHUNK_ROWS = 2_000

UTC_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
NAIVE_EPOCH = dt.datetime(1970, 1, 1)
_MICROSECOND = dt.timedelta(microseconds=1)
# What Python and Spark can name: days and microseconds of the years 1 to 9999, by width of the type.
_CALENDAR = {
    32: ((dt.date.min - NAIVE_EPOCH.date()).days, (dt.date.max - NAIVE_EPOCH.date()).days),
    64: ((dt.datetime.min - NAIVE_EPOCH) // _MICROSECOND, (dt.datetime.max - NAIVE_EPOCH) // _MICROSECOND),
}

_is = pa.types


class _RefusedError(Exception):
    """Something in a column does not fit; which row is found out later."""


# UnicodeEncodeError and ArrowInvalid are ValueErrors, ArrowTypeError is a TypeError.
REFUSALS = (_RefusedError, pa.ArrowException, ValueError, TypeError, ArithmeticError)


def misfit(path: str, problem: str, hint: str, *, row: int | None = None) -> BadRecord:
    row_named = [] if row is None else [f"row {row}"]
    column_named = [f'column "{path}"'] if path else []
    where = ", ".join(row_named + column_named)
    return BadRecord(f"{where}: {problem}.", row=row, column=path or None, hint=hint)


def encode(schema: RecordSchema, rows: Sequence[Mapping[str, object] | object]) -> pa.RecordBatch:
    """The rows as columns, exactly, or BadRecord for the first row that does not fit.

    A row is a mapping or a dataclass instance. A nullable column may be left out.
    """
    fields: list[ArrowField] = list(schema.arrow)
    starts = range(0, max(len(rows), 1), CHUNK_ROWS)
    chunks = [_chunk(fields, rows[start : start + CHUNK_ROWS], start) for start in starts]
    if len(chunks) == 1:
        return pa.RecordBatch.from_arrays(chunks[0], schema=schema.arrow)
    try:
        columns = [pa.concat_arrays(parts) for parts in zip(*chunks, strict=True)]
    except (pa.ArrowInvalid, TypeError) as error:  # a column holds at most 2 GiB of text
        problem = f"{len(rows):,} rows do not fit into one batch ({error})."
        raise BadRecord(problem, hint="append fewer rows at a time") from error
    return pa.RecordBatch.from_arrays(columns, schema=schema.arrow)


def _chunk(fields: list[ArrowField], rows: Sequence[Any], first: int) -> list[ArrowArray]:
    try:
        return _columns(fields, rows)
    except REFUSALS:
        at = first_refused(len(rows), lambda low, high: _columns(fields, rows[low:high]))
        raise _complaint_of_row(fields, rows[at], "", first + at) from None


def first_refused(count: int, attempt: Callable[[int, int], object]) -> int:
    """The first of `count` rows without which `attempt(low, high)` would not raise."""
    low, high = 0, count
    while high - low > 1:
        middle = (low + high) // 2
        try:
            attempt(low, middle)
            low = middle
        except REFUSALS:
            high = middle
    return low


def _columns(fields: list[ArrowField], rows: Sequence[Any]) -> list[ArrowArray]:
    extracted = _extracted([field.name for field in fields], rows)
    columns = [_column(field.type, values) for field, values in zip(fields, extracted, strict=True)]
    for field, column in zip(fields, columns, strict=True):
        if column.null_count or _is.is_temporal(field.type) or _is.is_nested(field.type):
            verify(field, column)
    return columns


def _extracted(names: list[str], rows: Sequence[Any]) -> list[list[Any]]:
    kinds = set(map(type, rows))
    if kinds == {dict}:
        return _from_dicts(names, rows)
    if len(kinds) == 1 and dataclasses.is_dataclass(kind := kinds.pop()):
        members = {member.name for member in dataclasses.fields(kind)}
        if not members <= set(names):
            raise _RefusedError
        absent = [None] * len(rows)
        return [list(map(operator.attrgetter(name), rows)) if name in members else absent for name in names]
    return _from_dicts(names, [_as_dict(row) for row in rows])


def _from_dicts(names: list[str], rows: Sequence[dict[str, object]]) -> list[list[Any]]:
    if set(map(len, rows)) == {len(names)}:
        try:
            return [list(map(operator.itemgetter(name), rows)) for name in names]
        except KeyError:
            pass
    if not set[str]().union(*rows) <= set(names):
        raise _RefusedError
    return [[row.get(name) for row in rows] for name in names]


def _as_dict(row: object) -> dict[str, object]:
    if isinstance(row, Mapping):
        return dict(row)
    if dataclasses.is_dataclass(row) and not isinstance(row, type):
        return {member.name: getattr(row, member.name) for member in dataclasses.fields(row)}
    raise TypeError


def _column(dtype: ArrowType, values: list[Any]) -> ArrowArray:
    kinds = set(map(type, values))
    if NoneType not in kinds:
        return _dense(dtype, values, kinds)
    present = [value for value in values if value is not None]
    dense = _dense(dtype, present, kinds - {NoneType})
    absent = np.fromiter(map(operator.is_, values, repeat(None)), bool, len(values))
    return dense.take(pa.array(np.cumsum(~absent) - 1, mask=absent))


def _dense(dtype: ArrowType, values: list[Any], kinds: set[type]) -> ArrowArray:
    """A column without nulls at this level; `kinds` are the types of its values."""
    family = family_of(dtype)
    if not all(issubclass(kind, family.takes) and not issubclass(kind, family.not_even) for kind in kinds):
        raise _RefusedError
    if _is.is_timestamp(dtype) and not kinds <= {dt.datetime}:
        return _column(dtype, [_plain_datetime(value) for value in values])
    return family.build(dtype, values)


def _build_plain(dtype: ArrowType, values: list[Any]) -> ArrowArray:
    return pa.array(values, dtype)


def _build_float(dtype: ArrowType, values: list[Any]) -> ArrowArray:
    try:
        built = pa.array(values, dtype)
    except pa.ArrowInvalid:  # Arrow refuses every int beyond 2**53, but some of them are exact
        values = [_exact_float(dtype, value) for value in values]
        built = pa.array(values, dtype)
    refuse_overflow(built, lambda: pa.array(values, pa.float64()))
    return built


def _exact_float(dtype: ArrowType, value: Any) -> float:
    code = "f" if dtype == pa.float32() else "d"
    number = float(value)
    (held,) = struct.unpack(code, struct.pack(code, number))
    if isinstance(value, int | np.integer) and int(held) != int(value):
        raise OverflowError
    return number


def _build_timestamp(dtype: ArrowType, values: list[Any]) -> ArrowArray:
    # Subtracting the epoch is exact in every zone and four times as fast as Arrow's own conversion,
    # which calls utcoffset() for each value.
    try:
        since = [value - (UTC_EPOCH if dtype.tz else NAIVE_EPOCH) for value in values]
    except TypeError:
        if not dtype.tz:
            raise
        since = [value - (UTC_EPOCH if value.tzinfo else NAIVE_EPOCH) for value in values]
    return pa.array(since, pa.duration("us")).view(dtype)


def _plain_datetime(value: Any) -> dt.datetime | None:
    """numpy.datetime64, pandas.Timestamp and the like, if they have whole microseconds."""
    if value != value:  # noqa: PLR0124  NaT is the null of both
        return None
    if isinstance(value, np.datetime64):
        micros = value.astype("M8[us]")
        if micros.astype(value.dtype) != value:
            raise _RefusedError
        return NAIVE_EPOCH + int(micros.astype(np.int64)) * _MICROSECOND
    if getattr(value, "nanosecond", 0):
        raise _RefusedError
    year, month, day, hour, minute, second, *_ = value.timetuple()
    zone = {"tzinfo": value.tzinfo, "fold": value.fold}
    return dt.datetime(year, month, day, hour, minute, second, value.microsecond, **zone)


def _build_list(dtype: ArrowType, values: list[Any]) -> ArrowArray:
    return pa.ListArray.from_arrays(
        _offsets(values), _column(dtype.value_type, list(chain.from_iterable(values)))
    )


def _build_map(dtype: ArrowType, values: list[Any]) -> ArrowArray:
    keys = _column(dtype.key_type, list(chain.from_iterable(values)))
    items = _column(dtype.item_type, list(chain.from_iterable(value.values() for value in values)))
    return pa.MapArray.from_arrays(_offsets(values), keys, items)


def _build_struct(dtype: ArrowType, values: list[Any]) -> ArrowArray:
    return pa.StructArray.from_arrays(_columns(list(dtype), values), fields=list(dtype))


def _offsets(values: list[Any]) -> ArrowArray:
    return pa.array(np.cumsum([0, *map(len, values)]), pa.int32())


@dataclasses.dataclass(frozen=True, slots=True)
class _Family:
    """What fits into the types that `belongs` picks."""

    belongs: Callable[[ArrowType], bool]
    takes: tuple[type, ...]
    hint: str
    build: Callable[[ArrowType, list[Any]], ArrowArray] = _build_plain
    not_even: tuple[type, ...] = ()
    also_arrow: tuple[Callable[[ArrowType], bool], ...] = ()


_TIME_HINT = (
    "give a datetime of whole microseconds; text: datetime.fromisoformat(text); seconds: "
    "datetime.fromtimestamp(seconds, UTC); one with a zone fits TIMESTAMP but not TIMESTAMP_NTZ"
)
_DECIMAL_HINT = "give a Decimal or an int with no more digits than that; a float: Decimal(str(value))"
INTEGER = _Family(
    _is.is_integer, (int, np.integer), "give an int in its range, as int(value)", not_even=(bool,)
)
FLOATING = _Family(
    _is.is_floating,
    (float, int, np.floating, np.integer),
    "give a float in its range, or an int that it holds exactly",
    _build_float,
    not_even=(bool, np.longdouble),
    also_arrow=(_is.is_integer,),
)
_FAMILIES = (
    INTEGER,
    FLOATING,
    _Family(
        _is.is_string,
        (str,),
        "give a str of valid Unicode; bytes: value.decode(); others: str(value)",
        also_arrow=(_is.is_large_string, _is.is_string_view),
    ),
    _Family(
        _is.is_binary,
        (bytes, bytearray, memoryview),
        "give bytes; text: value.encode()",
        also_arrow=(_is.is_large_binary, _is.is_binary_view, _is.is_fixed_size_binary),
    ),
    _Family(_is.is_boolean, (bool, np.bool_), "give True or False"),
    _Family(_is.is_date, (dt.date,), "give a date; a datetime: value.date()", not_even=(dt.datetime,)),
    _Family(_is.is_timestamp, (dt.datetime, np.datetime64), _TIME_HINT, _build_timestamp),
    _Family(
        _is.is_decimal,
        (decimal.Decimal, int),
        _DECIMAL_HINT,
        not_even=(bool,),
        also_arrow=(_is.is_integer,),
    ),
    _Family(
        _is.is_list,
        (list, tuple, np.ndarray),
        "give a list",
        _build_list,
        also_arrow=(_is.is_large_list, _is.is_fixed_size_list),
    ),
    _Family(_is.is_map, (Mapping,), "give a dict", _build_map),
    _Family(_is.is_struct, (object,), "give a dict", _build_struct),
)


@functools.cache
def family_of(dtype: ArrowType) -> _Family:
    return next(family for family in _FAMILIES if family.belongs(dtype))


# What is wrong with a row that was refused --------------------------------------------------------


def _complaint_of_row(fields: list[ArrowField], row: object, path: str, number: int) -> BadRecord:
    try:
        values = _as_dict(row)
    except TypeError:
        problem = f"expected a dict or a dataclass instance, got {shown(row)}"
        return misfit(path.rstrip("."), problem, "name the columns: {column: value}", row=number)
    names = [field.name for field in fields]
    for name in values:
        if name not in names:
            hint = did_you_mean(str(name), names)
            return misfit(f"{path}{name}", "there is no such column", hint, row=number)
    for field in fields:
        if field.name not in values and not field.nullable:
            return misfit(f"{path}{field.name}", "it is missing and NOT NULL", "give it a value", row=number)
        if not _takes(field, values.get(field.name)):
            return _complaint(field, values[field.name], f"{path}{field.name}", number)
    return misfit(path.rstrip("."), "too large to be stored", "append fewer or smaller rows", row=number)


def _complaint(field: ArrowField, value: object, path: str, row: int) -> BadRecord:
    expected = f"expected {ddl_of(field.type)}"
    if value is None:
        return misfit(path, f"{expected} NOT NULL, got None", "give it a value", row=row)
    if _is.is_struct(field.type):
        return _complaint_of_row(list(field.type), value, f"{path}.", row)
    for inner, part, step in _inside(field.type, value):
        if not _takes(inner, part):
            return _complaint(inner, part, f"{path}{step}", row)
    return misfit(path, f"{expected}, got {shown(value)}", family_of(field.type).hint, row=row)


def _takes(field: ArrowField, value: object) -> bool:
    try:
        verify(field, _column(field.type, [value]))
    except REFUSALS:
        return False
    return True


def _inside(dtype: ArrowType, value: Any) -> Iterator[tuple[ArrowField, object, str]]:
    if _is.is_list(dtype) and isinstance(value, list | tuple | np.ndarray):
        yield from ((dtype.value_field, part, f"[{at}]") for at, part in enumerate(value))
    if _is.is_map(dtype) and isinstance(value, Mapping):
        yield from ((dtype.key_field, key, ".key") for key in value)
        yield from ((dtype.item_field, part, f"[{key!r}]") for key, part in value.items())


def shown(value: object) -> str:
    return cut_short(repr(value)) + ("" if value is None else f" ({type(value).__name__})")


def cut_short(text: str) -> str:
    return text if len(text) <= 80 else f"{text[:79]}…"


def verify(field: ArrowField, column: ArrowArray) -> None:
    """Raise unless NOT NULL holds at every level and every date is in the calendar."""
    if column.null_count:
        if not field.nullable:
            raise _RefusedError("a null in a NOT NULL column")
        column = column.drop_null()
    if _is.is_temporal(column.type) and len(column):
        width = column.type.bit_width
        since_epoch = column.view(f"int{width}").to_numpy()
        if since_epoch.min() < _CALENDAR[width][0] or since_epoch.max() > _CALENDAR[width][1]:
            raise _RefusedError("outside the years 1 to 9999")
    for inner, child in parts_of(column):
        verify(inner, child)


def refuse_overflow(narrow: ArrowArray, wide: Callable[[], ArrowArray]) -> None:
    if narrow.type == pa.float32():
        infinite = np.isinf(narrow.to_numpy(zero_copy_only=False)).sum()
        if infinite and infinite != np.isinf(wide().to_numpy(zero_copy_only=False)).sum():
            raise _RefusedError("out of range")


def parts_of(column: ArrowArray) -> list[tuple[ArrowField, ArrowArray]]:
    """The columns directly inside a nested one, without what a slice left out."""
    dtype = column.type
    if _is.is_struct(dtype):
        return [(dtype.field(at), column.field(at)) for at in range(dtype.num_fields)]
    if _is.is_list(dtype):
        return [(dtype.value_field, _span(column, column.values))]
    if _is.is_map(dtype):
        return [
            (dtype.key_field, _span(column, column.keys)),
            (dtype.item_field, _span(column, column.items)),
        ]
    return []


def _span(column: ArrowArray, child: ArrowArray) -> ArrowArray:
    start = column.offsets[0].as_py()
    return child.slice(start, column.offsets[-1].as_py() - start)
