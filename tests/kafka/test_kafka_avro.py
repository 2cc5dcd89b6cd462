"""Topics in Avro, with a real broker and a real schema registry."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import uuid4

import fastavro
import pytest
from tests.cli.command import Command
from tests.kafka.elsewhere import Elsewhere, fresh, record
from tests.kafka.registry import Running

import penstock as ps
from penstock.kafka.avro_schema import schema_of, text_of
from penstock.kafka.cluster import State
from penstock.opening import open_log
from penstock.schema import RecordSchema

UTC_TIME = dt.datetime(2026, 11, 1, 10, 30, 0, 123_456, tzinfo=dt.UTC)
EVERY_TYPE = """
    tiny TINYINT, small SMALLINT, whole INT, big BIGINT NOT NULL, single FLOAT, double DOUBLE, word STRING,
    raw BINARY, yes BOOLEAN, day DATE, at TIMESTAMP, local TIMESTAMP_NTZ, price DECIMAL(38, 9),
    tags ARRAY<STRING>, grid ARRAY<ARRAY<INT>>, counts MAP<STRING, BIGINT>, days MAP<DATE, STRUCT<n: INT>>,
    place STRUCT<name: STRING NOT NULL, at: STRUCT<lat: DOUBLE, lon: DOUBLE>>,
    stops ARRAY<STRUCT<at: TIMESTAMP>>
