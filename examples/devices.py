"""Devices with wrong clocks that are offline for hours.

    penstock run examples/devices.py

A device stamps each reading twice by its own clock: when it was taken and when it was sent. We know when it
was received. Both stamps are wrong by the same amount, so the reading was taken at
`occurred_at + (received - sent_at)`.

Readings may come hours after the window they belong to was final. `late="correct"` opens it again for a day
and counts how often (`revision`). A device that claims to have sent a reading before it was taken has a clock
that nothing can be learned from: such readings go to `readings_per_hour.late`.
"""

from pyspark.sql import DataFrame

import penstock as ps

app = ps.App("devices")

readings = app.topic(
    "readings",
    "device STRING, celsius DOUBLE, occurred_at TIMESTAMP, sent_at TIMESTAMP",
    key="device",
    event_time=ps.corrected_time("occurred_at", "sent_at"),
    lateness="1 minute",
)


@app.view(key=["device", "window"])
def readings_per_hour() -> DataFrame:
    return ps.aggregate(
        readings.stream(),
        by="device",
        window=ps.tumbling("1 hour"),
        late="correct",
        correct_for="1 day",
        readings=ps.count(),
        celsius=ps.mean("celsius"),
    )
