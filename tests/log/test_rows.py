from __future__ import annotations

import json
import subprocess
import sys
import types
from collections import OrderedDict, defaultdict
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from enum import IntEnum, StrEnum
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import BadRecord, BadSchema, RecordTooLarge
from penstock.log.conform import check_sizes, conform
from penstock.log.decode import decode, decode_as
from penstock.log.json_rows import from_json, to_json
from penstock.log.rows import CHUNK_ROWS, encode
from penstock.schema import RecordSchema

NOON = datetime(2026, 1, 31, 12, 0, 0, 123456, tzinfo=UTC)


def stored(ddl: str, *values: object) -> list[object]:
    """What is read back after values of a one-column schema are encoded."""
    batch = encode(RecordSchema.of(f"c {ddl}"), [{"c": value} for value in values])
    batch.validate(full=True)
    return [row["c"] for row in decode(batch)]


# Any schema, any rows: what goes in comes out -----------------------------------------------------

Column = tuple[str, str, st.SearchStrategy[Any]]  # its type, a wider one, and values of the narrower


def same(ddl: str, values: st.SearchStrategy[Any]) -> Column:
    return ddl, ddl, values


INTS = st.integers(-(2**31), 2**31 - 1)
KEYS: list[Column] = [
    ("TINYINT", "INT", st.integers(-128, 127)),
    ("SMALLINT", "BIGINT", st.integers(-(2**15), 2**15 - 1)),
    ("INT", "DOUBLE", INTS),
    same("BIGINT", st.integers(-(2**63), 2**63 - 1)),
    ("FLOAT", "DOUBLE", st.floats(width=32, allow_nan=False)),
    same("DOUBLE", st.floats(allow_nan=False)),
    same("STRING", st.text()),
    same("BINARY", st.binary()),
    same("BOOLEAN", st.booleans()),
    same("DATE", st.dates()),
    same("TIMESTAMP", st.datetimes(timezones=st.just(UTC))),
    same("TIMESTAMP_NTZ", st.datetimes()),
    ("DECIMAL(9, 3)", "DECIMAL(12, 5)", st.decimals(-999999, 999999, places=3)),
]


def arrays(inner: Column) -> Column:
    older, newer, values = inner
    return f"ARRAY<{older}>", f"ARRAY<{newer}>", st.lists(st.none() | values, max_size=3)


def maps(key: Column, inner: Column) -> Column:
    values = st.dictionaries(key[2], st.none() | inner[2], max_size=3)
    return f"MAP<{key[0]}, {inner[0]}>", f"MAP<{key[1]}, {inner[1]}>", values


def structs(a: Column, b: Column) -> Column:
    older = f"STRUCT<a: {a[0]} NOT NULL, b: {b[0]}>"
    newer = f"STRUCT<a: {a[1]}, b: {b[1]}, added: ARRAY<INT>>"
    return older, newer, st.fixed_dictionaries({"a": a[2], "b": st.none() | b[2]})


COLUMNS: st.SearchStrategy[Column] = st.recursive(
    st.sampled_from(KEYS),
    lambda inner: st.one_of(
        inner.map(arrays),
        st.builds(maps, st.sampled_from(KEYS), inner),
        st.builds(structs, inner, inner),
    ),
    max_leaves=4,
)


@st.composite
def tables(draw: st.DrawFn) -> tuple[RecordSchema, RecordSchema, list[dict[str, Any]]]:
    """A schema, one that it may evolve to, and rows of the first."""
    columns = draw(st.lists(st.tuples(COLUMNS, st.booleans()), min_size=1, max_size=4))
    older, newer, values = [], ["added STRUCT<x: INT NOT NULL>"], {}
    for at, ((narrow, wide, inner), nullable) in enumerate(columns):
        older.append(f"c{at} {narrow}{'' if nullable else ' NOT NULL'}")
        newer.append(f"c{at} {wide}")
        values[f"c{at}"] = st.none() | inner if nullable else inner
    rows = draw(st.lists(st.fixed_dictionaries(values), max_size=8))
    return RecordSchema.of(", ".join(older)), RecordSchema.of(", ".join(newer)), rows


@given(tables(), st.integers(0, 8))
def test_rows_come_back_as_they_were(
    table: tuple[RecordSchema, RecordSchema, list[dict[str, Any]]], start: int
) -> None:
    schema, _, rows = table
    batch = encode(schema, rows)
    batch.validate(full=True)
    assert batch.schema.equals(schema.arrow)
    assert decode(batch) == rows
    assert decode(batch.slice(start)) == rows[start:]