"""
FULL_ROW: dict[str, Any] = {
    "tiny": -128, "small": 32_767, "whole": -(2**31), "big": 2**63 - 1, "single": 0.5, "double": 1e300,
    "word": "Grüße ✓", "raw": b"\x00\xff", "yes": True, "day": dt.date(1, 1, 1), "at": UTC_TIME,
    "local": dt.datetime(9999, 12, 31, 23, 59, 59, 999_999),
    "price": Decimal("-12345678901234567890123456789.123456789"),
    "tags": ["a", None, ""], "grid": [[1, None], None, []], "counts": {"a": 1, "": None},
    "days": {dt.date(2026, 1, 31): {"n": 1}, dt.date(1969, 12, 31): None},
    "place": {"name": "Ulm", "at": {"lat": 48.4, "lon": None}}, "stops": [{"at": UTC_TIME}, None],
}  # fmt: skip


@pytest.fixture(scope="module")
def log(url: str) -> Iterator[ps.Log]:
    """One client for all tests, as a program has."""
    with open_log(url) as opened:
        yield opened


# ---- writing and reading -------------------------------------------------------------------------------


def test_every_type_comes_back_as_it_was(log: ps.Log) -> None:
    topic = log.create_topic(fresh("types"), EVERY_TYPE)
    assert topic.settings.format == "avro"
    rows = [FULL_ROW, {**dict.fromkeys(FULL_ROW), "big": 0}]
    topic.append(rows)
    assert list(topic.rows()) == rows


def test_numbers_that_json_has_no_word_for(log: ps.Log) -> None:
    topic = log.create_topic(fresh("floats"), "x DOUBLE, y FLOAT")
    topic.append([{"x": float("inf"), "y": float("-inf")}, {"x": float("nan"), "y": 0.1}])
    first, second = topic.rows()
    assert (first["x"], first["y"]) == (float("inf"), float("-inf"))
    assert second["x"] != second["x"]


def test_another_program_reads_what_was_appended(
    log: ps.Log, elsewhere: Elsewhere, registry: Running
) -> None:
    topic = log.create_topic(
        fresh("orders"), "id BIGINT NOT NULL, at TIMESTAMP, price DECIMAL(9, 2)", key="id"
    )
    topic.append({"id": 7, "at": UTC_TIME, "price": Decimal("9.50")})
    log.producer(fresh("job")).append({topic: [{"id": 8}]}, position=b"1")
    assert elsewhere.rows(topic.name, 2) == [
        {"id": 7, "at": UTC_TIME, "price": Decimal("9.50")},
        {"id": 8, "at": None, "price": None},
    ]
    assert [key for key, _ in elsewhere.values(topic.name, 2)] == [b"7", b"8"]
    (schema,) = registry.versions(f"{topic.name}-value")
    assert schema["fields"][:2] == [
        {"name": "id", "type": "long"},
        {
            "name": "at",
            "type": ["null", {"type": "long", "logicalType": "timestamp-micros"}],
            "default": None,
        },
    ]


FOREIGN = record(
    ("id", "long"),
    ("state", {"type": "enum", "name": "State", "symbols": ["NEW", "PAID"]}),
    ("before", ["null", "State"]),
    ("at", {"type": "long", "logicalType": "timestamp-millis"}),
    ("opens", {"type": "int", "logicalType": "time-millis"}),
    ("ticket", {"type": "string", "logicalType": "uuid"}),
    ("sum", {"type": "fixed", "name": "Sum", "size": 2}),
    ("lines", {"type": "array", "items": record(("sku", "string"), ("n", "int"), name="Line")}),
)
MILLIS = UTC_TIME.replace(microsecond=123_000)
ORDER: dict[str, Any] = {
    "id": 1, "state": "NEW", "before": None, "at": MILLIS, "opens": dt.time(1), "ticket": str(uuid4()),
    "sum": b"\x01\x02", "lines": [{"sku": "a", "n": 2}],
}  # fmt: skip


def test_a_topic_of_another_program_has_the_schema_of_the_registry(log: ps.Log, elsewhere: Elsewhere) -> None:
    name = elsewhere.topic(fresh("foreign"))
    elsewhere.write(name, FOREIGN, ORDER)
    assert log.topic(name).schema == RecordSchema.of(None)  # until it is declared
    topic = log.create_topic(name)
    assert topic.schema.ddl == (
        "id BIGINT NOT NULL, state STRING NOT NULL, before STRING, at TIMESTAMP NOT NULL, "
        "opens INT NOT NULL, ticket STRING NOT NULL, sum BINARY NOT NULL, "
        "lines ARRAY<STRUCT<sku: STRING NOT NULL, n: INT NOT NULL>> NOT NULL"
    )
    assert list(topic.rows()) == [{**ORDER, "opens": 3_600_000}]


def test_or_the_schema_that_it_is_given(log: ps.Log, elsewhere: Elsewhere, registry: Running) -> None:
    name = elsewhere.topic(fresh("foreign"))
    elsewhere.write(name, FOREIGN, ORDER)
    topic = log.create_topic(
        name, "id BIGINT, note STRING, lines ARRAY<STRUCT<n: BIGINT, at: TIMESTAMP>>", key="id"
    )
    assert list(topic.rows()) == [{"id": 1, "note": None, "lines": [{"n": 2, "at": None}]}]
    assert len(registry.versions(f"{name}-value")) == 1  # reading registers nothing


def test_what_another_program_owns_is_not_appended_to_against_its_schema(
    log: ps.Log, elsewhere: Elsewhere, registry: Running
) -> None:
    name = elsewhere.topic(fresh("foreign"))
    elsewhere.write(name, record(("id", "long")), {"id": 1})
    topic = log.create_topic(name)
    with pytest.raises(ps.SchemaRefused):
        topic.append({"id": 2})
    assert list(topic.rows()) == [{"id": 1}]
    assert len(registry.versions(f"{name}-value")) == 1


def test_an_app_takes_the_schema_of_the_registry(url: str, home: Path, elsewhere: Elsewhere) -> None:
    name = elsewhere.topic(fresh("foreign"))
    elsewhere.write(name, record(("id", "long")), {"id": 1})
    for _ in range(2):  # the second time it is declared already
        app = ps.App("reading", home=home, log=url)
        topic = app.topic(name)
        assert [dict(row) for row in app.log.topic(topic.name).rows()] == [{"id": 1}]
        app.close()


def test_types_of_another_subject_are_found(log: ps.Log, elsewhere: Elsewhere, registry: Running) -> None:
    place, name = record(("town", "string"), name="Place"), elsewhere.topic(fresh("foreign"))
    registry.register("place", place)
    schema = record(("id", "long"), ("at", "com.example.Place"))
    reference = {"name": "com.example.Place", "subject": "place", "version": 1}
    path = f"/subjects/{name}-value/versions"
    number = registry.ask("POST", path, schema=json.dumps(schema), references=[reference])["id"]
    whole = record(("id", "long"), ("at", place))
    elsewhere.send(name, elsewhere.encoded(number, whole, {"id": 1, "at": {"town": "Ulm"}}))
    assert list(log.create_topic(name).rows()) == [{"id": 1, "at": {"town": "Ulm"}}]


def test_a_delete_is_a_message_without_a_value(log: ps.Log, elsewhere: Elsewhere) -> None:
    topic = log.create_topic(fresh("users"), "id BIGINT, name STRING NOT NULL", key="id", cleanup="compact")
    topic.append([{"id": 1, "name": "ann"}, {"id": 2, "name": "bob"}])
    topic.delete({"id": 1})
    assert elsewhere.values(topic.name, 3)[2] == (b"1", None)
    assert [event.deleted for event in topic.events()] == [False, False, True]
    assert topic.latest() == {2: {"id": 2, "name": "bob"}}


def test_the_exactly_once_producer_writes_avro(log: ps.Log, elsewhere: Elsewhere) -> None:
    one, two = (log.create_topic(fresh("out"), "n INT") for _ in range(2))
    id = fresh("job")
    producer = log.producer(id)
    producer.append({one: [{"n": 1}], two: [{"n": 2}]}, position=b"1")
    assert producer.append({one: [{"n": 1}]}, position=b"1", sequence=0).duplicate
    newer = log.producer(id)
    with pytest.raises(ps.Fenced):
        producer.append({one: [{"n": 3}]}, position=b"2")
    assert newer.position() == b"1"
    assert elsewhere.rows(one.name, 1) == list(one.rows()) == [{"n": 1}]
    assert elsewhere.rows(two.name, 1) == list(two.rows()) == [{"n": 2}]


def test_a_log_is_copied_into_avro(home: Path, url: str, elsewhere: Elsewhere) -> None:
    name = fresh("moved")
    with open_log(home) as before:
        topic = before.create_topic(name, "id BIGINT, at TIMESTAMP", key="id")
        topic.append([{"id": 1, "at": UTC_TIME}, {"id": 2}])
        times = [event.timestamp for event in topic.events()]
    assert Command(home).json("copy", home, url)["records"] == {name: 2}
    with open_log(url) as after:
        assert [event.timestamp for event in after.topic(name).events()] == times
        assert list(after.topic(name).rows()) == [{"id": 1, "at": UTC_TIME}, {"id": 2, "at": None}]
    assert elsewhere.rows(name, 2)[0] == {"id": 1, "at": UTC_TIME}


# ---- schemas that change -------------------------------------------------------------------------------


def test_a_wider_schema_is_a_new_version(log: ps.Log, elsewhere: Elsewhere, registry: Running) -> None:
    topic = log.create_topic(fresh("orders"), "id INT NOT NULL, old STRING")
    topic.append({"id": 1, "old": "x"})
    (first,) = registry.versions(f"{topic.name}-value")
    log.alter_topic(topic.name, schema="id INT NOT NULL, old STRING, note STRING, at STRUCT<x: INT>")
    topic.append({"id": 2, "note": "new", "at": {"x": 1}})
    assert len(registry.versions(f"{topic.name}-value")) == 2
    assert list(topic.rows()) == [
        {"id": 1, "old": "x", "note": None, "at": None},
        {"id": 2, "old": None, "note": "new", "at": {"x": 1}},
    ]
    # A program that was built before reads both.
    assert elsewhere.rows(topic.name, 2, first) == [{"id": 1, "old": "x"}, {"id": 2, "old": None}]


def test_a_schema_that_the_registry_refuses_changes_nothing(log: ps.Log, registry: Running) -> None:
    topic = log.create_topic(fresh("orders"), "id INT NOT NULL")
    subject = f"{topic.name}-value"
    registry.ask("PUT", f"/config/{subject}", compatibility="FORWARD")
    before = topic.settings
    with pytest.raises(ps.SchemaRefused, match=subject) as refused:
        log.alter_topic(topic.name, schema="id BIGINT NOT NULL", partitions=3)
    assert registry.url in refused.value.message
    assert topic.settings == before
    assert len(registry.versions(subject)) == 1
    topic.append({"id": 1})
    assert list(topic.rows()) == [{"id": 1}]


def test_a_topic_whose_schema_is_refused_is_not_made(log: ps.Log, registry: Running) -> None:
    name = fresh("orders")
    registry.register(f"{name}-value", record(("id", "string"), name=name.replace("-", "_")))
    with pytest.raises(ps.SchemaRefused):
        log.create_topic(name, "id BIGINT NOT NULL")
    assert name not in log.topics()


def test_what_another_program_changes_is_read_by_the_schema_given(log: ps.Log, elsewhere: Elsewhere) -> None:
    name = elsewhere.topic(fresh("foreign"))
    note = {"name": "note", "type": ["null", "string"], "default": None}
    first, second = record(("id", "int")), record(("id", "long"))
    first["fields"].append(note)
    elsewhere.write(name, first, {"id": 1, "note": "x"})
    topic = log.create_topic(name, "id BIGINT, note STRING")
    second["fields"].append({"name": "more", "type": "string", "default": ""})  # and no note
    elsewhere.write(name, second, {"id": 2**40, "more": "y"})
    assert list(topic.rows()) == [{"id": 1, "note": "x"}, {"id": 2**40, "note": None}]
    # The owner's schema is the owner's business: what is read may be widened without the registry.
    log.alter_topic(name, schema="id BIGINT, note STRING, more STRING")
    assert [row["more"] for row in topic.rows()] == [None, "y"]


def test_with_a_topic_goes_its_subject(log: ps.Log, registry: Running) -> None:
    name = fresh("orders")
    log.create_topic(name, "id BIGINT NOT NULL")
    log.delete_topic(name)
    topic = log.create_topic(name, "word STRING NOT NULL")
    topic.append({"word": "anew"})
    assert list(topic.rows()) == [{"word": "anew"}]
    assert len(registry.versions(f"{name}-value")) == 1


# ---- what is not Avro ----------------------------------------------------------------------------------


def test_topics_of_json_go_on(kafka: State, url: str, elsewhere: Elsewhere, registry: Running) -> None:
    name = fresh("json")
    with open_log(kafka.url) as before:
        before.create_topic(name, "id BIGINT").append({"id": 1})
    with open_log(url) as log:
        topic = log.alter_topic(name, schema="id BIGINT, note STRING")
        topic.append({"id": 2})
        chosen = log.create_topic(fresh("json"), "id BIGINT", format="json")
        raw = log.create_topic(fresh("raw"))
        with pytest.raises(ps.BadOption, match="a topic of json stays one"):
            log.alter_topic(name, format="avro")
        assert {each.settings.format for each in (topic, chosen, raw)} == {"json"}
        assert list(topic.rows()) == [{"id": 1, "note": None}, {"id": 2, "note": None}]
    assert [value for _, value in elsewhere.values(name, 2)] == [b'{"id":1}', b'{"id":2,"note":null}']
    subjects = registry.ask("GET", "/subjects")
    assert not {f"{each.name}-value" for each in (topic, chosen, raw)} & set(subjects)


def test_a_json_topic_of_another_program_is_read_beside_a_registry(log: ps.Log, elsewhere: Elsewhere) -> None:
    name = elsewhere.topic(fresh("foreign"))
    elsewhere.send(name, b'{"id": 1}')
    with pytest.raises(ps.BadSchema, match=f"{name}-value"):
        log.create_topic(name, format="avro")
    assert list(log.create_topic(name, "id BIGINT").rows()) == [{"id": 1}]


def test_what_is_no_record_is_put_aside_and_reading_goes_on(
    log: ps.Log, elsewhere: Elsewhere, registry: Running
) -> None:
    name, schema = elsewhere.topic(fresh("foreign")), record(("id", "long"), ("word", "string"))
    number = elsewhere.write(name, schema, {"id": 1, "word": "a"})
    good = elsewhere.encoded(number, schema, {"id": 2, "word": "b"})
    other = registry.register(fresh("text"), "string")
    elsewhere.send(
        name, b"\x00" + (9_999).to_bytes(4, "big") + b"x", good[:5] + b"\xff" * 12, good + b"!",
        b'{"id": 1}', b"", elsewhere.encoded(other, "string", "just text"), None, good,
    )  # fmt: skip
    topic = log.create_topic(name)
    assert [row["id"] for row in topic.rows()] == [1, 2]
    aside = log.topic(f"{name}.poison")
    assert aside.settings.format == "json"
    assert [aside.latest()[f"0:{at}"]["reason"] for at in range(1, 8)] == [
        f"schema 9999: the schema registry {registry.url} does not have it.",
        f"its bytes are no record of schema {number}.",
        f"1 bytes are left over after a record of schema {number}.",
        *["it is not in the wire format of a schema registry."] * 2,
        f"schema {other} is none of records.",
        "it has no value, and the topic keeps every record.",
    ]


def test_a_name_that_avro_does_not_take_is_refused(log: ps.Log) -> None:
    with pytest.raises(ps.BadSchema, match="two words") as refused:
        log.create_topic(fresh("named"), "`two words` INT")
    assert 'format="json"' in refused.value.hint
    log.create_topic(fresh("1-named"), "n INT").append({"n": 1})


# ---- schemas -------------------------------------------------------------------------------------------


def test_a_schema_comes_back_from_avro() -> None:
    """But for what Avro has no word for: TINYINT, SMALLINT, and maps with other keys than text."""
    ddl = (
        "a INT, b BIGINT NOT NULL, c FLOAT, d DOUBLE, e STRING, f BINARY, g BOOLEAN, h DATE, i TIMESTAMP, "
        "j TIMESTAMP_NTZ, k DECIMAL(20, 4), l ARRAY<STRUCT<x: INT, y: ARRAY<STRING>>>, m MAP<STRING, DATE>, "
        "n STRUCT<n: STRUCT<n: INT NOT NULL>>"
    )
    avro = json.loads(text_of("topic.with-signs", RecordSchema.of(ddl)))
    fastavro.parse_schema(avro)  # each name once
    assert schema_of(avro).ddl == ddl


@pytest.mark.parametrize("kind", [["null", "int", "string"], "null", {"type": "array", "items": "Order"}])
def test_a_type_that_no_topic_has_is_refused_by_the_name_of_its_column(kind: Any) -> None:
    with pytest.raises(ps.BadSchema, match="odd"):
        schema_of(record(("id", "long"), ("odd", kind)))
