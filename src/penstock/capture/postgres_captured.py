"""What a position remembers of each captured table: more is not needed to see that it is another one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Captured:
    """A table as it was when it was last looked at."""

    oid: int
    places: tuple[str, ...] = ()  # as in the catalogue; () where that was not noted
    attached: frozenset[int] = frozenset()  # partitions that were made as tables of their own
    is_whole: bool = True  # otherwise it has to be read again

    @classmethod
    def of(cls, mark: Any) -> Captured:
        if isinstance(mark, int):
            return cls(mark)
        return cls(mark["oid"], tuple(mark.get("places", ())), frozenset(mark["attached"]), mark["is_whole"])

    @property
    def mark(self) -> Any:
        """Plain JSON; written out, since it is made of every table with every step."""
        return {
            "oid": self.oid,
            "places": list(self.places),
            "attached": sorted(self.attached),
            "is_whole": self.is_whole,
        }


def captured_in(position: Mapping[str, Any] | None) -> dict[str, Captured]:
    marks = position.get("tables", {}) if position else {}
    return {name: Captured.of(mark) for name, mark in marks.items()}


def marks_of(known: Mapping[str, Captured]) -> dict[str, Any]:
    return {name: captured.mark for name, captured in known.items()}
