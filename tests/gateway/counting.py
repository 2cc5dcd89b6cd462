"""Page views counted by page and window, batch after batch, as a run stores them, without Spark.

What it stores is what a query stores: one atomic append of changelog, late pairs, history and position, made
with the same functions. So whatever reads a view reads this one, and a test does not wait for a JVM.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import pyarrow as pa

import penstock as ps
from penstock.app import published, reading
from penstock.app.explain import Plan
from penstock.app.published import Published
from penstock.app.status import Phases, QueryStatus, Status
from penstock.flow import history
from penstock.flow import output as outputs
from penstock.flow.aggregate import REVISION
from penstock.flow.commit import Position, producer_of
from penstock.flow.offset import NEVER_US, Offset, Point
from penstock.flow.output import Output
from penstock.log.port import from_us, to_us
from penstock.log.settings import TopicSettings
from penstock.schema import RecordSchema

Key = tuple[str, datetime]
_TIME = pa.timestamp("us", tz="UTC")


@dataclass
class Counting:
    """One view over one topic, whose windows are `span` long; late rows correct it."""

    app: ps.App
    view: str
    topic: str
    by: str
    span: timedelta
    lateness: timedelta = timedelta(seconds=1)
    counts: Counter[Key] = field(default_factory=Counter)
    revisions: Counter[Key] = field(default_factory=Counter)
    position: Position | None = None
    phases: list[Phases] = field(default_factory=list)

    def __post_init__(self) -> None:
        columns = pa.schema(
            [(self.by, pa.string()), ("window_start", _TIME), ("window_end", _TIME), ("views", pa.int64())]
        )
        self._output = Output(self.view, "view", (self.by, "window_start", "window_end"), columns)
        row = self.app.log.port.settings(self.topic).schema.ddl.replace(" NOT NULL", "")
        fields = ", ".join(":".join(each.rsplit(" ", 1)) for each in row.split(", "))
        late = RecordSchema.of(
            f"row STRUCT<{fields}>, window_start TIMESTAMP, window_end TIMESTAMP, watermark TIMESTAMP, "
            "reason STRING, topic STRING, partition INT, offset BIGINT"
        )
        port = self.app.log.port
        port.create_topic(TopicSettings(f"{self.view}{outputs.BATCHES}", outputs.HISTORY))
        port.create_topic(TopicSettings(self.view, self._output.schema, key=self._output.key))
        port.create_topic(TopicSettings(f"{self.view}{outputs.LATE}", late))
        self._producer = self.app.log.producer(producer_of(self.app.name, self.view))

    def step(self) -> None:
        """Read what is there, store what it makes, bring the copy up to date."""
        began = time.monotonic()
        start = self.position.batch.end if self.position else self._beginning()
        bounds = self.app.log.topic(self.topic).bounds()
        ends = tuple(bounds[number][1] for number in sorted(bounds))
        rows = [row for number, end in enumerate(ends) for row in self._read(number, start, end)]
        if not rows:
            return
        closed = start.watermark_us(to_us_span(self.lateness))
        changed, late = self._count(rows, None if closed == NEVER_US else from_us(closed))
        newest = max(to_us(row["at"]) for row in rows)
        seen = max(newest, start.seen_us or newest)
        cut = max(to_us(row["_timestamp"]) for row in rows)
        batch = Offset(start, Point({self.topic: ends}, seen, seen, cut), rows=len(rows))
        self._store(batch, changed, late, took_ms=round((time.monotonic() - began) * 1_000))

    def _beginning(self) -> Point:
        return Point({self.topic: (0,) * self.app.log.port.settings(self.topic).partitions})

    def _read(self, number: int, start: Point, end: int) -> list[dict[str, Any]]:
        batches = self.app.log.port.read(self.topic, number, start.ends[self.topic][number], until=end)
        return [row for batch in batches for row in batch.to_pylist()]

    def _count(
        self, rows: list[dict[str, Any]], closed: datetime | None
    ) -> tuple[list[Key], list[dict[str, object]]]:
        changed: dict[Key, None] = {}
        late = []
        for row in rows:
            size = round(self.span.total_seconds() * 1e6)
            begins = from_us(to_us(row["at"]) // size * size)
            key = (row[self.by], begins)
            if closed is not None and begins + self.span <= closed:
                self.revisions[key] += 1
                own = {name: value for name, value in row.items() if not name.startswith("_")}
                late.append(
                    {"row": own, "window_start": begins, "window_end": begins + self.span,
                     "watermark": closed, "reason": "late", "topic": self.topic,
                     "partition": row["_partition"], "offset": row["_offset"]}
                )  # fmt: skip
            self.counts[key] += 1
            changed[key] = None
        return list(changed), late

    def _store(
        self, batch: Offset, changed: list[Key], late: list[dict[str, object]], *, took_ms: int
    ) -> None:
        number = self.position.number + 1 if self.position else 0
        closed_us = batch.end.watermark_us(to_us_span(self.lateness))
        table = pa.table(
            {
                self.by: [key[0] for key in changed],
                "window_start": pa.array([key[1] for key in changed], _TIME),
                "window_end": pa.array([key[1] + self.span for key in changed], _TIME),
                "views": [self.counts[key] for key in changed],
                REVISION: pa.array([self.revisions[key] for key in changed], pa.int32()),
            }
        )
        known = self.position.late if self.position else 0
        note = history.note(
            f"flow.{self.app.name}.{self.view}",
            number,
            batch,
            rows=batch.rows,
            took_ms=took_ms,
            closed_us=closed_us,
        )
        records: dict[object, object] = {
            self.view: outputs.changes(self._output, table, number=number, closed_us=closed_us),
            f"{self.view}{outputs.BATCHES}": {**note, "changes": len(changed), "late": len(late)},
        }
        if late:
            records[f"{self.view}{outputs.LATE}"] = late
        position = Position("plan", "checkpoint", number, number, batch, 0, late=known + len(late))
        self._producer.append(records, position=position.encode())  # type: ignore[arg-type]
        self.position = position
        reading.catch_up(self.app, reading.spec(self.app, self.view))
        now = from_us(batch.end.cut_us).isoformat()
        self.phases = [*self.phases[-20:], Phases(number, now, batch.rows, took_ms + 9, 4, 2, took_ms, 3)]


def to_us_span(span: timedelta) -> int:
    return round(span.total_seconds() * 1e6)


def publish(app: ps.App, views: list[Counting], *, began: float, operator: str = "tumbling") -> None:
    """What a run tells other processes."""
    queries = tuple(
        QueryStatus(
            each.view, (each.view,), "running", each.position.number if each.position else None, 0, 1.0, 20,
            None, None, len(each.counts), 0, 0, 0.0, 0, 0, None,
        )
        for each in views
    )  # fmt: skip
    plans = {
        each.view: Plan(
            each.view, (each.topic,), "event", 1_000, (each.by,), "",
            ({"name": operator, "span_ms": to_us_span(each.span) // 1_000},), True,
        )
        for each in views
    }  # fmt: skip
    status = Status(time.time_ns() // 1_000, time.monotonic() - began, queries, ())
    phases = {each.view: tuple(each.phases) for each in views}
    published._write(app, Published(status, 1, phases=phases, plans=plans))
