"""How far a capture is: what is stored as its position, with every append."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from penstock.capture.source import Position


@dataclass(frozen=True, slots=True)
class Known:
    """A table as it was last seen."""

    columns: str  # DDL
    key: tuple[str, ...]
    version: int = 1
    snapshot_from: int | None = None  # while a snapshot is under way: the table's end when it began


@dataclass(frozen=True, slots=True)
class Progress:
    source: Position | None = None
    tables: Mapping[str, Known] = field(default_factory=dict)
    ending: tuple[str, ...] = ()  # tables whose snapshot is told whole, and whose ghosts are not yet deleted
    changes: int = 0  # stored in all
    requests: int = 0  # offset of the next request for a snapshot

    @classmethod
    def of(cls, stored: bytes | None) -> Progress:
        if stored is None:
            return cls()
        told: dict[str, Any] = json.loads(stored)
        tables = {
            name: Known(**{**known, "key": tuple(known["key"])}) for name, known in told["tables"].items()
        }
        return cls(**{**told, "tables": tables, "ending": tuple(told["ending"])})

    def to_bytes(self) -> bytes:
        return json.dumps(asdict(self), separators=(",", ":")).encode()

    def with_table(self, name: str, known: Known) -> Progress:
        return replace(self, tables={**self.tables, name: known})
