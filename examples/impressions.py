"""Which of the ads that were shown were clicked on, and which were not?

    penstock run examples/impressions.py
    penstock view examples/impressions.py click_through

A click belongs to an impression of the same ad for the same user, up to ten minutes before it. The pair is
known with the click; that nobody clicked, only when the ten minutes are over. A click that comes more than a
minute out of order is kept in `outcomes.late`.
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import penstock as ps

app = ps.App("impressions")

impressions = app.topic(
    "impressions",
    "impression_id BIGINT, ad_id BIGINT, user STRING, shown_at TIMESTAMP",
    key="ad_id",
    event_time="shown_at",
    lateness="1 minute",
)
clicks = app.topic(
    "clicks",
    "ad_id BIGINT, user STRING, clicked_at TIMESTAMP",
    key="ad_id",
    event_time="clicked_at",
    lateness="1 minute",
)


@app.stream(key="ad_id")
def outcomes() -> DataFrame:
    """Each impression with each click on it, or alone."""
    return ps.join_within(
        impressions.stream(), clicks.stream(), on=["ad_id", "user"], after="10 minutes", how="left"
    )


@app.stream(key="ad_id")
def first_outcomes() -> DataFrame:
    """Each impression once, however often it was clicked on."""
    return ps.deduplicate(outcomes.stream(), id="impression_id", within="10 minutes")


@app.view(key="ad_id")
def click_through() -> DataFrame:
    """Of each ad, the share of impressions that were clicked on."""
    counted = ps.aggregate(
        first_outcomes.stream(), by="ad_id", impressions=ps.count(), clicked=ps.count("clicked_at")
    )
    return counted.withColumn("rate", F.col("clicked") / F.col("impressions"))
