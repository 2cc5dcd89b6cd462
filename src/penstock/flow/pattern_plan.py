"""A pattern with its types and numbers: everything the kernel and the reference need, as plain data."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from penstock.flow.expression_types import OWN, Bound, refs


@dataclass(frozen=True, slots=True)
class Taker:
    """One stream that a step or an absence reads, and which of its events fit."""

    number: int  # its bit in the mask of what an event fits
    input: int
    alone: Bound | None  # what the event itself decides
    together: Bound | None  # what depends on the events taken before it


@dataclass(frozen=True, slots=True)
class Step:
    """A step that takes events."""

    name: str
    takers: tuple[Taker, ...]
    least: int
    most: int | None
    strict: bool
    absences: tuple[Taker, ...]  # what may not come between this step and the next

    @property
    def repeated(self) -> bool:
        return self.most != 1


@dataclass(frozen=True, slots=True)
class Input:
    rows: pa.Schema  # the columns that are needed of it
    time: str


@dataclass(frozen=True, slots=True)
class After:
    """The policy after a match; `step` for those that name one."""

    kind: str
    step: int = OWN


@dataclass(frozen=True, slots=True)
class Pattern:
    by: tuple[str, ...]
    inputs: tuple[Input, ...]
    steps: tuple[Step, ...]
    within_us: int
    after: After
    emitted: tuple[tuple[str, Bound], ...]
    timed_out: str | None

    @property
    def key(self) -> list[pa.Field]:
        return [pa.field(name, self.inputs[0].rows.field(name).type) for name in self.by]

    @property
    def output(self) -> pa.Schema:
        columns = [pa.field(name, value.type) for name, value in self.emitted]
        said = [pa.field(self.timed_out, pa.bool_())] if self.timed_out else []
        return pa.schema([*self.key, *columns, *said])

    @property
    def takers(self) -> list[Taker]:
        return [each for step in self.steps for each in (*step.takers, *step.absences)]

    @property
    def strict(self) -> bool:
        """Whether an event that fits no step can matter."""
        return any(step.strict for step in self.steps)

    @property
    def kept(self) -> list[tuple[int, str]]:
        """Input and column of all that is read of an event after it came in."""
        later = [each.together for each in self.takers if each.together is not None]
        later += [value for _, value in self.emitted]
        found = [(number, ref.column) for of in later for ref in refs(of) for number in ref.inputs]
        return sorted({each for each in found if each[1]})
