"""The batches of each definition, as far as a page shows them: newest ones, read once."""

from __future__ import annotations

import json
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from penstock.errors import PenstockError, UnknownTopic
from penstock.flow.offset import Offset
from penstock.flow.output import BATCHES
from penstock.flow.plan import appended_us
from penstock.log.port import to_us

if TYPE_CHECKING:
    from penstock.log.log import Log

KEPT = 240
_WAITS_MAX = 8  # of new batches whose oldest record is looked up, in one look


@dataclass(frozen=True, slots=True)
class Batch:
    """One that was stored. `wait_s`: from the append of its oldest record, None where it read none."""

    number: int
    version: int
    at_us: int
    rows: int
    changes: int
    late: int
    took_ms: int
    watermark_us: int | None
    topics: tuple[str, ...]
    wait_s: float | None


@dataclass(slots=True)
class Batches:
    """Of one definition. Used by the thread that looks."""

    name: str
    kept: deque[Batch] = field(default_factory=lambda: deque(maxlen=KEPT))
    last: Offset | None = None
    _next: int | None = None

    def look(self, log: Log) -> None:
        """Read what was stored since the last look."""
        topic = f"{self.name}{BATCHES}"
        try:
            start, end = log.port.bounds(topic, 0)
        except UnknownTopic:
            return
        if self._next is None or not start <= self._next <= end:
            self.kept.clear()
            self._next = max(start, end - KEPT)
        if self._next == end:
            return
        found = pa.Table.from_batches(
            log.port.read(topic, 0, self._next, until=end), schema=log.port.settings(topic).read_schema
        ).to_pylist()
        self._next = end
        for at, record in enumerate(found):
            self.last = Offset.from_json(json.loads(record["batch"]))
            self.kept.append(_batch(log, record, self.last, waited=len(found) - at <= _WAITS_MAX))

    @property
    def newest(self) -> Batch | None:
        return self.kept[-1] if self.kept else None

    def rate(self, now_us: int, over_s: float = 10.0) -> float:
        """Records read per second, lately; by the last batch where one takes longer than that."""
        over_s = max(over_s, self.newest.took_ms / 1_000 if self.newest else 0.0)
        recent = [batch for batch in self.kept if now_us - batch.at_us <= over_s * 1e6]
        return sum(batch.rows for batch in recent) / over_s

    def wait_s(self, now_us: int, over_s: float = 60.0) -> float | None:
        """The longest that a record took from its append to the view, lately."""
        waits = [b.wait_s for b in self.kept if b.wait_s is not None and now_us - b.at_us <= over_s * 1e6]
        return max(waits, default=None)


def _batch(log: Log, record: dict[str, Any], batch: Offset, *, waited: bool) -> Batch:
    at_us = to_us(record["_timestamp"])
    oldest = _oldest_us(log, batch) if waited and record["rows"] else None
    return Batch(
        record["number"], record["version"], at_us, record["rows"], record["changes"], record["late"],
        record["took_ms"], to_us(record["watermark"]) if record["watermark"] else None,
        tuple(batch.end.ends), None if oldest is None else max(0.0, (at_us - oldest) / 1e6),
    )  # fmt: skip


def _oldest_us(log: Log, batch: Offset) -> int | None:
    found: list[int] = []
    for topic, ends in batch.end.ends.items():
        starts = batch.start.ends.get(topic, ())
        for partition, end in enumerate(ends):
            start = starts[partition] if partition < len(starts) else 0
            try:
                at = appended_us(log, topic, partition, start) if start < end else None
            except PenstockError:  # retention took it
                continue
            found += [] if at is None else [at]
    return min(found, default=None)
