"""A generated log of events and of a table: upserts, deletes, snapshot rows, late changes and future ones."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

from tests.flow import oracle
from tests.flow.world import SECOND, START_US, World, at, us

from penstock.app.table import AppTable
from penstock.log.versions import BEGINNING_US


@dataclass(frozen=True, slots=True)
class Version:
    """One record of the table, and from when it is valid in a stream."""

    place: tuple[int, int]
    start: int
    arrival: tuple[int, int, int]
    deleted: bool
    row: dict[str, Any]


@dataclass
class TableWorld(World):
    """Beside the events, a table "users" (after them by name) with the key (case, id)."""

    table_rows: dict[tuple[int, int], dict[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.table: AppTable = self.declare_table("users")

    def declare_table(self, name: str) -> AppTable:
        return self.app.table(
            name, "case INT, id STRING, x BIGINT, at TIMESTAMP", key=["case", "id"], event_time="at",
            partitions=self.partitions, durability="os", lateness=self.lateness_s, idle_after="20 seconds",
        )  # fmt: skip

    def write(self, appends: int) -> None:
        for _ in range(appends):
            super().write(1)
            for _ in range(self.chance.randint(0, 2)):
                awake = len(self.records) * self.cases // 900
                self.change((awake + self.chance.randrange(12)) % self.cases)

    def change(self, case: int) -> None:
        """A version of a user."""
        row = {"case": case, "id": self.chance.choice("abcd")}
        self.store(self.table, self.partitions, row)

    def store(self, table: AppTable, first: int, row: dict[str, Any]) -> None:
        """A version, in time or not, or one without a time, or one that is valid later."""
        now = (self.clock.now_us() - START_US) / SECOND
        ago = self.chance.choice([0, 1, 3, 9, 40, -2])
        moment = None if self.chance.random() < 0.1 else at(round(now - self.chance.random() * ago, 3))
        deleted = self.chance.random() < 0.2
        row = {**row, "x": None if deleted else self.chance.randrange(1_000), "at": moment}
        placed = table.delete(row) if deleted else table.upsert(row)
        place = first + placed.partition, placed.offset
        self.table_rows[place] = {**row, "deleted": deleted}
        at_us = None if moment is None else us(moment)
        self.records.append(
            oracle.Record(*place, self.clock.now_us(), at_us, (row["case"],), None, row["id"])
        )

    def model(self, name: str) -> oracle.Model:
        found = super().model(name)
        return TableModel(
            found.records, found.cuts, found.lateness, declared=found.declared, first=self.partitions
        )

    def versions(
        self, model: oracle.Model, *, first: int | None = None, key: tuple[str, ...] = ("case", "id")
    ) -> dict[tuple[Any, ...], list[Version]]:
        """By key, in the order of arrival. `first`: the first partition of the table."""
        first = self.partitions if first is None else first
        found = defaultdict(list)
        for record in sorted(model.records, key=lambda r: r.arrival):
            if not first <= record.partition < first + self.partitions or record.place not in model.met:
                continue
            row, met = self.table_rows[record.place], model.met[record.place]
            start = record.at
            if start is None:
                start = record.appended if row["deleted"] else BEGINNING_US
            if met is not None and start <= met:
                start = met + 1
            found[tuple(row[name] for name in key)].append(
                Version(record.place, start, record.arrival, row["deleted"], row)
            )
        return found


@dataclass
class TwoTables(TableWorld):
    """No events: orders that refer to users, by (case, id)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.orders = self.app.table(
            "orders", "order BIGINT, case INT, id STRING, x BIGINT, at TIMESTAMP", key="order",
            event_time="at", partitions=self.partitions, durability="os", lateness=self.lateness_s,
            idle_after="20 seconds",
        )  # fmt: skip

    def write(self, appends: int) -> None:
        for _ in range(appends):
            awake = len(self.records) * self.cases // 900
            case = (awake + self.chance.randrange(12)) % self.cases
            if self.chance.random() < 0.4:
                self.change(case)
            else:
                order = case * 10 + self.chance.randrange(6)
                self.store(
                    self.orders,
                    0,
                    {"order": order, "case": case, "id": self.chance.choice(["a", "b", "c", None])},
                )
            self.clock.advance(self.chance.choice([0, 0, 0.03, 0.4, 1]))

    def model(self, name: str) -> oracle.Model:
        found = World.model(self, name)
        return TableModel(found.records, found.cuts, found.lateness, declared=found.declared)


def newest(known: list[Version]) -> dict[str, Any] | None:
    found = max(known, key=lambda v: (v.start, v.arrival), default=None)
    return None if found is None or found.deleted else found.row


@dataclass(slots=True)
class TableModel(oracle.Model):
    """A table's record that is valid later than it was appended does not move the watermark."""

    first: int = 0  # the table's partitions begin there

    def usable(self, record: oracle.Record) -> bool:
        if record.partition >= self.first:
            return record.at is not None and record.at <= record.appended
        return oracle.Model.usable(self, record)
