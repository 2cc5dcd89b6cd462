"""The three ways to run a typed expression: over Arrow columns, row by row, and as a Spark Column.

All three give the same results; `tests/flow/operators/test_expressions.py` holds them against each other.
"""

from __future__ import annotations

import datetime as dt
import operator
from collections.abc import Callable
from math import isnan
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import BadInput
from penstock.flow.expression_types import Applied, Bound, Constant, Ref

if TYPE_CHECKING:
    from pyspark.sql import Column

Scalar: TypeAlias = Callable[..., Any]
"""Computes a plain value out of whatever its leaves take."""

_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "==": operator.eq, "!=": operator.ne,
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
_COMPUTE: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul,
}  # fmt: skip
_ARROW_COMPARE = {
    "==": pc.equal, "!=": pc.not_equal,
    "<": pc.less, "<=": pc.less_equal, ">": pc.greater, ">=": pc.greater_equal,
}  # fmt: skip
_ARROW_COMPUTE = {"+": pc.add_checked, "-": pc.subtract_checked, "*": pc.multiply_checked}
_WHOLE_MAX = 2**63


def plain(column: Any) -> list[Any]:
    """A column as plain values: timestamps and durations as microseconds, dates as days."""
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64())
    elif pa.types.is_duration(column.type):
        column = column.cast(pa.duration("us")).cast(pa.int64())
    elif pa.types.is_date(column.type):
        column = column.cast(pa.date32()).cast(pa.int32())
    if column.null_count == 0 and (pa.types.is_integer(column.type) or pa.types.is_floating(column.type)):
        return column.to_numpy().tolist()  # type: ignore[no-any-return]  # ten times as fast as to_pylist
    return column.to_pylist()  # type: ignore[no-any-return]


def arrow(of: Bound, column: Callable[[Ref], Any]) -> Any:
    """The expression over whole columns: an Arrow array, or a scalar where it reads none."""
    if isinstance(of, Ref):
        return column(of)
    if isinstance(of, Constant):
        return _scalar_of(of)
    values = [arrow(each, column) for each in of.arguments]
    try:
        return _arrow_applied(of, values)
    except pa.ArrowInvalid as error:
        raise _too_large(of) from error


def _arrow_applied(of: Applied, values: list[Any]) -> Any:
    if of.operator in _ARROW_COMPARE:
        floating = of.arguments[0].type == pa.float64()
        return _arrow_doubles(of.operator, *values) if floating else _ARROW_COMPARE[of.operator](*values)
    if of.operator in _ARROW_COMPUTE:
        wide = [each.cast(pa.int64()) if pa.types.is_integer(each.type) else each for each in values]
        return _ARROW_COMPUTE[of.operator](*wide).cast(of.type)
    ways: dict[str, Callable[..., Any]] = {
        "&": pc.and_kleene,
        "|": pc.or_kleene,
        "~": pc.invert,
        "is_null": pc.is_null,
        "double": lambda each: each.cast(pa.float64(), safe=False),
        "/": _arrow_divided,
        "is_in": lambda each, *among: _arrow_any(of.arguments[0], each, among),
    }
    return ways[of.operator](*values)


def _arrow_doubles(name: str, left: Any, right: Any) -> Any:
    """NaN equals NaN and is greater than any number."""
    both = pc.and_(pc.is_nan(left), pc.is_nan(right))
    if name in {"==", "!="}:
        same = pc.or_(pc.equal(left, right), both)
        return pc.invert(same) if name == "!=" else same
    if name in {">", ">="}:
        return _arrow_doubles("<" if name == ">" else "<=", right, left)
    less = pc.or_(pc.less(left, right), pc.and_(pc.is_nan(right), pc.invert(pc.is_nan(left))))
    return less if name == "<" else pc.or_(less, pc.or_(pc.equal(left, right), both))


def _arrow_divided(left: Any, right: Any) -> Any:
    nothing = pa.scalar(None, pa.float64())
    return pc.divide(left, pc.if_else(pc.equal(right, 0.0), nothing, right))


def _arrow_any(asked: Bound, values: Any, among: tuple[Any, ...]) -> Any:
    compare = _arrow_doubles if asked.type == pa.float64() else lambda _, *both: pc.equal(*both)
    found = compare("==", values, among[0])
    for each in among[1:]:
        found = pc.or_(found, compare("==", values, each))
    return found


def _scalar_of(of: Constant) -> Any:
    if pa.types.is_temporal(of.type):
        storage = pa.int32() if pa.types.is_date(of.type) else pa.int64()
        return pa.scalar(of.value, storage).cast(of.type)
    return pa.scalar(of.value, of.type)


def holds(of: Bound, column: Callable[[Ref], Any], *, rows: int) -> Any:
    """Which rows a condition is true for, as a numpy mask."""
    found = arrow(of, column)
    if isinstance(found, pa.Scalar):
        return np.full(rows, found.as_py() is True)
    if isinstance(found, pa.ChunkedArray):
        found = found.combine_chunks()
    return np.asarray(pc.fill_null(found, False).to_numpy(zero_copy_only=False))


