"""How far a capture is: stored with every append.

What changes with every append is the position of its producer. What is known of each table would make that
grow with the number of tables: it is in a compacted topic beside it, `<capture>.known`, which gets a record
in the same append when something of a table changes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import pyarrow as pa

from penstock.capture.source import Position

KNOWN_DDL = "table STRING NOT NULL, known STRING, mark STRING"
_MARKS = "tables"  # in the position of a source


@dataclass(frozen=True, slots=True)
class Known:
    """A table as it was last seen."""

    columns: str  # DDL
    key: tuple[str, ...]
    version: int = 1
    snapshot_from: int | None = None  # while a snapshot is under way: the table's end when it began
    is_gone: bool = False  # the source has it no more

    @classmethod
    def of(cls, text: str) -> Known:
        told = json.loads(text)
        return cls(**{**told, "key": tuple(told["key"])})


@dataclass(frozen=True, slots=True)
class Progress:
    source: Position | None = None  # without its marks
    ending: tuple[str, ...] = ()  # tables whose snapshot is told whole, and whose ghosts are not yet deleted
    changes: int = 0  # stored in all
    requests: int = 0  # offset of the next request for a snapshot
    tables: Mapping[str, Known] = field(default_factory=dict)
    marks: Mapping[str, Any] = field(default_factory=dict)  # of the source, by table

    @classmethod
    def of(cls, stored: bytes | None, rows: Iterable[Mapping[str, Any]] = ()) -> Progress:
        """`rows`: of the topic of what is known; without them nothing of the tables."""
        told: dict[str, Any] = json.loads(stored) if stored else {"ending": ()}
        known, marks = {}, {}
        for row in rows:
            if row["known"] is not None:
                known[row["table"]] = Known.of(row["known"])
            if row["mark"] is not None:
                marks[row["table"]] = json.loads(row["mark"])
        return cls(**{**told, "ending": tuple(told["ending"])}, tables=known, marks=marks)

    @property
    def position(self) -> Position | None:
        """Where the source goes on, with its marks."""
        if self.source is None or not self.marks:
            return self.source
        return {**self.source, _MARKS: self.marks}

    def at(self, position: Position) -> Progress:
        own = {name: value for name, value in position.items() if name != _MARKS}
        return replace(self, source=own, marks=position.get(_MARKS, {}))

    def to_bytes(self) -> bytes:
        told = {name: getattr(self, name) for name in ("source", "ending", "changes", "requests")}
        return json.dumps(told, separators=(",", ":")).encode()

    def news(self, before: Progress) -> pa.Table | None:
        """Records of what is known now and was not before; None where that is nothing."""
        if self.tables is before.tables and self.marks == before.marks:
            return None
        names = {**self.tables, **self.marks}
        rows = [
            self._row(name)
            for name in names
            if self.tables.get(name) != before.tables.get(name)
            or self.marks.get(name) != before.marks.get(name)
        ]
        gone = {**before.tables, **before.marks}.keys() - names.keys()
        rows += [{"table": name, "known": None, "mark": None, "_deleted": True} for name in gone]
        return pa.Table.from_pylist(rows, schema=_RECORDS) if rows else None

    def _row(self, name: str) -> dict[str, Any]:
        known, mark = self.tables.get(name), self.marks.get(name)
        return {
            "table": name,
            "known": None if known is None else json.dumps(asdict(known)),
            "mark": None if mark is None else json.dumps(mark),
            "_deleted": False,
        }

    def with_table(self, name: str, known: Known) -> Progress:
        return replace(self, tables={**self.tables, name: known})


_RECORDS = pa.schema(
    [
        pa.field("table", pa.string(), nullable=False),
        pa.field("known", pa.string()),
        pa.field("mark", pa.string()),
        pa.field("_deleted", pa.bool_(), nullable=False),
    ]
)
