"""Which rows of a view somebody asks for: values of columns, as text."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from penstock.errors import BadOption
from penstock.log.json_rows import from_json
from penstock.schema import RecordSchema, ddl_of, did_you_mean


def conditions(of: str, columns: pa.Schema, texts: Sequence[str], *, before: str = "") -> dict[str, object]:
    """`column=value` for each; raises BadOption where a column or value does not fit.

    `before`: what such a text is written after, for hints.
    """
    found: dict[str, object] = {}
    for condition in texts:
        name, equals, text = condition.partition("=")
        if not equals:
            raise BadOption(f"{condition!r} is no condition.", hint=f"write {before}column=value")
        if name not in columns.names:
            raise BadOption(f'"{of}" has no column "{name}".', hint=did_you_mean(name, columns.names))
        field = columns.field(name)
        value = from_json(RecordSchema.of(pa.schema([field])), {name: _value(field.type, text)})[name]
        # A time without a zone is UTC, as everywhere.
        if isinstance(value, datetime) and value.tzinfo is None:
            value = value.replace(tzinfo=UTC)
        found[name] = value
    return found


def _value(kind: Any, text: str) -> object:
    """What JSON would have for `text` in a column of this type."""
    if text == "null":
        return None
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind):
        try:
            return json.loads(text)
        except ValueError:
            raise BadOption(f"{text!r} is no {ddl_of(kind)}.", hint="the column holds that") from None
    return text
