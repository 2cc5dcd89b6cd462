"""Each event once: of events with one id and close in time, the one that arrived first.

Going through the events of an id as they arrived, one is dropped if its time is at most `within` from that
of one that was kept, in either direction. The others come at once; nothing waits for the watermark. State:
id and time of what was kept, until the watermark is more than `within` past it (then no event that is on
time can be close to it).
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from penstock.errors import BadOption
from penstock.flow import ordering
from penstock.flow.aggregates import ARRIVAL
from penstock.flow.buckets import BUCKETS, Stepped, arrow_schema, in_buckets

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_KEPT_US = "__kept_us"


def deduplicate(
    df: DataFrame, *, id: Sequence[str], time: str, within_us: int, buckets: int = BUCKETS
) -> DataFrame:
    _check(df, id, time, within_us)
    rows = arrow_schema(df)
    once = partial(step, id=tuple(id), time=time, within_us=within_us)
    return in_buckets(df, by=id, rows=rows, step=once, output=rows, buckets=buckets)


def deduplicate_batch(df: DataFrame, *, id: Sequence[str], time: str, within_us: int) -> DataFrame:
    """The same rows from a batch DataFrame: every id on its own, gone through as its events arrived."""
    from penstock.flow.aggregate_columns import named

    _check(df, id, time, within_us)

    def kept(rows: pa.Table) -> pa.Table:
        return step(None, rows, 0, id=tuple(id), time=time, within_us=within_us).output

    return df.groupBy(*map(named, id)).applyInArrow(kept, df.schema)


def _check(df: DataFrame, id: Sequence[str], time: str, within_us: int) -> None:
    arrow_schema(df, [*id, time, *ARRIVAL])
    if not id:
        raise BadOption("there is no id to tell events apart by.", hint='say id=["order_id"]')
    if within_us < 0:
        raise BadOption(f"within {within_us} microseconds is never.", hint='say "10 minutes"')


def step(
    state: pa.Table | None,
    new: pa.Table,
    watermark_us: int,
    *,
    id: tuple[str, ...],
    time: str,
    within_us: int,
) -> Stepped:
    new = new.take(pa.array(np.lexsort(ordering.arrival(new)[::-1])))
    known = _known(state, new, id)
    times = ordering.micros(new[time])
    both = pa.concat_tables([known, new.select(list(id)).append_column(_KEPT_US, pa.array(times))])
    kept = _first_ones(ordering.groups(both, id), np.asarray(both[_KEPT_US]), len(known), within_us)
    held = both.filter(pa.array(kept))
    ends = np.asarray(held[_KEPT_US]) + within_us
    alive = ends >= watermark_us
    return Stepped(
        state=held.filter(pa.array(alive)),
        output=new.filter(pa.array(kept[len(known) :])),
        wake_us=int(ends[alive].min()) + 1 if alive.any() else None,
    )


def _known(state: pa.Table | None, new: pa.Table, id: tuple[str, ...]) -> pa.Table:
    if state is not None:
        return state
    fields = [new.schema.field(name) for name in id]
    return pa.schema([*fields, pa.field(_KEPT_US, pa.int64())]).empty_table()


def _first_ones(codes: ordering.Ints, times: ordering.Ints, known: int, within_us: int) -> Any:
    """Which rows are kept: the first `known`, and an id that comes once has nothing to be compared with."""
    kept = np.ones(len(codes), dtype=bool)
    several = np.flatnonzero(np.bincount(codes)[codes] > 1) if len(codes) else np.empty(0, dtype=np.int64)
    seen: dict[int, list[int]] = defaultdict(list)  # the times kept of an id, in order
    for row, code, at in _python(several, codes[several], times[several]):
        around = seen[code]
        if row >= known and _near(around, at, within_us):
            kept[row] = False
        else:
            insort(around, at)
    return kept


def _python(*columns: ordering.Ints) -> Iterator[tuple[int, ...]]:
    return zip(*(column.tolist() for column in columns), strict=True)


def _near(times: list[int], at: int, within_us: int) -> bool:
    """Whether one of the ordered times is close: only the neighbours can be."""
    place = bisect_left(times, at)
    return any(abs(each - at) <= within_us for each in times[max(0, place - 1) : place + 1])
