"""Typed expressions over the events of a pattern: `ps.step("purchase").amount > 100`.

What a user writes is plain data: a tree of `Field`, `Literal` and `Call`, made without pyspark or a JVM. It
has no types yet; `expression_types.bound` gives it some, against the schemas of the streams, and
`expression_forms` runs it: over Arrow columns, over single rows, or as a Spark Column.

    step("x").column              the event that step x took; in the condition of x, the event that asks
    step("x")["column"]           the same, for a column called `first`, `count` and the like
    step("x").first(), .last()    of a repeated step: its first and its last event
    step("x").previous()          only in the condition of x: the event the match took just before
    step("x").count()             how many events a repeated step took
    step("x").collect("column")   their values in order, without nulls
    matched_at()                  only in `emit`: the event time at which the match was known
    col("column")                 not in patterns, but in `where=` of a subscription: a column of the row

Nulls are as in SQL: what is compared or computed with one is null, `&` and `|` know that `false & null` is
false, and a condition that is null does not hold. Doubles compare as in Spark: NaN equals NaN and is greater
than any number. What is divided by zero is null.
"""

from __future__ import annotations

import datetime as dt
import decimal
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NoReturn, TypeAlias
from typing import Literal as Choice

from penstock.errors import BadDefinition

Pick: TypeAlias = Choice["only", "first", "last", "previous", "count", "collect", "matched_at"]
Plain: TypeAlias = bool | int | float | str | bytes | decimal.Decimal | dt.datetime | dt.date | dt.timedelta
"""What may stand in an expression as it is."""


class Expression:
    """A value of one match. `==`, `<`, `+`, `&` and so on make new ones."""

    __slots__ = ()

    def __eq__(self, other: object) -> Call:  # type: ignore[override]
        return _call("==", self, other)

    def __ne__(self, other: object) -> Call:  # type: ignore[override]
        return _call("!=", self, other)

    def __lt__(self, other: object) -> Call:
        return _call("<", self, other)

    def __le__(self, other: object) -> Call:
        return _call("<=", self, other)

    def __gt__(self, other: object) -> Call:
        return _call(">", self, other)

    def __ge__(self, other: object) -> Call:
        return _call(">=", self, other)

    def __add__(self, other: object) -> Call:
        return _call("+", self, other)

    def __radd__(self, other: object) -> Call:
        return _call("+", other, self)

    def __sub__(self, other: object) -> Call:
        return _call("-", self, other)

    def __rsub__(self, other: object) -> Call:
        return _call("-", other, self)

    def __mul__(self, other: object) -> Call:
        return _call("*", self, other)

    def __rmul__(self, other: object) -> Call:
        return _call("*", other, self)

    def __truediv__(self, other: object) -> Call:
        return _call("/", self, other)

    def __rtruediv__(self, other: object) -> Call:
        return _call("/", other, self)

    def __and__(self, other: object) -> Call:
        return _call("&", self, other)

    def __rand__(self, other: object) -> Call:
        return _call("&", other, self)

    def __or__(self, other: object) -> Call:
        return _call("|", self, other)

    def __ror__(self, other: object) -> Call:
        return _call("|", other, self)

    def __invert__(self) -> Call:
        return _call("~", self)

    def is_null(self) -> Call:
        return _call("is_null", self)

    def is_in(self, values: Iterable[Plain]) -> Call:
        """Whether it equals one of the values. Null if it is null."""
        if isinstance(values, str | bytes):
            raise BadDefinition(f"is_in({values!r}) takes a list.", hint=f"write is_in([{values!r}])")
        return _call("is_in", self, *values)

    def __bool__(self) -> NoReturn:
        raise BadDefinition(
            "a condition has no value yet, so Python cannot ask for it.",
            hint="use & for and, | for or, ~ for not; write a < b < c as (a < b) & (b < c)",
        )

    def __hash__(self) -> int:
        return id(self)


