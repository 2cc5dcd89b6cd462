"""What records did to a table: the row before and after each of them, or after all of a batch.

A record counts in the order of arrival, and only if no version of its key begins later. State: the newest
version of each key, one page for a group of keys; a delete is forgotten when the watermark has passed it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from penstock.flow import ordering
from penstock.flow.aggregates import ARRIVAL
from penstock.flow.ordering import Ints
from penstock.flow.stepped import SteppedTables
from penstock.flow.versions import DELETED, FROM, SYSTEM
from penstock.log import versions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from penstock.flow.pages import Pages

OPS = ("insert", "update", "delete")


@dataclass(frozen=True, slots=True)
class Newest:
    """A table's newest versions in pages."""

    key: tuple[str, ...]
    columns: tuple[str, ...]  # all of its own
    table: pa.Schema

    @property
    def versions(self) -> pa.Schema:
        own = [self.table.field(name).with_nullable(True) for name in self.columns]
        return pa.schema([*own, *SYSTEM])

    def effective(self, pages: Pages, new: pa.Table, watermark_us: int) -> Effective:
        """The records that count, old and new, and the newest of each key put into the pages."""
        fresh = new.select(self.versions.names).cast(self.versions)
        keys = fresh.select(list(self.key))
        known = pages.read([keys])
        rows = pa.concat_tables([known, fresh]).combine_chunks()
        codes = ordering.groups(rows, self.key)
        order = np.lexsort([*reversed(versions.arrival_of(rows)), np.arange(len(rows)) >= len(known), codes])
        rows, codes = rows.take(pa.array(order)), codes[order]
        counts = effective(codes, rows[FROM].to_numpy())
        found = Effective(rows.filter(pa.array(counts)), codes[counts], order[counts] < len(known))
        last = found.rows.filter(pa.array(versions.newest(found.codes)))
        gone = last[DELETED].to_numpy() & (last[FROM].to_numpy() <= watermark_us)
        pages.write(last.filter(pa.array(~gone)), keys)
        return found


@dataclass(frozen=True, slots=True)
class Effective:
    """Records that count, by key and arrival; the first of a key may have been there before."""

    rows: pa.Table
    codes: Ints
    old: Any

    def before(self) -> Ints:
        """For each record the number of the one before it, -1 where there was no row."""
        same = np.append(np.zeros(min(len(self.codes), 1), bool), self.codes[1:] == self.codes[:-1])
        numbers = np.arange(len(self.codes)) - 1
        return np.where(same & ~self.rows[DELETED].to_numpy()[numbers], numbers, -1)


def effective(codes: Ints, starts: Ints) -> Any:
    """Of records by key and arrival, those that no version begins later than that came before them."""
    distinct, ranks = np.unique(starts, return_inverse=True)
    values = codes * len(distinct) + ranks  # by key first, so that one running maximum is enough
    return values == np.maximum.accumulate(values)


@dataclass(frozen=True, slots=True)
class TableChanges:
    """`step` gives each change of a table: its key, `op`, and the row `before` and `after`."""

    newest: Newest

    @property
    def output(self) -> pa.Schema:
        own = pa.struct([self.newest.versions.field(name) for name in self.newest.columns])
        keys = [self.newest.versions.field(name) for name in self.newest.key]
        return pa.schema([*keys, ("op", pa.string()), ("before", own), ("after", own)])

    def step(
        self,
        state: tuple[pa.Table, ...] | None,
        pages: tuple[Pages, ...],
        new: tuple[pa.Table, ...],
        watermark_us: int,
    ) -> SteppedTables:
        found = self.newest.effective(pages[0], new[0], watermark_us)
        before, deleted = found.before(), found.rows[DELETED].to_numpy()
        changed = ~found.old & ~(deleted & (before < 0))
        op = np.where(deleted, 2, np.where(before < 0, 0, 1))[changed]
        after = np.where(deleted, -1, np.arange(len(deleted)))
        keys = found.rows.filter(pa.array(changed)).select(list(self.newest.key))
        columns = [*keys.columns, pa.array(np.array(OPS)[op], pa.string())]
        columns += [self._rows(found.rows, numbers[changed]) for numbers in (before, after)]
        return SteppedTables((), pa.Table.from_arrays(columns, schema=self.output), None)

    def _rows(self, rows: pa.Table, numbers: Ints) -> Any:
        """These rows as structs, NULL for -1."""
        chosen = rows.select(list(self.newest.columns)).take(pa.array(np.maximum(numbers, 0)))
        arrays = [column.combine_chunks() for column in chosen.columns]
        fields = list(self.output.field("before").type)
        return pa.StructArray.from_arrays(arrays, fields=fields, mask=pa.array(numbers < 0))


def changes_batch(table: DataFrame, newest: Newest) -> DataFrame:
    """The same rows from a batch DataFrame, in Spark SQL alone."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    keys = [F.col(f"`{name}`") for name in newest.key]
    in_turn = Window.partitionBy(*keys).orderBy(*ARRIVAL)
    so_far = in_turn.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    rows = table.withColumn("_highest", F.max(FROM).over(so_far)).filter(F.col(FROM) == F.col("_highest"))
    row = F.struct(*(F.col(f"`{name}`") for name in newest.columns))
    there = F.when(~F.col(DELETED), row)
    op = F.when(F.col(DELETED), "delete").when(F.col("_before").isNull(), "insert").otherwise("update")
    told = rows.withColumn("_before", F.lag(there).over(in_turn)).withColumn("_after", there)
    told = told.filter(F.col("_before").isNotNull() | F.col("_after").isNotNull())
    return told.select(
        *keys, op.alias("op"), F.col("_before").alias("before"), F.col("_after").alias("after")
    )
