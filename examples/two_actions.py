"""What does a user do within half an hour after something else?

    penstock run examples/two_actions.py
    penstock view examples/two_actions.py followed_by

A topic joined with itself. An action does not meet itself. Two actions make one pair, the earlier one on the
left; only those at the very same moment make two, since each of them is as early as the other.
"""

from pyspark.sql import DataFrame

import penstock as ps

app = ps.App("two-actions")

actions = app.topic(
    "actions",
    "user_id BIGINT, action STRING, at TIMESTAMP",
    key="user_id",
    event_time="at",
    lateness="1 minute",
)


@app.stream(key="user_id")
def pairs() -> DataFrame:
    """An action, and one of the same user at most half an hour later: `action_next`, `at_next`."""
    stream = actions.stream()
    return ps.join_within(stream, stream, on="user_id", after="30 minutes", suffix="_next")


@app.view(key=["action", "action_next"])
def followed_by() -> DataFrame:
    """How often one action came after another."""
    return ps.aggregate(pairs.stream(), by=["action", "action_next"], times=ps.count())
