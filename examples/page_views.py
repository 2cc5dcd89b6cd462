"""Page views per minute.

    penstock run examples/page_views.py
    penstock view examples/page_views.py views_per_minute

A view counts in the minute in which it happened. It may arrive up to five seconds out of order; what comes
later than that, when its minute is over, is kept in `views_per_minute.late`.
"""

from pyspark.sql import DataFrame

import penstock as ps

app = ps.App("page-views")

page_views = app.topic(
    "page_views",
    "user_id BIGINT, page STRING, at TIMESTAMP",
    key="user_id",
    event_time="at",
    lateness="5 seconds",
)


@app.view(key=["page", "window"])
def views_per_minute() -> DataFrame:
    """How often each page was seen in each minute."""
    return ps.aggregate(page_views.stream(), by="page", window=ps.tumbling("1 minute"), views=ps.count())
