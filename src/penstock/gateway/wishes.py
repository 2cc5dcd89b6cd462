"""Parameters that several endpoints take."""

from __future__ import annotations

from typing import Annotated

from fastapi import Header, Query

from penstock.gateway import cursor
from penstock.gateway.filter import TEXT_MAX

Where = Annotated[
    str | None,
    Query(
        description="Only what this holds for: `and`, `or`, `not`, comparisons, `in (…)`, `is null`, and "
        "+ - * / over columns, numbers and 'text'.",
        max_length=TEXT_MAX,
        examples=["user_id > 100 and page in ('/', '/cart')"],
    ),
]
Start = Annotated[
    str,
    Query(
        description="Where to begin: earliest, latest, an offset, a time (2026-01-31T12:00Z, -5m), or the "
        "`next` of an earlier answer.",
        max_length=cursor.LENGTH_MAX,
        examples=["earliest", "-5m", "0:15,1:20"],
    ),
]
Partition = Annotated[int | None, Query(description="Only this partition.", ge=0, le=9_999)]
Limit = Annotated[int, Query(description="At most so many.", ge=1, le=10_000)]
LastEventId = Annotated[
    str | None,
    Header(description="Where an earlier stream ended; browsers send it.", max_length=cursor.LENGTH_MAX),
]
