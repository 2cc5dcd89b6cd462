"""Typed expressions: what may be said, what it means, and that all three forms mean the same."""

from __future__ import annotations

import datetime as dt
import decimal
import math
import pickle
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from tests.flow.operators.events import TIME, thorough

from penstock.errors import BadDefinition, BadInput
from penstock.flow.aggregate_columns import named
from penstock.flow.expression_forms import arrow, holds, plain, scalar, spark_column
from penstock.flow.expression_types import OWN, Bound, Ref, bound, condition
from penstock.flow.expressions import Expression, Field, step

SCHEMA = pa.schema(
    [
        ("i", pa.int64()),
        ("small", pa.int32()),
        ("d", pa.float64()),
        ("f", pa.float32()),
        ("s", pa.string()),
        ("b", pa.bool_()),
        ("t", TIME),
        ("day", pa.date32()),
        ("m", pa.decimal128(10, 2)),
        ("list", pa.list_(pa.int64())),
    ]
)
e = step("e")
DAY = dt.date(2026, 1, 2)
NOT_A_NUMBER, YES, NOTHING = math.nan, True, None
NOON = dt.datetime(2026, 1, 2, 12, tzinfo=dt.UTC)


def _scope(field: Field) -> Ref:
    return Ref(OWN, "only", (0,), field.column, SCHEMA.field(field.column).type)


def _table(rows: list[dict[str, Any]]) -> pa.Table:
    return pa.table({field.name: [row.get(field.name) for row in rows] for field in SCHEMA}, schema=SCHEMA)


ROWS = _table(
    [
        {},
        {
            "i": 1, "small": 1, "d": 1.0, "f": 0.5, "s": "a", "b": True, "t": NOON, "day": DAY,
            "m": decimal.Decimal("1.00"), "list": [1],
        },
        {
            "i": -3, "small": 2, "d": math.nan, "f": math.nan, "s": "b", "b": False,
            "t": NOON + dt.timedelta(hours=1), "day": DAY + dt.timedelta(days=1),
            "m": decimal.Decimal("2.50"),
        },
        {"i": 0, "small": 0, "d": 0.0, "f": -0.0, "s": "", "t": NOON, "m": decimal.Decimal("-1.25")},
        {"i": 2, "small": 1, "d": 1e300, "f": 0.1, "s": "é", "b": True, "day": DAY},
        {"i": 5, "d": -math.inf, "s": "z", "b": False, "t": NOON - dt.timedelta(days=1)},
    ]
)  # fmt: skip

SAID: list[Expression] = [
    e.i == 1, e.i != 1, e.i < e.small, e.i <= 0, e.i > e.d, e.small >= e.d, e.i < 2,
    e.d == e.d, e.d != e.d, e.d < 1, e.d <= NOT_A_NUMBER, e.d > 0.5, e.d >= NOT_A_NUMBER,
    e.f == 0.0, e.f < e.d, e.f > 0.1,
    e.s == "a", e.s != "é", e.s < "b", e.s >= "",
    e.b, ~e.b, e.b & (e.i > 0), e.b | (e.i > 0), e.b == YES, e.b < e.b,
    e.t == NOON, e.t > NOON, e.t - dt.timedelta(minutes=30) < NOON, e.t - NOON >= dt.timedelta(0),
    e.day == DAY, e.day < dt.date(2026, 1, 3),
    e.m == decimal.Decimal("2.5"), e.m > 1, e.m < e.i, e.m != e.m,
    e.i.is_null(), ~e.s.is_null(), e.list.is_null(),
    e.i.is_in([1, 2]), e.s.is_in(["a", "é"]), e.d.is_in([1, 0, math.nan]), e.t.is_in([NOON]),
    e.i.is_in([0.0, 5.0]),
    (e.i + 1) * 2 - e.small > 3, e.i / e.small > 0.5, (e.i / e.small).is_null(), e.d + e.f > 1, 1 - e.i < 0,
    10 / e.i > 3, (e.i == 1) & (e.s == "a") | (e.d > 1e9),
]  # fmt: skip


def _by_arrow(of: Bound) -> list[Any]:
    found = arrow(of, lambda ref: ROWS[ref.column])
    return plain(found)


def _by_row(of: Bound) -> list[Any]:
    columns = {name: plain(ROWS[name]) for name in ROWS.column_names}
    compiled = scalar(of, lambda ref: lambda row: columns[ref.column][row])
    return [compiled(row) for row in range(len(ROWS))]


