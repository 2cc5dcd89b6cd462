from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import BadSchema
from penstock.log.keys import check_key, key_bytes, key_digests, murmur2, partitions_of
from penstock.log.rows import encode
from penstock.schema import RecordSchema


def batch_of(ddl: str, *rows: tuple[object, ...]) -> pa.RecordBatch:
    schema = RecordSchema.of(ddl)
    return encode(schema, [dict(zip(schema.names, row, strict=True)) for row in rows])


def keys_of(ddl: str, *values: object) -> list[Any]:
    return list(key_bytes(batch_of(f"k {ddl}", *((value,) for value in values)), ("k",)).to_pylist())


def expected_partition(key: bytes, partitions: int) -> int:
    return (murmur2(key) & 0x7FFFFFFF) % partitions


# The hash


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_the_hash_is_kafkas(data: bytes, expected: int) -> None:
    assert murmur2(data) == expected


# Enough keys for the vectorized hash, of which hypothesis shrinks only a few.
FILLER = [str(n).encode() for n in range(100)]


@given(st.lists(st.binary(max_size=40), max_size=20), st.integers(0, 20))
def test_many_keys_are_hashed_as_each_alone(keys: list[bytes], start: int) -> None:
    column = pa.array(keys + FILLER, pa.binary()).slice(start)
    found = partitions_of(pa.RecordBatch.from_arrays([column], names=["k"]), ("k",), 2**31 - 1)
    assert found.tolist() == [expected_partition(key, 2**31 - 1) for key in (keys + FILLER)[start:]]


def test_very_long_keys_are_hashed_among_short_ones() -> None:
    keys = [bytes([n]) * length for n, length in enumerate([0, 3, 1023, 1024, 1025, 5000, 7] * 10)]
    batch = pa.RecordBatch.from_arrays([pa.array(keys, pa.binary())], names=["k"])
    assert partitions_of(batch, ("k",), 1000).tolist() == [expected_partition(key, 1000) for key in keys]


# The partition


@pytest.mark.parametrize("rows", [1, 30, 2_000, 50_000])
@pytest.mark.parametrize("distinct", [1, 7, 1_000, 10**12])
def test_rows_go_where_their_key_goes_in_kafka(rows: int, distinct: int) -> None:
    numbers = np.random.default_rng(7).integers(-distinct, distinct, rows)
    batch = pa.RecordBatch.from_arrays([pa.array(numbers)], names=["k"])
    found = partitions_of(batch, ("k",), 12)
    assert found.dtype == np.int32
    assert found.tolist() == [expected_partition(str(number).encode(), 12) for number in numbers.tolist()]


@pytest.mark.parametrize("rows", [10, 100, 10_000])
def test_a_record_without_key_has_no_partition(rows: int) -> None:
    values = [None if n % 3 == 0 else f"user {n % 5}" for n in range(rows)]
    batch = pa.RecordBatch.from_arrays([pa.array(values)], names=["k"])
    expected = [-1 if value is None else expected_partition(value.encode(), 4) for value in values]
    assert partitions_of(batch, ("k",), 4).tolist() == expected


def test_without_key_columns_no_record_has_a_partition() -> None:
    batch = batch_of("a INT", (1,), (2,))
    assert partitions_of(batch, (), 4).tolist() == [-1, -1]
    assert key_bytes(batch, ()).to_pylist() == [None, None]


@pytest.mark.parametrize("rows", [10, 20_000])
def test_a_key_of_several_columns_goes_by_all_of_them(rows: int) -> None:
    values = [(n % 7, None if n % 5 == 0 else f"é{n % 11}", n) for n in range(rows)]
    batch = batch_of("a INT, b STRING, n BIGINT", *values)
    keys = [
        f"1:{a},".encode() + (b"-," if b is None else b"%d:%b," % (len(b.encode()), b.encode()))
        for a, b, _ in values
    ]
    assert key_bytes(batch, ("a", "b")).to_pylist() == keys
    assert partitions_of(batch, ("a", "b"), 9).tolist() == [expected_partition(key, 9) for key in keys]


def test_no_rows_have_no_partitions() -> None:
    batch = batch_of("a INT, b STRING")
    assert partitions_of(batch, ("a",), 3).tolist() == []
    assert partitions_of(batch, ("a", "b"), 3).tolist() == []
    assert key_digests(batch, ("a",)).shape == (0, 2)


# The bytes


