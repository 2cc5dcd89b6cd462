"""Rows as Kafka messages by Spark are what our own client makes of them, key by key and value by value."""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

import penstock as ps
from penstock.flow import messages
from penstock.kafka.records import Codec
from penstock.log import rows
from penstock.log.settings import TopicSettings
from penstock.schema import RecordSchema

DDL = """
    k BIGINT, name STRING, yes BOOLEAN, small INT, ratio DOUBLE, price DECIMAL(12,3), day DATE,
    at TIMESTAMP, local TIMESTAMP_NTZ, tags ARRAY<STRING>, points ARRAY<STRUCT<x: DOUBLE, at: TIMESTAMP>>,
    props MAP<STRING, DECIMAL(6,2)>, place STRUCT<city: STRING, area: DECIMAL(4,1)>
"""
CODEC = Codec()
AT = dt.datetime(2026, 11, 16, 12, 30, 1, 123456, dt.UTC)
ROWS: list[dict[str, Any]] = [
    {
        "k": 7, "name": 'a "ü" \n', "yes": True, "small": -3, "ratio": 0.1, "price": Decimal("12.500"),
        "day": dt.date(2026, 1, 31), "at": AT, "local": AT.replace(tzinfo=None), "tags": ["x", None],
        "points": [{"x": 1.5, "at": AT}, None], "props": {"a": Decimal("1.20")},
        "place": {"city": "Ulm", "area": Decimal("1.5")},
    },
    {"k": None, "ratio": float("nan"), "at": AT.replace(microsecond=0)},
    {"k": 2**62, "ratio": float("-inf"), "name": "", "tags": [], "place": {"city": None, "area": None}},
]  # fmt: skip


def topic(ddl: str, key: tuple[str, ...]) -> TopicSettings:
    return TopicSettings("events", RecordSchema.of(ddl), key=key)


def sent(spark: SparkSession, settings: TopicSettings, batch: pa.RecordBatch) -> list[tuple[Any, Any]]:
    df = spark.createDataFrame(pa.Table.from_batches([batch]), from_arrow_schema(settings.schema.arrow))
    found = messages.messages(df, settings).collect()
    assert {row["topic"] for row in found} == {"events"}
    return [(row["key"] and bytes(row["key"]), json.loads(bytes(row["value"]))) for row in found]


@pytest.mark.parametrize("key", [("k",), ("name",), ("at",), ("k", "name"), ("day", "yes", "price"), ()])
def test_messages_are_those_of_our_own_client(spark: SparkSession, key: tuple[str, ...]) -> None:
    settings = topic(DDL, key)
    batch = rows.encode(settings.schema, ROWS)
    ours = [(message.key, json.loads(message.value or b"")) for message in CODEC.outgoing(settings, batch)]
    theirs = sent(spark, settings, batch)
    assert [key for key, _ in theirs] == [key for key, _ in ours]
    assert [normal(value) for _, value in theirs] == [normal(value) for _, value in ours]


def normal(value: Any) -> Any:
    """Times as times: their fractions may have zeros at the end."""
    if isinstance(value, dict):
        return {name: normal(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [normal(inner) for inner in value]
    if isinstance(value, str) and value.startswith("2026-11-16T"):
        return dt.datetime.fromisoformat(value)
    return value


def raw(spark: SparkSession, values: list[bytes | None], *, headers: bool = False) -> Any:
    schema = (
        "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP, "
        "headers ARRAY<STRUCT<key: STRING, value: BINARY>>"
    )
    found = [("a", b"1"), ("b", b"2"), ("a", b"3")] if headers else None
    rows = [(b"k", value, "events", 1, number, AT, found) for number, value in enumerate(values)]
    return spark.createDataFrame(rows, schema)


def test_what_our_own_client_sent_is_read_back(spark: SparkSession) -> None:
    settings = topic(DDL, ("k",))
    batch = rows.encode(settings.schema, ROWS)
    found = messages.rows(
        raw(spark, [message.value for message in CODEC.outgoing(settings, batch)]), settings
    )
    back = found.drop("_topic", "_partition", "_offset", "_timestamp").toArrow()
    again = [
        (message.key, message.value) for b in back.to_batches() for message in CODEC.outgoing(settings, b)
    ]
    assert again == [(message.key, message.value) for message in CODEC.outgoing(settings, batch)]


def test_what_is_no_record_is_put_aside_with_its_place(spark: SparkSession) -> None:
    settings = topic("k BIGINT NOT NULL, at TIMESTAMP", ("k",))
    good = b'{"k": 1, "at": "2026-11-16T00:00:00Z", "further": []}'
    bad = [b"garbage", b'{"k": "x"}', b"{}", None, b"[1]", b'{"k": 1, "at": 5'.ljust(20), b"\xff\xfe"]
    bad += [b"", b'{"k": 1} and more']
    df = raw(spark, [good, *bad])
    assert [row["_offset"] for row in messages.rows(df, settings).collect()] == [0]
    aside = messages.misfits(df, settings, ".poison").collect()
    assert {row["topic"] for row in aside} == {"events.poison"}
    assert [bytes(row["key"]).decode() for row in aside] == [f"1:{number}" for number in range(1, 10)]
    told = [json.loads(bytes(row["value"])) for row in aside]
    assert [(one["partition"], one["offset"]) for one in told] == [(1, number) for number in range(1, 10)]
    assert told[0]["value"] == {"base64": "Z2FyYmFnZQ=="}
    assert told[3]["value"] is None


def test_of_a_topic_of_bytes_every_message_is_a_record(spark: SparkSession) -> None:
    settings = TopicSettings("events", RecordSchema.of(None), key=("key",))
    (row,) = messages.rows(raw(spark, [b"\xff"], headers=True), settings).collect()
    assert (bytes(row["key"]), bytes(row["value"])) == (b"k", b"\xff")
    assert {name: bytes(value) for name, value in row["headers"].items()} == {"a": b"3", "b": b"2"}


def test_an_empty_message_is_no_row_of_nulls(spark: SparkSession) -> None:
    settings = topic("k BIGINT, name STRING", ())
    assert messages.rows(raw(spark, [b"", None, b"null", b"{}"]), settings).count() == 1
    assert messages.misfits(raw(spark, [b"", None, b"null", b"{}"]), settings, ".poison").count() == 3


@pytest.mark.parametrize(
    ("wanted", "reason"),
    [
        (
            TopicSettings("t", RecordSchema.of("k BIGINT"), key=("k",), cleanup="compact"),
            "deletes have no value",
        ),
        (TopicSettings("t", RecordSchema.of("k BIGINT"), format="avro"), "is Avro"),
        (TopicSettings("t", RecordSchema.of("a ARRAY<BINARY>")), "column of BINARY"),
        (TopicSettings("t", RecordSchema.of("m MAP<BIGINT, STRING>")), "keys that are no text"),
    ],
)
def test_a_topic_that_only_python_can_read_is_refused(wanted: TopicSettings, reason: str) -> None:
    with pytest.raises(ps.BadDefinition, match=reason):
        messages.check_readable(wanted)
