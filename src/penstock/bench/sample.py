"""The events that everything is measured with: page views of about a hundred bytes."""

from __future__ import annotations

import random
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa

from penstock.log import rows
from penstock.schema import RecordSchema

DDL = "user_id BIGINT, page STRING, session STRING, ms DOUBLE, at TIMESTAMP"
_USERS = 100_000
_FIRST = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass(slots=True)
class PageView:
    user_id: int
    page: str
    session: str
    ms: float
    at: datetime


@dataclass(frozen=True, slots=True)
class Sample:
    """The same events in every form a program may have them in."""

    dicts: list[dict[str, Any]]
    objects: list[PageView]
    table: pa.RecordBatch

    def __len__(self) -> int:
        return len(self.dicts)

    @property
    def event_bytes(self) -> float:
        """Of one event as Arrow columns."""
        return float(self.table.nbytes / self.table.num_rows)

    def batches(self, rows_each: int) -> list[pa.RecordBatch]:
        return [self.table.slice(start, rows_each) for start in range(0, len(self), rows_each)]


def make(events: int) -> Sample:
    """Always the same ones."""
    source = random.Random(7)
    dicts = [_page_view(source, number) for number in range(events)]
    return Sample(dicts, [PageView(**each) for each in dicts], rows.encode(RecordSchema.of(DDL), dicts))


def _page_view(source: random.Random, number: int) -> dict[str, Any]:
    return {
        "user_id": int(source.random() * _USERS),
        "page": f"/products/category-{number % 97:02}/item-{number % 9_973:06}",
        "session": f"{source.getrandbits(128):032x}",
        "ms": source.random() * 250,
        "at": _FIRST + timedelta(microseconds=137 * number),
    }
