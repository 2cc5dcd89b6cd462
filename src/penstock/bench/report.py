"""What a bench found, in the one form that every bench prints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Self

Setting = str | int | float | bool

COLUMNS = ("what", "value#", "unit", "aim#", "holds", "peer", "peer value#", "ratio#")


@dataclass(frozen=True, slots=True)
class Result:
    """One number. `aim` and `peer`, and what follows from them, are None where there is none."""

    name: str
    value: float
    unit: str
    aim: float | None = None
    holds: bool | None = None
    peer: str | None = None
    peer_value: float | None = None
    ratio: float | None = None  # value / peer_value
    settings: Mapping[str, Setting] = field(default_factory=dict)

    def at_least(self, aim: float) -> Self:
        return replace(self, aim=aim, holds=self.value >= aim)

    def at_most(self, aim: float) -> Self:
        return replace(self, aim=aim, holds=self.value <= aim)

    def beside(self, peer: str, peer_value: float) -> Self:
        """With what something else reaches on the same events in the same run."""
        return replace(self, peer=peer, peer_value=peer_value, ratio=self.value / peer_value)

    def to_json(self) -> dict[str, object]:
        return {
            "name": self.name,
            "value": _rounded(self.value),
            "unit": self.unit,
            "aim": self.aim,
            "holds": self.holds,
            "peer": self.peer,
            "peer_value": _rounded(self.peer_value),
            "ratio": _rounded(self.ratio),
            "settings": dict(self.settings),
        }

    def row(self) -> tuple[str, ...]:
        """The same as text, in the order of `COLUMNS`."""
        bound = ""
        if self.aim is not None:
            # Of two equal numbers both readings are true.
            at_least = self.holds == (self.value >= self.aim)
            bound = f"{'≥' if at_least else '≤'} {_shown(self.aim)}"
        holds = {None: "", True: "yes", False: "NO"}[self.holds]
        return (
            self.name, _shown(self.value), self.unit, bound, holds,
            self.peer or "", _shown(self.peer_value), _shown(self.ratio),
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Report:
    """All numbers of one run, and the machine they were taken on."""

    bench: str
    machine: dict[str, Setting]
    results: Sequence[Result]

    @property
    def holds(self) -> bool:
        """Whether no aim was missed."""
        return all(result.holds is not False for result in self.results)

    def to_json(self) -> dict[str, object]:
        return {
            "bench": self.bench,
            "machine": self.machine,
            "results": [result.to_json() for result in self.results],
        }

    def rows(self) -> list[tuple[str, ...]]:
        """The results as text, in the order of `COLUMNS`."""
        return [result.row() for result in self.results]


def _rounded(value: float | None) -> float | None:
    """Four digits: more would be noise."""
    return None if value is None else float(f"{value:.4g}")


def _shown(value: float | None) -> str:
    if value is None:
        return ""
    rounded = float(f"{value:.3g}")
    return f"{rounded:,.0f}" if abs(rounded) >= 100 else f"{rounded:g}"
