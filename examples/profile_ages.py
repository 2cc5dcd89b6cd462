"""How old was the user who clicked, at the moment of the click?

    penstock run examples/profile_ages.py
    penstock consume clicks_with_age --follow

A profile changes: somebody is 30 in the morning and 31 in the afternoon. Each click meets the row that was
valid at the click's own time, whichever of the two arrived first, and names its version. A replay gives the
same.
"""

from pyspark.sql import DataFrame

import penstock as ps

app = ps.App("profile-ages")

clicks = app.topic(
    "page_clicks",
    "user_id BIGINT, page STRING, at TIMESTAMP",
    key="user_id",
    event_time="at",
    lateness="1 minute",
)
profiles = app.table(
    "ages",
    "user_id BIGINT, age INT, since TIMESTAMP",
    key="user_id",
    event_time="since",
    lateness="1 minute",
)


@app.stream(key="user_id")
def clicks_with_age() -> DataFrame:
    """Each click, once no change of the profile at its time can come any more."""
    return ps.enrich(clicks.stream(), profiles, on="user_id")
