"""Debezium's JSON: what goes out comes back in, and every mode that Debezium has is read the same."""

from __future__ import annotations

import base64
import datetime as dt
import json
import sqlite3
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.capture.world import caught_up
from typer.testing import CliRunner

import penstock as ps
from penstock.capture import debezium_json as dbz
from penstock.capture.source import Table
from penstock.capture.sqlite_source import SQLiteSource
from penstock.cli.main import app
from penstock.errors import BadOption, BadRecord
from penstock.schema import RecordSchema

UTC = dt.UTC
MOMENT = dt.datetime(2026, 1, 31, 12, 0, 0, 250_001, tzinfo=UTC)
ORDERS = Table(
    "sales.orders",
    RecordSchema.of(
        "id BIGINT, amount DECIMAL(10, 2), at TIMESTAMP, local TIMESTAMP_NTZ, day DATE, photo BINARY, "
        "score DOUBLE, vip BOOLEAN, tags ARRAY<STRING>, place STRUCT<x: DOUBLE, name: STRING>"
    ).arrow,
    ("id",),
)
ROW = {
    "id": 7,
    "amount": Decimal("-12.50"),
    "at": MOMENT,
    "local": dt.datetime(2026, 1, 31, 12, 0, 0, 1),
    "day": dt.date(1969, 12, 31),
    "photo": b"\x00\xff",
    "score": float("inf"),
    "vip": False,
    "tags": ["a", None],
    "place": {"x": 1.5, "name": None},
}
ORIGIN = dbz.Origin("postgresql", "shop", "shop", "orders", "sales")


def change(op: str, before: Any, after: Any, **told: Any) -> dict[str, Any]:
    about = {"position": "0/16B3748", "transaction": "9", "transaction_order": 3, "committed_at": MOMENT}
    return {"op": op, "before": before, "after": after, **about, **told}


def one(dtype: str) -> Table:
    return Table("t", RecordSchema.of(f"id INT, v {dtype}").arrow, ("id",))


def read(value: Any, schema: dict[str, Any] | None, dtype: str = "STRING") -> Any:
    """One column of an inserted row, as `dtype` or, where that is empty, as the schema says."""
    payload = {"op": "c", "before": None, "after": {"id": 1, "v": value}, "source": {}}
    rows = {
        "type": "struct",
        "fields": [{"type": "int32", "field": "id"}, {**(schema or {}), "field": "v"}],
    }
    whole = {"type": "struct", "fields": [{**rows, "field": "before"}, {**rows, "field": "after"}]}
    table = one(dtype) if dtype else dbz.table_of("t", whole, {"fields": [{"field": "id"}]})
    told = dbz.from_debezium(payload if schema is None else {"schema": whole, "payload": payload}, table)
    assert told is not None and told.after is not None
    dbz.changes_of(table, [told])  # it can be stored
    return told.after["v"]


def test_what_goes_out_comes_back_the_same() -> None:
    value = dbz.to_debezium(change("u", {**dict.fromkeys(ROW), "id": 7}, ROW), source=ORIGIN)
    told = dbz.from_debezium(json.dumps(value), ORDERS)
    assert told is not None
    assert (told.op, told.before, told.after) == ("u", {**dict.fromkeys(ROW), "id": 7}, ROW)
    assert (told.transaction, told.transaction_order) == ("9", 3)
    assert told.committed_at == MOMENT.replace(microsecond=250_000)  # Debezium's are milliseconds


def test_the_envelope_is_debeziums() -> None:
    value = dbz.to_debezium(change("c", None, ROW), source=ORIGIN, collection_order=2)
    assert value["after"] == {
        "id": 7, "amount": "-12.50", "at": "2026-01-31T12:00:00.250001Z",
        "local": "2026-01-31T12:00:00.000001Z", "day": "1969-12-31Z", "photo": "AP8=", "score": "Infinity",
        "vip": False, "tags": ["a", None], "place": {"x": 1.5, "name": None},
    }  # fmt: skip
    assert value["transaction"] == {"id": "9", "total_order": 3, "data_collection_order": 2}
    source = value["source"]
    assert (source["lsn"], source["snapshot"], source["ts_ms"]) == (0x16B3748, "false", 1769860800250)
    assert (source["db"], source["schema"], source["table"]) == ("shop", "sales", "orders")


def test_a_change_of_the_key_is_a_delete_and_an_insert_and_deletes_have_tombstones() -> None:
    moved = change("u", {**dict.fromkeys(ROW), "id": 6}, ROW)
    told = [
        (message.key, message.value and message.value["op"])
        for row in (moved, change("d", ROW, None))
        for message in dbz.messages(row, ["id"], source=ORIGIN)
    ]
    gone = ({"id": 7}, "d"), ({"id": 7}, None)
    assert told == [({"id": 6}, "d"), ({"id": 6}, None), ({"id": 7}, "c"), *gone]


