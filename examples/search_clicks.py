"""Which results did people click on after a search, and which searches did nobody click on?

    penstock run examples/search_clicks.py
    penstock view examples/search_clicks.py queries

A click says in which session it was and from the results of which query. It belongs to the searches for that
query in that session, up to half an hour before it. A search nobody clicked on comes out when its half hour
is over: those show where the search is bad.
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import penstock as ps

app = ps.App("search-clicks")

searches = app.topic(
    "searches",
    "session_id STRING, query STRING, searched_at TIMESTAMP",
    key="session_id",
    event_time="searched_at",
    lateness="30 seconds",
)
result_clicks = app.topic(
    "result_clicks",
    "session_id STRING, query STRING, url STRING, clicked_at TIMESTAMP",
    key="session_id",
    event_time="clicked_at",
    lateness="30 seconds",
)


@app.stream(key="session_id")
def searches_with_clicks() -> DataFrame:
    """A row for each click on a result; without `url`, a search that led nowhere."""
    return ps.join_within(
        searches.stream(), result_clicks.stream(), on=["session_id", "query"], after="30 minutes", how="left"
    )


@app.view(key="query")
def queries() -> DataFrame:
    """How many clicks each query led to, and how many searches for it led to none."""
    counted = ps.aggregate(searches_with_clicks.stream(), by="query", rows=ps.count(), clicks=ps.count("url"))
    return counted.select("query", "clicks", (F.col("rows") - F.col("clicks")).alias("fruitless"))
