"""Every type of PostgreSQL, by snapshot and by stream."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from tests.capture.folding import Fold, follow
from tests.capture.postgres_database import PostgresDatabase

from penstock.capture.postgres_types import column_of
from penstock.errors import BadRecord
from penstock.schema import ddl_of

UTC = datetime.UTC
# A column's type, its literal, the type in the log and the value there.
WIDE: Sequence[tuple[str, str, str, Any]] = [
    ("bool", "true", "BOOLEAN", True),
    ("int2", "-32768", "SMALLINT", -32768),
    ("int4", "2147483647", "INT", 2147483647),
    ("int8", "-9223372036854775808", "BIGINT", -(2**63)),
    ("oid", "4294967295", "BIGINT", 4294967295),
    ("float4", "'0.1'", "FLOAT", pa.scalar(0.1, pa.float32()).as_py()),
    ("float8", "'-Infinity'", "DOUBLE", float("-inf")),
    ("float8", "0.1::float8 + 0.2::float8", "DOUBLE", 0.30000000000000004),
    ("numeric(12, 2)", "-1.5", "DECIMAL(12, 2)", Decimal("-1.50")),
    ("numeric(38, 0)", "9" * 38, "DECIMAL(38, 0)", Decimal("9" * 38)),
    ("numeric(3, -2)", "12345", "DECIMAL(5, 0)", Decimal(12300)),
    ("numeric(2, 4)", "0.0012", "DECIMAL(4, 4)", Decimal("0.0012")),
    ("numeric(50, 2)", "1", "STRING", "1.00"),
    ("numeric", "'NaN'", "STRING", "NaN"),
    ("text", "E'tab\\there\\nline \"quoted\", \\\\ back'", "STRING", 'tab\there\nline "quoted", \\ back'),
    ("text", "''", "STRING", ""),
    ("text", "'\\N'", "STRING", "\\N"),
    ("text", "'grüße 🎉'", "STRING", "grüße 🎉"),
    ("varchar(10)", "'NULL'", "STRING", "NULL"),
    ("char(4)", "'ab'", "STRING", "ab  "),
    ("name", "'n'", "STRING", "n"),
    ("uuid", "'0a0b0c0d-0000-0000-0000-000000000001'", "STRING", "0a0b0c0d-0000-0000-0000-000000000001"),
    ("json", '\'{"b": 1,  "a": 1.0}\'', "STRING", '{"b": 1,  "a": 1.0}'),
    ("jsonb", '\'{"b": 1,  "a": 1.0}\'', "STRING", '{"a": 1.0, "b": 1}'),
    ("xml", "'<a>1</a>'", "STRING", "<a>1</a>"),
    ("inet", "'10.0.0.1/8'", "STRING", "10.0.0.1/8"),
    ("cidr", "'10.0.0.0/8'", "STRING", "10.0.0.0/8"),
    ("macaddr", "'08:00:2b:01:02:03'", "STRING", "08:00:2b:01:02:03"),
    ("mood", "'so so'", "STRING", "so so"),
    ("int4range", "'[1,5)'", "STRING", "[1,5)"),
    ("int4multirange", "'{[1,3), [5,7)}'", "STRING", "{[1,3),[5,7)}"),
    ("interval", "'1 year 2 days 03:04:05.5'", "STRING", "P1Y2DT3H4M5.5S"),
    ("money", "12.34", "STRING", "$12.34"),
    ("bit(3)", "B'101'", "STRING", "101"),
    ("varbit", "B'10'", "STRING", "10"),
    ("tsvector", "'a b'", "STRING", "'a' 'b'"),
    ("point", "'(1,2)'", "STRING", "(1,2)"),
    ("box", "'(1,2),(0,0)'", "STRING", "(1,2),(0,0)"),
    ("bytea", "'\\x00cafe5c'", "BINARY", b"\x00\xca\xfe\\"),
    ("bytea", "''", "BINARY", b""),
    ("date", "'2024-02-29'", "DATE", datetime.date(2024, 2, 29)),
    ("time", "'24:00:00'", "STRING", "24:00:00"),
    ("timetz", "'12:00:00+02'", "STRING", "12:00:00+02"),
    ("timestamp", "'0001-01-01 00:00:00.000001'", "TIMESTAMP_NTZ", datetime.datetime(1, 1, 1, 0, 0, 0, 1)),
    ("timestamptz", "'2024-07-01 12:00:00.5+02'", "TIMESTAMP",
     datetime.datetime(2024, 7, 1, 10, 0, 0, 500000, UTC)),
    ("int[]", "'{1,NULL,-3}'", "ARRAY<INT>", [1, None, -3]),
    ("int[]", "'{}'", "ARRAY<INT>", []),
    ("int[]", "'[0:1]={7,8}'", "ARRAY<INT>", [7, 8]),
    ("int[][]", "'{{1,2},{3,4}}'", "STRING", "{{1,2},{3,4}}"),
    ("float8[]", "'{0.1,NaN}'", "ARRAY<DOUBLE>", "nan"),
    ("bool[]", "'{t,f,NULL}'", "ARRAY<BOOLEAN>", [True, False, None]),
    ("text[]", "ARRAY['a,b', 'q\"', '', NULL, 'NULL', '{x}', E'\\\\']", "ARRAY<STRING>",
     ["a,b", 'q"', "", None, "NULL", "{x}", "\\"]),
    ("numeric(8, 2)[]", "'{1.5,2}'", "ARRAY<DECIMAL(8, 2)>", [Decimal("1.50"), Decimal("2.00")]),
    ("timestamptz[]", "'{2024-01-01 00:00:00+00}'", "ARRAY<TIMESTAMP>",
     [datetime.datetime(2024, 1, 1, tzinfo=UTC)]),
    ("bytea[]", "ARRAY['\\xca'::bytea, '']", "ARRAY<BINARY>", [b"\xca", b""]),
    ("mood[]", "'{sad,\"so so\"}'", "ARRAY<STRING>", ["sad", "so so"]),
    ("int4range[]", "ARRAY['[1,2)'::int4range]", "STRING", '{"[1,2)"}'),
    ("int2vector", "'1 2'", "STRING", "1 2"),
    ("oidvector", "'22 33'", "STRING", "22 33"),
    ("small", "7", "INT", 7),
    ("priced", "7", "DECIMAL(6, 1)", Decimal("7.0")),
    ("pair", "ROW(1, 'x y')", "STRING", '(1,"x y")'),
]  # fmt: skip
MADE = [
    "CREATE TYPE mood AS ENUM ('sad', 'so so')",
    "CREATE DOMAIN small AS int CHECK (VALUE < 10)",
    "CREATE DOMAIN priced AS numeric(6, 1)",
    "CREATE TYPE pair AS (a int, b text)",
]


def _same(value: Any) -> Any:
    """A NaN is not equal to itself."""
    return "nan" if isinstance(value, list) and any(each != each for each in value) else value


def test_every_type_comes_by_snapshot_and_by_stream_alike(database: PostgresDatabase) -> None:
    columns = ", ".join(f"c{at} {kind}" for at, (kind, *_) in enumerate(WIDE))
    values = ", ".join(literal for _, literal, *_ in WIDE)
    database.run(
        *MADE, f"CREATE TABLE wide (id int PRIMARY KEY, {columns})", f"INSERT INTO wide VALUES (1, {values})",
        "INSERT INTO wide (id) VALUES (2)",
    )  # fmt: skip
    fold, end = Fold(), database.end()
    follow(database.source(), fold, lambda: fold.lsn >= end)
    database.run(
        f"INSERT INTO wide VALUES (3, {values})",
        "INSERT INTO wide (id) VALUES (4)",
        "UPDATE wide SET id = id + 10",
    )
    end = database.end()
    follow(database.source(), fold, lambda: fold.lsn >= end)

    assert len(fold.forms["wide"]) == 1
    types = fold.forms["wide"][0].columns.types[1:]
    assert [ddl_of(dtype) for dtype in types] == [ddl for _, _, ddl, _ in WIDE]
    rows = {key: [_same(value) for value in row[1:]] for key, row in fold.rows("wide").items()}
    expected, nulls = [value for *_, value in WIDE], [None] * len(WIDE)
    assert rows == {11: expected, 12: nulls, 13: expected, 14: nulls}
    read = {row["after"]["id"]: row["after"] for row in fold.told("wide") if row["op"] == "r"}
    assert [_same(value) for value in list(read[1].values())[1:]] == expected
    assert list(read[2].values())[1:] == nulls


def test_text_with_quotes_newlines_and_large_values_by_both(database: PostgresDatabase) -> None:
    database.run(
        "CREATE TABLE notes (id int PRIMARY KEY, body text)",
        "INSERT INTO notes SELECT i, repeat(chr(i + 9) || '\"\\,' || E'\\r\\n', i * 50)"
        " FROM generate_series(0, 99) i",
        "INSERT INTO notes VALUES (1000, repeat(md5('x'), 100000)), (1001, E'\\\\.'), (1002, '')",
    )
    fold, end = Fold(), database.end()
    follow(database.source(chunk_rows=7), fold, lambda: fold.lsn >= end)
    assert fold.rows("notes") == database.rows("notes")
    database.run("INSERT INTO notes SELECT id + 2000, body FROM notes")
    end = database.end()
    follow(database.source(), fold, lambda: fold.lsn >= end)
    assert fold.rows("notes") == database.rows("notes")


@pytest.mark.parametrize(
    ("kind", "literal", "shown"),
    [
        ("date", "'infinity'", "infinity"),
        ("date", "'0044-03-15 BC'", "0044-03-15 BC"),
        ("timestamptz", "'-infinity'", "-infinity"),
        ("timestamp", "'12024-01-01'", "12024-01-01 00:00:00"),
        ("numeric(8, 2)", "'NaN'", "NaN"),
        ("int[]", "'{{1,2},{3,4}}'", "{{1,2},{3,4}}"),
    ],
)
def test_a_value_that_cannot_be_held_stops_and_names_the_way_out(
    database: PostgresDatabase, kind: str, literal: str, shown: str
) -> None:
    database.run(f"CREATE TABLE due (id int PRIMARY KEY, at {kind})")
    fold, end = Fold(), database.end()
    follow(database.source(), fold, lambda: fold.lsn >= end)
    database.run("INSERT INTO due VALUES (1, NULL)", f"INSERT INTO due VALUES (2, {literal})")
    end = database.end()
    with pytest.raises(BadRecord) as raised:
        follow(database.source(), fold, lambda: fold.lsn >= end)
    assert f"cannot hold: {shown}." in raised.value.message
    assert 'as_text=["due.at"]' in raised.value.hint
    follow(database.source(as_text=["due.at"]), fold, lambda: fold.lsn >= end)
    assert fold.rows("due") == {1: (1, None), 2: (2, shown)}


def test_bytes_that_are_no_text_are_refused() -> None:
    raw = pa.array([b"fine", None, b"\xff\xfe"], pa.binary())
    texts = pa.Array.from_buffers(pa.string(), 3, raw.buffers())
    with pytest.raises(BadRecord, match=r"t\.c has a value that STRING cannot hold"):
        column_of(texts, pa.string(), of="t.c")
