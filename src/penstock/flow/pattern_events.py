"""The events of all streams of a pattern in one table, with what each of them fits.

Columns: `key.NAME` for those of `by`, the five that order events, `fits` (a bit for each taker whose own
condition holds), and `I.NAME` for column NAME of input I, null in events of other inputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.flow import ordering
from penstock.flow.expression_forms import holds
from penstock.flow.expression_types import Ref
from penstock.flow.pattern_plan import Pattern

ORDER = ("time_us", "timestamp_us", "input", "partition", "offset")
"""Events of one key come in the order of these."""


def place(input: int, column: str) -> str:
    return f"{input}.{column}"


def key_names(pattern: Pattern) -> list[str]:
    return [f"key.{name}" for name in pattern.by]


def schema(pattern: Pattern) -> pa.Schema:
    keys = [field.with_name(name) for field, name in zip(pattern.key, key_names(pattern), strict=True)]
    order = [pa.field(name, pa.int64()) for name in (*ORDER, "fits")]
    kept = [pa.field(place(i, name), pattern.inputs[i].rows.field(name).type) for i, name in pattern.kept]
    return pa.schema([*keys, *order, *kept])


def events_of(new: Sequence[pa.Table], pattern: Pattern) -> pa.Table:
    """The rows of all inputs that can matter: those that fit a step, and with a strict one, all."""
    whole = schema(pattern)
    return pa.concat_tables(
        [_of_input(rows, number, pattern, whole) for number, rows in enumerate(new) if len(rows)]
        or [whole.empty_table()]
    )


def _of_input(rows: pa.Table, number: int, pattern: Pattern, whole: pa.Schema) -> pa.Table:
    fits = _fits(rows, number, pattern)
    if not pattern.strict:
        rows, fits = rows.filter(pa.array(fits != 0)), fits[fits != 0]
    columns: dict[str, Any] = {
        "time_us": ordering.micros(rows[pattern.inputs[number].time]),
        "timestamp_us": ordering.micros(rows["_timestamp"]),
        "input": np.full(len(rows), number),
        "partition": ordering.micros(rows["_partition"]),
        "offset": ordering.micros(rows["_offset"]),
        "fits": fits,
    }
    columns |= {key: rows[name] for key, name in zip(key_names(pattern), pattern.by, strict=True)}
    columns |= {place(i, name): rows[name] for i, name in pattern.kept if i == number}
    return pa.Table.from_arrays(
        [
            columns[field.name] if field.name in columns else pa.nulls(len(rows), field.type)
            for field in whole
        ],
        schema=whole,
    )


def _fits(rows: pa.Table, number: int, pattern: Pattern) -> ordering.Ints:
    fits = np.zeros(len(rows), dtype=np.int64)
    for taker in pattern.takers:
        if taker.input != number:
            continue
        bit = np.int64(1 << taker.number)
        if taker.alone is None:
            fits |= bit
        else:
            mask = holds(taker.alone, lambda ref: rows[ref.column], rows=len(rows))
            fits |= np.where(mask, bit, 0)
    return fits


def in_order(events: pa.Table, codes: ordering.Ints) -> ordering.Ints:
    """The row numbers in order of key and of events of a key."""
    return np.lexsort([*(np.asarray(events[name]) for name in reversed(ORDER)), codes])


class Values:
    """The columns of a table of events by what an expression calls them."""

    def __init__(self, events: pa.Table) -> None:
        self._events = events
        self.column = lru_cache(maxsize=None)(self._column)

    def _column(self, inputs: tuple[int, ...], name: str) -> Any:
        """Column `name` of whichever of the inputs each event is of."""
        columns = [self._events[place(each, name)] for each in inputs]
        whole = columns[0] if len(columns) == 1 else pc.coalesce(*columns)
        return whole.combine_chunks() if isinstance(whole, pa.ChunkedArray) else whole

    def of(self, ref: Ref) -> Any:
        return self.column(ref.inputs, ref.column)