TIME, DATA = "io.debezium.time.", "org.apache.kafka.connect.data."
US = 1_769_860_800_250_001


@pytest.mark.parametrize(
    ("value", "schema", "wanted"),
    [
        (20484, {"type": "int32", "name": f"{TIME}Date"}, dt.date(2026, 1, 31)),
        (20484, {"type": "int32", "name": f"{DATA}Date"}, dt.date(2026, 1, 31)),
        ("2026-01-31Z", {"type": "string", "name": f"{TIME}IsoDate"}, dt.date(2026, 1, 31)),
        (US // 1000, {"type": "int64", "name": f"{TIME}Timestamp"},
         dt.datetime(2026, 1, 31, 12, 0, 0, 250_000)),
        (US, {"type": "int64", "name": f"{TIME}MicroTimestamp"}, MOMENT.replace(tzinfo=None)),
        (US * 1000 + 999, {"type": "int64", "name": f"{TIME}NanoTimestamp"}, MOMENT.replace(tzinfo=None)),
        ("2026-01-31T12:00:00.250001Z", {"type": "string", "name": f"{TIME}IsoTimestamp"},
         MOMENT.replace(tzinfo=None)),
        ("2026-01-31T14:00:00.250001+02:00", {"type": "string", "name": f"{TIME}ZonedTimestamp"}, MOMENT),
        (3_723_000_004, {"type": "int64", "name": f"{TIME}MicroTime"}, "01:02:03.000004"),
        (3_723_000, {"type": "int32", "name": f"{DATA}Time"}, "01:02:03"),
        ("BNI=", {"type": "bytes", "name": f"{DATA}Decimal",
                  "parameters": {"scale": "2", "connect.decimal.precision": "10"}}, Decimal("12.34")),
        ("+y4=", {"type": "bytes", "name": f"{DATA}Decimal", "parameters": {"scale": "2"}},
         Decimal("-12.34")),
        ({"scale": 3, "value": "BNI="}, {"type": "struct", "name": "io.debezium.data.VariableScaleDecimal"},
         "1.234"),
        ("12.34", {"type": "string", "parameters": {
            "__debezium.source.column.type": "NUMERIC", "__debezium.source.column.length": "10",
            "__debezium.source.column.scale": "2"}}, Decimal("12.34")),
        ("12.34", {"type": "string"}, "12.34"),
        (12.25, {"type": "double"}, 12.25),
        ("AP8=", {"type": "bytes"}, b"\x00\xff"),
        ([1, None], {"type": "array", "items": {"type": "int32"}}, [1, None]),
        (None, {"type": "int64", "name": f"{TIME}MicroTimestamp"}, None),
    ],
)  # fmt: skip
def test_every_mode_is_read_by_its_schema(value: Any, schema: dict[str, Any], wanted: Any) -> None:
    assert read(value, schema, "") == wanted


@pytest.mark.parametrize(
    ("value", "dtype", "wanted"),
    [
        (20484, "DATE", dt.date(2026, 1, 31)),
        (US // 1000, "TIMESTAMP", MOMENT.replace(microsecond=250_000)),
        (US, "TIMESTAMP", MOMENT),
        (US * 1000, "TIMESTAMP_NTZ", MOMENT.replace(tzinfo=None)),
        ("2026-01-31T12:00:00.250001Z", "TIMESTAMP_NTZ", MOMENT.replace(tzinfo=None)),
        ("12.34", "DECIMAL(10, 2)", Decimal("12.34")),
        (12.34, "DECIMAL(10, 2)", Decimal("12.34")),
        ("AP8=", "BINARY", b"\x00\xff"),
        (1, "BOOLEAN", True),
        (5, "STRING", "5"),
        ("-Infinity", "DOUBLE", float("-inf")),
    ],
)
def test_without_a_schema_the_column_says_what_a_value_is(value: Any, dtype: str, wanted: Any) -> None:
    assert read(value, None, dtype) == wanted


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        ("ann", "INT"),
        (1.5, "INT"),
        (2**40, "INT"),
        ("soon", "TIMESTAMP"),
        ("1.234", "DECIMAL(10, 2)"),
        (7, "BOOLEAN"),
    ],
)
def test_a_value_that_does_not_fit_is_refused_by_name(value: Any, dtype: str) -> None:
    with pytest.raises(BadRecord, match='column "v" of "t"'):
        read(value, None, dtype)


def test_values_that_are_not_repeated_are_told_as_such() -> None:
    unsaid = "__debezium_unavailable_value"
    after = {"id": 1, "amount": "1.00", "photo": base64.b64encode(unsaid.encode()).decode(), "tags": [unsaid]}
    payload = {"op": "u", "before": None, "after": after, "source": {"connector": "postgresql"}}
    told = dbz.from_debezium(payload, ORDERS)
    assert told is not None
    assert told.unchanged == ("photo", "tags")
    assert told.before is not None and told.before["id"] == 1 and told.before["amount"] is None
    assert dbz.changes_of(ORDERS, [told]).unchanged == {"photo": [0], "tags": [0]}


