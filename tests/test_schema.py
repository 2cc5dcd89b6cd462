from __future__ import annotations

import datetime
import enum
from dataclasses import dataclass
from decimal import Decimal
from typing import Annotated, Any, Optional

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import BadSchema, IncompatibleSchema
from penstock.schema import NESTING_MAX, RESERVED, RecordSchema

UTC_US = pa.timestamp("us", tz="UTC")


def only_type(declared: str | pa.Schema) -> Any:
    schema = RecordSchema.of(declared)
    assert len(schema.names) == 1
    return schema.arrow.field(0).type


# DDL


@pytest.mark.parametrize(
    ("ddl", "expected"),
    [
        ("TINYINT", pa.int8()),
        ("byte", pa.int8()),
        ("SMALLINT", pa.int16()),
        ("Short", pa.int16()),
        ("INT", pa.int32()),
        ("integer", pa.int32()),
        ("BIGINT", pa.int64()),
        ("long", pa.int64()),
        ("FLOAT", pa.float32()),
        ("real", pa.float32()),
        ("DOUBLE", pa.float64()),
        ("DECIMAL", pa.decimal128(10, 0)),
        ("DEC(7)", pa.decimal128(7, 0)),
        ("numeric( 38 , 18 )", pa.decimal128(38, 18)),
        ("STRING", pa.string()),
        ("VARCHAR(20)", pa.string()),
        ("char(3)", pa.string()),
        ("BINARY", pa.binary()),
        ("BOOLEAN", pa.bool_()),
        ("DATE", pa.date32()),
        ("TIMESTAMP", UTC_US),
        ("timestamp_ntz", pa.timestamp("us")),
        ("ARRAY<INT>", pa.list_(pa.int32())),
        ("MAP<STRING,ARRAY<BINARY>>", pa.map_(pa.string(), pa.list_(pa.binary()))),
        ("STRUCT<a: INT, b STRING>", pa.struct([("a", pa.int32()), ("b", pa.string())])),
        ("STRUCT<a: INT NOT NULL>", pa.struct([pa.field("a", pa.int32(), nullable=False)])),
    ],
)
def test_a_ddl_type_is_its_arrow_type(ddl: str, expected: pa.DataType) -> None:
    assert only_type(f"c {ddl}") == expected


def test_columns_keep_names_order_and_nullability() -> None:
    schema = RecordSchema.of(
        "id: BIGINT not null COMMENT 'the, key',\n `a ``b``` STRING comment \"x\", at TIMESTAMP"
    )
    assert schema.names == ("id", "a `b`", "at")
    assert [column.nullable for column in schema.arrow] == [False, True, True]
    assert schema.ddl == "id BIGINT NOT NULL, `a ``b``` STRING, at TIMESTAMP"


def test_no_declaration_means_keyed_bytes() -> None:
    assert RecordSchema.of(None).ddl == "key BINARY, value BINARY, headers MAP<STRING, BINARY>"


@pytest.mark.parametrize(
    ("ddl", "caret_under", "says"),
    [
        ("id BIGINT, page", "", "expected a type"),
        ("id BIGINT page STRING", "page", "expected"),
        ("id BIGINT,, at DATE", ", at", "column name"),
        ("a ARRAY<INT, b DATE", ", b", '">"'),
        ("a MAP<STRING>", ">", '","'),
        ("a INT NOT 5", "5", '"NULL"'),
        ("a DECIMAL(39, 2)", "(39", "1 to 38"),
        ("a DECIMAL(4, 5)", "(4", "1 to 38"),
        ("a DECIMAL(x)", "x)", "number"),
        ("a STRUCT<x INT", "", '">"'),
        ("user-id BIGINT", "-id", "back quotes"),
        ("a INT COMMENT later", "", "quoted text"),
    ],
)
def test_a_mistake_in_ddl_is_shown_where_it_is(ddl: str, caret_under: str, says: str) -> None:
    with pytest.raises(BadSchema) as caught:
        RecordSchema.of(ddl)
    assert says in str(caught.value)
    _, line, caret, *_ = str(caught.value).split("\n")
    assert line == f"  {ddl}"
    assert ddl[caret.index("^") - 2 :].startswith(caret_under)


