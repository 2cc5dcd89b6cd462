"""The least of an engine: folds steps into tables in memory, and remembers the position as JSON."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from penstock.capture.source import Aside, Changes, Position, Source, Step, Table

Row = dict[str, Any]


@dataclass(slots=True)
class Fold:
    """Everything a source has told."""

    tables: dict[str, dict[tuple[Any, ...], Row]] = field(default_factory=dict)
    forms: dict[str, list[Table]] = field(default_factory=dict)
    changes: list[tuple[str, Row]] = field(default_factory=list)  # table and envelope
    gone: list[str] = field(default_factory=list)
    aside: list[Aside] = field(default_factory=list)
    stored: str = "null"
    steps: int = 0
    _stale: dict[str, set[tuple[Any, ...]]] = field(default_factory=dict)
    _begun: set[str] = field(default_factory=set)

    @property
    def position(self) -> Position | None:
        found: Position | None = json.loads(self.stored)
        return found

    @property
    def lsn(self) -> int:
        position = self.position
        if not position or position["phase"] != "stream":
            return -1
        high, low = position["lsn"].split("/")
        return int(high, 16) << 32 | int(low, 16)

    def rows(self, table: str) -> dict[Any, tuple[Any, ...]]:
        """As PostgresDatabase.rows has them: in the last form of the table."""
        names = self.forms[table][-1].columns.names
        return {
            key if len(key) > 1 else key[0]: tuple(row.get(name) for name in names)
            for key, row in self.tables[table].items()
        }

    def told(self, table: str) -> list[Row]:
        return [row for name, row in self.changes if name == table]

    def ops(self, table: str) -> str:
        return "".join(row["op"] for row in self.told(table))

    def apply(self, step: Step) -> None:
        for table in step.begins:
            self._stale[table.name] = set(self.tables.setdefault(table.name, {}))
            self._begun.add(table.name)
            self._form(table)
        for changes in step.changes:
            self._apply(changes)
        for name in step.gone:
            self.tables[name].clear()
        self.gone += step.gone
        self.aside += step.aside
        for table in step.ends:
            assert table.name in self._begun, "a snapshot ends that has not begun"
            for key in self._stale.pop(table.name):
                self.tables[table.name].pop(key)
        self.stored = json.dumps(step.position)
        self.steps += 1

    def _form(self, table: Table) -> None:
        forms = self.forms.setdefault(table.name, [])
        if not forms or forms[-1] != table:
            forms.append(table)

    def _apply(self, changes: Changes) -> None:
        self._form(changes.table)
        changes.rows.validate(full=True)
        name, key = changes.table.name, changes.table.key
        table, stale = self.tables.setdefault(name, {}), self._stale.get(name, set())
        for number, row in enumerate(changes.rows.to_pylist()):
            self.changes.append((name, row))
            before, after = (_key(row[side], key) for side in ("before", "after"))
            if row["op"] == "t":
                table.clear()
                stale.clear()
                continue
            old = table.pop(before, None) if before else None
            stale -= {before, after}
            if after:
                for column, numbers in changes.unchanged.items():
                    if number in numbers:
                        assert row["after"][column] is None
                        if old is None:
                            assert changes.find is not None, "nothing to fill an unchanged value from"
                            old = changes.find([after]).get(after)  # type: ignore[assignment]
                        row["after"][column] = old[column] if old else None
                table[after] = row["after"]


def _key(row: Row | None, key: Sequence[str]) -> tuple[Any, ...]:
    return tuple(row[name] for name in key) if row else ()


def follow(
    source: Source,
    fold: Fold,
    until: Callable[[], bool],
    *,
    again: Sequence[str] = (),
    timeout_s: float = 60.0,
) -> None:
    """Stores steps until it is so, seen after a step or while idle."""
    for _ in followed(source, fold, again=again, timeout_s=timeout_s):
        if until():
            return


def followed(
    source: Source, fold: Fold, *, again: Sequence[str] = (), timeout_s: float = 60.0
) -> Iterator[Step | None]:
    """What the source gives, after it was stored."""
    ends_at = time.monotonic() + timeout_s
    steps = source.steps(fold.position, again)
    try:
        for step in steps:
            if step is not None:
                fold.apply(step)
                source.stored(step.position)
            yield step
            if time.monotonic() > ends_at:
                raise TimeoutError(f"waited {timeout_s:g} s for a source")
    finally:
        steps.close()  # type: ignore[attr-defined]
        source.close()
