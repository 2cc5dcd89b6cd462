"""The versions of a table's rows as operators see them: from when each is valid in a stream.

That is as in the table itself (penstock.log.versions), and a version that came at or before the watermark it
met is valid from one microsecond after that: what has come out stays true, and a replay agrees.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from penstock.flow import ordering
from penstock.flow.aggregates import ARRIVAL
from penstock.flow.ordering import Ints
from penstock.log import versions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

FROM = "_from"
DELETED = "_deleted"
SYSTEM = pa.schema(
    [
        (FROM, pa.int64()), ("_timestamp", pa.timestamp("us", "UTC")), ("_partition", pa.int32()),
        ("_offset", pa.int64()), (DELETED, pa.bool_()),
    ]
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Versions:
    """Versions by key and time; of those from one moment on, only the last to arrive is one."""

    rows: pa.Table
    codes: Ints
    starts: Ints
    deleted: Any

    @classmethod
    def of(cls, rows: pa.Table, codes: Ints) -> Versions:
        starts = rows[FROM].to_numpy()
        order = versions.in_version_order(codes, starts, versions.arrival_of(rows))
        last = np.ones(len(order), bool)
        last[:-1] = np.diff(codes[order]).astype(bool) | np.diff(starts[order]).astype(bool)
        order = order[last]
        found = rows.take(pa.array(order))
        return cls(found, codes[order], starts[order], found[DELETED].to_numpy())

    def valid_at(self, codes: Ints, moments: Ints) -> Ints:
        """The number of the version valid at each moment; -1 where there is none, or a delete."""
        found = ordering.rows_up_to(self.codes, self.starts, codes, moments) - 1
        return self._checked(found, codes, ~self.deleted)

    def first_after(self, codes: Ints, moments: Ints, ends: Ints) -> Ints:
        """The number of the first version after each moment, up to `ends`, that is no delete; or -1."""
        (live,) = np.nonzero(~self.deleted)
        next_ = ordering.rows_up_to(self.codes[live], self.starts[live], codes, moments)
        found = np.append(live, -1)[next_]
        found = self._checked(found, codes, np.ones(len(self.codes), bool))
        return np.where((found >= 0) & (np.append(self.starts, 0)[found] <= ends), found, -1)

    def newest(self, codes: Ints) -> Ints:
        """The number of the last version of each; -1 where there is none, or a delete."""
        return self.valid_at(codes, np.full(len(codes), np.iinfo(np.int64).max))

    def needed(self, horizon_us: int | None) -> pa.Table:
        """Those that moments after the horizon ask for; without one, the newest. A past delete is none."""
        if horizon_us is None:
            return self.rows.filter(pa.array(versions.newest(self.codes)))
        kept = versions.needed(self.codes, self.starts, horizon_us)
        gone = self.deleted & (self.starts <= horizon_us)
        return self.rows.filter(pa.array(kept & ~gone))

    def _checked(self, found: Ints, codes: Ints, wanted: Any) -> Ints:
        if not len(self.codes):
            return np.full(len(codes), -1)
        there = (found >= 0) & (codes >= 0) & (self.codes[found] == codes) & wanted[found]
        return np.where(there, found, -1)


def spans(table: DataFrame, key: list[str]) -> DataFrame:
    """In Spark SQL: one row for each version, with the time `_until` which it is valid, NULL for ever."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    keys = [F.col(f"`{name}`") for name in key]
    one_moment = Window.partitionBy(*keys, FROM).orderBy(*(F.desc(name) for name in ARRIVAL))
    by_time = Window.partitionBy(*keys).orderBy(FROM)
    last = table.withColumn("_rank", F.row_number().over(one_moment)).filter("_rank = 1").drop("_rank")
    return last.withColumn("_until", F.lead(FROM).over(by_time))