@given(tables())
def test_an_adopted_batch_equals_its_rows_encoded_anew(
    table: tuple[RecordSchema, RecordSchema, list[dict[str, Any]]],
) -> None:
    older, newer, rows = table
    evolved = older.evolve_to(newer)
    adopted = evolved.adopt(encode(older, rows))
    adopted.validate(full=True)
    assert adopted.equals(encode(evolved, rows))


@given(tables())
def test_rows_survive_json(table: tuple[RecordSchema, RecordSchema, list[dict[str, Any]]]) -> None:
    schema, _, rows = table
    lines = [json.dumps(to_json(row), allow_nan=False) for row in decode(encode(schema, rows))]
    assert decode(encode(schema, [from_json(schema, json.loads(line)) for line in lines])) == rows


@given(tables())
def test_an_encoded_batch_conforms_and_its_size_is_counted(
    table: tuple[RecordSchema, RecordSchema, list[dict[str, Any]]],
) -> None:
    schema, _, rows = table
    batch = encode(schema, rows)
    assert conform(schema, batch) == [batch]
    check_sizes("t", batch, size_bytes_max=batch.nbytes)


# Encoding -----------------------------------------------------------------------------------------


def test_rows_of_many_chunks_keep_their_order() -> None:
    schema = RecordSchema.of("n BIGINT, s STRING")
    rows = [{"n": n, "s": None if n % 3 else str(n)} for n in range(2 * CHUNK_ROWS + 1)]
    assert decode(encode(schema, rows)) == rows


def test_no_rows_are_an_empty_batch() -> None:
    schema = RecordSchema.of("a ARRAY<INT>, m MAP<STRING, DATE>, s STRUCT<x: TIMESTAMP>")
    batch = encode(schema, [])
    assert batch.num_rows == 0
    assert batch.schema.equals(schema.arrow)
    assert decode(batch) == []


def test_a_nullable_column_may_be_left_out() -> None:
    schema = RecordSchema.of("a INT NOT NULL, b STRING, s STRUCT<x: INT, y: INT>")
    rows = [{"a": 1}, {"a": 2, "b": "x", "s": {"y": 5}}, {"b": None, "a": 3}]
    assert decode(encode(schema, rows)) == [
        {"a": 1, "b": None, "s": None},
        {"a": 2, "b": "x", "s": {"x": None, "y": 5}},
        {"a": 3, "b": None, "s": None},
    ]


def test_the_order_of_a_rows_keys_does_not_matter() -> None:
    batch = encode(RecordSchema.of("a INT, b INT"), [{"a": 1, "b": 2}, {"b": 20, "a": 10}])
    assert decode(batch) == [{"a": 1, "b": 2}, {"a": 10, "b": 20}]


def test_any_mapping_is_a_row() -> None:
    rows: list[Any] = [OrderedDict(a=1), types.MappingProxyType({"a": 2}), defaultdict(int)]
    assert [row["a"] for row in decode(encode(RecordSchema.of("a INT"), rows))] == [1, 2, None]
    assert "a" not in rows[2]


class Level(IntEnum):
    HIGH = 3


class Name(StrEnum):
    ANN = "ann"


@pytest.mark.parametrize(
    ("ddl", "value", "expected"),
    [
        ("INT", np.int64(5), 5),
        ("INT", Level.HIGH, 3),
        ("STRING", Name.ANN, "ann"),
        ("STRING", np.str_("x"), "x"),
        ("DOUBLE", 3, 3.0),
        ("DOUBLE", 2**60, float(2**60)),
        ("DOUBLE", np.float32(0.5), 0.5),
        ("FLOAT", 2**30, float(2**30)),
        ("FLOAT", float("inf"), float("inf")),
        ("FLOAT", 0.1, float(np.float32(0.1))),
        ("BOOLEAN", np.bool_(True), True),
        ("BINARY", bytearray(b"ab"), b"ab"),
        ("BINARY", memoryview(b"ab"), b"ab"),
        ("DECIMAL(5, 2)", 7, Decimal("7.00")),
        ("DECIMAL(5, 2)", Decimal("1.500"), Decimal("1.50")),
        ("DECIMAL(5, 0)", Decimal("1E4"), Decimal(10000)),
        ("ARRAY<INT>", (1, 2), [1, 2]),
        ("ARRAY<INT>", np.array([1, 2]), [1, 2]),
        ("MAP<STRING, INT>", types.MappingProxyType({"a": 1}), {"a": 1}),
    ],
)
def test_a_value_of_another_type_is_taken_where_it_is_exact(
    ddl: str, value: object, expected: object
) -> None:
    assert stored(ddl, value) == [expected]


