"""A producer that knows how far it has come declares it: `topic.watermark(time)`.

    penstock run examples/watermark.py

Nothing with an event time up to the watermark will come any more, it says, so windows that end by then are
final. An event that comes all the same is late. It changes no window, and it is not lost either:
`measurements_per_10_seconds.late` has it, with the watermark that it missed.
"""

from pyspark.sql import DataFrame

import penstock as ps

app = ps.App("watermark")

measurements = app.topic("measurements", "sensor STRING, at TIMESTAMP", event_time="at", lateness="1 minute")


@app.view(key="window")
def measurements_per_10_seconds() -> DataFrame:
    return ps.aggregate(measurements.stream(), window=ps.tumbling("10 seconds"), measured=ps.count())
