"""A job that was stopped works off its backlog: what does the rate look like?

    penstock run examples/backlog.py

By the time of processing, the backlog is a spike that never happened. By the events' own time, the rate is
what it was, minute by minute, however late the job came to count it.
"""

from pyspark.sql import DataFrame

import penstock as ps

app = ps.App("backlog")

orders = app.topic("orders", "order_id BIGINT, at TIMESTAMP", event_time="at")


@app.view(key="window")
def orders_as_placed() -> DataFrame:
    """The true rate."""
    minute = ps.tumbling("1 minute")
    return ps.aggregate(orders.stream(), window=minute, orders=ps.count(), per_second=ps.rate("1 second"))


@app.view(key="window")
def orders_as_processed() -> DataFrame:
    """The rate at which this program happened to see them."""
    return ps.aggregate(
        orders.stream(), window=ps.tumbling("1 minute"), clock="processing", orders=ps.count()
    )