@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        ("ARRAY<INT>", [*b"__debezium_unavailable_value"]),
        ("ARRAY<BIGINT>", [*b"__debezium_unavailable_value"]),
        ("ARRAY<STRING>", ["b68a35a7-17ad-35b3-af2a-ae46edb4545a"]),  # of uuid
        ("ARRAY<BINARY>", ["X19kZWJleml1bV91bmF2YWlsYWJsZV92YWx1ZQ=="]),
        ("STRING", '{"__debezium_unavailable_value":"__debezium_unavailable_value"}'),  # of hstore
        ("MAP<STRING, STRING>", {"__debezium_unavailable_value": "__debezium_unavailable_value"}),
    ],
)
def test_each_type_has_its_own_sign_for_a_value_that_is_not_repeated(dtype: str, value: Any) -> None:
    """As Debezium 3.6 writes them for PostgreSQL."""
    table = dbz.declared_tables({"t": f"id INT NOT NULL, v {dtype}"})["t"]
    payload = {"op": "u", "before": None, "after": {"id": 1, "v": value}, "source": {}}
    told = dbz.from_debezium(payload, table)
    assert told is not None
    assert (told.unchanged, told.after) == (("v",), {"id": 1, "v": None})


def test_zeros_that_stand_for_nothing_are_no_row_before() -> None:
    source = {"connector": "postgresql"}
    for amount, wanted in (("0.00", None), ("3.00", Decimal("3.00"))):
        before = {"id": 1, "amount": amount, "vip": False}
        told = dbz.from_debezium({"op": "d", "before": before, "after": None, "source": source}, ORDERS)
        assert told is not None and told.before is not None
        assert (told.before["id"], told.before["amount"]) == (1, wanted)


def test_tombstones_flat_rows_and_flat_deletes() -> None:
    assert dbz.from_debezium(None, ORDERS) is None
    assert dbz.from_debezium({"op": "m", "before": None, "after": None, "source": {}}, ORDERS) is None
    flat = dbz.from_debezium({"id": 1, "amount": "2.00", "__op": "c"}, ORDERS)
    assert flat is not None and flat.after is not None
    assert (flat.op, flat.after["amount"]) == ("c", Decimal("2.00"))
    for gone in (
        dbz.from_debezium(None, ORDERS, key='{"id": 1}'),
        dbz.from_debezium({"id": 1, "amount": "2.00", "__deleted": "true"}, ORDERS),
    ):
        assert gone is not None and gone.before is not None
        assert (gone.op, gone.before["id"], gone.after) == ("d", 1, None)


def test_the_order_of_changes_is_that_of_the_commits() -> None:
    """The second transaction wrote its row first, and committed later."""
    first, second = (
        {"connector": "postgresql", "sequence": json.dumps(told)} for told in (["100", "200"], ["300", "150"])
    )
    assert dbz.order_of(first) == (100, 200)
    assert dbz.order_of(first) < dbz.order_of(second)  # type: ignore[operator]
    rolled = {"connector": "mysql", "file": "binlog.000010", "pos": 4, "row": 0}
    assert dbz.order_of({**rolled, "file": "binlog.000009", "pos": 9_000}) < dbz.order_of(rolled)  # type: ignore[operator]


def test_a_table_without_a_key_or_without_a_schema_is_refused() -> None:
    rows = {"type": "struct", "fields": [{"type": "int32", "field": "id"}]}
    with pytest.raises(BadOption, match="no primary key"):
        dbz.table_of("t", {"type": "struct", "fields": [{**rows, "field": "after"}]}, None)
    with pytest.raises(BadOption, match="do not say what columns"):
        dbz.table_of("t", None, None)
    assert dbz.table_of("t", rows, rows) == Table("t", pa.schema([pa.field("id", pa.int32())]), ("id",))


def test_export_prints_what_another_reader_takes(log: ps.Log, home: Path, tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.executescript(
            "CREATE TABLE users (id INTEGER PRIMARY KEY, name TEXT); INSERT INTO users VALUES (1, 'Ann');"
        )
        caught_up(log, "shop", SQLiteSource(path, name="shop"))
        db.executescript("UPDATE users SET id = 2; DELETE FROM users;")
        caught_up(log, "shop", SQLiteSource(path, name="shop"))
    result = CliRunner().invoke(app, ["capture", "export", "shop", "users", "--home", str(home)])
    assert result.exit_code == 0, result.output
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    told = [(line["key"]["id"], line["value"] and line["value"]["op"]) for line in lines]
    assert told == [(1, "r"), (1, "d"), (1, None), (2, "c"), (2, "d"), (2, None)]
    assert lines[0]["value"]["after"] == {"id": 1, "name": "Ann"}
    assert lines[0]["value"]["source"]["snapshot"] == "true"
