"""Expressions with types: every column found, every operator checked, every conversion said.

`bound` turns what a user wrote into a tree of `Ref`, `Constant` and `Applied`. It is plain data that can be
pickled. Values in it are *plain*: timestamps and durations are whole microseconds, dates whole days since
1970, so that rows compare and compute as fast as numbers do.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa

from penstock.errors import BadDefinition
from penstock.flow.expressions import Call, Expression, Field, Literal, Pick

TIME = pa.timestamp("us", "UTC")
_COMPARISONS = frozenset({"==", "!=", "<", "<=", ">", ">="})
_EPOCH = dt.datetime(1970, 1, 1)
_WHOLE_MAX = 2**63


@dataclass(frozen=True, slots=True)
class Ref:
    """Something of the events that a match took, of one type over all inputs it may come from."""

    step: int  # among the steps that take events; OWN is the event that asks
    pick: Pick
    inputs: tuple[int, ...]
    column: str
    type: pa.DataType


@dataclass(frozen=True, slots=True)
class Constant:
    value: Any  # plain
    type: pa.DataType


@dataclass(frozen=True, slots=True)
class Applied:
    operator: str  # those of `Call`, and "double": the argument as a double
    arguments: tuple[Bound, ...]
    type: pa.DataType


Bound: TypeAlias = Ref | Constant | Applied
Scope: TypeAlias = Callable[[Field], Ref]
"""Finds a field, or raises BadDefinition."""

OWN = -1


def kind_of(type: pa.DataType) -> str:
    """What can be done with values of a type."""
    checks: list[tuple[str, Callable[[Any], bool]]] = [
        ("whole number", pa.types.is_integer),
        ("double", pa.types.is_floating),
        ("decimal", pa.types.is_decimal),
        ("string", lambda each: pa.types.is_string(each) or pa.types.is_large_string(each)),
        ("boolean", pa.types.is_boolean),
        ("date", pa.types.is_date),
        ("duration", pa.types.is_duration),
        ("binary", lambda each: pa.types.is_binary(each) or pa.types.is_large_binary(each)),
    ]
    if pa.types.is_timestamp(type):
        return "timestamp" if type.tz else "timestamp without zone"
    return next((kind for kind, check in checks if check(type)), str(type))


def bound(of: Expression, scope: Scope) -> Bound:
    """The expression with its types. Raises BadDefinition for what does not fit together."""
    if isinstance(of, Field):
        return scope(of)
    if isinstance(of, Literal):
        return _constant(of.value)
    assert isinstance(of, Call), of
    arguments = tuple(bound(each, scope) for each in of.arguments)
    if of.operator in _COMPARISONS:
        return _comparison(of, arguments)
    if of.operator in {"&", "|", "~"}:
        return _logic(of, arguments)
    if of.operator == "is_null":
        return Applied("is_null", arguments, pa.bool_())
    return _is_in(of, arguments) if of.operator == "is_in" else _arithmetic(of, arguments)


def condition(of: Expression, scope: Scope) -> Bound:
    """As `bound`, for what has to be true or false."""
    found = bound(of, scope)
    if kind_of(found.type) != "boolean":
        raise BadDefinition(
            f"{of} is a {kind_of(found.type)} and no condition.", hint="compare it with something"
        )
    return found


def _constant(value: Any) -> Constant:
    if isinstance(value, int) and not isinstance(value, bool) and not -_WHOLE_MAX <= value < _WHOLE_MAX:
        raise BadDefinition(f"{value} does not fit into a BIGINT.", hint="use a smaller number, or a float")
    if isinstance(value, dt.datetime):
        zoned = value.tzinfo is not None
        naive = value.astimezone(dt.UTC).replace(tzinfo=None) if zoned else value
        return Constant(_micros(naive - _EPOCH), TIME if zoned else pa.timestamp("us"))
    if isinstance(value, dt.date):
        return Constant((value - _EPOCH.date()).days, pa.date32())
    if isinstance(value, dt.timedelta):
        return Constant(_micros(value), pa.duration("us"))
    return Constant(value, pa.scalar(value).type)


def _micros(length: dt.timedelta) -> int:
    return length // dt.timedelta(microseconds=1)


def _comparison(of: Call, arguments: tuple[Bound, ...]) -> Applied:
    left, right = _alike(of, *arguments)
    if kind_of(left.type) not in _ORDERED and of.operator not in {"==", "!="}:
        raise BadDefinition(f"{of}: a {kind_of(left.type)} has no order.", hint="use == or !=")
    return Applied(of.operator, (left, right), pa.bool_())


_NUMBERS = frozenset({"whole number", "double", "decimal"})
_ZONES = frozenset({"timestamp", "timestamp without zone"})
_ORDERED = _NUMBERS | _ZONES | {"string", "boolean", "date", "duration", "binary"}


def _alike(of: Call, left: Bound, right: Bound) -> tuple[Bound, Bound]:
    """Both sides as one kind. Whole numbers meet doubles as doubles, as in Spark."""
    kinds = {kind_of(left.type), kind_of(right.type)}
    if "double" in kinds and kinds <= {"whole number", "double"}:
        return _double(left), _double(right)
    if kinds <= {"whole number", "decimal"} or len(kinds) == 1:
        if not kinds <= _ORDERED:
            raise BadDefinition(f"{of}: a {min(kinds)} cannot be compared.", hint="compare a part of it")
        return left, right
    if kinds == _ZONES:
        hint = "give the datetime a tzinfo, such as datetime.UTC"
    elif kinds == {"decimal", "double"}:
        hint = "write the number as a decimal.Decimal, or make the column a DOUBLE first"
    else:
        hint = "make one of them the other's type before the pattern"
    raise BadDefinition(f"{of} compares a {kind_of(left.type)} with a {kind_of(right.type)}.", hint=hint)


def _double(of: Bound) -> Bound:
    if isinstance(of, Constant):
        return Constant(float(of.value), pa.float64())
    return of if of.type == pa.float64() else Applied("double", (of,), pa.float64())


def _logic(of: Call, arguments: tuple[Bound, ...]) -> Applied:
    for each, said in zip(arguments, of.arguments, strict=True):
        if kind_of(each.type) != "boolean":
            raise BadDefinition(
                f"{said} is a {kind_of(each.type)}, and {of.operator} takes conditions.",
                hint="put each side in parentheses: (a > 1) & (b > 2)",
            )
    return Applied(of.operator, arguments, pa.bool_())


def _is_in(of: Call, arguments: tuple[Bound, ...]) -> Applied:
    if len(arguments) < 2:
        raise BadDefinition(f"{of} is never true.", hint="give is_in at least one value")
    asked, *values = arguments
    pairs = [_alike(of, asked, each) for each in values]
    if not all(isinstance(value, Constant) for value in values):
        raise BadDefinition(f"{of} takes plain values.", hint="use == and | for columns")
    left = next((one for one, _ in pairs if one is not asked), asked)
    same = [_double(each) if kind_of(left.type) == "double" else each for each in values]
    return Applied("is_in", (left, *same), pa.bool_())


def _arithmetic(of: Call, arguments: tuple[Bound, ...]) -> Applied:
    left, right = arguments
    kinds = kind_of(left.type), kind_of(right.type)
    if set(kinds) <= {"whole number", "double"}:
        if of.operator == "/" or "double" in kinds:
            return Applied(of.operator, (_double(left), _double(right)), pa.float64())
        return Applied(of.operator, arguments, pa.int64())
    moments = _moments(of.operator, kinds)
    if moments is not None:
        return Applied(of.operator, arguments, moments)
    hint = "make the decimal a DOUBLE first" if "decimal" in kinds else "both sides have to be numbers"
    raise BadDefinition(f"{of} takes a {kinds[0]} and a {kinds[1]}.", hint=hint)


def _moments(operator: str, kinds: tuple[str, str]) -> pa.DataType | None:
    """Timestamps less timestamps are durations, and durations move timestamps."""
    if operator not in {"+", "-"}:
        return None
    left, right = kinds
    if left == right and (left == "duration" or (left in _ZONES and operator == "-")):
        return pa.duration("us")
    moved = left if right == "duration" else right if left == "duration" and operator == "+" else ""
    return {"timestamp": TIME, "timestamp without zone": pa.timestamp("us")}.get(moved)


def refs(of: Bound) -> list[Ref]:
    """All that an expression reads."""
    if isinstance(of, Applied):
        return [leaf for each in of.arguments for leaf in refs(each)]
    return [of] if isinstance(of, Ref) else []
