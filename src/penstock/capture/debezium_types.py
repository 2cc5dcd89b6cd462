"""Debezium's values: what the schema part of a message says about a column, and how to read it.

A column with a schema is read by it, in any of Debezium's modes for decimals, times and intervals. One
without is read as the type that it should become. Times of day, intervals, UUIDs, JSON and the like become
text; nanoseconds are cut to microseconds.
"""

from __future__ import annotations

import base64
import datetime as dt
import hashlib
import json
import re
import uuid
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any

import pyarrow as pa

from penstock.schema import ArrowType, RecordSchema

Reader = Callable[[Any], Any]
Schema = Mapping[str, Any]

PLACEHOLDER = "__debezium_unavailable_value"
"""Stands where a value is as it was, and the source does not repeat it."""
_PLACEHOLDER = PLACEHOLDER.encode()
PLACEHOLDERS: tuple[Any, ...] = (
    PLACEHOLDER,
    base64.b64encode(_PLACEHOLDER).decode(),
    [PLACEHOLDER],
    [base64.b64encode(_PLACEHOLDER).decode()],
    list(_PLACEHOLDER),  # of whole numbers
    [str(uuid.UUID(bytes=hashlib.md5(_PLACEHOLDER, usedforsecurity=False).digest(), version=3))],
    {PLACEHOLDER: PLACEHOLDER},
    json.dumps({PLACEHOLDER: PLACEHOLDER}, separators=(",", ":")),
)
"""How it looks in columns of other types: bytes, arrays, and maps as such or as text."""