def test_nan_is_a_value_and_no_null() -> None:
    nan, nothing = stored("DOUBLE", float("nan"), None)
    assert isinstance(nan, float)
    assert nan != nan
    assert nothing is None


BERLIN = ZoneInfo("Europe/Berlin")


@pytest.mark.parametrize(
    "value",
    [
        datetime(2026, 1, 31, 12, 0, 0, 123456),
        NOON,
        NOON.astimezone(BERLIN),
        NOON.astimezone(timezone(timedelta(hours=-9, minutes=-30))),
        pd.Timestamp("2026-01-31 12:00:00.123456"),
        pd.Timestamp("2026-01-31 13:00:00.123456", tz="Europe/Berlin"),
        np.datetime64("2026-01-31T12:00:00.123456"),
        np.datetime64("2026-01-31T12:00:00.123456000"),
    ],
    ids=repr,
)
def test_a_moment_is_stored_exactly_in_utc(value: object) -> None:
    (moment,) = stored("TIMESTAMP", value)
    assert moment == NOON
    assert isinstance(moment, datetime)
    assert moment.tzinfo is UTC


class Moment(datetime):
    pass


@pytest.mark.parametrize("kind", [datetime, Moment])
def test_the_second_hour_two_of_a_clock_change_is_the_later_one(kind: type[datetime]) -> None:
    first = kind(2026, 10, 25, 2, 30, tzinfo=BERLIN)
    assert stored("TIMESTAMP", first, first.replace(fold=1)) == [
        datetime(2026, 10, 25, 0, 30, tzinfo=UTC),
        datetime(2026, 10, 25, 1, 30, tzinfo=UTC),
    ]


def test_all_kinds_of_moments_mix_in_a_column() -> None:
    naive = NOON.replace(tzinfo=None)
    values = [NOON, naive, None, pd.Timestamp(NOON), np.datetime64(naive), pd.NaT, np.datetime64("NaT")]
    assert stored("TIMESTAMP", *values) == [NOON, NOON, None, NOON, NOON, None, None]


def test_the_ends_of_the_calendar_are_stored() -> None:
    assert stored("TIMESTAMP_NTZ", datetime.min, datetime.max) == [datetime.min, datetime.max]
    assert stored("DATE", date.min, date.max) == [date.min, date.max]


EARLY = datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=1)))


@pytest.mark.parametrize(
    ("ddl", "value", "hint"),
    [
        ("INT", 1.0, "int(value)"),
        ("INT", "1", "int(value)"),
        ("INT", True, "int(value)"),
        ("INT", 2**31, "range"),
        ("TINYINT", -129, "range"),
        ("BIGINT", 2**63, "range"),
        ("BIGINT", 10**400, "range"),
        ("BIGINT", Decimal(1), "int(value)"),
        ("DOUBLE", 2**53 + 1, "exactly"),
        ("DOUBLE", 10**400, "exactly"),
        ("DOUBLE", True, "float"),
        ("DOUBLE", "1.5", "float"),
        ("FLOAT", 1e300, "range"),
        ("FLOAT", 2**24 + 1, "exactly"),
        ("STRING", 5, "str(value)"),
        ("STRING", b"x", ".decode()"),
        ("STRING", "\ud800", "Unicode"),
        ("BINARY", "x", ".encode()"),
        ("BOOLEAN", 1, "True or False"),
        ("DATE", NOON, ".date()"),
        ("DATE", "2026-01-31", "date"),
        ("TIMESTAMP", date(2026, 1, 31), "datetime"),
        ("TIMESTAMP", 1769860800, "fromtimestamp"),
        ("TIMESTAMP", "2026-01-31T12:00:00Z", "fromisoformat"),
        ("TIMESTAMP", pd.Timestamp("2026-01-31 12:00:00.123456789"), "microseconds"),
        ("TIMESTAMP", np.datetime64("2026-01-31T12:00:00.123456789"), "microseconds"),
        ("TIMESTAMP", np.datetime64(2**62, "s"), "microseconds"),
        ("TIMESTAMP", EARLY, "datetime"),
        ("TIMESTAMP_NTZ", NOON, "TIMESTAMP_NTZ"),
        ("DECIMAL(5, 2)", Decimal("1.234"), "digits"),
        ("DECIMAL(5, 2)", Decimal("1000.00"), "digits"),
        ("DECIMAL(5, 2)", Decimal("NaN"), "digits"),
        ("DECIMAL(5, 2)", Decimal("1E500000"), "digits"),
        ("DECIMAL(5, 2)", 1000, "digits"),
        ("DECIMAL(5, 2)", 1.5, "Decimal(str(value))"),
        ("DECIMAL(5, 2)", "1.5", "Decimal"),
        ("ARRAY<STRING>", "abc", "list"),
        ("ARRAY<INT>", {1, 2}, "list"),
        ("MAP<STRING, INT>", [("a", 1)], "dict"),
        ("STRUCT<x: INT>", 5, "name the columns"),
        ("INT NOT NULL", None, "give it a value"),
        ("TIMESTAMP NOT NULL", pd.NaT, "datetime"),
    ],
)
@pytest.mark.parametrize("others", ["alone", "among many"])
def test_a_value_that_does_not_fit_is_refused_with_its_row(
    ddl: str, value: object, hint: str, others: str
) -> None:
    schema = RecordSchema.of(f"n INT NOT NULL, c {ddl}")
    rows: list[Any] = [{"n": 0, "c": value}]
    if others == "among many" and "NOT NULL" not in ddl:
        rows = [*({"n": n, "c": None} for n in range(CHUNK_ROWS + 17)), *rows, {"n": 0, "c": value}]
    with pytest.raises(BadRecord) as caught:
        encode(schema, rows)
    assert caught.value.row == rows.index({"n": 0, "c": value})
    assert caught.value.column == "c"
    assert hint in caught.value.hint
    assert caught.value.message.startswith(f'row {caught.value.row}, column "c": expected ')
    assert f"got {value!r}"[:60] in caught.value.message