def scalar(of: Bound, leaf: Callable[[Ref], Scalar]) -> Scalar:
    """The expression for one row at a time; its arguments go to the functions that `leaf` gives."""
    if isinstance(of, Ref):
        return leaf(of)
    if isinstance(of, Constant):
        value = of.value
        return lambda *_: value
    arguments = [scalar(each, leaf) for each in of.arguments]
    if len(arguments) == 1:
        return _unary(of.operator, arguments[0])
    if of.operator == "is_in":
        same = _compared("==", of.arguments[0].type)
        return _any_of(same, arguments[0], [each() for each in arguments[1:]])
    return _binary(of, *arguments)


def _unary(name: str, argument: Scalar) -> Scalar:
    ways: dict[str, Callable[[Any], Any]] = {
        "~": lambda value: None if value is None else not value,
        "is_null": lambda value: value is None,
        "double": lambda value: None if value is None else float(value),
    }
    way = ways[name]
    return lambda *row: way(argument(*row))


def _binary(of: Applied, left: Scalar, right: Scalar) -> Scalar:
    if of.operator == "&":
        return lambda *row: _and(left(*row), lambda: right(*row))
    if of.operator == "|":
        return lambda *row: _or(left(*row), lambda: right(*row))
    way: Callable[[Any, Any], Any]
    if of.operator in _COMPARE:
        way = _compared(of.operator, of.arguments[0].type)
    elif of.operator == "/":
        way = _divided
    else:
        way = _COMPUTE[of.operator] if of.type == pa.float64() else _computed(of)

    def both(*row: Any) -> Any:
        one, other = left(*row), right(*row)
        return None if one is None or other is None else way(one, other)

    return both


def _and(left: bool | None, right: Callable[[], bool | None]) -> bool | None:
    if left is False:
        return False
    other = right()
    return other if left or other is False else None


def _or(left: bool | None, right: Callable[[], bool | None]) -> bool | None:
    if left is True:
        return True
    other = right()
    return other if left is False or other is True else None


def _compared(name: str, type: pa.DataType) -> Callable[[Any, Any], bool]:
    compare = _COMPARE[name]
    if not pa.types.is_floating(type):
        return compare

    def doubles(left: float, right: float) -> bool:
        if isnan(left) or isnan(right):  # NaN is above all else, and equal to itself
            return bool(compare(isnan(left), isnan(right)))
        return bool(compare(left, right))

    return doubles


def _any_of(same: Callable[[Any, Any], bool], asked: Scalar, among: list[Any]) -> Scalar:
    def found(*row: Any) -> bool | None:
        value = asked(*row)
        return None if value is None else any(same(value, each) for each in among)

    return found


def _divided(left: float, right: float) -> float | None:
    return left / right if right else None


def _computed(of: Applied) -> Callable[[Any, Any], int]:
    way = _COMPUTE[of.operator]

    def whole(left: int, right: int) -> int:
        found = int(way(left, right))
        if not -_WHOLE_MAX <= found < _WHOLE_MAX:
            raise _too_large(of)
        return found

    return whole


def _too_large(of: Applied) -> BadInput:
    return BadInput(f"a result of {of.operator!r} does not fit into 64 bits.", hint="use a DOUBLE column")


def spark_column(of: Bound, column: Callable[[Ref], Column]) -> Column:
    """The expression as a Spark Column. Needs a session."""
    from pyspark.sql import functions as F

    if isinstance(of, Ref):
        return column(of)
    if isinstance(of, Constant):
        return _spark_literal(of)
    values = [spark_column(each, column) for each in of.arguments]
    if of.operator in _COMPARE:
        return _COMPARE[of.operator](*values)  # type: ignore[no-any-return]
    if of.operator in _COMPUTE:
        if of.type == pa.int64():
            values = [each.cast("long") for each in values]
        return _COMPUTE[of.operator](*values)  # type: ignore[no-any-return]
    ways: dict[str, Callable[..., Column]] = {
        "&": operator.and_,
        "|": operator.or_,
        "~": operator.invert,
        "is_null": lambda each: each.isNull(),
        "double": lambda each: each.cast("double"),
        "/": F.try_divide,
        "is_in": lambda each, *among: each.isin(*among),
    }
    return ways[of.operator](*values)


def _spark_literal(of: Constant) -> Column:
    from pyspark.sql import functions as F

    if pa.types.is_timestamp(of.type):
        moment = F.timestamp_micros(F.lit(of.value))
        return moment if of.type.tz else moment.cast("timestamp_ntz")
    if pa.types.is_date(of.type):
        return F.lit(dt.date(1970, 1, 1) + dt.timedelta(days=of.value))
    if pa.types.is_duration(of.type):
        return F.lit(dt.timedelta(microseconds=of.value))
    return F.lit(bytearray(of.value) if isinstance(of.value, bytes) else of.value)
