"""Rows as JSON and back: times as ISO text, bytes as text or base64, decimals as text."""

from __future__ import annotations

import base64
import datetime as dt
import decimal
import json
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any

import pyarrow as pa

from penstock.log.rows import (
    FLOATING,
    INTEGER,
    family_of,
    misfit,
    shown,
)
from penstock.schema import (
    ArrowField,
    ArrowType,
    RecordSchema,
    ddl_of,
)

_is = pa.types


_JSON_HINT = (
    'write times as "2026-01-31T12:00:00Z", dates as "2026-01-31", decimals as "12.50", '
    'BINARY as text or as {"base64": "…"}'
)
_FINER = re.compile(r"[.,]\d{6}(\d+)")
_NOT_FINITE = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}


def from_json(schema: RecordSchema, line: Mapping[str, object]) -> dict[str, object]:
    """A parsed JSON object as a row: ISO text for times, text or {"base64": …} for BINARY.

    Values that JSON has itself, and unknown columns, are left for `encode` to judge.
    """
    return reader_of(schema)(line)


def reader_of(schema: RecordSchema) -> Callable[[Mapping[str, object]], dict[str, object]]:
    """The same for one line after another: what a column's type means is found out once."""
    readers = _readers_of(schema.arrow)
    return lambda line: _object_from_json(readers, line, "")


_Reader = Callable[[Any, str], object]
"""Reads a value that is not null; where it is, as an error names it, comes second."""


def _readers_of(fields: Iterable[ArrowField]) -> list[tuple[str, _Reader]]:
    """Of the columns that need one."""
    found = ((field.name, _reader(field.type)) for field in fields)
    return [(name, reader) for name, reader in found if reader is not None]


def _object_from_json(
    readers: list[tuple[str, _Reader]], value: Mapping[str, Any], path: str
) -> dict[str, object]:
    row: dict[str, object] = dict(value)
    for name, reader in readers:
        if (inner := row.get(name)) is not None:
            row[name] = reader(inner, f"{path}{name}" if path else name)
    return row


def _reader(dtype: ArrowType) -> _Reader | None:
    """None for what JSON has itself."""
    if _is.is_struct(dtype):
        return _struct_reader(dtype)
    if _is.is_list(dtype):
        return _list_reader(dtype)
    if _is.is_map(dtype):
        return _told(dtype, lambda value, path: _map_from_json(dtype, value, path))
    read = next((read for belongs, read in _JSON_READERS if belongs(dtype)), None)
    return None if read is None else _told(dtype, lambda value, _: read(value))


def _told(dtype: ArrowType, read: _Reader) -> _Reader:
    """What cannot be read is told with the type that was expected."""

    def reader(value: Any, path: str) -> object:
        try:
            return read(value, path)
        except (ValueError, TypeError, ArithmeticError) as error:
            problem = f"expected {ddl_of(dtype)}, got {shown(value)} ({error})"
            raise misfit(path, problem, _JSON_HINT) from None

    return reader


def _struct_reader(dtype: ArrowType) -> _Reader:
    readers = _readers_of(dtype)
    return lambda value, path: (
        _object_from_json(readers, value, f"{path}.") if isinstance(value, dict) else value
    )


def _list_reader(dtype: ArrowType) -> _Reader | None:
    read = _reader(dtype.value_type)
    if read is None:
        return None

    def reader(value: Any, path: str) -> object:
        if not isinstance(value, list):
            return value
        return [None if each is None else read(each, f"{path}[{at}]") for at, each in enumerate(value)]

    return reader


def _from_json(dtype: ArrowType, value: Any, path: str) -> object:
    reader = None if value is None else _reader(dtype)
    return value if reader is None else reader(value, path)


def _map_from_json(dtype: ArrowType, value: Any, path: str) -> object:
    """From an object, or from a list of [key, value] where the keys are no text."""
    if not isinstance(value, dict | list):
        return value
    pairs = list(value.items()) if isinstance(value, dict) else [(key, item) for key, item in value]
    written = family_of(dtype.key_type) in (INTEGER, FLOATING) or _is.is_boolean(dtype.key_type)
    keys = [json.loads(key) if written and isinstance(key, str) else key for key, _ in pairs]
    items = [_from_json(dtype.item_type, item, f"{path}[{key!r}]") for key, item in pairs]
    return dict(zip([_from_json(dtype.key_type, key, f"{path}.key") for key in keys], items, strict=True))


def _timestamp_from_json(value: object) -> object:
    if not isinstance(value, str):
        raise TypeError("a number says neither its unit nor its zone")
    if len(value) <= len("2026-01-31"):
        raise ValueError("the time of day is missing")
    if "." in value or "," in value:
        finer = _FINER.search(value)
        if finer and finer[1].strip("0"):
            raise ValueError("finer than a microsecond")
    return dt.datetime.fromisoformat(value)


def _bytes_from_json(value: Any) -> object:
    if isinstance(value, dict) and set(value) == {"base64"}:
        return base64.b64decode(value["base64"], validate=True)
    return value.encode() if isinstance(value, str) else value


def _float_from_json(value: object) -> object:
    return float(value) if isinstance(value, str) and value in _NOT_FINITE.values() else value


_JSON_READERS: tuple[tuple[Callable[[ArrowType], bool], Callable[[Any], object]], ...] = (
    (_is.is_timestamp, _timestamp_from_json),
    (_is.is_binary, _bytes_from_json),
    (_is.is_date, lambda value: dt.date.fromisoformat(value) if isinstance(value, str) else value),
    (_is.is_decimal, lambda value: decimal.Decimal(str(value)) if isinstance(value, str | float) else value),
    (_is.is_floating, _float_from_json),
)


def to_json(value: object) -> object:
    """A decoded value as one that `json.dumps` takes and `from_json` reads back."""
    for kind, write in _JSON_WRITERS:
        if isinstance(value, kind):
            return write(value)
    return value


def _map_to_json(value: dict[Any, object]) -> object:
    pairs = [(to_json(key), to_json(inner)) for key, inner in value.items()]
    if any(isinstance(key, dict) for key, _ in pairs):
        return [[key, inner] for key, inner in pairs]
    return {key if isinstance(key, str) else json.dumps(key): inner for key, inner in pairs}


def _bytes_to_json(value: bytes) -> object:
    if b"\0" not in value:  # which JSON has in a text, but not everybody who keeps JSON
        with suppress(UnicodeDecodeError):
            return value.decode()
    return {"base64": base64.b64encode(value).decode()}


def _datetime_to_json(value: dt.datetime) -> str:
    if value.tzinfo is None:
        return value.isoformat()
    return value.astimezone(dt.UTC).isoformat().replace("+00:00", "Z")


_JSON_WRITERS: tuple[tuple[type, Callable[[Any], object]], ...] = (
    (dict, _map_to_json),
    (list, lambda values: [to_json(value) for value in values]),
    (bytes, _bytes_to_json),
    (dt.datetime, _datetime_to_json),  # which is a date, too
    (dt.date, dt.date.isoformat),
    (decimal.Decimal, "{:f}".format),
    (float, lambda value: _NOT_FINITE.get(repr(value), value)),
)
