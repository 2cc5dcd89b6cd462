"""Two streams, joined where a key is equal and the times are close.

A right event meets a left one at t if its time is in [t - before, t + after]. A pair comes out as soon as
both are there. An event that met nobody comes out once, where that is asked for, when the watermark has
reached the end of its range: t + after for a left one, t + before for a right one. NULL equals nothing, and
an event does not meet itself. State: the events whose range the watermark has not passed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.flow import ordering
from penstock.flow.ordering import PLACE, Ints
from penstock.flow.packed import fitted
from penstock.flow.stepped import SteppedTables

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

How = Literal["inner", "left", "right", "full"]

JOINED_AT = "joined_at"
_MATCHED = "__matched"
_TIMESTAMP = pa.timestamp("us", "UTC")


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two streams: the columns that it brings, and under which names they come out."""

    on: tuple[str, ...]
    time: str
    columns: tuple[str, ...]  # besides `on`
    names: tuple[str, ...]
    range_us: int  # how long after an event its last partner can be
    outer: bool  # whether it comes out alone
    schema: pa.Schema

    @property
    def rows(self) -> pa.Schema:
        needed = dict.fromkeys([*self.on, *self.columns, self.time, *PLACE])
        return pa.schema([self.schema.field(name) for name in needed])


@dataclass(frozen=True, slots=True)
class JoinWithin:
    """`step` is all it does."""

    left: Side
    right: Side

    @property
    def output(self) -> pa.Schema:
        keys = [self.left.schema.field(name) for name in self.left.on]
        own = [
            side.schema.field(column).with_name(name)
            for side in (self.left, self.right)
            for column, name in zip(side.columns, side.names, strict=True)
        ]
        return pa.schema(
            [*(field.with_nullable(True) for field in (*keys, *own)), pa.field(JOINED_AT, _TIMESTAMP)]
        )

    def step(
        self, state: tuple[pa.Table, ...] | None, new: tuple[pa.Table, ...], watermark_us: int
    ) -> SteppedTables:
        left, right = (_waiting(state[i] if state else None, new[i]) for i in (0, 1))
        codes = ordering.joinable(left.select(list(self.left.on)), right.select(list(self.right.on)))
        times = ordering.micros(left[self.left.time]), ordering.micros(right[self.right.time])
        first = tuple(len(state[i]) if state else 0 for i in (0, 1))
        lefts, rights = self._pairs(left, right, codes, times, first)
        matched = [_marked(left, lefts), _marked(right, rights)]
        parts = [self._joined(left, right, lefts, rights, np.maximum(times[0][lefts], times[1][rights]))]
        kept: list[pa.Table] = []
        ends: list[int] = []
        for number, (side, rows) in enumerate(((self.left, left), (self.right, right))):
            due = times[number] + side.range_us
            open_ = due > watermark_us
            if side.outer:
                parts.append(self._alone(number, rows, ~open_ & ~matched[number], due))
            stays = open_ & _can_matter(side, codes[number], matched[number])
            kept.append(_with_mark(rows, matched[number]).filter(pa.array(stays)))
            ends += [int(due[stays].min())] if stays.any() else []
        return SteppedTables(tuple(kept), pa.concat_tables(parts), min(ends, default=None))

    def _pairs(
        self, left: pa.Table, right: pa.Table, codes: tuple[Ints, Ints], times: tuple[Ints, Ints],
        first: tuple[int, ...],
    ) -> tuple[Ints, Ints]:  # fmt: skip
        """The row numbers of partners, of which at least one is new."""
        old_lefts, new_lefts = np.arange(first[0]), np.arange(first[0], len(left))
        new_rights, rights = np.arange(first[1], len(right)), np.arange(len(right))
        found = [
            self._in_range(some, others, codes, times)
            for some, others in ((new_lefts, rights), (old_lefts, new_rights))
        ]
        lefts, partners = (np.concatenate(each) for each in zip(*found, strict=True))
        other = ~_same_place(left, right, lefts, partners)
        return lefts[other], partners[other]

    def _in_range(
        self, lefts: Ints, rights: Ints, codes: tuple[Ints, Ints], times: tuple[Ints, Ints]
    ) -> tuple[Ints, Ints]:
        rights = rights[codes[1][rights] >= 0]
        rights = rights[np.lexsort([times[1][rights], codes[1][rights]])]
        sorted_codes, sorted_times = codes[1][rights], times[1][rights]
        own, at = codes[0][lefts], times[0][lefts]
        low = ordering.rows_up_to(sorted_codes, sorted_times, own, at - self.right.range_us - 1)
        high = ordering.rows_up_to(sorted_codes, sorted_times, own, at + self.left.range_us)
        which, places = ordering.spread(low, high)
        return lefts[which], rights[places]

    def _joined(self, left: pa.Table, right: pa.Table, lefts: Ints, rights: Ints, at: Ints) -> pa.Table:
        ours, theirs = left.take(pa.array(lefts)), right.take(pa.array(rights))
        columns = [*(ours[name] for name in (*self.left.on, *self.left.columns))]
        columns += [theirs[name] for name in self.right.columns]
        return fitted([*columns, _timestamps(at)], self.output)

    def _alone(self, number: int, rows: pa.Table, chosen: Any, due: Ints) -> pa.Table:
        """Events that met nobody, with NULL in place of the other."""
        alone = rows.filter(pa.array(chosen))
        sides = (self.left, self.right)
        columns = [alone[name] for name in sides[number].on]
        for index, side in enumerate(sides):
            for column in side.columns:
                mine = index == number
                columns.append(
                    alone[column] if mine else pa.nulls(len(alone), side.schema.field(column).type)
                )
        return fitted([*columns, _timestamps(due[chosen])], self.output)