@pytest.mark.parametrize(
    ("ddl", "value", "column"),
    [
        ("ARRAY<ARRAY<INT>>", [[1], [2, "x"]], "c[1][1]"),
        ("MAP<INT, DATE>", {1: None, 2: 5}, "c[2]"),
        ("MAP<INT, DATE>", {"1": None}, "c.key"),
        ("MAP<STRING, INT>", {None: 1}, "c.key"),
        ("STRUCT<x: ARRAY<INT>>", {"x": [1.5]}, "c.x[0]"),
        ("STRUCT<x: INT NOT NULL>", {}, "c.x"),
        ("STRUCT<x: INT NOT NULL>", {"x": None}, "c.x"),
        ("STRUCT<x: INT>", {"y": 1}, "c.y"),
        ("ARRAY<STRUCT<x: INT>>", [{"x": 1}, 5], "c[1]"),
    ],
)
def test_a_value_deep_inside_is_found(ddl: str, value: object, column: str) -> None:
    with pytest.raises(BadRecord) as caught:
        encode(RecordSchema.of(f"c {ddl}"), [{"c": None}, {"c": value}])
    assert (caught.value.row, caught.value.column) == (1, column)


def test_a_long_value_is_shown_in_part() -> None:
    with pytest.raises(BadRecord) as caught:
        encode(RecordSchema.of("c INT"), [{"c": "x" * 1000}])
    assert f"'{'x' * 78}… (str)" in caught.value.message


def test_an_unknown_column_gets_a_suggestion() -> None:
    schema = RecordSchema.of("user_id BIGINT, page STRING")
    with pytest.raises(BadRecord, match=r'row 1, column "userid"(.|\n)*did you mean "user_id"') as caught:
        encode(schema, [{"user_id": 1, "page": "/"}, {"userid": 1, "page": "/"}])
    assert (caught.value.row, caught.value.column) == (1, "userid")


@pytest.mark.parametrize("extra", [{"c": 1}, {"c": None}, {5: 1}])
def test_an_unknown_column_beside_all_known_ones_is_refused(extra: dict[Any, Any]) -> None:
    rows: list[Any] = [{"a": 1, "b": 2}, {"a": 1, "b": 2, **extra}]
    with pytest.raises(BadRecord, match="no such column") as caught:
        encode(RecordSchema.of("a INT, b INT"), rows)
    assert (caught.value.row, caught.value.column) == (1, str(*extra))


def test_a_missing_column_that_is_not_null_is_refused() -> None:
    schema = RecordSchema.of("a INT NOT NULL, b INT")
    with pytest.raises(BadRecord, match=r"row 2.*missing") as caught:
        encode(schema, [{"a": 1}, {"a": 2}, {"b": 3}])
    assert caught.value.column == "a"


@pytest.mark.parametrize("row", [5, "abc", None, ("a", 1), [1]])
def test_what_is_no_row_is_refused(row: object) -> None:
    with pytest.raises(BadRecord, match="row 1: expected a dict or a dataclass instance") as caught:
        encode(RecordSchema.of("a INT"), [{"a": 1}, row])
    assert (caught.value.row, caught.value.column) == (1, None)


