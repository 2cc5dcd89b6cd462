"""A cache of user profiles, kept current from the events that change them.

    penstock run examples/profiles.py
    penstock view examples/profiles.py profiles

No window: a profile stays until it changes. The newest change by its own time wins, also when an older one
arrives after it.
"""

from pyspark.sql import DataFrame

import penstock as ps

app = ps.App("profiles")

profile_updates = app.topic(
    "profile_updates",
    "user_id BIGINT, name STRING, country STRING, at TIMESTAMP",
    key="user_id",
    event_time="at",
)


@app.view(key="user_id")
def profiles() -> DataFrame:
    """Who each user is now."""
    return ps.latest(profile_updates.stream(), by="user_id")