_DEBEZIUM, _CONNECT = "io.debezium.time.", "org.apache.kafka.connect.data."
_DECIMAL, _VARIABLE = f"{_CONNECT}Decimal", "io.debezium.data.VariableScaleDecimal"
_COLUMN = "__debezium.source.column."
_EPOCH = dt.datetime(1970, 1, 1)
_NUMBERS = re.compile(r"(NUMERIC|DECIMAL|NUMBER)\b", re.IGNORECASE)
_MS_MAX, _US_MAX = 10**14, 10**17  # of times without a unit: until the year 5138, and from 1973 on
_PLAIN: dict[str, ArrowType] = {
    "boolean": pa.bool_(),
    "int8": pa.int8(),
    "int16": pa.int16(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "bytes": pa.binary(),
}


def _after_epoch(unit_us: float) -> Reader:
    """`unit_us`: 1_000 for milliseconds, 1, or 0.001 for nanoseconds, all exactly."""
    times, parts = (int(unit_us), 1) if unit_us >= 1 else (1, round(1 / unit_us))
    return lambda value: _EPOCH + dt.timedelta(microseconds=value * times // parts)


def _clock(unit_us: float) -> Reader:
    after = _after_epoch(unit_us)
    return lambda value: after(value).time().isoformat()


def _day(value: Any) -> dt.date:
    return (_EPOCH + dt.timedelta(days=value)).date()


def _iso_day(value: str) -> dt.date:
    return dt.date.fromisoformat(value.removesuffix("Z"))


def _iso_local(value: str) -> dt.datetime:
    return dt.datetime.fromisoformat(value).replace(tzinfo=None)


def _iso_zoned(value: str) -> dt.datetime:
    found = dt.datetime.fromisoformat(value)
    return found if found.tzinfo else found.replace(tzinfo=dt.UTC)


_LOCAL, _ZONED = pa.timestamp("us"), pa.timestamp("us", tz="UTC")
_NAMED: dict[str, tuple[ArrowType, Reader]] = {
    f"{_DEBEZIUM}Date": (pa.date32(), _day),
    f"{_CONNECT}Date": (pa.date32(), _day),
    f"{_DEBEZIUM}IsoDate": (pa.date32(), _iso_day),
    f"{_DEBEZIUM}Timestamp": (_LOCAL, _after_epoch(1_000)),
    f"{_CONNECT}Timestamp": (_LOCAL, _after_epoch(1_000)),
    f"{_DEBEZIUM}MicroTimestamp": (_LOCAL, _after_epoch(1)),
    f"{_DEBEZIUM}NanoTimestamp": (_LOCAL, _after_epoch(0.001)),
    f"{_DEBEZIUM}IsoTimestamp": (_LOCAL, _iso_local),
    f"{_DEBEZIUM}ZonedTimestamp": (_ZONED, _iso_zoned),
    f"{_DEBEZIUM}Time": (pa.string(), _clock(1_000)),
    f"{_CONNECT}Time": (pa.string(), _clock(1_000)),
    f"{_DEBEZIUM}MicroTime": (pa.string(), _clock(1)),
    f"{_DEBEZIUM}NanoTime": (pa.string(), _clock(0.001)),
}


def type_of(schema: Schema) -> ArrowType:
    """The log's type for a column."""
    name, told = schema.get("name"), schema.get("parameters") or {}
    if name in _NAMED:
        return _NAMED[name][0]
    if name == _VARIABLE:
        return pa.string()
    if name == _DECIMAL:
        return _decimal(told.get("connect.decimal.precision", "38"), told.get("scale", "0"))
    if schema["type"] == "string" and _NUMBERS.match(told.get(f"{_COLUMN}type", "")):
        return _decimal(told.get(f"{_COLUMN}length", "0"), told.get(f"{_COLUMN}scale", "0"))
    return _PLAIN[schema["type"]] if schema["type"] in _PLAIN else _nested(schema)


def _nested(schema: Schema) -> ArrowType:
    if schema["type"] == "array":
        return pa.list_(type_of(schema["items"]))
    if schema["type"] == "map":
        return pa.map_(type_of(schema["keys"]), type_of(schema["values"]))
    return pa.struct([pa.field(each["field"], type_of(each)) for each in schema["fields"]])


def _decimal(precision: str, scale: str) -> ArrowType:
    """Text where the database sets no bound, or one beyond ours."""
    digits, fraction = int(precision), int(scale)
    fits = 1 <= digits <= 38 and 0 <= fraction <= digits
    return pa.decimal128(digits, fraction) if fits else pa.string()


def columns_of(schema: Schema) -> pa.Schema:
    """The columns of a row, by the schema of `before` and `after`."""
    fields = [pa.field(each["field"], type_of(each)) for each in schema["fields"]]
    return RecordSchema.of(pa.schema(fields)).arrow


def reader_of(schema: Schema | None, dtype: ArrowType) -> Reader:
    """From a value as JSON has it to one of `dtype`. What it returns raises ValueError or the like."""
    fit = _fitting(dtype)
    if schema is None:
        return lambda value: None if value is None else fit(value)
    read = _natural(schema)
    return lambda value: None if value is None else fit(read(value))


def _natural(schema: Schema) -> Reader:
    """By the schema alone."""
    name = schema.get("name")
    if name in _NAMED:
        return _NAMED[name][1]
    if name == _DECIMAL:
        scale = int((schema.get("parameters") or {}).get("scale", 0))
        return lambda value: _unscaled(value, scale)
    if name == _VARIABLE:
        return lambda value: _unscaled(value["value"], int(value["scale"]))
    return _natural_plain(schema)


def _natural_plain(schema: Schema) -> Reader:
    kind = schema["type"]
    if kind == "bytes":
        return _unpacked
    if kind in ("float", "double"):
        return float  # also of "NaN" and "Infinity"
    if kind == "array":
        return _each(_maybe(_natural(schema["items"])))
    if kind == "struct":
        return _fields({each["field"]: _maybe(_natural(each)) for each in schema["fields"]})
    return lambda value: value


def _unpacked(value: Any) -> bytes:
    return value if isinstance(value, bytes) else base64.b64decode(value, validate=True)


def _maybe(read: Reader) -> Reader:
    return lambda value: None if value is None else read(value)


def _each(read: Reader) -> Reader:
    return lambda values: [read(value) for value in values]


def _fields(readers: Mapping[str, Reader]) -> Reader:
    return lambda row: {name: read(row.get(name)) for name, read in readers.items()}


def _unscaled(value: Any, scale: int) -> Decimal:
    """Two's complement in base64, or what the converter made of it."""
    if isinstance(value, str):
        number = int.from_bytes(base64.b64decode(value, validate=True), "big", signed=True)
        return Decimal(number).scaleb(-scale)
    return Decimal(str(value))


def _fitting(dtype: ArrowType) -> Reader:
    """To the type that a column has, from anything that stands for such a value."""
    if pa.types.is_timestamp(dtype):
        return _zoned if dtype.tz else _local
    if pa.types.is_list(dtype):
        return _each(_maybe(_fitting(dtype.value_type)))
    if pa.types.is_struct(dtype):
        return _fields({each.name: _maybe(_fitting(each.type)) for each in dtype})
    if pa.types.is_map(dtype):
        return lambda value: list(value.items()) if isinstance(value, dict) else value
    return next(fit for belongs, fit in _FITTING if belongs(dtype))


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, Decimal):
        return f"{value:f}"
    if isinstance(value, dt.datetime | dt.date):
        return value.isoformat()
    if isinstance(value, bytes):
        return value.decode()
    return str(value).lower() if isinstance(value, bool) else str(value)


def _flag(value: Any) -> bool:
    if value not in (True, False):
        raise ValueError(value)
    return bool(value)


def _whole(value: Any) -> int:
    number = int(value)
    if not isinstance(value, str) and number != value:
        raise ValueError(value)
    return number


def _exact(value: Any) -> Decimal:
    return value if isinstance(value, Decimal) else Decimal(str(value))


def _date(value: Any) -> dt.date:
    if isinstance(value, dt.datetime):
        return value.date()
    if isinstance(value, dt.date):
        return value
    return _day(value) if isinstance(value, int) else _iso_day(value)


def _moment(value: Any) -> dt.datetime:
    if isinstance(value, dt.datetime):
        return value
    if isinstance(value, dt.date):
        return dt.datetime.combine(value, dt.time())
    if isinstance(value, int):
        size = abs(value)
        found: dt.datetime = _after_epoch(1_000 if size < _MS_MAX else 1 if size < _US_MAX else 0.001)(value)
        return found
    return dt.datetime.fromisoformat(str(value))


def _zoned(value: Any) -> dt.datetime:
    found = _moment(value)
    return found.astimezone(dt.UTC) if found.tzinfo else found.replace(tzinfo=dt.UTC)


def _local(value: Any) -> dt.datetime:
    found = _moment(value)
    return found.astimezone(dt.UTC).replace(tzinfo=None) if found.tzinfo else found


_FITTING: tuple[tuple[Callable[[ArrowType], bool], Reader], ...] = (
    (pa.types.is_string, _text),
    (pa.types.is_decimal, _exact),
    (pa.types.is_floating, float),
    (pa.types.is_boolean, _flag),
    (pa.types.is_integer, _whole),
    (pa.types.is_binary, _unpacked),
    (pa.types.is_date, _date),
)