# Dataclasses --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Address:
    street: str
    zip: str | None = None


@dataclass
class Person:
    id: int
    name: str | None
    home: Address | None
    others: list[Address]
    by_name: dict[str, Address]
    born: date | None = None


ANN = Person(1, "Ann", Address("Elm St", "12"), [Address("A"), Address("B", "3")], {"work": Address("W")})
BOB = Person(2, None, None, [], {}, date(2000, 2, 29))


def test_dataclass_instances_come_back_as_they_were() -> None:
    schema = RecordSchema.of(Person)
    assert decode_as(Person, encode(schema, [ANN, BOB])) == [ANN, BOB]


def test_instances_and_dicts_mix() -> None:
    bob: dict[str, object] = {
        "id": 2,
        "name": None,
        "home": None,
        "others": [],
        "by_name": {},
        "born": date(2000, 2, 29),
    }
    with_dict_inside = Person(3, None, {"street": "X"}, [], {})  # type: ignore[arg-type]
    batch = encode(RecordSchema.of(Person), [ANN, bob, with_dict_inside])
    assert decode_as(Person, batch) == [ANN, BOB, Person(3, None, Address("X"), [], {})]


def test_a_field_that_is_no_column_is_refused() -> None:
    with pytest.raises(BadRecord, match='row 0, column "zip"'):
        encode(RecordSchema.of("street STRING"), [Address("A")])


def test_a_column_without_a_field_is_null() -> None:
    batch = encode(
        RecordSchema.of("city STRING, zip STRING, street STRING"), [Address("A", "1"), Address("B")]
    )
    assert decode(batch) == [
        {"city": None, "zip": "1", "street": "A"},
        {"city": None, "zip": None, "street": "B"},
    ]


@dataclass(kw_only=True)
class Reading:
    value: float
    unit: str = "K"
    seen: list[int] = field(default_factory=list)
    double: float = field(init=False)

    def __post_init__(self) -> None:
        self.double = 2 * self.value


def test_missing_columns_take_defaults_and_other_columns_are_left_out() -> None:
    batch = encode(RecordSchema.of("x INT, value DOUBLE"), [{"x": 1, "value": 1.5}, {"x": 2, "value": 2.5}])
    assert decode_as(Reading, batch) == [Reading(value=1.5), Reading(value=2.5)]


@dataclass
class Parcel:
    weight: float = 1.0
    label: str = ""
    fragile: bool = False


def test_a_missing_column_between_others_takes_its_default() -> None:
    batch = encode(RecordSchema.of("fragile BOOLEAN, label STRING"), [{"label": "a", "fragile": True}])
    assert decode_as(Parcel, batch) == [Parcel(label="a", fragile=True)]


def test_a_field_without_column_or_default_is_refused() -> None:
    with pytest.raises(BadSchema, match='Reading needs "value"'):
        decode_as(Reading, encode(RecordSchema.of("unit STRING"), [{"unit": "K"}]))


# Arrow --------------------------------------------------------------------------------------------


def test_columns_are_matched_by_name_and_filled() -> None:
    schema = RecordSchema.of("a INT, b STRING, c TIMESTAMP")
    given_batch = pa.RecordBatch.from_pydict({"c": [datetime(2026, 1, 1)], "a": pa.array([1], pa.int64())})
    (batch,) = conform(schema, given_batch)
    assert batch.schema.equals(schema.arrow)
    assert decode(batch) == [{"a": 1, "b": None, "c": datetime(2026, 1, 1, tzinfo=UTC)}]


