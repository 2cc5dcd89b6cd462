"""Debezium's events as steps: whole transactions, snapshots with their begin and end, nothing twice."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from penstock.capture import envelope
from penstock.capture.debezium_json import Change, Form, changes_of
from penstock.capture.source import Changes, Position, Step, Table
from penstock.schema import RecordSchema

STEP_ROWS = 20_000  # a transaction of more is told in several steps
_BEGIN, _END = "BEGIN", "END"


@dataclass(frozen=True, slots=True)
class Event:
    """One record of Debezium's. `form` and `change`: of a row; `mark`: BEGIN or END of a transaction."""

    partition: str  # canonical JSON
    offset: Mapping[str, Any]
    batch: int = 0
    form: Form | None = None
    change: Change | None = None
    mark: str = ""


@dataclass(slots=True)
class Place:
    """How far one partition of the source is stored."""

    offset: Mapping[str, Any]
    order: tuple[Any, ...] | None = None  # of its last change


@dataclass(slots=True)
class Progress:
    """What a position holds: Debezium's own offsets, and what is needed to go on from them."""

    places: dict[str, Place] = field(default_factory=dict)
    tables: dict[str, Table] = field(default_factory=dict)
    history: str = ""  # of the forms of tables, where the connector keeps one
    reading: bool = False  # whether a snapshot is under way

    @classmethod
    def of(cls, position: Position | None) -> Progress:
        if position is None:
            return cls(reading=True)
        return cls(
            {
                partition: Place(offset, None if order is None else tuple(order))
                for partition, offset, order in position["places"]
            },
            {
                name: Table(name, RecordSchema.of(ddl).arrow, tuple(key))
                for name, (ddl, key) in position.get("tables", {}).items()
            },
            position["history"],
            position["reading"],
        )

    def position(self) -> dict[str, Any]:
        return {
            "places": [[partition, place.offset, place.order] for partition, place in self.places.items()],
            "tables": {
                table.name: [RecordSchema(table.columns).ddl, list(table.key)]
                for table in self.tables.values()
            },
            "history": self.history,
            "reading": self.reading,
        }

    def anew(self) -> Progress:
        """For a new snapshot: Debezium starts from nothing, and nothing that it tells is a repetition."""
        return Progress(tables=self.tables, reading=True)

    @property
    def offsets(self) -> list[list[Any]]:
        """To start Debezium from."""
        return [[json.loads(partition), place.offset] for partition, place in self.places.items()]


class Steps:
    """Gathers events, and says what can be stored. `stored_batch`: told whole by the steps so far."""

    def __init__(self, progress: Progress, *, step_rows: int = STEP_ROWS) -> None:
        self.progress, self.stored_batch = progress, 0
        self._step_rows = step_rows
        self._pending: list[Event] = []
        self._begun: dict[str, Table] = {}
        self._repeats = {partition: place.order for partition, place in progress.places.items()}

    def add(self, events: Sequence[Event], batch: int, history: str | None) -> Iterator[Step]:
        """What one batch makes ready to be stored, each once the one before is."""
        self.progress.history = history or self.progress.history
        self._pending += [event for event in events if not self._is_repeated(event)]
        while cut := self._cut():
            taken, self._pending = self._pending[:cut], self._pending[cut:]
            step = self._step(taken)
            self.stored_batch = self._pending[0].batch - 1 if self._pending else batch
            yield step

    def ended(self) -> Step | None:
        """A snapshot is over that told no row of its last tables, or of none."""
        if not self.progress.reading or self._pending:
            return None
        begins = self._missing()
        return self._finished([], begins) if begins or self._begun else None

    def _is_repeated(self, event: Event) -> bool:
        """Debezium goes on at or before its offset: what is stored comes first, and only then."""
        last = self._repeats.get(event.partition)
        if last is None or event.change is None or event.change.order is None:
            return False
        if event.change.order <= last:
            return True
        self._repeats[event.partition] = None
        return False

    def _cut(self) -> int:
        """How many of the events make a step: up to the last end of a transaction, if that is not too far."""
        whole, is_open, rows = 0, False, 0
        for number, event in enumerate(self._pending, 1):
            rows += event.change is not None
            is_open = event.mark == _BEGIN or (
                event.mark != _END and (is_open or bool(event.change and event.change.transaction))
            )
            if not is_open:
                whole = number
            if rows >= self._step_rows:
                return whole or self._between(number)
        return whole

    def _between(self, number: int) -> int:
        """Within a transaction, but not within what has one place there: Debezium cannot go on in it."""

        def order(at: int) -> Any:
            change = self._pending[at].change
            return None if change is None else change.order

        while number > 1 and (number >= len(self._pending) or order(number) == order(number - 1)):
            number -= 1
        return number if number > 1 or len(self._pending) == 1 else 0

    def _step(self, events: Sequence[Event]) -> Step:
        begins, over = [], False
        rows: dict[tuple[str, int], tuple[Table, list[Change]]] = {}
        for event in events:
            order = event.change.order if event.change else None
            known = self.progress.places.get(event.partition)
            last = known.order if known else None
            self.progress.places[event.partition] = Place(event.offset, order or last)
            if event.form is None or event.change is None:
                over |= "snapshot" not in event.offset and not event.mark
                continue
            table = event.form.table
            over |= not event.change.snapshot or event.change.snapshot == "last"
            if event.change.snapshot and table.name not in self._begun:
                self._begun[table.name] = table
                begins.append(table)
            self.progress.tables[table.name] = table
            _append(rows.setdefault((table.name, id(event.form)), (table, []))[1], event.change)
        changes = [changes_of(table, told) for table, told in rows.values()]
        if self.progress.reading and over:
            return self._finished(changes, [*begins, *self._missing()])
        return Step(self.progress.position(), changes, begins)

    def _missing(self) -> list[Table]:
        """Tables that had rows once, and that the snapshot has found empty."""
        return [table for name, table in self.progress.tables.items() if name not in self._begun]

    def _finished(self, changes: Sequence[Changes], begins: Sequence[Table]) -> Step:
        ends = {**self._begun, **{table.name: table for table in begins}}
        self.progress.reading, self._begun = False, {}
        return Step(self.progress.position(), changes, begins, list(ends.values()))


def _append(told: list[Change], change: Change) -> None:
    """Debezium tells an update of a key as a delete and an insert, both of one place: it is one change."""
    last = told[-1] if told else None
    if (
        last is not None
        and change.order is not None
        and (last.order, last.op, change.op) == (change.order, envelope.DELETE, envelope.INSERT)
    ):
        told[-1] = replace(change, op=envelope.UPDATE, before=last.before)
    else:
        told.append(change)
