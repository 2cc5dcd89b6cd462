"""Rows out of matches: what `emit` says of the events that were taken, for all matches at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.flow.expression_forms import arrow
from penstock.flow.expression_types import TIME, Ref
from penstock.flow.pattern_events import Values, key_names
from penstock.flow.pattern_plan import Pattern


@dataclass(frozen=True, slots=True)
class Match:
    """Events by their row numbers in one table, a list for each step that took any."""

    taken: list[list[int]]
    known_us: int
    timed_out: bool = False


def rows_of(matches: Sequence[Match], events: pa.Table, pattern: Pattern) -> pa.Table:
    """In the schema `pattern.output`."""
    if not matches:
        return pattern.output.empty_table()
    begin = pa.array([each.taken[0][0] for each in matches], pa.int64())
    columns = [events[name].take(begin) for name in key_names(pattern)]
    values = Values(events)
    for _, emitted in pattern.emitted:
        found = arrow(emitted, lambda ref: _picked(ref, matches, values))
        if isinstance(found, pa.Scalar):
            found = pa.repeat(found, len(matches))
        columns.append(found)
    if pattern.timed_out:
        columns.append(pa.array([each.timed_out for each in matches], pa.bool_()))
    fields = zip(columns, pattern.output, strict=True)
    return pa.Table.from_arrays([each.cast(field.type) for each, field in fields], schema=pattern.output)


def _picked(ref: Ref, matches: Sequence[Match], values: Values) -> Any:
    if ref.pick == "matched_at":
        return pa.array([each.known_us for each in matches], pa.int64()).cast(TIME)
    taken = [each.taken[ref.step] if ref.step < len(each.taken) else [] for each in matches]
    if ref.pick == "count":
        return pa.array([len(each) for each in taken], pa.int64())
    if ref.pick == "collect":
        return _lists(taken, values.of(ref), ref.type)
    end = -1 if ref.pick == "last" else 0
    return values.of(ref).take(pa.array([each[end] if each else None for each in taken], pa.int64()))


def _lists(taken: list[list[int]], column: Any, type: pa.DataType) -> Any:
    """The values of each list of rows, without nulls, as `ps.collect` gives them."""
    owner = np.repeat(np.arange(len(taken)), [len(each) for each in taken])
    found = column.take(pa.array([row for each in taken for row in each], pa.int64()))
    there = np.asarray(pc.is_valid(found).to_numpy(zero_copy_only=False))
    sizes = np.bincount(owner[there], minlength=len(taken))
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), found.filter(pa.array(there)), type=type)
