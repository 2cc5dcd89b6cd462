"""Typed aggregates as Spark Columns. Needs a running session, as Columns do."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from pyspark.sql import Column, WindowSpec
from pyspark.sql import functions as F

if TYPE_CHECKING:
    from penstock.flow.aggregates import Aggregate


def named(name: str) -> Column:
    """A top-level column, whatever characters its name has: a plain "a.b" would be field b of a."""
    return F.col("`" + name.replace("`", "``") + "`")


def column_of(
    aggregate: Aggregate, time: str, *, length_us: int | Column | None, over: WindowSpec | None
) -> Column:
    if aggregate.kind == "rate":
        length = length_us if isinstance(length_us, Column) else F.lit(length_us)
        events = _over(F.count(F.lit(1)), over).cast("double")
        return events * F.lit(float(aggregate.unit_us or 0)) / length.cast("double")
    value = F.lit(1) if aggregate.column is None else named(aggregate.column)
    if aggregate.kind == "collect":
        return _collected(value, time, over)
    return _over(_plain(aggregate, value, time), over)


def _over(column: Column, over: WindowSpec | None) -> Column:
    return column if over is None else column.over(over)


def _plain(aggregate: Aggregate, value: Column, time: str) -> Column:
    quantile = F.lit(aggregate.quantile)
    found: dict[str, Callable[[], Column]] = {
        "count": lambda: F.count(value),
        "sum": lambda: F.sum(value),
        "mean": lambda: F.avg(value),
        "min": lambda: F.min(value),
        "max": lambda: F.max(value),
        "percentile": lambda: F.percentile(value, quantile),
        "approx_distinct": lambda: F.approx_count_distinct(value, aggregate.relative_error),
        "approx_percentile": lambda: F.percentile_approx(value, quantile, F.lit(aggregate.accuracy)),
        "first": lambda: F.min_by(value, _order(time)),
        "last": lambda: F.max_by(value, _order(time)),
    }
    return found[aggregate.kind]()


def _order(time: str) -> Column:
    """Event time, then arrival: no two events are equal in it."""
    from penstock.flow.aggregates import ARRIVAL

    return F.struct(named(time).alias("time"), *(named(name).alias(name[1:]) for name in ARRIVAL))


def _collected(value: Column, time: str, over: WindowSpec | None) -> Column:
    pair = F.when(value.isNotNull(), F.struct(_order(time).alias("order"), value.alias("value")))
    return F.transform(F.array_sort(_over(F.collect_list(pair), over)), lambda each: each["value"])
