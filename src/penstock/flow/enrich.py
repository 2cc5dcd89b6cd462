"""Events with the row of a table that was valid at the event's own time.

An event comes out once the watermark has reached its time: all versions up to then are known. Where there is
no row at that time, it may wait: the first version that becomes valid within that time counts, and the event
comes out when the watermark is there, or at the end of the wait without one. State: the events that wait, and
of the table the versions that can still be asked for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from penstock.flow import ordering
from penstock.flow.ordering import PLACE, Ints
from penstock.flow.output import DIVERTED
from penstock.flow.packed import fitted
from penstock.flow.stepped import SteppedTables
from penstock.flow.versions import DELETED, FROM, SYSTEM, Versions, spans

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from penstock.flow.pages import Pages

ENRICHED_AT = "enriched_at"
VERSION = pa.schema([("version_partition", pa.int32()), ("version_offset", pa.int64())])
_TIMESTAMP = pa.timestamp("us", "UTC")
_PLACES = ("topic", "partition", "offset")
_WINDOW = pa.schema([("window_start", _TIMESTAMP), ("window_end", _TIMESTAMP)])
_SAID = pa.schema(
    [
        ("watermark", _TIMESTAMP), ("reason", pa.string()), ("topic", pa.string()), ("partition", pa.int32()),
        ("offset", pa.int64()),
    ]
)  # fmt: skip
_PLACED = [field.with_name(f"_{field.name}") for field in _SAID if field.name != "reason"]


@dataclass(frozen=True, slots=True)
class Enrich:
    """`step` is all it does. Without `time` it takes the newest version that is known, at once."""

    on: tuple[str, ...]
    key: tuple[str, ...]  # of the table, in the order of `on`
    time: str | None
    columns: tuple[str, ...]  # of the table
    names: tuple[str, ...]  # under which they come out
    wait_us: int
    diverts: str | None  # an event without a row, with this reason
    events: pa.Schema
    table: pa.Schema

    @property
    def rows(self) -> pa.Schema:
        """What it needs of the events."""
        return pa.schema([*self.events, *(_PLACED if self.diverts else ())])

    @property
    def late(self) -> pa.DataType:
        """What it says of an event that is diverted: the same as of one that is late."""
        row = pa.field("row", pa.struct(list(self.events)))
        return pa.struct([row, *_WINDOW, *_SAID])

    @property
    def versions(self) -> pa.Schema:
        own = [self.table.field(name) for name in (*self.key, *self.columns)]
        return pa.schema([*(field.with_nullable(True) for field in own), *SYSTEM])

    @property
    def output(self) -> pa.Schema:
        added = [
            self.table.field(column).with_name(name)
            for column, name in zip(self.columns, self.names, strict=True)
        ]
        waited = [pa.field(ENRICHED_AT, _TIMESTAMP)] if self.wait_us else []
        diverted = [pa.field(DIVERTED, self.late)] if self.diverts else []
        fields = [*self.events, *added, *VERSION, *waited, *diverted]
        return pa.schema([field.with_nullable(True) for field in fields])

    def step(
        self,
        state: tuple[pa.Table, ...] | None,
        pages: tuple[Pages, ...],
        new: tuple[pa.Table, ...],
        watermark_us: int,
    ) -> SteppedTables:
        waiting = new[0] if not state else pa.concat_tables([state[0], new[0]]).combine_chunks()
        times = self._times(waiting, watermark_us)
        ripe = times <= watermark_us
        asked, at, later = waiting.filter(pa.array(ripe)), times[ripe], waiting.filter(pa.array(~ripe))
        fresh = new[1].select(self.versions.names).cast(self.versions)
        known = self._known(pages[0], asked, fresh)
        codes = ordering.joinable(asked.select(list(self.on)), known.select(list(self.key)))
        versions = Versions.of(known, codes[1])
        found, due = self._found(versions, codes[0], at)
        if len(fresh):
            horizon_us = None if self.time is None else watermark_us - self.wait_us
            pages[0].write(versions.needed(horizon_us), fresh.select(list(self.key)))
        out = due <= watermark_us
        kept = pa.concat_tables([asked.filter(pa.array(~out)), later])
        wakes = [*due[~out].tolist(), *times[~ripe].tolist()]
        return SteppedTables(
            (kept,) if len(kept) else (),
            self._enriched(asked.filter(pa.array(out)), versions.rows, found[out], due[out]),
            min(wakes, default=None),
        )

    def _times(self, events: pa.Table, watermark_us: int) -> Ints:
        if self.time is None:
            return np.full(len(events), watermark_us)
        return ordering.micros(events[self.time])

    def _known(self, pages: Pages, asked: pa.Table, fresh: pa.Table) -> pa.Table:
        if not len(asked) and not len(fresh):
            return fresh
        there = pages.read([asked.select(list(self.on)), fresh.select(list(self.key))])
        return pa.concat_tables([there, fresh]).combine_chunks()

    def _found(self, versions: Versions, codes: Ints, at: Ints) -> tuple[Ints, Ints]:
        """The version of each event, -1 for none, and when it can come out."""
        if self.time is None:
            return versions.newest(codes), at
        found, due = versions.valid_at(codes, at), at
        if self.wait_us:
            missing, ends = found < 0, at + self.wait_us
            found = np.where(missing, versions.first_after(codes, at, ends), found)
            begins = np.append(versions.starts, 0)[found]
            due = np.where(missing, np.where(found < 0, ends, begins), at)
        return found, due

    def _enriched(self, events: pa.Table, versions: pa.Table, found: Ints, due: Ints) -> pa.Table:
        rows = versions.take(pa.array(found, mask=found < 0))
        columns = [events[name] for name in self.events.names]
        columns += [rows[name] for name in (*self.columns, "_partition", "_offset")]
        if self.wait_us:
            columns.append(pa.array(due, pa.int64()).cast(_TIMESTAMP))
        if self.diverts:
            columns.append(self._diverted(events, found < 0))
        return fitted(columns, self.output)

    def _diverted(self, events: pa.Table, missing: Any) -> Any:
        """Of each event what is to be said of it elsewhere, NULL where there is a row for it."""
        own = [events[name].combine_chunks() for name in self.events.names]
        row = pa.StructArray.from_arrays(own, fields=list(self.events))
        nothing = pa.nulls(len(events), _TIMESTAMP)
        place = {name: events[f"_{name}"].combine_chunks() for name in ("watermark", *_PLACES)}
        reason = pa.array([self.diverts] * len(events), pa.string())
        said = [place["watermark"], reason, *(place[name] for name in _PLACES)]
        arrays = [row, nothing, nothing, *said]
        return pa.StructArray.from_arrays(arrays, fields=list(self.late), mask=pa.array(~missing))


def enrich_batch(
    events: DataFrame, table: DataFrame, enrich: Enrich, *, closed_us: int | None = None
) -> DataFrame:
    """The same rows from batch DataFrames, in Spark SQL alone; with `closed_us`, as far as a stream is."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    ours = events.select(*(F.col(f"`{name}`").alias(f"e_{name}") for name in events.columns))
    rows = spans(table, list(enrich.key))
    rows = rows.filter(~F.col(DELETED)).select(*(F.col(f"`{n}`").alias(f"t_{n}") for n in rows.columns))
    at, begin, until = F.unix_micros(F.col(f"`e_{enrich.time}`")), F.col(f"t_{FROM}"), F.col("t__until")
    valid = (begin <= at) & (until.isNull() | (until > at))
    awaited = (begin > at) & (begin <= at + F.lit(enrich.wait_us))
    same = F.lit(True)
    for one, other in zip(enrich.on, enrich.key, strict=True):
        same &= F.col(f"`e_{one}`") == F.col(f"`t_{other}`")
    joined = ours.join(rows, same & (valid | awaited), "inner" if enrich.diverts else "left")
    first = Window.partitionBy(*(F.col(f"e_{name}") for name in PLACE)).orderBy(f"t_{FROM}")
    joined = joined.withColumn("_rank", F.row_number().over(first)).filter("_rank = 1")
    due = F.when(begin.isNull(), at + F.lit(enrich.wait_us)).otherwise(F.greatest(at, begin))
    if closed_us is not None:
        joined = joined.filter(due <= F.lit(closed_us))
    columns = [F.col(f"`e_{name}`").alias(name, metadata={}) for name in enrich.events.names]
    columns += [
        F.col(f"`t_{column}`").alias(name, metadata={})
        for column, name in zip(enrich.columns, enrich.names, strict=True)
    ]
    columns += [F.col("t__partition").alias("version_partition"), F.col("t__offset").alias("version_offset")]
    waited = [F.timestamp_micros(due).alias(ENRICHED_AT)] if enrich.wait_us else []
    return joined.select(*columns, *waited)
