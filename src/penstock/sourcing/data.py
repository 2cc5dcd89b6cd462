"""A dataclass as plain JSON data and back, by the types of its fields."""

from __future__ import annotations

import dataclasses
import functools
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from penstock.log import rows
from penstock.log.json_rows import from_json, to_json
from penstock.schema import RecordSchema, hints_of, unwrap_hint

Data = dict[str, Any]
"""What `json.dumps` takes: times as ISO text, decimals as text, bytes as text or {"base64": …}."""


@dataclass(frozen=True, slots=True)
class DataForm:
    """How instances of one dataclass are written down."""

    kind: type
    schema: RecordSchema
    _build: Callable[[Mapping[str, Any]], Any] = field(repr=False, compare=False)

    @classmethod
    def of(cls, kind: type) -> DataForm:
        """Raises BadSchema for fields that no column type stands for."""
        members = dataclasses.fields(kind)
        schema = RecordSchema.of(kind) if members else RecordSchema.of("_ STRING")
        return cls(kind, schema, _builder(kind))

    def write(self, instance: Any) -> Data:
        """Raises BadRecord where a value is not of its field's type."""
        if not dataclasses.fields(self.kind):
            return {}
        rows.encode(self.schema, [instance])
        return {name: _plain(getattr(instance, name)) for name in self.schema.names}

    def read(self, data: Mapping[str, Any]) -> Any:
        """Raises TypeError where fields are missing or unknown, BadRecord where a value cannot be read."""
        return self._build(from_json(self.schema, data))


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return {each.name: _plain(getattr(value, each.name)) for each in dataclasses.fields(value)}
    if isinstance(value, dict):
        return to_json({key: _plain(inner) for key, inner in value.items()})
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    return to_json(value)


@functools.lru_cache(maxsize=256)
def _builder(kind: type) -> Callable[[Mapping[str, Any]], Any]:
    """Makes an instance out of a row whose structs are dicts."""
    hints = hints_of(kind)
    inner = {each.name: _converter(hints[each.name]) for each in dataclasses.fields(kind)}
    nested = {name: convert for name, convert in inner.items() if convert is not None}
    if not nested:
        return lambda row: kind(**row)
    return lambda row: kind(
        **{name: nested[name](value) if name in nested else value for name, value in row.items()}
    )


def _converter(hint: object) -> Callable[[Any], Any] | None:
    """What makes dataclasses of the dicts in a value; None where there are none in it."""
    base, _, _ = unwrap_hint(hint, "")
    if isinstance(base, type) and dataclasses.is_dataclass(base):
        build = _builder(base)
        return lambda value: None if value is None else build(value)
    parts = [_converter(part) for part in typing.get_args(base)]
    convert = parts[-1] if parts else None
    if convert is None:
        return None
    if typing.get_origin(base) is list:
        return lambda values: None if values is None else [convert(value) for value in values]
    return lambda pairs: None if pairs is None else {key: convert(value) for key, value in pairs.items()}
