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
        """A version of a row, in time or not, or one without a time, or one that is valid later."""
        now = (self.clock.now_us() - START_US) / SECOND
        ago = self.chance.choice([0, 1, 3, 9, 40, -2])
        moment = None if self.chance.random() < 0.1 else at(round(now - self.chance.random() * ago, 3))
        row = {"case": case, "id": self.chance.choice("abcd"), "at": moment}
        deleted = self.chance.random() < 0.2
        x = self.chance.randrange(1_000)
        placed = self.table.delete(row) if deleted else self.table.upsert({**row, "x": x})
        place = self.partitions + placed.partition, placed.offset
        self.table_rows[place] = {**row, "x": None if deleted else x, "deleted": deleted}
        self.records.append(
            oracle.Record(
                *place, self.clock.now_us(), None if moment is None else us(moment), (case,), x, row["id"]
            )
        )

    def model(self, name: str) -> oracle.Model:
        found = super().model(name)
        return TableModel(
            found.records, found.cuts, found.lateness, declared=found.declared, first=self.partitions
        )

    def versions(self, model: oracle.Model) -> dict[tuple[int, str], list[Version]]:
        found = defaultdict(list)
        for record in model.records:
            if record.partition < self.partitions or record.place not in model.met:
                continue
            row, met = self.table_rows[record.place], model.met[record.place]
            start = record.at
            if start is None:
                start = record.appended if row["deleted"] else BEGINNING_US
            if met is not None and start <= met:
                start = met + 1
            found[record.key[0], record.id].append(
                Version(record.place, start, record.arrival, row["deleted"], row)
            )
        return found


@dataclass(slots=True)
class TableModel(oracle.Model):
    """A table's record that is valid later than it was appended does not move the watermark."""

    first: int = 0  # the table's partitions begin there

    def usable(self, record: oracle.Record) -> bool:
        if record.partition >= self.first:
            return record.at is not None and record.at <= record.appended
        return oracle.Model.usable(self, record)