@pytest.mark.parametrize(
    ("ddl", "column", "expected"),
    [
        ("INT", pa.array([1, None], pa.uint64()), [1, None]),
        ("DOUBLE", pa.array([1, 2], pa.int64()), [1.0, 2.0]),
        ("FLOAT", pa.array([0.5, float("inf")]), [0.5, float("inf")]),
        ("STRING", pa.array(["a", None]).dictionary_encode(), ["a", None]),
        ("STRING", pa.array(["a", "b"], pa.large_string()), ["a", "b"]),
        ("STRING", pa.array(["a", "b"], pa.string_view()), ["a", "b"]),
        ("BINARY", pa.array([b"ab", b"cd"], pa.binary(2)), [b"ab", b"cd"]),
        ("STRING", pa.nulls(2), [None, None]),
        ("DECIMAL(5, 2)", pa.array([1, 2]), [Decimal(1), Decimal(2)]),
        ("DECIMAL(5, 2)", pa.array([1, 2]).dictionary_encode(), [Decimal(1), Decimal(2)]),
        ("DECIMAL(5, 2)", pa.array([Decimal("1.500")], pa.decimal256(40, 3)), [Decimal("1.5")]),
        ("DATE", pa.array([date(2026, 1, 1)], pa.date64()), [date(2026, 1, 1)]),
        ("TIMESTAMP", pa.array([NOON], pa.timestamp("ns", tz="Europe/Berlin")), [NOON]),
        ("ARRAY<STRING>", pa.array([["a"], []], pa.large_list(pa.large_string())), [["a"], []]),
        ("ARRAY<INT>", pa.array([[], None]), [[], None]),
        (
            "STRUCT<x: BIGINT, y: STRING, z: INT>",
            pa.array([{"y": "a", "x": 1}, None], pa.struct([("y", pa.string()), ("x", pa.int8())])),
            [{"x": 1, "y": "a", "z": None}, None],
        ),
        (
            "MAP<STRING, BIGINT>",
            pa.array([[("a", 1)], None], pa.map_(pa.string(), pa.int32())),
            [{"a": 1}, None],
        ),
    ],
)
def test_an_arrow_column_is_cast_where_no_value_changes(ddl: str, column: Any, expected: list[Any]) -> None:
    schema = RecordSchema.of(f"c {ddl}")
    (batch,) = conform(schema, pa.RecordBatch.from_pydict({"c": column}))
    assert batch.schema.equals(schema.arrow)
    assert [row["c"] for row in decode(batch)] == expected


@pytest.mark.parametrize(
    ("ddl", "column"),
    [
        ("INT", pa.array([1.0])),
        ("INT", pa.array(["1"])),
        ("INT", pa.array([True])),
        ("BOOLEAN", pa.array([1])),
        ("STRING", pa.array([1])),
        ("STRING", pa.array([b"x"])),
        ("BINARY", pa.array(["x"])),
        ("DECIMAL(5, 2)", pa.array([1.5])),
        ("TIMESTAMP", pa.array([1])),
        ("TIMESTAMP", pa.array([date(2026, 1, 1)])),
        ("TIMESTAMP_NTZ", pa.array([NOON], pa.timestamp("us", tz="UTC"))),
        ("ARRAY<INT>", pa.array([["1"]])),
        ("ARRAY<FLOAT>", pa.array([[1e300]])),
        ("STRUCT<x: INT>", pa.array([{"x": 1, "y": 2}])),
        ("STRUCT<x: INT, y: INT NOT NULL>", pa.array([{"x": 1}])),
        ("MAP<STRING, INT>", pa.array([{"x": 1}])),
    ],
)
def test_an_arrow_column_of_another_kind_is_refused(ddl: str, column: Any) -> None:
    with pytest.raises(BadRecord, match=r"expected .* got Arrow") as caught:
        conform(RecordSchema.of(f"c {ddl}"), pa.RecordBatch.from_pydict({"c": column}))
    assert caught.value.column == "c"


@pytest.mark.parametrize(
    ("ddl", "good", "bad"),
    [
        ("TINYINT", pa.array([1]), pa.array([128])),
        ("DOUBLE", pa.array([1]), pa.array([2**53 + 1])),
        ("FLOAT", pa.array([1.0]), pa.array([1e300])),
        ("INT NOT NULL", pa.array([1]), pa.array([None], pa.int64())),
        ("DECIMAL(3, 0)", pa.array([1]), pa.array([1000])),
        ("DECIMAL(9, 1)", pa.array([Decimal("1.10")]), pa.array([Decimal("1.11")])),
        ("TIMESTAMP", pa.array([1], pa.timestamp("s")), pa.array([10**15], pa.timestamp("s"))),
        ("TIMESTAMP", pa.array([1000], pa.timestamp("ns")), pa.array([1], pa.timestamp("ns"))),
        ("TIMESTAMP", pa.array([0], pa.timestamp("us")), pa.array([-(2**60)], pa.timestamp("us"))),
        ("DATE", pa.array([0], pa.date32()), pa.array([10**7], pa.date32())),
        ("ARRAY<DATE>", pa.array([[0]], pa.list_(pa.date32())), pa.array([[10**7]], pa.list_(pa.date32()))),
        (
            "STRUCT<x: INT NOT NULL>",
            pa.array([{"x": 1}]),
            pa.array([{"x": None}], pa.struct([("x", pa.int64())])),
        ),
    ],
)
def test_an_arrow_value_that_does_not_fit_is_refused_with_its_row(ddl: str, good: Any, bad: Any) -> None:
    column = pa.concat_arrays([good] * 700 + [bad] + [good] * 300)
    table = pa.table({"c": pa.chunked_array([good, column])})
    with pytest.raises(BadRecord, match="does not fit into") as caught:
        conform(RecordSchema.of(f"c {ddl}"), table)
    assert (caught.value.row, caught.value.column) == (701, "c")


