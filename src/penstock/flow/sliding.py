"""Sliding windows: for every event, the aggregates over what its key saw in the time up to it.

The window of an event at t is (t - size, t], with all events of that time, whichever arrived first. A row
comes once, when the watermark has reached t and no event of its window can come any more. State: the
events that wait for that, and those that a later window can still reach.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from penstock.errors import BadOption
from penstock.flow import ordering
from penstock.flow.aggregates import ARRIVAL, Aggregate
from penstock.flow.buckets import BUCKETS, Stepped, arrow_schema, in_buckets

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_EMITTED = "__emitted"


def sliding(
    df: DataFrame,
    *,
    by: Sequence[str],
    time: str,
    size_us: int,
    aggregates: Mapping[str, Aggregate],
    buckets: int = BUCKETS,
) -> DataFrame:
    """Columns: `by`, the time, `_partition` and `_offset` of the event, and the aggregates."""
    slide = Sliding.of(df, by=by, time=time, size_us=size_us, aggregates=aggregates)
    return in_buckets(df, by=by, rows=slide.rows, step=slide.step, output=slide.output, buckets=buckets)


def sliding_batch(
    df: DataFrame,
    *,
    by: Sequence[str],
    time: str,
    size_us: int,
    aggregates: Mapping[str, Aggregate],
    watermark_us: int | None = None,
) -> DataFrame:
    """The same rows from a batch DataFrame, in Spark SQL alone; those up to a watermark, if one is given."""
    from pyspark.sql import functions as F
    from pyspark.sql.window import Window

    from penstock.flow.aggregate_columns import named

    slide = Sliding.of(df, by=by, time=time, size_us=size_us, aggregates=aggregates)
    at = F.unix_micros(named(time))
    # Whole microseconds: t - size is outside, t - size + 1 is inside.
    over = Window.partitionBy(*map(named, by)).orderBy(at).rangeBetween(-(size_us - 1), Window.currentRow)
    columns: list[Column] = [named(name) for name in slide.identity]
    for name, aggregate in aggregates.items():
        columns.append(aggregate.to_column(time, length_us=size_us, over=over).alias(name))
    rows = df.select(*columns)
    return rows if watermark_us is None else rows.where(at <= F.lit(watermark_us))


@dataclass(frozen=True, slots=True)
class Sliding:
    """One sliding aggregation; `step` is all it does."""

    by: tuple[str, ...]
    time: str
    size_us: int
    aggregates: tuple[tuple[str, Aggregate], ...]
    rows: pa.Schema

    @classmethod
    def of(
        cls,
        df: DataFrame,
        *,
        by: Sequence[str],
        time: str,
        size_us: int,
        aggregates: Mapping[str, Aggregate],
    ) -> Sliding:
        """Raises BadOption for columns that are not there, or named twice."""
        if size_us < 1:
            raise BadOption(f"a window of {size_us} microseconds is too short.", hint='say "5 minutes"')
        for aggregate in aggregates.values():
            aggregate.check(df.schema)
        wanted = [each.column for each in aggregates.values() if each.column is not None]
        rows = arrow_schema(df, [*by, time, *ARRIVAL, *wanted])
        found = cls(tuple(by), time, size_us, tuple(aggregates.items()), rows)
        twice = set(found.identity) & set(aggregates)
        if twice:
            raise BadOption(
                f"column {min(twice)!r} would be there twice.", hint="name the aggregate otherwise"
            )
        return found

    @property
    def identity(self) -> list[str]:
        """The columns that say whose row it is."""
        return list(dict.fromkeys([*self.by, self.time, "_partition", "_offset"]))

    @property
    def output(self) -> pa.Schema:
        results = [
            pa.field(name, each.result_type(self.rows.field(each.column).type if each.column else None))
            for name, each in self.aggregates
        ]
        return pa.schema([*(self.rows.field(name) for name in self.identity), *results])

    def step(self, state: pa.Table | None, new: pa.Table, watermark_us: int) -> Stepped:
        fresh = new.append_column(_EMITTED, pa.array(np.zeros(len(new), dtype=bool)))
        rows = fresh if state is None else pa.concat_tables([state, fresh])
        codes = ordering.groups(rows, self.by)
        order = ordering.by_group_and_time(rows, codes, self.time)
        rows, codes = rows.take(pa.array(order)).combine_chunks(), codes[order]
        times = ordering.micros(rows[self.time])
        emitted = rows[_EMITTED].to_numpy()
        reached = times <= watermark_us
        output = self._windows(rows, codes, times, reached & ~emitted)
        emitted = emitted | reached
        kept = ~emitted | (times > watermark_us - self.size_us)
        marked = rows.set_column(rows.schema.get_field_index(_EMITTED), _EMITTED, pa.array(emitted))
        return Stepped(marked.filter(pa.array(kept)), output, self._wake(times[kept], emitted[kept]))

    def _windows(
        self, rows: pa.Table, codes: ordering.Ints, times: ordering.Ints, asked: np.ndarray[Any, Any]
    ) -> pa.Table:
        lo = ordering.rows_up_to(codes, times, codes[asked], times[asked] - self.size_us)
        hi = ordering.rows_up_to(codes, times, codes[asked], times[asked])
        chosen = rows.filter(pa.array(asked))
        columns = [chosen[name] for name in self.identity]
        for _, each in self.aggregates:
            values = None if each.column is None else rows[each.column]
            columns.append(each.kernel(values, lo, hi, length_us=self.size_us))
        return pa.Table.from_arrays(columns, schema=self.output)

    def _wake(self, times: ordering.Ints, emitted: np.ndarray[Any, Any]) -> int | None:
        """When the next event is complete; with none left, when all can be forgotten."""
        if not len(times):
            return None
        return int(times[~emitted].min()) if not emitted.all() else int(times.max()) + self.size_us
