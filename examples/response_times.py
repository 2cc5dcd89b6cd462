"""Average response time per endpoint over the last hour.

    penstock run examples/response_times.py
    penstock view examples/response_times.py response_times_now

Two steps: a stream that says with each request what the hour up to it was like, and a view that keeps the
newest answer for each endpoint.
"""

from pyspark.sql import DataFrame

import penstock as ps

app = ps.App("response-times")

requests = app.topic(
    "requests", "endpoint STRING, took_ms DOUBLE, at TIMESTAMP", key="endpoint", event_time="at"
)


@app.stream()
def last_hours() -> DataFrame:
    """For every request, the hour that ends with it."""
    hour = ps.sliding("1 hour")
    return ps.aggregate(
        requests.stream(), by="endpoint", window=hour, requests=ps.count(), mean_ms=ps.mean("took_ms")
    )


@app.view(key="endpoint")
def response_times_now() -> DataFrame:
    """The last hour of each endpoint, as of its newest request."""
    return ps.latest(last_hours.stream(), by="endpoint").select("endpoint", "at", "requests", "mean_ms")