def test_the_line_with_the_mistake_is_shown() -> None:
    with pytest.raises(BadSchema, match=r"\n  at TIMSTAMP,\n     \^\n.*did you mean \"TIMESTAMP\""):
        RecordSchema.of("id BIGINT,\nat TIMSTAMP,\npage STRING")


@pytest.mark.parametrize(
    ("word", "meant"), [("STRNG", "STRING"), ("text", "STRING"), ("datetime", "TIMESTAMP")]
)
def test_an_unknown_type_gets_a_suggestion(word: str, meant: str) -> None:
    with pytest.raises(BadSchema, match=f'did you mean "{meant}"'):
        RecordSchema.of(f"a {word}")


def test_nesting_is_bounded() -> None:
    def nested(depth: int) -> str:
        return "a " + "ARRAY<" * (depth - 1) + "INT" + ">" * (depth - 1)

    RecordSchema.of(nested(NESTING_MAX))
    with pytest.raises(BadSchema, match="levels deep"):
        RecordSchema.of(nested(NESTING_MAX + 1))


@pytest.mark.parametrize("name", RESERVED)
def test_the_logs_own_columns_are_taken(name: str) -> None:
    with pytest.raises(BadSchema, match="is taken"):
        RecordSchema.of(f"id BIGINT, {name.upper()} BIGINT")


def test_only_the_whole_name_is_taken() -> None:
    assert RecordSchema.of("_offset_of_parent BIGINT").names == ("_offset_of_parent",)


@pytest.mark.parametrize("ddl", ["a INT, A STRING", "A INT, a STRING", "s STRUCT<x INT, X INT>"])
def test_names_differ_in_more_than_case(ddl: str) -> None:
    with pytest.raises(BadSchema, match="two columns named"):
        RecordSchema.of(ddl)


@pytest.mark.parametrize("declared", ["", "  \n", "s STRUCT<>", pa.schema([])])
def test_at_least_one_column_is_needed(declared: str | pa.Schema) -> None:
    with pytest.raises(BadSchema, match="at least one column"):
        RecordSchema.of(declared)


def test_a_map_is_keyed_by_plain_values() -> None:
    with pytest.raises(BadSchema, match="key of a map"):
        RecordSchema.of("m MAP<ARRAY<INT>, INT>")


@pytest.mark.parametrize("declared", [5, object(), int, ["a INT"]])
def test_other_declarations_are_refused(declared: Any) -> None:
    with pytest.raises(BadSchema, match="cannot be read from"):
        RecordSchema.of(declared)


def test_a_schema_declares_itself() -> None:
    schema = RecordSchema.of("a INT")
    assert RecordSchema.of(schema) is schema


def test_an_unknown_column_gets_a_suggestion() -> None:
    schema = RecordSchema.of("user_id BIGINT, page STRING")
    assert schema.field("page").type == pa.string()
    with pytest.raises(BadSchema, match=r'no column "userid"(.|\n)*did you mean "user_id"'):
        schema.field("userid")


# Every type there is

NUMBERS = ["TINYINT", "SMALLINT", "INT", "BIGINT", "FLOAT", "DOUBLE", "DECIMAL(1, 0)", "DECIMAL(38, 38)"]
OTHERS = ["STRING", "BINARY", "BOOLEAN", "DATE", "TIMESTAMP", "TIMESTAMP_NTZ"]
PLAIN = st.sampled_from([*NUMBERS, *OTHERS])
NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8).filter(
    lambda name: name.lower() not in RESERVED
)


def quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def fields(types: st.SearchStrategy[str], separator: str) -> st.SearchStrategy[str]:
    one = st.tuples(NAMES, types, st.sampled_from(["", " NOT NULL"]))
    many = st.lists(one, min_size=1, max_size=4, unique_by=lambda each: each[0].lower())
    return many.map(lambda each: ", ".join(f"{quoted(name)}{separator}{of}{null}" for name, of, null in each))


