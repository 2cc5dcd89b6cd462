"""Rows in the order of key, event time and arrival, and where in that order a moment lies.

NULL is a value of a key like any other, and so is NaN; 0.0 and -0.0 are the same value, as in Spark.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.flow.aggregates import ARRIVAL

Ints: TypeAlias = npt.NDArray[np.int64]

PLACE = ("_topic", "_partition", "_offset")
"""The columns that say which record an event is."""


def micros(column: Any) -> Ints:
    """Timestamps as microseconds since 1970; whole numbers as they are."""
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("us", column.type.tz))
    # A row without an event time is decided on before an operator sees it.
    assert column.null_count == 0, "an event without a time reached an operator"
    return np.asarray(column.cast(pa.int64())).astype(np.int64, copy=False)


def groups(rows: pa.Table, by: Sequence[str]) -> Ints:
    """A number for each row: equal where all the columns of `by` are."""
    codes = np.zeros(len(rows), dtype=np.int64)
    for name in by:
        column = rows[name].combine_chunks()
        if pa.types.is_floating(column.type):
            column = pc.add(column, pa.scalar(0, column.type))
        encoded = pc.dictionary_encode(column, null_encoding="encode")
        codes = codes * max(1, len(encoded.dictionary)) + np.asarray(encoded.indices)
        codes = np.unique(codes, return_inverse=True)[1].astype(np.int64)
    return codes


def groups_of_both(ours: pa.Table, theirs: pa.Table) -> tuple[Ints, Ints]:
    """A number for each row of two tables, equal where all of their columns are, by place."""
    names = [f"k{number}" for number in range(theirs.num_columns)]
    theirs = theirs.rename_columns(names)
    both = pa.concat_tables([ours.rename_columns(names).cast(theirs.schema), theirs])
    codes = groups(both, names)
    return codes[: len(ours)], codes[len(ours) :]


def joinable(ours: pa.Table, theirs: pa.Table) -> tuple[Ints, Ints]:
    """As `groups_of_both`, with -1 for a row where a column is NULL, which in a join equals nothing."""
    codes = groups_of_both(ours, theirs)
    for table, numbers in zip((ours, theirs), codes, strict=True):
        for column in table.columns:
            numbers[pc.is_null(column).to_numpy()] = -1
    return codes


def spread(low: Ints, high: Ints) -> tuple[Ints, Ints]:
    """All numbers of the ranges [low, high), one range after another, and which range each is of."""
    many = high - low
    places = np.arange(many.sum()) - np.repeat(np.cumsum(many) - many, many) + np.repeat(low, many)
    return np.repeat(np.arange(len(many)), many), places


def arrival(rows: pa.Table) -> list[Ints]:
    """What decides between events of one time, most important first."""
    return [micros(rows[name]) for name in ARRIVAL]


def by_group_and_time(rows: pa.Table, codes: Ints, time: str) -> Ints:
    """The row numbers in order of group, time and arrival."""
    return np.lexsort([*reversed(arrival(rows)), micros(rows[time]), codes])


def rows_up_to(codes: Ints, times: Ints, asked_codes: Ints, asked_times: Ints) -> Ints:
    """How many rows lie at or before each moment asked for, in the order of group and time.

    The rows may come in any order. With rows in that order, this is the place after the last of them:
    `searchsorted(side="right")` for pairs, which numpy has not.
    """
    many = len(times)
    asked = np.concatenate([np.zeros(many, dtype=np.int8), np.ones(len(asked_times), dtype=np.int8)])
    order = np.lexsort([asked, np.concatenate([times, asked_times]), np.concatenate([codes, asked_codes])])
    is_row = order < many
    before = np.cumsum(is_row, dtype=np.int64)
    result = np.empty(len(asked_times), dtype=np.int64)
    result[order[~is_row] - many] = before[~is_row]
    return result
