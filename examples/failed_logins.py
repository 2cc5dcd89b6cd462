"""Three failed logins of one user within five minutes.

    penstock run examples/failed_logins.py
    penstock consume break_ins --follow

After an alarm counting begins anew: six failures in a row are two alarms, not four. A login that succeeds in
between does not matter here; `contiguity="strict"` would ask for three failures in a row.
"""

from pyspark.sql import DataFrame

import penstock as ps

app = ps.App("failed-logins")

logins = app.topic(
    "logins",
    "user STRING, ok BOOLEAN, address STRING, at TIMESTAMP",
    key="user",
    event_time="at",
    lateness="10 seconds",
)

failure = ps.step("failure")


@app.stream(key="user")
def break_ins() -> DataFrame:
    """A row for each three failures: when they began, and from where they came."""
    return (
        ps.pattern(by="user")
        .first("failure", logins.stream(), where=~failure.ok)
        .times(3)
        .within("5 minutes")
        .emit(since=failure.first().at, addresses=failure.collect("address"))
    )