TYPES = st.recursive(
    PLAIN,
    lambda inner: st.one_of(
        inner.map(lambda of: f"ARRAY<{of}>"),
        st.tuples(PLAIN, inner).map(lambda of: f"MAP<{of[0]}, {of[1]}>"),
        fields(inner, ": ").map(lambda inside: f"STRUCT<{inside}>"),
    ),
    max_leaves=6,
)


@given(fields(TYPES, " "))
def test_the_canonical_ddl_declares_the_same_schema(ddl: str) -> None:
    schema = RecordSchema.of(ddl)
    again = RecordSchema.of(schema.ddl)
    assert again == schema
    assert again.ddl == schema.ddl
    assert hash(again) == hash(schema)


@given(fields(TYPES, " "))
def test_a_normalised_arrow_schema_declares_itself(ddl: str) -> None:
    schema = RecordSchema.of(ddl)
    assert RecordSchema.of(schema.arrow) == schema


@given(fields(TYPES, " "))
def test_every_schema_evolves_to_itself(ddl: str) -> None:
    schema = RecordSchema.of(ddl)
    assert schema.evolve_to(RecordSchema.of(ddl)) == schema


# Dataclasses


@dataclass
class Address:
    street: str
    zip: str | None


@dataclass(frozen=True, slots=True)
class Order:
    id: int
    amount: Decimal
    weight: float | None
    note: Optional[str]  # noqa: UP045  the older spelling is still written
    blob: bytes
    paid: bool
    at: datetime.datetime
    due: datetime.date
    tags: list[str]
    counts: dict[str, int | None]
    to: Address
    others: list[Address] | None
    small: Annotated[int, "INT"]
    tiny: Annotated[int | None, "TINYINT"]
    local: Annotated[datetime.datetime, 42, "TIMESTAMP_NTZ"] | None = None


def test_a_dataclass_declares_its_fields() -> None:
    schema = RecordSchema.of(Order)
    assert schema.record_type is Order
    assert schema.ddl == (
        "id BIGINT NOT NULL, amount DECIMAL(38, 18) NOT NULL, weight DOUBLE, note STRING, "
        "blob BINARY NOT NULL, paid BOOLEAN NOT NULL, at TIMESTAMP NOT NULL, due DATE NOT NULL, "
        "tags ARRAY<STRING> NOT NULL, counts MAP<STRING, BIGINT> NOT NULL, "
        "to STRUCT<street: STRING NOT NULL, zip: STRING> NOT NULL, "
        "others ARRAY<STRUCT<street: STRING NOT NULL, zip: STRING>>, "
        "small INT NOT NULL, tiny TINYINT, local TIMESTAMP_NTZ"
    )


def test_the_dataclass_is_no_part_of_equality() -> None:
    schema = RecordSchema.of(Address)
    stored = RecordSchema.of(schema.ddl)
    assert stored.record_type is None
    assert stored == schema


class Color(enum.Enum):
    RED = "red"


@dataclass
class WithEnum:
    id: int
    color: Color


@dataclass
class WithUnion:
    id: int | str


@dataclass
class WithBareList:
    tags: list  # type: ignore[type-arg]


@dataclass
class WithDeepMistake:
    to: list[WithEnum]


@dataclass
class WithWrongDdl:
    id: Annotated[int, "INTT"]


@dataclass
class Endless:
    next: Endless | None


@pytest.mark.parametrize(
    ("declared", "says"),
    [
        (WithEnum, 'field "color": Color(.|\n)*store the .value'),
        (WithUnion, 'field "id": int | str'),
        (WithBareList, 'field "tags": list'),
        (WithDeepMistake, 'field "to.color": Color'),
        (WithWrongDdl, 'field "id": there is no type "INTT"(.|\n)*did you mean "INT"'),
        (Endless, "contains itself"),
    ],
)
def test_a_field_that_is_no_column_is_named(declared: type, says: str) -> None:
    with pytest.raises(BadSchema, match=says):
        RecordSchema.of(declared)