@dataclass(frozen=True, slots=True, eq=False)
class Field(Expression):
    """Something of the events that a step took; without a step, a column of the row itself."""

    step: str
    pick: Pick
    column: str = ""

    def __str__(self) -> str:
        if self.pick == "matched_at":
            return "matched_at()"
        if not self.step:
            return f'col("{self.column}")'
        of = f'step("{self.step}")'
        if self.pick in {"count", "collect"}:
            return f"{of}.{self.pick}({self.column})"
        return f"{of}.{self.column}" if self.pick == "only" else f"{of}.{self.pick}().{self.column}"


@dataclass(frozen=True, slots=True, eq=False)
class Literal(Expression):
    value: Plain

    def __str__(self) -> str:
        return repr(self.value)


@dataclass(frozen=True, slots=True, eq=False)
class Call(Expression):
    """An operator over its arguments."""

    operator: str
    arguments: tuple[Expression, ...]

    def __str__(self) -> str:
        said = [str(each) for each in self.arguments]
        if self.operator in {"is_null", "is_in"}:
            return f"{said[0]}.{self.operator}({', '.join(said[1:])})"
        return f"~{said[0]}" if len(said) == 1 else f"({said[0]} {self.operator} {said[1]})"


class Event:
    """One of the events that a step took; its columns are attributes."""

    __slots__ = ("_pick", "_step")

    def __init__(self, step: str, pick: Pick) -> None:
        self._step, self._pick = step, pick

    def __getitem__(self, column: str) -> Field:
        return Field(self._step, self._pick, column)

    def __getattr__(self, column: str) -> Field:
        if column.startswith("__"):  # Python asks for these itself
            raise AttributeError(column)
        return self[column]


class Step(Event):
    """The events of a step, in conditions and in `emit`. Made by `step`."""

    __slots__ = ()

    def first(self) -> Event:
        return Event(self._step, "first")

    def last(self) -> Event:
        return Event(self._step, "last")

    def previous(self) -> Event:
        return Event(self._step, "previous")

    def count(self) -> Field:
        return Field(self._step, "count")

    def collect(self, column: str) -> Field:
        return Field(self._step, "collect", column)


def step(name: str) -> Step:
    """The event that step `name` of a pattern took.

    >>> str((step("purchase").amount > 100) & step("purchase").country.is_in(["FR", "DE"]))
    '((step("purchase").amount > 100) & step("purchase").country.is_in(\\'FR\\', \\'DE\\'))'
    """
    return Step(name, "only")


def col(name: str) -> Field:
    """A column of the rows that a subscriber wants.

    >>> str((col("city") == "Bern") & ~col("name").is_null())
    '((col("city") == \\'Bern\\') & ~col("name").is_null())'
    """
    return Field("", "only", name)


def matched_at() -> Field:
    """The event time at which a match was known: that of its last event, or first + within at the timeout."""
    return Field("", "matched_at")


def expression(value: object) -> Expression:
    """The value itself, or a literal of it. Raises BadDefinition for what cannot stand in an expression."""
    if isinstance(value, Expression):
        return value
    if value is None:
        raise BadDefinition("None equals nothing, not even None.", hint="write .is_null()")
    if isinstance(value, Event):
        raise BadDefinition("a step is no value.", hint='say which column: ps.step("x").column')
    if not isinstance(value, Plain):
        raise BadDefinition(
            f"{type(value).__name__} cannot stand in a condition.",
            hint='conditions are made of ps.step("x").column and plain values; a Spark Column is neither',
        )
    return Literal(value)


def _call(operator: str, *arguments: object) -> Call:
    return Call(operator, tuple(map(expression, arguments)))


def leaves(of: Expression) -> list[Field]:
    """All fields in an expression."""
    if isinstance(of, Call):
        return [leaf for each in of.arguments for leaf in leaves(each)]
    return [of] if isinstance(of, Field) else []


def conjuncts(of: Any) -> list[Expression]:
    """What has to hold on its own each for all of it to hold."""
    if isinstance(of, Call) and of.operator == "&":
        return [each for argument in of.arguments for each in conjuncts(argument)]
    return [of]
