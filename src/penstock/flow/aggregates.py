"""Typed aggregates: said once, run by Spark and by the vectorized kernels of the stateful operators.

An `Aggregate` is plain data: it is made, compared and checked without pyspark or a JVM. Its two forms,
`to_column` (Spark) and `kernel` (many row ranges of one array), give the same results and the same types.
Nulls are left out, as in SQL, except by `first` and `last`, which take the event as it is.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from penstock.clock import duration_ms
from penstock.errors import BadInput, BadOption
from penstock.schema import did_you_mean

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from pyspark.sql import Column
    from pyspark.sql.types import StructType
    from pyspark.sql.window import WindowSpec

    Ints: TypeAlias = npt.NDArray[np.int64]

ArrowArray: TypeAlias = Any  # pyarrow carries no types
ArrowType: TypeAlias = Any
Kind: TypeAlias = Literal[
    "count", "sum", "mean", "min", "max", "percentile", "approx_distinct", "approx_percentile",
    "first", "last", "collect", "rate",
]  # fmt: skip

ARRIVAL = ("_timestamp", "_partition", "_offset")
"""The columns that say in which order events arrived."""

_NUMBERS = frozenset({"byte", "short", "integer", "long", "float", "double", "decimal"})
_TIMES = frozenset({"date", "timestamp", "timestamp_ntz"})
_ORDERED = _NUMBERS | _TIMES | {"string", "varchar", "char", "boolean", "binary"}
_TAKES: dict[Kind, frozenset[str]] = {
    "sum": _NUMBERS,
    "mean": _NUMBERS,
    "percentile": _NUMBERS,
    "approx_percentile": _NUMBERS | _TIMES,
    "min": _ORDERED,
    "max": _ORDERED,
    "approx_distinct": _ORDERED,
}


@dataclass(frozen=True, slots=True)
class Aggregate:
    """One value out of a group of events. Made by the functions below, not by hand."""

    kind: Kind
    column: str | None = None
    quantile: float | None = None
    accuracy: int | None = None
    relative_error: float | None = None
    unit_us: int | None = None

    @property
    def exact(self) -> bool:
        return self.error is None

    @property
    def error(self) -> float | None:
        """What an approximate result may be off by, None for an exact one.

        `approx_distinct`: the relative standard deviation. `approx_percentile`: a share of the ranks.
        The kernels are exact for both.
        """
        return 1 / self.accuracy if self.accuracy else self.relative_error

    @property
    def needs_arrival(self) -> bool:
        """Whether `to_column` reads the columns of `ARRIVAL`."""
        return self.kind in {"first", "last", "collect"}

    def check(self, schema: StructType) -> None:
        """Raises BadOption unless the columns are there and of a type that this can take."""
        types = {field.name: field.dataType.typeName() for field in schema.fields}
        wanted = ([self.column] if self.column else []) + (list(ARRIVAL) if self.needs_arrival else [])
        for name in wanted:
            if name not in types:
                raise BadOption(
                    f'{self} needs a column "{name}", which is not there.', hint=did_you_mean(name, types)
                )
        if self.column is None:
            return
        found, takes = types[self.column], _TAKES.get(self.kind)
        # `collect` sorts its rows, and Spark orders no structs that have a map in them.
        if (takes and found not in takes) or (self.kind == "collect" and found in {"map", "variant"}):
            raise BadOption(
                f'{self} cannot take column "{self.column}" of type {found}.',
                hint=f"it takes {', '.join(sorted(takes))}" if takes else "collect a part of it instead",
            )

    def __str__(self) -> str:
        return f"{self.kind}({self.column or ''})"

    def to_column(
        self, time: str, *, length_us: int | Column | None = None, over: WindowSpec | None = None
    ) -> Column:
        """For groupBy().agg(), or with `over` as a window function.

        `time` names the event-time column. `length_us` is how long the window is, for `rate` only: a
        number, or for sessions a Column of the grouping.
        """
        from penstock.flow import aggregate_columns

        self._check_length(length_us)
        return aggregate_columns.column_of(self, time, length_us=length_us, over=over)

    def result_type(self, column_type: ArrowType = None) -> ArrowType:
        """Spark's result type, in Arrow, for a column of this type."""
        import pyarrow as pa

        if self.kind in {"count", "approx_distinct"}:
            return pa.int64()
        if self.kind in {"percentile", "rate"}:
            return pa.float64()
        if self.kind == "collect":
            return pa.list_(pa.field("element", column_type))
        if self.kind in {"sum", "mean"}:
            return _total_type(self.kind, column_type)
        return column_type

    def kernel(
        self, values: ArrowArray | None, lo: Ints, hi: Ints, *, length_us: int | Ints | None = None
    ) -> ArrowArray:
        """One result for each range [lo, hi) of rows.

        `values` are those of the column (an Arrow array; None where there is no column), in the order of
        event time and then arrival within every range. A sum of whole numbers that leaves 64 bits is an
        error, as it is in Spark.
        """
        import numpy as np
        import pyarrow as pa

        from penstock.flow import kernels

        self._check_length(length_us)
        if self.kind == "rate":
            return pa.array((hi - lo) * float(self.unit_us or 0) / np.asarray(length_us, dtype=np.float64))
        if values is None:
            return pa.array(hi - lo, pa.int64())
        if isinstance(values, pa.ChunkedArray):
            values = values.combine_chunks()
        if self.kind in {"first", "last"}:
            rows = np.arange(len(values), dtype=np.int64)
            return kernels.take_or_null(values, rows, lo if self.kind == "first" else hi - 1, hi > lo)
        return self._over_values(*kernels.without_nulls(values, lo, hi))

    def _over_values(self, values: ArrowArray, lo: Ints, hi: Ints) -> ArrowArray:
        """The kernels of those kinds that never see a null."""
        import numpy as np
        import pyarrow as pa

        from penstock.flow import kernels

        places = np.maximum(np.ceil((hi - lo) * (self.quantile or 0.0)).astype(np.int64) - 1, 0)
        ways: dict[str, Callable[[], Any]] = {
            "count": lambda: hi - lo,
            "sum": lambda: self._totals(values, lo, hi),
            "mean": lambda: self._totals(values, lo, hi),
            "min": lambda: kernels.smallest(values, lo, hi),
            "max": lambda: kernels.largest(values, lo, hi),
            "percentile": lambda: kernels.percentiles(values, lo, hi, self.quantile or 0.0),
            "approx_percentile": lambda: kernels.kth_smallest(values, lo, hi, places),
            "approx_distinct": lambda: kernels.distinct(values, lo, hi),
            "collect": lambda: kernels.lists(values, lo, hi),
        }
        found = ways[self.kind]()
        return pa.array(found) if isinstance(found, np.ndarray) else found.cast(self.result_type(values.type))

    def _totals(self, values: ArrowArray, lo: Ints, hi: Ints) -> ArrowArray:
        import decimal

        import pyarrow as pa

        from penstock.flow import kernels

        found = (kernels.sums if self.kind == "sum" else kernels.means)(values, lo, hi)
        wanted = self.result_type(values.type)
        if pa.types.is_decimal(wanted):
            unit = decimal.Decimal(1).scaleb(-wanted.scale)
            with decimal.localcontext(prec=80):
                rounded = [number.quantize(unit, decimal.ROUND_HALF_UP) for number in found]
            return pa.array(rounded, wanted, mask=hi <= lo)
        try:
            return pa.array(found, wanted, mask=hi <= lo)
        except (OverflowError, pa.ArrowInvalid) as error:
            raise BadInput(
                f"{self} does not fit into a BIGINT.", hint="make the column a DECIMAL(38, 0) or a DOUBLE"
            ) from error

    def _check_length(self, length_us: object) -> None:
        if self.kind == "rate" and length_us is None:
            raise BadOption(
                "rate() is events for a length of time, and without a window there is none.",
                hint="give a window, or use count()",
            )


