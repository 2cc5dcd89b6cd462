"""Two tables joined, and kept so: what a batch changes in either comes out as changes of the joined rows.

Two steps. `Moves` follows the left table by its own key: where the row was that a record replaces, and where
the new one belongs. `JoinTables` holds, by the right table's key, the left rows that refer to it and the
right row itself. Rows that leave come out as "d", all that came or changed as "u"; a row that leaves one key
for another does both in one batch, and is stored as one change.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.flow import ordering
from penstock.flow.stepped import SteppedTables
from penstock.flow.table_changes import Newest
from penstock.flow.versions import DELETED, spans
from penstock.log import versions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from penstock.flow.pages import Pages

How = Literal["inner", "left"]
OP = pa.field("_op", pa.string())


@dataclass(frozen=True, slots=True)
class Moves:
    """Of the left table in a batch: the rows that are no more where they were ("d"), and new ones ("u")."""

    newest: Newest
    on: tuple[str, ...]

    @property
    def output(self) -> pa.Schema:
        return pa.schema([*(self.newest.versions.field(name) for name in self.newest.columns), OP])

    def step(
        self,
        state: tuple[pa.Table, ...] | None,
        pages: tuple[Pages, ...],
        new: tuple[pa.Table, ...],
        watermark_us: int,
    ) -> SteppedTables:
        found = self.newest.effective(pages[0], new[0], watermark_us)
        deleted = found.rows[DELETED].to_numpy()
        before = found.rows.filter(pa.array(found.old & ~deleted & ~versions.newest(found.codes)))
        after = found.rows.filter(pa.array(~found.old & ~deleted & versions.newest(found.codes)))
        # One that stays where it was is replaced there.
        stays = is_in(before, after, tuple(dict.fromkeys([*self.newest.key, *self.on])))
        parts = [marked(before.filter(pa.array(~stays)), "d"), marked(after, "u")]
        return SteppedTables((), pa.concat_tables([part.select(self.output.names) for part in parts]), None)


@dataclass(frozen=True, slots=True)
class JoinTables:
    """`step` is all it does. `pages`: the left rows by `on`, and the right ones."""

    on: tuple[str, ...]  # of the left table
    left: Newest
    right: Newest
    columns: tuple[str, ...]  # of the right table
    names: tuple[str, ...]  # under which they come out
    how: How

    @property
    def moves(self) -> Moves:
        return Moves(self.left, self.on)

    @property
    def lefts(self) -> pa.Schema:
        return pa.schema([self.left.versions.field(name) for name in self.left.columns])

    @property
    def output(self) -> pa.Schema:
        return joined_schema(self.lefts, self.right, self.columns, self.names)

    def step(
        self,
        state: tuple[pa.Table, ...] | None,
        pages: tuple[Pages, ...],
        new: tuple[pa.Table, ...],
        watermark_us: int,
    ) -> SteppedTables:
        moved, changed = new
        touched = [moved.select(list(self.on)), changed.select(list(self.right.key))]
        known = pages[0].read(touched)
        were = pages[1].read(touched)
        found = self.right.effective(pages[1], changed, watermark_us)
        news = found.rows.filter(pa.array(versions.newest(found.codes) & ~found.old))
        are = pa.concat_tables([were.filter(pa.array(~is_in(were, news, self.right.key))), news])
        left_out = is_in(known, moved, self.left.key)
        arrived = moved.filter(pc.equal(moved["_op"], "u")).select(self.lefts.names)
        stayed = known.filter(pa.array(~left_out))
        pages[0].write(pa.concat_tables([stayed, arrived]), moved.select(list(self.on)))
        gone = self._joined(known, were).select(list(self.left.key))
        ours, theirs = ordering.joinable(stayed.select(list(self.on)), news.select(list(self.right.key)))
        again = stayed.filter(pa.array((ours >= 0) & np.isin(ours, theirs)))
        rows = self._joined(pa.concat_tables([again, arrived]), are)
        kept = is_in(gone, self._joined(stayed, are), self.left.key) | is_in(gone, rows, self.left.key)
        return SteppedTables((), self._changes(gone.filter(pa.array(~kept)), rows), None)

    def _joined(self, lefts: pa.Table, rights: pa.Table) -> pa.Table:
        """The left rows with the right one that each refers to."""
        rights = rights.filter(pc.invert(rights[DELETED]))
        codes, theirs = ordering.joinable(lefts.select(list(self.on)), rights.select(list(self.right.key)))
        place = np.full(max(codes.max(initial=-1), theirs.max(initial=-1)) + 2, -1)
        (whole,) = np.nonzero(theirs >= 0)
        place[theirs[whole]] = whole
        found = place[codes]  # the last place is nobody's, and NULL finds that
        if self.how == "inner":
            lefts, found = lefts.filter(pa.array(found >= 0)), found[found >= 0]
        met = rights.select(list(self.columns)).take(pa.array(found, pa.int64(), mask=found < 0))
        columns = [*(lefts[name] for name in self.lefts.names), *met.columns]
        return pa.Table.from_arrays(columns, names=self.output.names[:-1])

    def _changes(self, gone: pa.Table, rows: pa.Table) -> pa.Table:
        empty = {field.name: pa.nulls(len(gone), field.type) for field in self.output}
        keys = dict(zip(gone.column_names, gone.columns, strict=True))
        deletes = pa.table({**empty, **keys, "_op": pa.array(["d"] * len(gone), pa.string())})
        found = [deletes.select(self.output.names), marked(rows, "u")]
        return pa.concat_tables([table.cast(self.output) for table in found])


def joined_schema(lefts: pa.Schema, right: Newest, columns: Sequence[str], names: Sequence[str]) -> pa.Schema:
    """The columns of the left table, those of the right one under their new names, and what happened."""
    added = [
        right.versions.field(column).with_name(name) for column, name in zip(columns, names, strict=True)
    ]
    return pa.schema([*lefts, *added, OP])


def marked(rows: pa.Table, op: str) -> pa.Table:
    return rows.append_column(OP, pa.array([op] * len(rows), pa.string()))


def is_in(ours: pa.Table, theirs: pa.Table, key: tuple[str, ...]) -> Any:
    """Which of our keys are among theirs; here NULL is a value."""
    return np.isin(*ordering.groups_of_both(ours.select(list(key)), theirs.select(list(key))))


def join_batch(left: DataFrame, right: DataFrame, join: JoinTables) -> DataFrame:
    """The joined rows from batch DataFrames of versions, in Spark SQL alone."""
    on = dict(zip(join.on, join.right.key, strict=True))
    names = dict(zip(join.columns, join.names, strict=True))
    return newest_joined((left, join.left), (right, join.right), on=on, names=names, how=join.how)


def newest_joined(
    left: tuple[DataFrame, Newest],
    right: tuple[DataFrame, Newest],
    *,
    on: Mapping[str, str],
    names: Mapping[str, str],
    how: str,
) -> DataFrame:
    """The newest rows of both, joined; `names`: the columns of the right one, and how they come out."""
    from pyspark.sql import functions as F

    sides = []
    for mark, (rows, newest) in (("l", left), ("r", right)):
        there = spans(rows, list(newest.key)).filter(F.col("_until").isNull() & ~F.col(DELETED))
        sides.append(there.select(*(F.col(f"`{name}`").alias(f"{mark}_{name}") for name in newest.columns)))
    same = F.lit(True)
    for one, other in on.items():
        same &= F.col(f"`l_{one}`") == F.col(f"`r_{other}`")
    columns = [F.col(f"`l_{name}`").alias(name, metadata={}) for name in left[1].columns]
    columns += [F.col(f"`r_{column}`").alias(name, metadata={}) for column, name in names.items()]
    return sides[0].join(sides[1], same, how).select(*columns, F.lit("u").alias("_op"))
