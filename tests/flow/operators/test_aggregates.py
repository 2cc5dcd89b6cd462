"""Typed aggregates: kernels against plain Python and against Spark, types, and what is refused."""

from __future__ import annotations

import datetime as dt
import math
import random
import subprocess
import sys
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import LongType, MapType, StringType, StructType
from tests.flow.operators.events import close, in_time, row, table, thorough

from penstock.errors import BadInput, BadOption
from penstock.flow import aggregates as ag

_RANGES = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), max_size=20)


def _percentile(values: list[float], quantile: float) -> float:
    ordered, place = sorted(values), (len(values) - 1) * quantile
    low, high = math.floor(place), math.ceil(place)
    if low == high or ordered[low] == ordered[high]:
        return float(ordered[low])
    return (high - place) * ordered[low] + (place - low) * ordered[high]


def _nth(values: list[Any], quantile: float) -> Any:
    return sorted(values)[max(0, math.ceil(len(values) * quantile) - 1)]


_NAIVE: list[tuple[ag.Aggregate, Callable[[list[Any]], Any]]] = [
    (ag.count("x"), len),
    (ag.sum("x"), lambda v: sum(v) if v else None),
    (ag.mean("x"), lambda v: sum(v) / len(v) if v else None),
    (ag.min("x"), lambda v: min(v, default=None)),
    (ag.max("x"), lambda v: max(v, default=None)),
    (ag.percentile("x", 0.3), lambda v: _percentile(v, 0.3) if v else None),
    (ag.percentile("x", 1), lambda v: float(max(v)) if v else None),
    (ag.approx_percentile("x", 0.3), lambda v: _nth(v, 0.3) if v else None),
    (ag.approx_percentile("x", 0), lambda v: _nth(v, 0) if v else None),
    (ag.approx_distinct("x"), lambda v: len(set(v))),
    (ag.collect("x"), list),
]


def _bounds(ranges: list[tuple[int, int]], many: int) -> tuple[Any, Any]:
    pairs = [sorted((a % (many + 1), b % (many + 1))) for a, b in ranges]
    both = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    return both[:, 0], both[:, 1]


@pytest.mark.parametrize(
    ("aggregate", "naive"), _NAIVE, ids=lambda each: str(each) if isinstance(each, ag.Aggregate) else "loop"
)
@thorough
@given(values=st.lists(st.none() | st.integers(-50, 50), max_size=40), ranges=_RANGES)
def test_a_kernel_gives_for_whole_numbers_what_a_loop_gives(
    aggregate: ag.Aggregate, naive: Callable[[list[Any]], Any], values: list[int | None], ranges: Any
) -> None:
    lo, hi = _bounds(ranges, len(values))
    found = aggregate.kernel(pa.array(values, pa.int64()), lo, hi)
    wanted = [naive([v for v in values[a:b] if v is not None]) for a, b in zip(lo, hi, strict=True)]
    assert found.to_pylist() == wanted
    assert found.type == aggregate.result_type(pa.int64())


@thorough
@given(values=st.lists(st.none() | st.floats(-1e9, 1e9), max_size=40), ranges=_RANGES)
def test_a_float_sum_is_as_good_as_an_exact_one(values: list[float | None], ranges: Any) -> None:
    lo, hi = _bounds(ranges, len(values))
    found = ag.sum("x").kernel(pa.array(values, pa.float64()), lo, hi).to_pylist()
    for a, b, got in zip(lo, hi, found, strict=True):
        there = [v for v in values[a:b] if v is not None]
        assert (got is None) == (not there)
        if there:
            assert math.isclose(got, math.fsum(there), rel_tol=1e-12, abs_tol=1e-14 * sum(map(abs, there)))


def test_a_float_sum_depends_on_its_range_alone() -> None:
    part = [0.1, 0.2, 0.3, 1e-9, 0.7]
    alone = ag.sum("x").kernel(pa.array(part), np.array([0]), np.array([5])).to_pylist()
    for before in ([1e300], [math.inf, math.nan], [1e16] * 7):
        inside = pa.array([*before, *part, 1e18])
        lo = np.array([len(before)])
        assert ag.sum("x").kernel(inside, lo, lo + 5).to_pylist() == alone