def _waiting(state: pa.Table | None, new: pa.Table) -> pa.Table:
    fresh = _with_mark(new, np.zeros(len(new), dtype=bool))
    return (fresh if state is None else pa.concat_tables([state, fresh])).combine_chunks()


def _with_mark(rows: pa.Table, matched: Any) -> pa.Table:
    if _MATCHED in rows.column_names:
        rows = rows.drop_columns([_MATCHED])
    return rows.append_column(_MATCHED, pa.array(matched))


def _marked(rows: pa.Table, partners: Ints) -> Any:
    matched = rows[_MATCHED].to_numpy().copy()
    matched[partners] = True
    return matched


def _can_matter(side: Side, codes: Ints, matched: Any) -> Any:
    """An event without a key meets nobody: it only waits where it comes out alone."""
    return (codes >= 0) | (side.outer & ~matched)


def _same_place(left: pa.Table, right: pa.Table, lefts: Ints, rights: Ints) -> Any:
    ours, theirs = left.take(pa.array(lefts)), right.take(pa.array(rights))
    same = np.ones(len(lefts), dtype=bool)
    for name in PLACE:
        same &= pc.equal(ours[name], theirs[name]).to_numpy()
    return same


def _timestamps(times: Ints) -> pa.Array:
    return pa.array(times, pa.int64()).cast(_TIMESTAMP)


def join_batch(
    left: DataFrame, right: DataFrame, join: JoinWithin, *, closed_us: int | None = None
) -> DataFrame:
    """The same rows from batch DataFrames, in Spark SQL alone; with `closed_us`, as far as a stream is."""
    from pyspark.sql import functions as F

    ours, theirs = (_renamed(df, mark) for df, mark in ((left, "l"), (right, "r")))
    l_at, r_at = (
        F.unix_micros(F.col(f"`{mark}_{side.time}`")) for mark, side in (("l", join.left), ("r", join.right))
    )
    near = (r_at >= l_at - F.lit(join.right.range_us)) & (r_at <= l_at + F.lit(join.left.range_us))
    for one, other in zip(join.left.on, join.right.on, strict=True):
        near &= F.col(f"`l_{one}`") == F.col(f"`r_{other}`")
    itself = F.lit(True)
    for name in PLACE:
        itself &= F.col(f"`l_{name}`") == F.col(f"`r_{name}`")
    joined = ours.join(theirs, near & ~itself, _HOW[join.left.outer, join.right.outer])
    alone = F.coalesce(l_at + F.lit(join.left.range_us), r_at + F.lit(join.right.range_us))
    both = l_at.isNotNull() & r_at.isNotNull()
    known = F.when(both, F.greatest(l_at, r_at)).otherwise(alone)
    if closed_us is not None:
        joined = joined.filter(both | (alone <= F.lit(closed_us)))
    return joined.select(*_columns(join), F.timestamp_micros(known).alias(JOINED_AT))


_HOW = {(False, False): "inner", (True, False): "left", (False, True): "right", (True, True): "full"}


def _renamed(df: DataFrame, mark: str) -> DataFrame:
    return df.select(*(df[f"`{name}`"].alias(f"{mark}_{name}") for name in df.columns))


def _columns(join: JoinWithin) -> list[Column]:
    from pyspark.sql import functions as F

    keys = [
        F.coalesce(F.col(f"`l_{one}`"), F.col(f"`r_{other}`")).alias(one)
        for one, other in zip(join.left.on, join.right.on, strict=True)
    ]
    own = [
        F.col(f"`{mark}_{column}`").alias(name)
        for mark, side in (("l", join.left), ("r", join.right))
        for column, name in zip(side.columns, side.names, strict=True)
    ]
    return [*keys, *own]