@pytest.mark.parametrize("said", SAID, ids=str)
def test_arrow_and_rows_give_the_same(said: Expression) -> None:
    of = pickle.loads(pickle.dumps(condition(said, _scope)))
    assert _by_arrow(of) == _by_row(of)
    assert holds(of, lambda ref: ROWS[ref.column], rows=len(ROWS)).tolist() == [
        each is True for each in _by_row(of)
    ]


def test_spark_gives_the_same(spark: SparkSession) -> None:
    of = [condition(said, _scope) for said in SAID]
    columns = [spark_column(each, lambda ref: named(ref.column)).alias(f"c{n}") for n, each in enumerate(of)]
    found = spark.createDataFrame(ROWS).select(*columns).toArrow()
    wrong = {
        str(said): (got, _by_row(each))
        for said, each, got in zip(SAID, of, (column.to_pylist() for column in found.columns), strict=True)
        if got != _by_row(each)
    }
    assert wrong == {}


VALUES = st.none() | st.integers(-3, 3)


@thorough
@given(
    rows=st.lists(st.tuples(VALUES, VALUES, st.none() | st.floats()), max_size=6), number=st.integers(-3, 3)
)
def test_arrow_and_rows_give_the_same_whatever_the_values(rows: list[tuple[Any, ...]], number: int) -> None:
    table = _table([{"i": i, "small": small, "d": d} for i, small, d in rows])
    columns = {name: plain(table[name]) for name in table.column_names}
    said = [
        (e.i + e.small) * number < e.d,
        ~((e.d >= e.i) | (e.small != number)) | e.d.is_in([number, 0.5]),
        (e.i / e.small >= e.d / number) & ~e.d.is_null(),
    ]
    for each in said:
        of = condition(each, _scope)
        by_row = [scalar(of, lambda ref: columns[ref.column].__getitem__)(row) for row in range(len(rows))]
        assert plain(arrow(of, lambda ref: table[ref.column])) == by_row


def test_values_have_types() -> None:
    said = {
        "int64": e.i + e.small,
        "double": e.i / 2,
        "duration[us]": e.t - e.t,
        "timestamp[us, tz=UTC]": dt.timedelta(hours=1) + e.t,
        "bool": e.i > 1,
        "float": e.f,
    }
    assert {str(bound(each, _scope).type): str(each) for each in said.values()} == {
        type: str(each) for type, each in said.items()
    }


def test_a_whole_number_that_does_not_fit_is_an_error() -> None:
    of = bound(e.i * (2**62), _scope)
    with pytest.raises(BadInput, match="64 bits"):
        arrow(of, lambda ref: ROWS[ref.column])
    with pytest.raises(BadInput, match="64 bits"):
        _by_row(of)


WRONG: list[tuple[Any, str]] = [
    (lambda: e.s == 1, "compares a string with a whole number"),
    (lambda: e.i == "1", "compares a whole number with a string"),
    (lambda: e.t > dt.datetime(2026, 1, 1), "without zone"),
    (lambda: e.m > 0.5, "decimal with a double"),
    (lambda: e.m + 1, "takes a decimal"),
    (lambda: e.s + "x", "takes a string"),
    (lambda: e.t + e.t, "takes a timestamp"),
    (lambda: e.i & e.b, "takes conditions"),
    (lambda: ~e.i, "takes conditions"),
    (lambda: e.list == e.list, "cannot be compared"),
    (lambda: e.i, "no condition"),
    (lambda: e.i == NOTHING, "None equals nothing"),
    (lambda: e.i.is_in([]), "never true"),
    (lambda: e.i.is_in([1, "a"]), "with a string"),
    (lambda: e.i.is_in([e.small]), "plain values"),  # type: ignore[list-item]
    (lambda: e.s.is_in("abc"), "takes a list"),
    (lambda: e.i == 2**70, "BIGINT"),
    (lambda: e.i == object(), "cannot stand"),
    (lambda: e.i == step("other"), "no value"),
    (lambda: 1 < e.i < 3, "Python cannot ask"),
    (lambda: not e.b, "Python cannot ask"),
]


@pytest.mark.parametrize(("said", "message"), WRONG, ids=[message for _, message in WRONG])
def test_what_does_not_fit_together_is_refused_with_a_hint(said: Any, message: str) -> None:
    with pytest.raises(BadDefinition, match=message) as refused:
        condition(said(), _scope)
    assert refused.value.hint


def test_columns_with_names_of_methods_are_reached_by_index() -> None:
    assert str(step("x")["count"]) == 'step("x").count'
    assert str(step("x").last()["first"] > 1) == '(step("x").last().first > 1)'
    assert not hasattr(step("x"), "__deepcopy__")