def test_unknown_twice_named_and_missing_arrow_columns_are_refused() -> None:
    schema = RecordSchema.of("user_id BIGINT NOT NULL, page STRING")
    one = pa.array([1])
    with pytest.raises(BadRecord, match="did you mean"):
        conform(schema, pa.table({"userid": one}))
    with pytest.raises(BadRecord, match="twice"):
        conform(schema, pa.RecordBatch.from_arrays([one, one], names=["user_id", "user_id"]))
    with pytest.raises(BadRecord, match="missing"):
        conform(schema, pa.table({"page": ["/"]}))


def test_an_empty_table_is_checked_too() -> None:
    schema = RecordSchema.of("a INT")
    assert sum(batch.num_rows for batch in conform(schema, schema.arrow.empty_table())) == 0
    with pytest.raises(BadRecord):
        conform(schema, pa.schema([("b", pa.int32())]).empty_table())


def test_system_columns_are_kept_only_if_asked_for() -> None:
    schema = RecordSchema.of("a INT")
    table = pa.table({"_deleted": [True], "a": pa.array([1], pa.int32())})
    (batch,) = conform(schema, table, system=frozenset({"_deleted"}))
    assert batch.to_pylist() == [{"a": 1, "_deleted": True}]
    with pytest.raises(BadRecord, match="_deleted"):
        conform(schema, table)


def test_damaged_arrow_data_is_refused() -> None:
    offsets = pa.py_buffer(np.array([0, 1], np.int32).tobytes())
    broken = pa.Array.from_buffers(pa.string(), 1, [None, offsets, pa.py_buffer(b"\xff")])
    with pytest.raises(BadRecord, match="no valid Arrow data"):
        conform(RecordSchema.of("c STRING"), pa.RecordBatch.from_arrays([broken], names=["c"]))


# Sizes --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ddl", "value", "size_bytes"),
    [
        ("STRING", "é" * 500, 1000),
        ("BINARY", bytes(1000), 1000),
        ("ARRAY<BIGINT>", list(range(125)), 1000),
        ("ARRAY<STRING>", ["abcde"] * 200, 1000),
        ("MAP<STRING, INT>", {f"{n:06}": n for n in range(100)}, 1000),
        ("STRUCT<x: STRING, y: BIGINT>", {"x": "x" * 992, "y": 1}, 1000),
        ("ARRAY<ARRAY<BOOLEAN>>", [[True] * 500, [False] * 500], 1000),
    ],
)
def test_the_first_record_over_the_limit_is_named(ddl: str, value: object, size_bytes: int) -> None:
    schema = RecordSchema.of(f"n BIGINT, c {ddl}")
    rows = [{"n": n, "c": value if n in (5, 30, 31) else None} for n in range(100)]
    batch = encode(schema, rows).slice(20)
    check_sizes("t", batch, size_bytes_max=size_bytes + 16)
    with pytest.raises(RecordTooLarge) as caught:
        check_sizes("t", batch, size_bytes_max=size_bytes + 7)
    assert caught.value.row == 10
    assert size_bytes + 8 <= caught.value.size_bytes <= size_bytes + 16


# JSON ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ddl", "value", "expected"),
    [
        ("TIMESTAMP", "2026-01-31T12:00:00.123456Z", NOON),
        ("TIMESTAMP", "2026-01-31T13:00:00.123456+01:00", NOON),
        ("TIMESTAMP", "2026-01-31 12:00:00.123456", NOON),
        ("TIMESTAMP", "2026-01-31T12:00:00.123456000Z", NOON),
        ("TIMESTAMP_NTZ", "2026-01-31T12:00:00", datetime(2026, 1, 31, 12)),
        ("DATE", "2026-01-31", date(2026, 1, 31)),
        ("BINARY", "héllo", "héllo".encode()),
        ("BINARY", {"base64": "/w=="}, b"\xff"),
        ("DECIMAL(9, 2)", "12.50", Decimal("12.50")),
        ("DECIMAL(9, 2)", 0.1, Decimal("0.10")),
        ("DECIMAL(9, 2)", 12, Decimal(12)),
        ("DOUBLE", "-Infinity", float("-inf")),
        ("DOUBLE", 1, 1.0),
        ("ARRAY<DATE>", ["2026-01-31", None], [date(2026, 1, 31), None]),
        ("MAP<INT, BINARY>", {"5": "x"}, {5: b"x"}),
        ("MAP<BINARY, INT>", [[{"base64": "/w=="}, 1]], {b"\xff": 1}),
        ("MAP<BOOLEAN, INT>", {"true": 1}, {True: 1}),
        ("STRUCT<at: DATE>", {"at": "2026-01-31"}, {"at": date(2026, 1, 31)}),
        ("INT", None, None),
    ],
)
def test_a_json_value_becomes_one_of_the_column(ddl: str, value: object, expected: object) -> None:
    schema = RecordSchema.of(f"c {ddl}")
    assert decode(encode(schema, [from_json(schema, {"c": value})])) == [{"c": expected}]


