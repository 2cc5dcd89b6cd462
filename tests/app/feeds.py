"""What tests of feeds share: a table in plain Python, and a subscriber that applies what it is told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import penstock as ps
from penstock.app.table import AppTable
from penstock.clock import ManualClock
from penstock.follow.where import Wanted
from penstock.log import maintenance
from penstock.log.embedded import EmbeddedLog

START = datetime(2026, 11, 1, 10, tzinfo=UTC)
START_US = round(START.timestamp()) * 1_000_000
SCHEMA = "id BIGINT, name STRING, city STRING, at TIMESTAMP"
Row = dict[str, Any]
Told = tuple[str, int, Row | None, Row | None]  # operation, key, row, before


@dataclass(frozen=True)
class Write:
    """One record; `seconds`: its event time, after START."""

    key: int
    city: str | None
    seconds: int | None
    deleted: bool


@dataclass(frozen=True)
class Asked:
    """What is subscribed to, and the same for the model."""

    where: Wanted
    holds: Callable[[Row], bool]
    columns: list[str] | None = None

    def seen(self, row: Row) -> Row:
        return row if self.columns is None else {name: row[name] for name in self.columns}


@dataclass
class Model:
    """A table as a dict, version by version, and what each write did to the rows that were asked for."""

    asked: Asked
    timed: bool
    versions: dict[int, tuple[float, int, Row | None]] = field(default_factory=dict)
    rows: dict[int, Row] = field(default_factory=dict)
    told: list[list[Told]] = field(default_factory=list)  # by write

    def apply(self, write: Write, row: Row, appended_s: float) -> None:
        number = len(self.told)
        self.told.append([])
        start: float = number
        if self.timed:
            untimed = appended_s if write.deleted else -1e9
            start = untimed if write.seconds is None else write.seconds
        newest = self.versions.get(write.key)
        if newest is not None and (start, number) < newest[:2]:
            return
        self.versions[write.key] = (start, number, None if write.deleted else row)
        wanted = not write.deleted and self.asked.holds(row)
        self._change(write.key, self.asked.seen(row) if wanted else None)

    def _change(self, key: int, row: Row | None) -> None:
        before = self.rows.pop(key, None)
        if row is not None:
            self.rows[key] = row
        if before != row:
            operation = "delete" if row is None else "insert" if before is None else "update"
            self.told[-1].append((operation, key, row, before))


@dataclass
class Subscriber:
    """A client that comes and goes. `strict`: it minds a change that does not fit the rows it has."""

    table: AppTable
    asked: Asked
    strict: bool = True
    rows: dict[int, Row] = field(default_factory=dict)
    told: list[Told] = field(default_factory=list)
    position: str | None = None

    def catch_up(self, *, changes_max: int | None = None) -> bool:
        """Until the end as it is now, or until it leaves after so many changes; True at the end."""
        if self.position is None:
            self.rows, self.told = {}, []
        asked = self.asked
        feed = self.table.subscribe(
            where=asked.where, columns=asked.columns, after=self.position, follow=False
        )
        for number, change in enumerate(feed):
            if number == changes_max:
                return False
            self._take(change)
        self.position = feed.position
        return True

    def _take(self, change: ps.Change) -> None:
        if change.op != "current":
            key, row = change.key["id"], None if change.op == "delete" else change.row
            if self.strict:
                assert (key in self.rows) == (change.op != "insert")
                assert change.before == self.rows.get(key)
            if change.position is not None:
                self.told.append((change.op, key, row, change.before))
            self.rows.pop(key, None)
            if row is not None:
                self.rows[key] = row
        self.position = change.position


def make_table(app: ps.App, *, timed: bool, **options: Any) -> AppTable:
    event_time = "at" if timed else None
    name = f"users{len(app.topics)}"
    return app.table(name, SCHEMA, key="id", event_time=event_time, partitions=2, durability="os", **options)


def store(table: AppTable, clock: ManualClock, model: Model, write: Write) -> None:
    clock.advance(0.5)
    appended_s = (clock.now_us() - START_US) / 1_000_000
    at = None if write.seconds is None else START + timedelta(seconds=write.seconds)
    row = {"id": write.key, "name": f"n{len(model.told)}", "city": write.city, "at": at}
    if write.deleted:
        table.delete({"id": write.key, "at": at} if model.timed else {"id": write.key})
    else:
        table.upsert(row)
    model.apply(write, row, appended_s)


def compact(app: ps.App, table: AppTable) -> None:
    port = app.log.port
    assert isinstance(port, EmbeddedLog)
    for number in range(table.settings.partitions):
        partition, known = port.partition(table.name, number), port.settings(table.name)
        with partition.locked(known) as head:
            if head.frames:
                partition.roll(head, known)
        maintenance.run(partition, known, port.groups_store(), force=True)