def _total_type(kind: str, column_type: ArrowType) -> ArrowType:
    import pyarrow as pa

    if pa.types.is_decimal(column_type):
        digits, scale = column_type.precision, column_type.scale
        if kind == "sum":
            return pa.decimal128(builtins.min(38, digits + 10), scale)
        return pa.decimal128(builtins.min(38, digits + 4), builtins.min(38, scale + 4))
    return pa.int64() if kind == "sum" and pa.types.is_integer(column_type) else pa.float64()


def count(column: str | None = None) -> Aggregate:
    """How many events; with a column, how many in which it is not null."""
    return Aggregate("count", column)


def sum(column: str) -> Aggregate:
    return Aggregate("sum", column)


def mean(column: str) -> Aggregate:
    return Aggregate("mean", column)


def min(column: str) -> Aggregate:
    return Aggregate("min", column)


def max(column: str) -> Aggregate:
    return Aggregate("max", column)


def percentile(column: str, quantile: float) -> Aggregate:
    """Exact; between two values in proportion. 0.5 is the median."""
    return Aggregate("percentile", column, quantile=_share(quantile))


def approx_distinct(column: str, *, error: float = 0.05) -> Aggregate:
    """How many different values, with a relative standard deviation of `error`."""
    if not 0.001 <= error <= 0.39:
        raise BadOption(f"error {error!r} is outside 0.001 to 0.39.", hint="0.05 is usual")
    return Aggregate("approx_distinct", column, relative_error=error)


def approx_percentile(column: str, quantile: float, *, accuracy: int = 10_000) -> Aggregate:
    """A value of the column whose rank is off by at most 1/accuracy of the events. NaN spoils it."""
    if not 1 <= accuracy <= 1_000_000:
        raise BadOption(f"accuracy {accuracy!r} is outside 1 to 1,000,000.", hint="10,000 is usual")
    return Aggregate("approx_percentile", column, quantile=_share(quantile), accuracy=accuracy)


def first(column: str) -> Aggregate:
    """Of the earliest event; of several at one time, of the one that arrived first."""
    return Aggregate("first", column)


def last(column: str) -> Aggregate:
    """Of the latest event; of several at one time, of the one that arrived last."""
    return Aggregate("last", column)


def collect(column: str) -> Aggregate:
    """All values, by event time and then by arrival."""
    return Aggregate("collect", column)


def rate(unit: str) -> Aggregate:
    """Events per `unit` of time ("1 second") over the length of the window."""
    return Aggregate("rate", unit_us=duration_ms(unit) * 1_000)


def _share(quantile: float) -> float:
    if not 0 <= quantile <= 1:
        raise BadOption(f"quantile {quantile!r} is outside 0 to 1.", hint="the 95th percentile is 0.95")
    return float(quantile)
