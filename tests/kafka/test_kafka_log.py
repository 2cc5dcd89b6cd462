"""What is Kafka's own: topics of other programs, messages that are no records, brokers that are away."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, ResourceType
from tests.kafka.foreign import by_another_program, fresh
from tests.servers import free_port

import penstock as ps
from penstock.kafka.address import Address
from penstock.kafka.clients import Clients
from penstock.kafka.cluster import State
from penstock.kafka.declarations import SCHEMAS, Declarations
from penstock.kafka.records import Codec
from penstock.kafka.writing import Writing
from penstock.opening import open_log
from penstock.schema import RecordSchema

RACERS = 4


@pytest.fixture
def log(kafka: State) -> Iterator[ps.Log]:
    with open_log(kafka.url) as opened:
        yield opened


def test_a_topic_of_another_program_is_one_of_bytes(kafka: State, log: ps.Log) -> None:
    name = by_another_program(kafka, b"\x00\xff", b"plain", partitions=3)
    assert name in log.topics()
    topic = log.topic(name)
    assert topic.settings.partitions == 3
    assert [(row["key"], row["value"]) for row in topic.rows()] == [(b"key", b"\x00\xff"), (b"key", b"plain")]


def test_a_topic_of_another_program_is_read_with_the_schema_it_is_given(kafka: State, log: ps.Log) -> None:
    lines = [{"id": 1, "name": "ann", "unknown": [1]}, {"id": 2}]
    name = by_another_program(kafka, *(json.dumps(line).encode() for line in lines), partitions=2)
    topic = log.create_topic(name, "id BIGINT, name STRING", key="id", partitions=7)
    assert topic.settings.partitions == 2
    topic.append({"id": 3, "name": "eve"})
    assert sorted(topic.rows(), key=lambda row: int(row["id"])) == [
        {"id": 1, "name": "ann"},
        {"id": 2, "name": None},
        {"id": 3, "name": "eve"},
    ]


def test_what_is_no_record_is_put_aside_once_and_reading_goes_on(kafka: State, log: ps.Log) -> None:
    good = json.dumps({"id": 1}).encode()
    name = by_another_program(kafka, good, b"{ no json", b'{"id": "text"}', b"[]", None, good)
    topic = log.create_topic(name, "id BIGINT NOT NULL")
    for _ in range(2):
        assert [row["id"] for row in topic.rows()] == [1, 1]
    with open_log(kafka.url) as again:
        assert len(list(again.topic(name).rows())) == 2
    aside = log.topic(f"{name}.poison").latest()
    assert {key: (row["offset"], row["value"]) for key, row in aside.items()} == {
        "0:1": (1, b"{ no json"),
        "0:2": (2, b'{"id": "text"}'),
        "0:3": (3, b"[]"),
        "0:4": (4, None),
    }
    assert "expected BIGINT" in aside["0:2"]["reason"]


def test_what_another_program_set_stays(kafka: State, log: ps.Log) -> None:
    name, admin = fresh("foreign"), AdminClient(Address.parse(kafka.url).client())
    wanted = {"cleanup.policy": "delete", "retention.ms": "604800000", "message.timestamp.type": "CreateTime"}
    for made in admin.create_topics([NewTopic(name, 1, 1, config=wanted)]).values():
        made.result(30)
    log.create_topic(name, "id BIGINT")
    log.alter_topic(name, schema="id BIGINT, note STRING", record_bytes_max=5_000_000)
    resource = ConfigResource(ResourceType.TOPIC, name)
    (described,) = admin.describe_configs([resource]).values()
    found = {key: entry.value for key, entry in described.result(30).items()}
    assert {key: found[key] for key in wanted} == wanted
    assert int(found["max.message.bytes"]) > 5_000_000


@pytest.mark.parametrize("foreign", [False, True])
def test_of_several_who_create_a_topic_at_once_one_succeeds(kafka: State, foreign: bool) -> None:
    name = by_another_program(kafka, partitions=3) if foreign else fresh("raced")
    together = threading.Barrier(RACERS)

    def create(number: int) -> str | None:
        """The id of what it created, None if another was faster."""
        with open_log(kafka.url) as own:
            together.wait(30)
            try:
                made = own.create_topic(
                    name, f"n{number} BIGINT", partitions=number, retention=f"{number} days"
                )
            except ps.TopicExists:
                return None
            assert own.topic(name).settings == made.settings
            return made.settings.id

    with ThreadPoolExecutor(RACERS) as pool:
        created = [found for found in pool.map(create, range(1, RACERS + 1)) if found]
    with open_log(kafka.url) as log:
        settings = log.topic(name).settings
        assert created == [settings.id]
        admin = AdminClient(Address.parse(kafka.url).client())
        assert len(admin.list_topics(name, timeout=30).topics[name].partitions) == settings.partitions
        (described,) = admin.describe_configs([ConfigResource(ResourceType.TOPIC, name)]).values()
        if not foreign:
            assert described.result(30)["retention.ms"].value == str(settings.retention_ms)


def test_what_came_too_late_is_not_the_last_word(kafka: State, log: ps.Log) -> None:
    """Or compaction would leave it as the only one."""
    name, clients = fresh("raced"), Clients(Address.parse(kafka.url))
    made = log.create_topic(name, "n BIGINT").settings
    writing = Writing(clients, Codec())
    other = Declarations(clients, lambda: writing)
    late = replace(made, id="late", schema=RecordSchema.of("text STRING"))
    with pytest.raises(ps.TopicExists):
        other.create(late, instead_of=None)
    assert log.topic(name).settings == made
    consumer = Consumer({**Address.parse(kafka.url).client(), "group.id": fresh("cli")})
    _, end = consumer.get_watermark_offsets(TopicPartition(SCHEMAS, 0), timeout=30)
    consumer.assign([TopicPartition(SCHEMAS, 0, end - 1)])
    last = consumer.poll(30)
    assert last is not None
    assert json.loads(last.value() or b"")["id"] == made.id
    for opened in (consumer, other, writing, clients):
        opened.close()


def test_a_topic_whose_creator_died_half_way_can_be_created(kafka: State, log: ps.Log) -> None:
    name = fresh("half")
    half = log.create_topic(name, "n BIGINT").settings
    admin = AdminClient(Address.parse(kafka.url).client())
    for gone in admin.delete_topics([name]).values():
        gone.result(30)
    made = log.create_topic(name, "text STRING")
    made.append({"text": "whole"})
    assert made.settings.id != half.id
    assert [row["text"] for row in made.rows()] == ["whole"]


def test_a_declaration_that_does_not_fit_what_is_stored_is_refused(
    kafka: State, log: ps.Log, home: Path
) -> None:
    topic = log.create_topic(fresh("orders"), "id BIGINT")
    topic.append({"id": 1})
    app = ps.App("shop", home=home, log=kafka.url)
    app.topic(topic.name, "id STRING")
    with pytest.raises(ps.IncompatibleSchema, match='column "id"'):
        _ = app.log
    assert [row["id"] for row in topic.rows()] == [1]


def test_a_topic_that_is_missing_is_named_with_one_that_is_alike(kafka: State, log: ps.Log) -> None:
    name = log.create_topic(fresh("orders"), "id BIGINT").name
    with pytest.raises(ps.UnknownTopic) as refused:
        log.topic(f"{name}s")
    assert refused.value.did_you_mean == name


def test_an_end_that_is_not_there_is_an_error_and_not_fewer_records(log: ps.Log) -> None:
    """A batch that was planned further would lose some, and nobody would know."""
    topic = log.create_topic(fresh("ends"), "n BIGINT")
    topic.append([{"n": n} for n in range(3)])
    with pytest.raises(ps.OffsetOutOfRange, match="offset 4 is outside"):
        list(log.port.read(topic.name, 0, 0, until=4))
    assert [row["n"] for row in topic.rows(end=4)] == [0, 1, 2]


def test_a_producer_whose_last_append_is_not_shown_whole_does_not_go_on(
    kafka: State, log: ps.Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a commit that Kafka has ended in a part of the partitions only."""
    monkeypatch.setattr("penstock.kafka.transactions.ANSWER_S", 1.0)
    monkeypatch.setattr("penstock.kafka.transactions._VISIBLE_S", 0.1)
    topic, id = log.create_topic(fresh("held"), "n BIGINT", format="json"), fresh("writer")
    holding = Producer(
        {"bootstrap.servers": kafka.url.removeprefix("kafka://"), "transactional.id": fresh("holding")}
    )
    holding.init_transactions(30)
    holding.begin_transaction()
    holding.produce(topic.name, b'{"n": 0}')
    holding.flush(30)
    with log.producer(id) as producer:
        producer.append({topic: [{"n": 1}]}, position=b"1")
    with pytest.raises(ps.Contended, match=r"partition 0 ends at 0, and it reached 2"):
        log.producer(id)
    holding.abort_transaction(30)
    with log.producer(id) as producer:
        assert producer.position() == b"1"


