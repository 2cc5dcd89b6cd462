"""Rows as documents: the JSON of each row, and its key as one text."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa

from penstock.follow.cells import as_text, values_of, whole
from penstock.follow.table import REVISION
from penstock.log.decode import decode
from penstock.log.json_rows import to_json
from penstock.schema import ArrowArray

_NULL = "%N"
_BETWEEN = "|"


def key_texts(rows: pa.Table, key: tuple[str, ...]) -> list[str]:
    """The key of each row; no two keys have the same text.

    Values are as people write them, with "|" between several. "%" and "|" within one become %25 and
    %7C, and NULL is %N.
    """
    columns = [_texts(rows[name]) for name in key]
    return [_BETWEEN.join(values) for values in zip(*columns, strict=True)] if key else [""] * rows.num_rows


def row_texts(rows: pa.Table) -> list[str]:
    """Each row as JSON; `_revision` only where there was a correction."""
    return [json.dumps(_tidy(row), ensure_ascii=False) for row in plain_rows(rows)]


def plain_rows(rows: pa.Table) -> list[dict[str, Any]]:
    """Each row in values that JSON has."""
    decoded = (row for batch in rows.to_batches() for row in decode(batch))
    return [{name: to_json(value) for name, value in row.items()} for row in decoded]


def _tidy(row: dict[str, Any]) -> dict[str, Any]:
    return row if row.get(REVISION.name) else {n: value for n, value in row.items() if n != REVISION.name}


def _texts(column: ArrowArray) -> list[str]:
    return [_text(value) for value in values_of(as_text(whole(column)))]


def _text(value: Any) -> str:
    if value is None:
        return _NULL
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, float):
        value += 0.0  # one zero
    plain = str(value).lower() if isinstance(value, bool) else str(value)
    return plain.replace("%", "%25").replace(_BETWEEN, "%7C")