@thorough
@given(values=st.lists(st.none() | st.text(max_size=3), max_size=30), ranges=_RANGES)
def test_text_is_ordered_by_code_point(values: list[str | None], ranges: Any) -> None:
    lo, hi = _bounds(ranges, len(values))
    found = ag.max("x").kernel(pa.array(values, pa.string()), lo, hi).to_pylist()
    there = [[v for v in values[a:b] if v is not None] for a, b in zip(lo, hi, strict=True)]
    assert found == [max(each, default=None) for each in there]


def test_first_and_last_take_the_event_as_it_is_null_or_not() -> None:
    values, lo, hi = pa.array([None, 1, 2, None]), np.array([0, 1, 2, 2]), np.array([3, 3, 4, 2])
    assert ag.first("x").kernel(values, lo, hi).to_pylist() == [None, 1, 2, None]
    assert ag.last("x").kernel(values, lo, hi).to_pylist() == [2, 2, None, None]


def test_an_integer_sum_beyond_64_bits_is_refused_and_one_that_comes_back_is_exact() -> None:
    values = pa.array([2**62, 2**62, -(2**62), 5])
    assert ag.sum("x").kernel(values, np.array([0]), np.array([4])).to_pylist() == [2**62 + 5]
    assert ag.mean("x").kernel(values, np.array([0]), np.array([2])).to_pylist() == [float(2**62)]
    with pytest.raises(BadInput, match="BIGINT"):
        ag.sum("x").kernel(values, np.array([0]), np.array([2]))


def test_a_rate_is_per_unit_of_the_window_and_needs_one() -> None:
    lo, hi = np.array([0, 0]), np.array([30, 6])
    per_minute = ag.rate("1 minute")
    assert per_minute.kernel(None, lo, hi, length_us=10_000_000).to_pylist() == [180.0, 36.0]
    lengths = np.array([60_000_000, 3_000_000])
    assert ag.rate("1 second").kernel(None, lo, hi, length_us=lengths).to_pylist() == [0.5, 2.0]
    with pytest.raises(BadOption, match="window"):
        per_minute.kernel(None, lo, hi)
    with pytest.raises(BadOption, match="window"):
        per_minute.to_column("at")


def test_approximate_aggregates_state_their_error() -> None:
    assert ag.sum("x").exact
    assert ag.sum("x").error is None
    assert not ag.approx_distinct("x", error=0.02).exact
    assert ag.approx_distinct("x", error=0.02).error == 0.02
    assert ag.approx_percentile("x", 0.5, accuracy=100).error == 0.01


def test_values_out_of_range_are_refused() -> None:
    for wrong in (-0.1, 1.1, math.nan):
        with pytest.raises(BadOption):
            ag.percentile("x", wrong)
    with pytest.raises(BadOption):
        ag.approx_distinct("x", error=0.9)
    with pytest.raises(BadOption):
        ag.approx_percentile("x", 0.5, accuracy=0)


def test_a_wrong_column_is_named_with_the_one_that_was_meant() -> None:
    tags = MapType(StringType(), LongType())
    schema = StructType().add("amount", LongType()).add("name", StringType()).add("tags", tags)
    ag.sum("amount").check(schema)
    ag.max("name").check(schema)
    ag.count().check(schema)
    with pytest.raises(BadOption, match='"amuont"') as refused:
        ag.sum("amuont").check(schema)
    assert "amount" in refused.value.hint
    with pytest.raises(BadOption, match="string"):
        ag.mean("name").check(schema)
    with pytest.raises(BadOption, match="_timestamp"):
        ag.first("amount").check(schema)
    with pytest.raises(BadOption, match="map"):
        ag.max("tags").check(schema)


