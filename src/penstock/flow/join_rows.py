"""Two tables joined by columns that identify no row in either: posts and who follows their author.

As `JoinTables`, but both tables are first followed by their own keys (`Moves`), and a row may meet many. A
pair is identified by both keys. State: the rows of both by the columns they are joined on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.flow import ordering
from penstock.flow.join_tables import Moves, is_in, joined_schema, marked, newest_joined
from penstock.flow.stepped import SteppedTables
from penstock.flow.table_changes import Newest

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from penstock.flow.pages import Pages


@dataclass(frozen=True, slots=True)
class JoinRows:
    """`step` is all it does. `pages`: the rows of both sides, by what they are joined on."""

    on: tuple[str, ...]  # of the left table
    theirs: tuple[str, ...]  # of the right one
    left: Newest
    right: Newest
    columns: tuple[str, ...]  # of the right table
    names: tuple[str, ...]  # under which they come out

    @property
    def moves(self) -> tuple[Moves, Moves]:
        return Moves(self.left, self.on), Moves(self.right, self.theirs)

    @property
    def lefts(self) -> pa.Schema:
        return _plain(self.left)

    @property
    def rights(self) -> pa.Schema:
        return _plain(self.right)

    @property
    def key(self) -> tuple[str, ...]:
        """Of a pair, as it comes out."""
        renamed = dict(zip(self.columns, self.names, strict=True))
        same = dict(zip(self.theirs, self.on, strict=True))
        return (*self.left.key, *(renamed.get(name) or same[name] for name in self.right.key))

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
        sides = (self.on, self.left.key, self.lefts), (self.theirs, self.right.key, self.rights)
        touched = [moved.select(list(on)) for moved, (on, _, _) in zip(new, sides, strict=True)]
        known, stayed, arrived = [], [], []
        for number, (moved, (_, key, schema)) in enumerate(zip(new, sides, strict=True)):
            rows = pages[number].read(touched)
            stays = ~is_in(rows, moved, key)
            known.append(rows)
            stayed.append(rows.filter(pa.array(stays)))
            arrived.append(moved.filter(pc.equal(moved["_op"], "u")).select(schema.names))
            pages[number].write(pa.concat_tables([stayed[-1], arrived[-1]]), touched[number])
        now = pa.concat_tables([stayed[1], arrived[1]])
        rows = pa.concat_tables([self._pairs(arrived[0], now), self._pairs(stayed[0], arrived[1])])
        left_behind = known[0].filter(pa.array(is_in(known[0], new[0], self.left.key)))
        gone = known[1].filter(pa.array(is_in(known[1], new[1], self.right.key)))
        were = pa.concat_tables([self._pairs(left_behind, known[1]), self._pairs(stayed[0], gone)])
        ended = were.filter(pa.array(~is_in(were, rows, self.key)))
        found = [marked(ended, "d"), marked(rows, "u")]
        return SteppedTables((), pa.concat_tables([table.cast(self.output) for table in found]), None)

    def _pairs(self, lefts: pa.Table, rights: pa.Table) -> pa.Table:
        """Every left row with every right one that it meets. NULL equals nothing."""
        ours, theirs = ordering.joinable(lefts.select(list(self.on)), rights.select(list(self.theirs)))
        order = np.argsort(theirs, kind="stable")
        low, high = (np.searchsorted(theirs[order], ours, side=side) for side in ("left", "right"))
        which, places = ordering.spread(low, np.where(ours < 0, low, high))
        met = lefts.take(pa.array(which))
        others = rights.select(list(self.columns)).take(pa.array(order[places]))
        return pa.Table.from_arrays([*met.columns, *others.columns], names=self.output.names[:-1])


def _plain(table: Newest) -> pa.Schema:
    return pa.schema([table.versions.field(name) for name in table.columns])


def join_rows_batch(left: DataFrame, right: DataFrame, join: JoinRows) -> DataFrame:
    """The pairs from batch DataFrames of versions, in Spark SQL alone."""
    on = dict(zip(join.on, join.theirs, strict=True))
    names = dict(zip(join.columns, join.names, strict=True))
    return newest_joined((left, join.left), (right, join.right), on=on, names=names, how="inner")