def test_kafkas_own_clients_read_what_was_appended(kafka: State, log: ps.Log) -> None:
    topic = log.create_topic(fresh("orders"), "id BIGINT, at TIMESTAMP, note STRING", key="id")
    topic.append({"id": 7, "note": "Grüße"})
    log.producer(fresh("job")).append({topic: [{"id": 8}]}, position=b"1")
    consumer = Consumer({**Address.parse(kafka.url).client(), "group.id": fresh("cli")})
    consumer.assign([TopicPartition(topic.name, 0, 0)])
    deadline = time.monotonic() + 30
    found: list[Any] = []
    while len(found) < 2 and time.monotonic() < deadline:
        message = consumer.poll(0.5)
        if message is not None and message.error() is None:
            found.append((message.key(), json.loads(message.value() or b"null")))
    consumer.close()
    assert found == [
        (b"7", {"id": 7, "at": None, "note": "Grüße"}),
        (b"8", {"id": 8, "at": None, "note": None}),
    ]


def test_a_cluster_that_is_not_there_is_named_soon() -> None:
    url = f"kafka://127.0.0.1:{free_port()}"
    began = time.monotonic()
    with pytest.raises(ps.Unreachable) as refused:
        open_log(url)
    assert url in refused.value.message
    assert "is it running?" in refused.value.hint
    assert time.monotonic() - began < 25


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("kafka://", "is no address of a Kafka cluster"),
        ("kafka://host:9092/path", "is no address of a Kafka cluster"),
        ("kafka://ann:secret@/x", "is no address of a Kafka cluster"),
        ("kafka://127.0.0.1:1?colour=red", "colour"),
        ("kafka://ann:sec#ret@host:9092", "cannot be read"),
        ("kafka://ann:sec?ret@host:9092", "cannot be read"),
        ("Kafka://ann:secret@host:9092", "names neither"),
        ("redpanda://host:9092", "names neither"),
        ("127.0.0.1:9092", "names neither"),
    ],
)
def test_an_address_that_is_none_is_refused_without_its_password(url: str, told: str) -> None:
    with pytest.raises(ps.BadOption) as refused:
        open_log(url)
    assert told in str(refused.value)
    assert not any(part in str(refused.value) for part in ("secret", "sec#", "sec?", "ret@", ":sec"))


def test_a_user_in_the_address_is_one_for_sasl() -> None:
    found: dict[str, Any] = Address.parse(
        "kafka://ann:p%40ss@one:9093,two:9093?sasl.mechanism=SCRAM-SHA-512"
    ).client()
    assert found["bootstrap.servers"] == "one:9093,two:9093"
    assert (found["sasl.username"], found["sasl.password"]) == ("ann", "p@ss")
    assert (found["security.protocol"], found["sasl.mechanism"]) == ("SASL_SSL", "SCRAM-SHA-512")
