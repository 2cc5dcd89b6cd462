"""Saved searches for a home: whoever saved one hears of every new offer that fits.

    penstock run examples/property_searches.py
    penstock consume alerts --follow

Searches are added, changed and removed while it runs; each counts for the offers that are appended after it.
An alert names the search and its version, the record of `saved_searches` that matched. A search that cannot
be read goes to `alerts.late` with the reason, and the others go on. Needs `pip install "penstock[search]"`.
"""

from pyspark.sql import DataFrame

import penstock as ps

app = ps.App("property-searches")

offers = app.topic(
    "offers",
    "offer_id BIGINT, title STRING, description STRING, price BIGINT, at TIMESTAMP",
    key="offer_id",
    event_time="at",
)
saved_searches = app.table("saved_searches", "id STRING, owner STRING, query STRING", key="id")


@app.stream(key="offer_id")
def alerts() -> DataFrame:
    """A row for each offer and each search that it fits."""
    return ps.search(offers.stream(), queries=saved_searches, fields=["title", "description", "price"])
