"""Hopping windows: a minute long, a new one every half minute, each event in two of them.

    penstock run examples/hopping_windows.py

The first window that holds an event begins up to a minute before it: an event at 10:00:15 is not only in the
one from 10:00:00, but also in the one from 09:59:30 to 10:00:30.
"""

from pyspark.sql import DataFrame

import penstock as ps

app = ps.App("hopping-windows")

ticks = app.topic("hopping_ticks", "at TIMESTAMP", event_time="at")


@app.view(key="window")
def ticks_per_last_minute() -> DataFrame:
    return ps.aggregate(ticks.stream(), window=ps.hopping("1 minute", "30 seconds"), ticks=ps.count())