def test_a_class_that_cannot_be_found_is_explained() -> None:
    @dataclass
    class Inner:
        id: int

    @dataclass
    class Outer:
        inner: Inner

    with pytest.raises(BadSchema, match="top level of a module"):
        RecordSchema.of(Outer)


# Arrow


@pytest.mark.parametrize(
    ("given_type", "expected"),
    [
        (pa.large_string(), pa.string()),
        (pa.string_view(), pa.string()),
        (pa.large_binary(), pa.binary()),
        (pa.binary_view(), pa.binary()),
        (pa.binary(16), pa.binary()),
        (pa.dictionary(pa.int8(), pa.large_string()), pa.string()),
        (pa.timestamp("s", tz="Europe/Berlin"), UTC_US),
        (pa.timestamp("ns", tz="UTC"), UTC_US),
        (pa.timestamp("ms"), pa.timestamp("us")),
        (pa.uint8(), pa.int16()),
        (pa.uint16(), pa.int32()),
        (pa.uint32(), pa.int64()),
        (pa.uint64(), pa.decimal128(20, 0)),
        (pa.float16(), pa.float32()),
        (pa.date64(), pa.date32()),
        (pa.decimal256(30, 2), pa.decimal128(30, 2)),
        (pa.large_list(pa.uint8()), pa.list_(pa.int16())),
        (pa.list_(pa.int8(), 3), pa.list_(pa.int8())),
        (pa.list_(pa.field("element", pa.int8(), nullable=False)), pa.list_(pa.int8())),
        (pa.map_(pa.large_string(), pa.uint8()), pa.map_(pa.string(), pa.int16())),
        (pa.struct([("a", pa.uint8())]), pa.struct([("a", pa.int16())])),
    ],
)
def test_an_arrow_type_is_normalised(given_type: pa.DataType, expected: pa.DataType) -> None:
    assert only_type(pa.schema([("c", given_type)])) == expected


@pytest.mark.parametrize(
    "given_type",
    [
        pa.null(),
        pa.time64("us"),
        pa.duration("us"),
        pa.decimal256(50, 2),
        pa.decimal128(5, -2),
        pa.month_day_nano_interval(),
    ],
)
def test_an_arrow_type_without_a_spark_type_is_refused(given_type: pa.DataType) -> None:
    with pytest.raises(BadSchema, match=r'"outer\.c": Arrow type'):
        RecordSchema.of(pa.schema([("outer", pa.struct([("c", given_type)]))]))


def test_metadata_is_dropped() -> None:
    noisy = pa.schema([pa.field("a", pa.int32(), metadata={"x": "y"})], metadata={"pandas": "{}"})
    schema = RecordSchema.of(noisy)
    assert schema.arrow.metadata is None
    assert schema.arrow.field("a").metadata is None


# Evolution


@pytest.mark.parametrize(
    ("older", "newer"),
    [
        ("a TINYINT", "a SMALLINT"),
        ("a TINYINT", "a BIGINT"),
        ("a SMALLINT", "a INT"),
        ("a INT", "a BIGINT"),
        ("a INT", "a DOUBLE"),
        ("a FLOAT", "a DOUBLE"),
        ("a DECIMAL(10, 2)", "a DECIMAL(12, 4)"),
        ("a INT NOT NULL", "a INT"),
        ("a INT", "a INT, b STRING"),
        ("a ARRAY<INT>", "a ARRAY<BIGINT>"),
        ("a MAP<INT, INT>", "a MAP<BIGINT, DOUBLE>"),
        ("a STRUCT<x: INT NOT NULL>", "a STRUCT<x: BIGINT, y: STRING>"),
    ],
)
def test_a_schema_may_widen(older: str, newer: str) -> None:
    assert RecordSchema.of(older).evolve_to(RecordSchema.of(newer)) == RecordSchema.of(newer)
    if newer not in ("a INT, b STRING", "a INT"):
        with pytest.raises(IncompatibleSchema):
            RecordSchema.of(newer).evolve_to(RecordSchema.of(older))


