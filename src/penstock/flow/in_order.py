"""Events in the order of their time, each one once the watermark has passed it.

The order holds among events of one key, and over all of them where no key is given (one bucket then, and
one core). Events of one time come as they arrived. State: the events that the watermark has not reached.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from penstock.flow import ordering
from penstock.flow.aggregates import ARRIVAL
from penstock.flow.buckets import BUCKETS, Stepped, arrow_schema, in_buckets

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def in_order(df: DataFrame, *, time: str, by: Sequence[str] = (), buckets: int = BUCKETS) -> DataFrame:
    arrow_schema(df, [time, *by, *ARRIVAL])
    rows = arrow_schema(df)
    return in_buckets(df, by=by, rows=rows, step=partial(step, time=time), output=rows, buckets=buckets)


def in_order_batch(df: DataFrame, *, time: str, watermark_us: int) -> DataFrame:
    """What `in_order` has emitted of these events by then."""
    from pyspark.sql import functions as F

    from penstock.flow.aggregate_columns import named

    done = df.where(F.unix_micros(named(time)) <= F.lit(watermark_us))
    return done.orderBy(named(time), *map(named, ARRIVAL))


def step(state: pa.Table | None, new: pa.Table, watermark_us: int, *, time: str) -> Stepped:
    rows = new if state is None else pa.concat_tables([state, new])
    times = ordering.micros(rows[time])
    done = times <= watermark_us
    ready = rows.filter(pa.array(done))
    order = ordering.by_group_and_time(ready, np.zeros(len(ready), dtype=np.int64), time)
    return Stepped(
        state=rows.filter(pa.array(~done)),
        output=ready.take(pa.array(order)),
        wake_us=int(times[~done].min()) if not done.all() else None,
    )
