"""Tumbling windows: side by side, each event in one of them.

penstock run examples/tumbling_windows.py
"""

from pyspark.sql import DataFrame

import penstock as ps

app = ps.App("tumbling-windows")

ticks = app.topic("tumbling_ticks", "at TIMESTAMP", event_time="at")


@app.view(key="window")
def ticks_per_minute() -> DataFrame:
    return ps.aggregate(ticks.stream(), window=ps.tumbling("1 minute"), ticks=ps.count())
