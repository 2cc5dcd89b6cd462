"""A topic's schema as an Avro schema, and an Avro schema as that of a topic.

BIGINT, DATE, TIMESTAMP, DECIMAL and the like have a type of Avro's; a column that may be null is a union with
null, which is its default. A map whose keys are no text is an array of records of `key` and `value`.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa

from penstock.errors import BadSchema
from penstock.schema import ArrowField, ArrowType, RecordSchema

_is = pa.types

_TO_AVRO: dict[ArrowType, Any] = {
    **dict.fromkeys((pa.int8(), pa.int16(), pa.int32()), "int"),
    pa.int64(): "long",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "string",
    pa.binary(): "bytes",
    pa.bool_(): "boolean",
    pa.date32(): {"type": "int", "logicalType": "date"},
    pa.timestamp("us", tz="UTC"): {"type": "long", "logicalType": "timestamp-micros"},
    pa.timestamp("us"): {"type": "long", "logicalType": "local-timestamp-micros"},
}
_FROM_AVRO = {
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "bytes": pa.binary(),
    "boolean": pa.bool_(),
    "enum": pa.string(),
    "fixed": pa.binary(),
}
_LOGICAL = {
    "date": pa.date32(),
    "timestamp-millis": pa.timestamp("us", tz="UTC"),
    "timestamp-micros": pa.timestamp("us", tz="UTC"),
    "local-timestamp-millis": pa.timestamp("us"),
    "local-timestamp-micros": pa.timestamp("us"),
}
_DECIMAL_DIGITS_MAX = 38
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@functools.lru_cache(maxsize=1_000)
def text_of(topic: str, schema: RecordSchema) -> str:
    """What is registered for a topic: the same text for the same schema."""
    name = re.sub(r"[^A-Za-z0-9_]", "_", topic)
    return json.dumps(_record((name if _NAME.fullmatch(name) else f"_{name}",), schema.arrow))


def _record(path: tuple[str, ...], fields: Iterator[ArrowField] | ArrowType) -> dict[str, Any]:
    """A name per place, by its path: Avro refuses the same name twice."""
    namespace = {"namespace": ".".join(path[:-1])} if len(path) > 1 else {}
    return {"type": "record", "name": path[-1], **namespace, "fields": [_field(path, f) for f in fields]}


def _field(path: tuple[str, ...], field: ArrowField) -> dict[str, Any]:
    if not _NAME.fullmatch(field.name):
        raise BadSchema(
            f'column "{field.name}" cannot have this name in Avro.',
            hint='use letters, digits and _ and begin with no digit, or declare the topic with format="json"',
        )
    found = _type((*path, field.name), field.type)
    return {
        "name": field.name,
        **({"type": ["null", found], "default": None} if field.nullable else {"type": found}),
    }


def _type(path: tuple[str, ...], dtype: ArrowType) -> Any:
    if dtype in _TO_AVRO:
        return _TO_AVRO[dtype]
    if _is.is_decimal(dtype):
        return {"type": "bytes", "logicalType": "decimal", "precision": dtype.precision, "scale": dtype.scale}
    if _is.is_struct(dtype):
        return _record(path, dtype)
    if _is.is_list(dtype):
        return {"type": "array", "items": ["null", _type(path, dtype.value_type)]}
    assert _is.is_map(dtype), dtype
    if _is.is_string(dtype.key_type):
        return {"type": "map", "values": ["null", _type(path, dtype.item_type)]}
    entry = [pa.field("key", dtype.key_type, nullable=False), pa.field("value", dtype.item_type)]
    return {"type": "array", "items": _record(path, iter(entry))}


# Back ---------------------------------------------------------------------------------------------------


def schema_of(avro: Any) -> RecordSchema:
    """`avro`: with the definition of a type in every place that names it."""
    if not isinstance(avro, Mapping) or avro.get("type") != "record":
        raise BadSchema(
            "the registered schema is none of records.", hint="read the topic as bytes: do not declare it"
        )
    return RecordSchema.of(pa.schema([_column(each, "") for each in avro["fields"]]))


def _column(field: Mapping[str, Any], path: str) -> ArrowField:
    avro, nullable = _without_null(field["type"])
    return pa.field(field["name"], _dtype(avro, f"{path}{field['name']}"), nullable=nullable)


def _without_null(avro: Any) -> tuple[Any, bool]:
    if not isinstance(avro, list):
        return avro, False
    others = [each for each in avro if each != "null"]
    return (others[0] if len(others) == 1 else others), len(others) < len(avro)


def _dtype(avro: Any, path: str) -> ArrowType:
    kind = avro["type"] if isinstance(avro, Mapping) else avro
    logical = avro.get("logicalType") if isinstance(avro, Mapping) else None
    if logical == "decimal" and avro["precision"] <= _DECIMAL_DIGITS_MAX:
        return pa.decimal128(avro["precision"], avro.get("scale", 0))
    if logical in _LOGICAL:
        return _LOGICAL[logical]
    if isinstance(kind, str) and kind in _FROM_AVRO:
        return _FROM_AVRO[kind]
    return _nested(avro, kind, path)


def _nested(avro: Any, kind: Any, path: str) -> ArrowType:
    if isinstance(kind, Mapping):
        return _dtype(kind, path)
    if kind == "record":
        return pa.struct([_column(each, f"{path}.") for each in avro["fields"]])
    if kind == "array":
        return pa.list_(_dtype(_without_null(avro["items"])[0], path))
    if kind == "map":
        return pa.map_(pa.string(), _dtype(_without_null(avro["values"])[0], path))
    raise BadSchema(
        f'column "{path}" has a type that no topic has: {json.dumps(avro, default=str)[:80]}.',
        hint="declare the topic with a schema that leaves it out",
    )


def readable(avro: Any) -> Any:
    """A schema to read by: what means something that no column can (a time of day) comes as it is stored."""
    if isinstance(avro, list):
        return [readable(each) for each in avro]
    if not isinstance(avro, dict):
        return avro
    kept = {
        key: readable(each) if key in ("type", "items", "values", "fields") else each
        for key, each in avro.items()
    }
    if kept.get("logicalType") not in (*_LOGICAL, "decimal"):
        kept.pop("logicalType", None)
    return kept


# Values -------------------------------------------------------------------------------------------------


def given(dtype: ArrowType, value: Any) -> Any:
    """A value of a column as it is written."""
    if value is None or not _is.is_nested(dtype):
        return value
    if _is.is_struct(dtype):
        return {field.name: given(field.type, value[field.name]) for field in dtype}
    if _is.is_list(dtype):
        return [given(dtype.value_type, each) for each in value]
    if _is.is_string(dtype.key_type):
        return {key: given(dtype.item_type, each) for key, each in value.items()}
    return [{"key": key, "value": given(dtype.item_type, each)} for key, each in value.items()]


def taken(dtype: ArrowType, value: Any) -> Any:
    """A value that was read, as far as a column has a place for it; what does not fit is refused later."""
    if _is.is_struct(dtype) and isinstance(value, dict):
        return {field.name: taken(field.type, value[field.name]) for field in dtype if field.name in value}
    if _is.is_list(dtype) and isinstance(value, list):
        return [taken(dtype.value_type, each) for each in value]
    if _is.is_map(dtype) and isinstance(value, dict):
        return {key: taken(dtype.item_type, each) for key, each in value.items()}
    if _is.is_map(dtype) and isinstance(value, list) and all(_is_entry(each) for each in value):
        return {each["key"]: taken(dtype.item_type, each["value"]) for each in value}
    return value


def _is_entry(value: Any) -> bool:
    return isinstance(value, dict) and set(value) == {"key", "value"}
