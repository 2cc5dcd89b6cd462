"""Events that Spark would only add up, added up before they cross into it.

Rows cost most on their way into the JVM. Where `ps.aggregate` stands right on a topic and its aggregates can
be made of parts, each task gathers the events of one key and one pane of time (a pane lies in the same
windows from end to end) into one row: how many, their sum, smallest and largest values. Spark then aggregates
these rows. An event that is behind the watermark is never gathered: each of its windows is judged by itself.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import gcd
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.flow.aggregates import Aggregate
from penstock.flow.offset import NEVER_US
from penstock.flow.times import Bools, micros
from penstock.flow.windows import Hopping, Tumbling

if TYPE_CHECKING:
    from pyspark.sql import Column

Kind = Literal["count", "sum", "total", "min", "max"]

_ROWS = 1_048_576  # that are gathered at a time
_PANE = "_pane"
_WHOLE_US = 1 << 62  # one pane for all times


@dataclass(frozen=True, slots=True)
class Part:
    """What is kept of a column of the events of one group. "total" is a sum as a double, as for a mean."""

    kind: Kind
    column: str | None = None

    @property
    def name(self) -> str:
        return f"_{self.kind}" if self.column is None else f"_{self.kind}_{self.column}"

    @property
    def way(self) -> tuple[Any, str]:
        """How Arrow aggregates it."""
        if self.column is None:
            return [], "count_all"
        return self.name, "sum" if self.kind == "total" else self.kind

    def values(self, events: pa.Table) -> pa.ChunkedArray:
        column = events.column(self.column)
        return column.cast(pa.float64(), safe=False) if self.kind == "total" else column

    def type_in(self, source: pa.Schema) -> pa.DataType:
        if self.kind == "count":
            return pa.int64()
        found = source.field(self.column).type
        if self.kind == "total" or (self.kind == "sum" and pa.types.is_floating(found)):
            return pa.float64()
        return pa.int64() if self.kind == "sum" else found


@dataclass(frozen=True, slots=True)
class Gather:
    """How events become rows. `pane_us`: 0 where there are no windows."""

    keys: tuple[str, ...]
    time: str
    pane_us: int
    parts: tuple[Part, ...]

    def to_json(self) -> str:
        parts = [(part.kind, part.column) for part in self.parts]
        return json.dumps([self.keys, self.time, self.pane_us, parts])

    @classmethod
    def from_json(cls, text: str) -> Gather:
        keys, time, pane_us, parts = json.loads(text)
        return cls(tuple(keys), time, pane_us, tuple(Part(*part) for part in parts))

    def reads(self, source: pa.Schema) -> pa.Schema:
        """The columns that it needs of the source."""
        names = dict.fromkeys(
            [*self.keys, *(part.column for part in self.parts if part.column), self.time, "_watermark"]
        )
        return pa.schema([source.field(name) for name in names])

    def rows(self, source: pa.Schema) -> pa.Schema:
        """The columns that it makes."""
        kept = dict.fromkeys([*self.keys, self.time, "_watermark", "_heartbeat"])
        own = [source.field(name) for name in kept]
        return pa.schema([*own, *(pa.field(part.name, part.type_in(source)) for part in self.parts)])

    def gathered(self, batches: Iterable[pa.RecordBatch], rows: pa.Schema) -> Iterator[pa.RecordBatch]:
        """`batches` have the columns of `reads`; what comes out has those of `rows`."""
        waiting: list[pa.RecordBatch] = []
        many = 0
        for batch in batches:
            waiting.append(batch)
            many += batch.num_rows
            if many >= _ROWS:
                yield from self._gathered(pa.Table.from_batches(waiting), rows)
                waiting, many = [], 0
        if waiting:
            yield from self._gathered(pa.Table.from_batches(waiting), rows)

    def _gathered(self, events: pa.Table, rows: pa.Schema) -> Iterator[pa.RecordBatch]:
        events = events.combine_chunks()
        alone = self._alone(events)
        if alone.any():
            yield from self._one_by_one(events.filter(pa.array(alone)), rows)
            events = events.filter(pa.array(~alone))
        if events.num_rows:
            yield from self._together(events, rows)

    def _alone(self, events: pa.Table) -> Bools:
        """Events behind the watermark; those whose sum might not fit; NaN, which Arrow orders differently."""
        found = np.zeros(events.num_rows, np.bool_)
        if self.pane_us:
            found |= _micros(events, self.time) <= _micros(events, "_watermark")
        for part in self.parts:
            if part.column is None:
                continue
            column = events.column(part.column)
            if part.kind in ("min", "max") and pa.types.is_floating(column.type):
                found |= np.asarray(pc.fill_null(pc.is_nan(column), False))
            if part.kind == "sum" and pa.types.is_integer(column.type):
                bounds = pc.min_max(column).as_py()
                largest = max(abs(bounds["min"] or 0), abs(bounds["max"] or 0))
                found |= largest * events.num_rows >= 1 << 63
        return found

    def _one_by_one(self, events: pa.Table, rows: pa.Schema) -> Iterator[pa.RecordBatch]:
        made: dict[str, Any] = {"_heartbeat": pa.repeat(pa.scalar(False), events.num_rows)}
        for part in self.parts:
            if part.column is None:
                made[part.name] = pa.repeat(pa.scalar(1), events.num_rows)
            elif part.kind == "count":
                made[part.name] = pc.is_valid(events.column(part.column))
            else:
                made[part.name] = part.values(events)
        yield from _in_form(events, made, rows)

    def _together(self, events: pa.Table, rows: pa.Schema) -> Iterator[pa.RecordBatch]:
        # Under names of their own: a column may be a key, be summed up and be the time.
        keys = {f"_key_{number}": events.column(key) for number, key in enumerate(self.keys)}
        keys[_PANE] = pa.array(_micros(events, self.time) // (self.pane_us or _WHOLE_US))
        values = {part.name: part.values(events) for part in self.parts if part.column}
        kept = {"_time": events.column(self.time)}
        grouped = pa.table({**keys, **values, **kept}).group_by(list(keys), use_threads=False)
        found = grouped.aggregate([("_time", "max"), *(part.way for part in self.parts)])
        names = [self.time, *(part.name for part in self.parts)]
        made = dict(zip(names, found.columns[-len(names) :], strict=True))
        made |= {key: found.column(f"_key_{number}") for number, key in enumerate(self.keys)}
        made["_heartbeat"] = pa.repeat(pa.scalar(False), found.num_rows)
        # Before any window: what was gathered is in time.
        made["_watermark"] = pa.repeat(pa.scalar(NEVER_US), found.num_rows)
        yield from _in_form(found, made, rows)


def _micros(events: pa.Table, name: str) -> Any:
    return micros(events.column(name).combine_chunks())


def _in_form(found: pa.Table, made: Mapping[str, Any], rows: pa.Schema) -> Iterator[pa.RecordBatch]:
    columns = [(made[f.name] if f.name in made else found.column(f.name)).cast(f.type) for f in rows]
    yield from pa.Table.from_arrays(columns, schema=rows).to_batches()


# ---- what can be gathered, and how Spark goes on -----------------------------------------------


def gather_for(
    source: pa.Schema,
    keys: Sequence[str],
    time: str,
    window: Tumbling | Hopping | None,
    aggregates: Mapping[str, Aggregate | Column],
) -> Gather | None:
    """How to gather for these aggregates, or None where each event is needed."""
    parts: dict[Part, None] = {}
    for aggregate in aggregates.values():
        found = _parts_of(aggregate, source) if isinstance(aggregate, Aggregate) else None
        if found is None or (window is None and aggregate.kind == "rate"):
            return None
        parts |= dict.fromkeys(found)
    if not all(_can_be_key(source.field(key).type) for key in keys):
        return None
    pane_us = 0 if window is None else window.size_us
    if isinstance(window, Hopping):
        pane_us = gcd(window.size_us, window.hop_us)
    return Gather(tuple(keys), time, pane_us, tuple(parts))


def _parts_of(aggregate: Aggregate, source: pa.Schema) -> list[Part] | None:
    if aggregate.kind in ("count", "rate"):
        return [Part("count", aggregate.column)]
    kind = source.field(aggregate.column).type
    number = pa.types.is_integer(kind) or pa.types.is_floating(kind)
    if aggregate.kind == "sum" and number:
        return [Part("sum", aggregate.column)]
    if aggregate.kind == "mean" and number:
        return [Part("total", aggregate.column), Part("count", aggregate.column)]
    ordered = number or pa.types.is_date32(kind) or pa.types.is_timestamp(kind)
    if aggregate.kind in ("min", "max") and ordered:
        return [Part("min" if aggregate.kind == "min" else "max", aggregate.column)]
    return None


def _can_be_key(kind: pa.DataType) -> bool:
    of = pa.types
    tests = (of.is_integer, of.is_string, of.is_boolean, of.is_date32, of.is_timestamp)
    return any(test(kind) for test in tests)


def column_of(aggregate: Aggregate, length_us: int | None) -> Column:
    """An aggregate of events as one of gathered rows."""
    from pyspark.sql import functions as F

    from penstock.flow.aggregate_columns import named

    def added(kind: Kind) -> Column:
        return F.sum(named(Part(kind, aggregate.column).name))

    if aggregate.kind == "count":
        return F.coalesce(added("count"), F.lit(0).cast("bigint"))
    if aggregate.kind == "rate":
        return (
            added("count").cast("double")
            * F.lit(float(aggregate.unit_us or 0))
            / F.lit(float(length_us or 0))
        )
    if aggregate.kind == "sum":
        return added("sum")
    if aggregate.kind == "mean":
        return F.when(added("count") > 0, added("total") / added("count"))
    smallest_or_largest = F.min if aggregate.kind == "min" else F.max
    return smallest_or_largest(named(Part(aggregate.kind, aggregate.column).name))  # type: ignore[arg-type]