@pytest.mark.parametrize(
    ("ddl", "value", "expected"),
    [
        ("BINARY", b"\xff\x00", b"\xff\x00"),
        ("STRING", "é", "é".encode()),
        ("STRING", "", b""),
        ("TINYINT", -5, b"-5"),
        ("BIGINT", -(2**63), b"-9223372036854775808"),
        ("BOOLEAN", True, b"true"),
        ("BOOLEAN", False, b"false"),
        ("DATE", date(2026, 1, 31), b"2026-01-31"),
        ("DATE", date(1, 1, 1), b"0001-01-01"),
        ("TIMESTAMP", datetime(1970, 1, 1, 0, 0, 1, 5, tzinfo=UTC), b"1000005"),
        ("TIMESTAMP_NTZ", datetime(1969, 12, 31, 23, 59, 59), b"-1000000"),
        ("DECIMAL(10, 2)", Decimal("-1.5"), b"-1.50"),
        ("DECIMAL(10, 0)", Decimal(10), b"10"),
        ("DECIMAL(38, 18)", Decimal("1E-18"), b"0.000000000000000001"),
        ("DECIMAL(38, 18)", Decimal(0), b"0.000000000000000000"),
        ("DECIMAL(10, 7)", Decimal("0.0000001"), b"0.0000001"),
        ("DECIMAL(38, 6)", Decimal("0.000001"), b"0.000001"),
    ],
)
def test_a_key_is_its_plain_text(ddl: str, value: object, expected: bytes) -> None:
    assert keys_of(ddl, value, None) == [expected, None]


def test_a_widened_integer_keeps_its_key() -> None:
    assert keys_of("TINYINT", 7) == keys_of("BIGINT", 7)


PARTS = st.tuples(
    st.none() | st.binary(max_size=6) | st.sampled_from([b"-,", b"1:a,", b",", b":"]),
    st.none() | st.text(max_size=4) | st.sampled_from(["-,", "1:a,", "", "0:,"]),
    st.none() | st.integers(-20, 20),
)


@given(st.lists(PARTS, min_size=2, max_size=60, unique=True))
def test_different_keys_have_different_bytes(parts: list[tuple[object, ...]]) -> None:
    batch = batch_of("a BINARY, b STRING, c INT", *parts)
    keys = key_bytes(batch, ("a", "b", "c")).to_pylist()
    assert None not in keys
    assert len(set(keys)) == len(parts)


def test_a_slice_has_the_keys_of_its_rows() -> None:
    rows = [(n, str(n)) for n in range(100)]
    batch = batch_of("a INT, b STRING", *rows)
    assert key_bytes(batch.slice(40, 3), ("b",)).to_pylist() == [b"40", b"41", b"42"]
    assert key_bytes(batch.slice(40, 1), ("a", "b")).to_pylist() == [b"2:40,2:40,"]


# The digests


@pytest.mark.parametrize("rows", [5, 10_000])
def test_a_digest_is_the_hash_of_the_keys_bytes(rows: int) -> None:
    values = [f"user {n % 50}" for n in range(rows)]
    digests = key_digests(pa.RecordBatch.from_arrays([pa.array(values)], names=["k"]), ("k",))
    assert digests.dtype == np.uint64
    assert digests.shape == (rows, 2)
    assert [row.tobytes() for row in digests] == [xxhash.xxh3_128_digest(value.encode()) for value in values]


def test_the_digest_of_no_key_is_zero() -> None:
    assert key_digests(batch_of("k STRING", (None,), ("",)), ("k",)).any(axis=1).tolist() == [False, True]


# Which columns may be a key


def test_plain_columns_may_be_a_key() -> None:
    schema = RecordSchema.of(
        "a TINYINT, b BIGINT, c STRING, d BINARY, e BOOLEAN, f DATE, g TIMESTAMP, h TIMESTAMP_NTZ, "
        "i DECIMAL(9, 2)"
    )
    check_key(schema, schema.names)
    check_key(schema, ())


@pytest.mark.parametrize("ddl", ["FLOAT", "DOUBLE", "ARRAY<INT>", "MAP<INT, INT>", "STRUCT<x: INT>"])
def test_a_column_without_one_text_per_value_is_refused(ddl: str) -> None:
    with pytest.raises(BadSchema, match=r'column "k" is .* cannot be part of a key'):
        check_key(RecordSchema.of(f"id INT, k {ddl}"), ("id", "k"))


def test_an_unknown_key_column_gets_a_suggestion() -> None:
    with pytest.raises(BadSchema, match='did you mean "user_id"'):
        check_key(RecordSchema.of("user_id INT"), ("userid",))


def test_a_key_names_a_column_once() -> None:
    with pytest.raises(BadSchema, match="twice"):
        check_key(RecordSchema.of("a INT, b INT"), ("a", "b", "a"))