def test_aggregates_are_made_without_spark() -> None:
    code = (
        "import sys; from penstock.flow import aggregates as a; a.sum('x'); print('pyspark' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


_TYPES: dict[str, tuple[Any, Callable[[random.Random], Any]]] = {
    "byte": (pa.int8(), lambda r: r.randrange(-100, 100)),
    "int": (pa.int32(), lambda r: r.randrange(-1000, 1000)),
    "long": (pa.int64(), lambda r: r.randrange(-(10**12), 10**12)),
    "float": (pa.float32(), lambda r: float(np.float32(r.uniform(-5, 5)))),
    "double": (pa.float64(), lambda r: r.choice([r.uniform(-5, 5), 0.0, 2.5])),
    "double with NaN": (pa.float64(), lambda r: r.choice([r.uniform(-5, 5), math.nan])),
    "decimal": (pa.decimal128(12, 3), lambda r: Decimal(r.randrange(-(10**9), 10**9)).scaleb(-3)),
    "text": (pa.string(), lambda r: r.choice(["a", "b", "ä", "\U0001f600", "\uffee", ""])),
    "moment": (pa.timestamp("us", "UTC"), lambda r: r.randrange(10**15)),
    "day": (pa.date32(), lambda r: dt.date(2020, 1, 1) + dt.timedelta(r.randrange(900))),
    "flag": (pa.bool_(), lambda r: r.random() < 0.5),
}
_NUMERIC = ["byte", "int", "long", "float", "double", "double with NaN", "decimal"]


def _typed_aggregates(kind: str) -> dict[str, ag.Aggregate]:
    found = {
        "count": ag.count("v"), "min": ag.min("v"), "max": ag.max("v"), "first": ag.first("v"),
        "last": ag.last("v"), "collect": ag.collect("v"), "all": ag.count(), "rate": ag.rate("1 second"),
        "distinct": ag.approx_distinct("v", error=0.01),
    }  # fmt: skip
    if kind in _NUMERIC:
        found |= {"sum": ag.sum("v"), "mean": ag.mean("v"), "p": ag.percentile("v", 0.37)}
    # Spark's sketch loses its order over NaN, and then any value may come out.
    if kind in [*_NUMERIC, "moment", "day"] and kind != "double with NaN":
        found["ap"] = ag.approx_percentile("v", 0.37)
    return found


@pytest.mark.parametrize("kind", list(_TYPES))
def test_spark_and_the_kernels_agree_in_values_and_types(spark: SparkSession, kind: str) -> None:
    dtype, make = _TYPES[kind]
    chance = random.Random(7)
    rows = [row(n, f"u{chance.randrange(8)}", 1 + chance.randrange(40)) for n in range(200)]
    values = [None if each["user"] == "u0" or chance.random() < 0.2 else make(chance) for each in rows]
    events = table(rows).append_column(
        "v", pa.array(values, pa.int64()).cast(dtype) if kind == "moment" else pa.array(values, dtype)
    )
    found = _typed_aggregates(kind)
    df = spark.createDataFrame(events)
    for each in found.values():
        each.check(df.schema)
    columns = [each.to_column("at", length_us=5_000_000).alias(name) for name, each in found.items()]
    grouped = df.groupBy("user").agg(*columns)
    by_spark = grouped.orderBy("user").toArrow()

    order = sorted(range(len(rows)), key=lambda n: (rows[n]["user"], in_time(rows[n])))
    events = events.take(order)
    users = events["user"].to_pylist()
    lo = np.array([users.index(user) for user in by_spark["user"].to_pylist()])
    hi = np.append(lo[1:], len(users))
    for name, each in found.items():
        column = None if each.column is None else events["v"]
        got = each.kernel(column, lo, hi, length_us=5_000_000)
        assert close(got.to_pylist(), by_spark[name].to_pylist()), name
        assert got.type == each.result_type(dtype), name
        assert from_arrow_type(got.type) == grouped.schema[name].dataType, name


def test_any_character_may_be_in_a_column_name(spark: SparkSession) -> None:
    df = spark.createDataFrame([(1,), (2,)], "`a.b``c` BIGINT")
    assert df.agg(ag.sum("a.b`c").to_column("at")).collect()[0][0] == 3