@pytest.mark.parametrize(
    ("older", "newer", "column", "reason"),
    [
        ("a INT, b INT", "a INT", "b", "removing or renaming"),
        ("a INT", "A INT", "a", "removing or renaming"),
        ("a INT", "a INT, b INT NOT NULL", "b", "cannot be NOT NULL"),
        ("a INT", "a INT NOT NULL", "a", "cannot become NOT NULL"),
        ("a BIGINT", "a INT", "a", "BIGINT cannot become INT"),
        ("a BIGINT", "a DOUBLE", "a", "without loss"),
        ("a INT", "a DECIMAL(20, 0)", "a", "without loss"),
        ("a STRING", "a BINARY", "a", "without loss"),
        ("a TIMESTAMP", "a TIMESTAMP_NTZ", "a", "without loss"),
        ("a DECIMAL(10, 2)", "a DECIMAL(10, 4)", "a", "without loss"),
        ("a DECIMAL(10, 2)", "a DECIMAL(12, 1)", "a", "without loss"),
        ("a STRUCT<x: INT, y: INT>", "a STRUCT<x: INT>", "a.y", "removing"),
        ("a ARRAY<STRUCT<x: INT>>", "a ARRAY<STRUCT<x: STRING>>", "a.element.x", "without loss"),
        ("a MAP<STRING, BIGINT>", "a MAP<STRING, INT>", "a.value", "without loss"),
        ("a ARRAY<INT>", "a INT", "a", "without loss"),
    ],
)
def test_a_change_that_loses_data_is_refused(older: str, newer: str, column: str, reason: str) -> None:
    with pytest.raises(IncompatibleSchema) as caught:
        RecordSchema.of(older).evolve_to(RecordSchema.of(newer))
    assert caught.value.column == column
    assert reason in caught.value.reason


def test_existing_columns_keep_their_order_and_new_ones_follow() -> None:
    older = RecordSchema.of("b INT, a STRUCT<y: INT, x: INT>")
    newer = RecordSchema.of("new DATE, a STRUCT<z: INT, x: BIGINT, y: INT>, b BIGINT")
    assert older.evolve_to(newer).ddl == "b BIGINT, a STRUCT<y: INT, x: BIGINT, z: INT>, new DATE"


def test_the_dataclass_of_the_newer_schema_is_kept() -> None:
    evolved = RecordSchema.of("street STRING NOT NULL, zip STRING").evolve_to(RecordSchema.of(Address))
    assert evolved.record_type is Address


# Old batches


def test_a_batch_of_this_schema_is_passed_on_as_it_is() -> None:
    schema = RecordSchema.of("a INT")
    plain = pa.RecordBatch.from_arrays([pa.array([1], pa.int32())], schema=schema.arrow)
    assert schema.adopt(plain) is plain
    numbered = plain.append_column("_offset", pa.array([7]))
    assert schema.adopt(numbered) is numbered


def test_an_old_batch_is_widened_and_filled_around_the_system_columns() -> None:
    schema = RecordSchema.of("a INT, s STRUCT<x: INT>").evolve_to(
        RecordSchema.of("a BIGINT, s STRUCT<x: BIGINT, y: STRING>, b STRING")
    )
    stored = pa.RecordBatch.from_pydict(
        {
            "_offset": pa.array([7, 8]),
            "a": pa.array([1, None], pa.int32()),
            "s": pa.array([{"x": 1}, None], pa.struct([("x", pa.int32())])),
            "_deleted": pa.array([False, True]),
        }
    )
    adopted = schema.adopt(stored)
    assert adopted.schema.names == ["_offset", "a", "s", "b", "_deleted"]
    assert pa.schema(list(adopted.schema)[1:4]) == schema.arrow
    assert adopted.to_pylist() == [
        {"_offset": 7, "a": 1, "s": {"x": 1, "y": None}, "b": None, "_deleted": False},
        {"_offset": 8, "a": None, "s": None, "b": None, "_deleted": True},
    ]


def test_a_batch_with_a_column_of_no_older_schema_is_refused() -> None:
    with pytest.raises(IncompatibleSchema, match='"b"'):
        RecordSchema.of("a INT").adopt(pa.RecordBatch.from_pydict({"a": [1], "b": [2]}))
