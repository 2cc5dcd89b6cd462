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
_NOT_FINITE = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}


def from_json(schema: RecordSchema, line: Mapping[str, object]) -> dict[str, object]:
    """A parsed JSON object as a row: ISO text for times, text or {"base64": …} for BINARY.

    Values that JSON has itself, and unknown columns, are left for `encode` to judge.
    """
    return _object_from_json(schema.arrow, line, "")


def _object_from_json(fields: Iterable[ArrowField], value: Mapping[str, Any], path: str) -> dict[str, object]:
    dtypes = {field.name: field.type for field in fields}
    return {
        name: _from_json(dtypes[name], inner, f"{path}{name}") if name in dtypes else inner
        for name, inner in value.items()
    }


def _from_json(dtype: ArrowType, value: Any, path: str) -> object:
    if _is.is_struct(dtype) and isinstance(value, dict):
        return _object_from_json(dtype, value, f"{path}.")
    if _is.is_list(dtype) and isinstance(value, list):
        return [_from_json(dtype.value_type, inner, f"{path}[{at}]") for at, inner in enumerate(value)]
    try:
        if _is.is_map(dtype) and isinstance(value, dict | list):
            return _map_from_json(dtype, value, path)
        return None if value is None else _plain_from_json(dtype, value)
    except (ValueError, TypeError, ArithmeticError) as error:
        raise misfit(path, f"expected {ddl_of(dtype)}, got {shown(value)} ({error})", _JSON_HINT) from None


def _map_from_json(dtype: ArrowType, value: Any, path: str) -> dict[object, object]:
    """From an object, or from a list of [key, value] where the keys are no text."""
    pairs = list(value.items()) if isinstance(value, dict) else [(key, item) for key, item in value]
    written = family_of(dtype.key_type) in (INTEGER, FLOATING) or _is.is_boolean(dtype.key_type)
    keys = [json.loads(key) if written and isinstance(key, str) else key for key, _ in pairs]
    items = [_from_json(dtype.item_type, item, f"{path}[{key!r}]") for key, item in pairs]
    return dict(zip([_from_json(dtype.key_type, key, f"{path}.key") for key in keys], items, strict=True))


def _plain_from_json(dtype: ArrowType, value: Any) -> object:
    for belongs, read in _JSON_READERS:
        if belongs(dtype):
            return read(value)
    return value


def _timestamp_from_json(value: object) -> object:
    if not isinstance(value, str):
        raise TypeError("a number says neither its unit nor its zone")
    if len(value) <= len("2026-01-31"):
        raise ValueError("the time of day is missing")
    finer = re.search(r"[.,]\d{6}(\d+)", value)
    if finer and finer[1].strip("0"):
        raise ValueError("finer than a microsecond")
    return dt.datetime.fromisoformat(value)


def _bytes_from_json(value: Any) -> object:
    if isinstance(value, dict) and set(value) == {"base64"}:
        return base64.b64decode(value["base64"], validate=True)
    return value.encode() if isinstance(value, str) else value


_JSON_READERS: tuple[tuple[Callable[[ArrowType], bool], Callable[[Any], object]], ...] = (
    (_is.is_timestamp, _timestamp_from_json),
    (_is.is_binary, _bytes_from_json),
    (_is.is_date, lambda value: dt.date.fromisoformat(value) if isinstance(value, str) else value),
    (_is.is_decimal, lambda value: decimal.Decimal(str(value)) if isinstance(value, str | float) else value),
    (_is.is_floating, lambda value: float(value) if value in _NOT_FINITE.values() else value),
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