@pytest.mark.parametrize(
    ("ddl", "value", "column", "says"),
    [
        ("TIMESTAMP", 1769860800, "c", "neither its unit nor its zone"),
        ("TIMESTAMP", "2026-01-31", "c", "time of day"),
        ("TIMESTAMP", "2026-01-31T12:00:00.1234567Z", "c", "finer than a microsecond"),
        ("TIMESTAMP", "yesterday at noon", "c", "yesterday"),
        ("DATE", "31.1.2026", "c", "31.1.2026"),
        ("BINARY", {"base64": "?"}, "c", "base64"),
        ("DECIMAL(9, 2)", "many", "c", "many"),
        ("ARRAY<STRUCT<d: DATE>>", [{"d": "x"}], "c[0].d", "expected DATE"),
        ("MAP<INT, INT>", {"x": 1}, "c", "MAP<INT, INT>"),
    ],
)
def test_a_json_value_that_cannot_be_read_is_refused(ddl: str, value: object, column: str, says: str) -> None:
    with pytest.raises(BadRecord) as caught:
        from_json(RecordSchema.of(f"c {ddl}"), {"c": value})
    assert caught.value.column == column
    assert says in caught.value.message
    assert "2026-01-31T12:00:00Z" in caught.value.hint


def test_what_json_says_itself_is_left_to_encode() -> None:
    schema = RecordSchema.of("a INT")
    assert from_json(schema, {"a": "5", "b": 1}) == {"a": "5", "b": 1}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (NOON, "2026-01-31T12:00:00.123456Z"),
        (NOON.astimezone(BERLIN), "2026-01-31T12:00:00.123456Z"),
        (datetime(2026, 1, 31), "2026-01-31T00:00:00"),
        (date(2026, 1, 31), "2026-01-31"),
        (b"h\xc3\xa9", "hé"),
        (b"\xff", {"base64": "/w=="}),
        (b"a\0", {"base64": "YQA="}),
        (Decimal("1E-7"), "0.0000001"),
        (float("nan"), "NaN"),
        ({1: b"x", 2: None}, {"1": "x", "2": None}),
        ({True: 1}, {"true": 1}),
        ({b"\xff": 1}, [[{"base64": "/w=="}, 1]]),
        ([None, True, 1, "x"], [None, True, 1, "x"]),
    ],
)
def test_a_value_is_printed_as_json(value: object, expected: object) -> None:
    assert to_json(value) == expected


# Without pandas -----------------------------------------------------------------------------------

WITHOUT_PANDAS = """
import sys
class NoPandas:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "pandas":
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, NoPandas())
from datetime import UTC, date, datetime
from decimal import Decimal
from penstock.log.decode import decode
from penstock.log.rows import encode
from penstock.schema import RecordSchema
schema = RecordSchema.of(
    "i INT, d DOUBLE, s STRING, b BINARY, o BOOLEAN, day DATE, at TIMESTAMP, n TIMESTAMP_NTZ, "
    "m DECIMAL(9, 2), l ARRAY<TIMESTAMP>, p MAP<STRING, DATE>, t STRUCT<x: DECIMAL(5, 1)>"
)
row = {
    "i": 1, "d": 1.5, "s": "x", "b": b"x", "o": True, "day": date(2026, 1, 1), "at": datetime.now(UTC),
    "n": datetime(2026, 1, 1), "m": Decimal("1.50"), "l": [datetime.now(UTC), None],
    "p": {"a": date(2026, 1, 1)}, "t": {"x": Decimal("1.5")},
}
rows = [row, dict.fromkeys(row)]
assert decode(encode(schema, rows)) == rows
assert decode(encode(schema, rows[:1])) == rows[:1]
"""


def test_pandas_is_not_needed() -> None:
    source = Path(__file__).parents[2] / "src"
    subprocess.run(
        [sys.executable, "-c", WITHOUT_PANDAS], check=True, env={"PYTHONPATH": str(source)}, timeout=60
    )
