"""Personal columns of topics: sealed on disk, revealed to who asks, null once their subject is forgotten."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import penstock as ps
from penstock.errors import (
    BadOption,
    BadRecord,
    BadSchema,
    NotSupported,
    SealBroken,
    SubjectForgotten,
)
from penstock.log.log import Log
from penstock.log.topic import Topic

SCHEMA = "id BIGINT, customer BIGINT, email STRING, photo BINARY"
PERSONAL = {"email": "customer", "photo": "customer"}


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    with ps.open_log(tmp_path / "home") as opened:
        yield opened


@pytest.fixture
def orders(log: Log) -> Topic:
    topic = log.create_topic("orders", SCHEMA, key="customer", personal=PERSONAL)
    topic.append([order(1, 17, "ann@example.org"), order(2, 18, "bob@example.org"), order(3, 17, None)])
    return topic


def order(id: int, customer: int | None, email: str | None) -> dict[str, Any]:
    return {"id": id, "customer": customer, "email": email, "photo": email and email[:3].encode()}


def emails(topic: Topic) -> dict[int, str | None]:
    return {row["id"]: row["email"] for row in topic.rows()}


def every_byte(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file())


def test_readers_get_sealed_values_unless_they_ask(orders: Topic) -> None:
    assert [str(email)[:12] for email in emails(orders).values()] == ["personal:r1:", "personal:r1:", "None"]
    assert emails(orders.revealed()) == {1: "ann@example.org", 2: "bob@example.org", 3: None}
    assert [row["photo"] for row in orders.revealed().rows()] == [b"ann", b"bob", None]
    assert emails(orders)[1] != "ann@example.org"  # the topic itself stays as it was


def test_no_personal_value_is_on_the_disk_in_clear(orders: Topic, tmp_path: Path) -> None:
    stored = every_byte(tmp_path)
    assert b"example.org" not in stored
    assert b"personal:r1:" in stored


def test_once_a_subject_is_forgotten_its_values_are_null_and_the_others_there(
    log: Log, orders: Topic
) -> None:
    log.port.keys.destroy("17")
    assert emails(orders.revealed()) == {1: None, 2: "bob@example.org", 3: None}
    assert emails(orders.revealed(forgotten="(gone)")) == {1: "(gone)", 2: "bob@example.org", 3: None}
    assert len(list(orders.events())) == 3  # what is counted stays


def test_consumers_and_typed_records_are_revealed_too(log: Log) -> None:
    @dataclass
    class Visit:
        visitor: str
        name: str | None

    visits = log.create_topic("visits", Visit, personal={"name": "visitor"})
    visits.append([Visit("v1", "Ann"), Visit("v2", "Bob")])
    log.port.keys.destroy("v1")
    with visits.revealed().consume(group="desk", follow=False) as consumer:
        assert [event.value for event in consumer] == [Visit("v1", None), Visit("v2", "Bob")]


def test_every_way_to_write_seals(log: Log, tmp_path: Path) -> None:
    topic = log.create_topic("orders", SCHEMA, key="customer", personal=PERSONAL, partitions=3)
    rows = [order(number, number, f"{number}@example.org") for number in range(4)]
    topic.append(pa.RecordBatch.from_pylist([rows[0]], topic.schema.arrow))
    with topic.producer() as producer:
        producer.send(rows[1])
    with topic.producer(id="p") as producer:
        producer.send(rows[2], position=b"2")
    log.producer("q").append({"orders": [rows[3]]})
    assert b"example.org" not in every_byte(tmp_path)
    assert emails(topic.revealed()) == {number: f"{number}@example.org" for number in range(4)}


def test_what_comes_for_a_forgotten_subject_is_refused_by_row(log: Log, orders: Topic) -> None:
    log.port.keys.destroy("17")
    with pytest.raises(SubjectForgotten) as error:
        orders.append([order(4, 18, "bob@example.org"), order(5, 17, "ann@example.org")])
    assert (error.value.row, error.value.column) == (1, "email")
    assert "ann" not in str(error.value)
    orders.append(order(6, 17, None))  # nothing personal is in it
    with pytest.raises(SubjectForgotten), orders.producer() as producer:
        producer.send(order(7, 17, "ann@example.org"))
        producer.send(order(8, 18, "bob@example.org"))
    assert [row["id"] for row in orders.rows()] == [1, 2, 3, 6, 8]


def test_or_it_is_stored_without_what_is_personal(log: Log) -> None:
    topic = log.create_topic("orders", SCHEMA, personal=PERSONAL, on_forgotten="blank")
    topic.append(order(1, 17, "ann@example.org"))
    log.port.keys.destroy("17")
    topic.append(order(2, 17, "ann@example.org"))
    assert [(row["id"], row["customer"], row["email"]) for row in topic.rows()][1] == (2, 17, None)


def test_comparable_values_of_a_subject_look_the_same(log: Log) -> None:
    topic = log.create_topic("orders", SCHEMA, personal=PERSONAL, comparable=["email"])
    topic.append([order(1, 17, "a@b"), order(2, 17, "a@b"), order(3, 18, "a@b")])
    one, same, other = (row["email"] for row in topic.rows())
    assert one == same != other
    assert emails(topic.revealed()) == {1: "a@b", 2: "a@b", 3: "a@b"}


def test_a_subject_may_be_named_by_what_is_personal(log: Log, tmp_path: Path) -> None:
    topic = log.create_topic("users", "email STRING, plan STRING", key="email", cleanup="compact",
                             personal={"email": "email"}, comparable="email")  # fmt: skip
    topic.append([{"email": "ann@example.org", "plan": "free"}, {"email": "bob@example.org", "plan": "free"}])
    topic.append({"email": "ann@example.org", "plan": "pro"})
    assert sorted(row["plan"] for row in topic.latest().values()) == ["free", "pro"]
    topic.delete({"email": "bob@example.org"})
    assert [row["plan"] for row in topic.latest().values()] == ["pro"]
    assert b"example.org" not in every_byte(tmp_path)
    with pytest.raises(NotSupported, match="would be one"):
        topic.revealed().latest()
    log.port.keys.destroy("ann@example.org")
    with pytest.raises(SubjectForgotten):
        topic.append({"email": "ann@example.org", "plan": "free"})


def test_a_value_that_was_moved_is_not_revealed(log: Log, orders: Topic) -> None:
    stolen = emails(orders)[2]
    other = log.create_topic("comments", "customer BIGINT, email STRING")
    other.append({"customer": 17, "email": stolen})
    place = orders.settings
    for customer in (17, 99):  # past the door that seals: bob's value among another's
        batch = pa.RecordBatch.from_pylist([order(9, customer, stolen)], place.stored)
        log.port.append(place, {0: [batch.set_column(3, "photo", pa.nulls(1, pa.binary()))]})
    with pytest.raises(SealBroken, match=r"offset 3.*another place or subject"):
        list(orders.revealed().rows())
    with pytest.raises(SealBroken):
        list(orders.revealed().events(start=4))


def test_a_sealed_value_that_is_appended_is_sealed_once_more(orders: Topic) -> None:
    token = emails(orders)[2]
    orders.append(order(4, 17, token))
    assert emails(orders.revealed())[4] == token  # and does not open to what bob gave


def test_what_is_not_sealed_is_not_revealed(log: Log, orders: Topic) -> None:
    log.port.append(
        orders.settings, {0: [pa.RecordBatch.from_pylist([order(4, 17, "x")], orders.schema.arrow)]}
    )
    with pytest.raises(SealBroken, match='column "email": it is not sealed'):
        list(orders.revealed().rows())


def test_errors_do_not_tell_what_is_personal(orders: Topic) -> None:
    for record in (
        order(4, 17, "x") | {"email": b"secret@example.org"},
        order(4, 17, "x") | {"photo": "secret"},
    ):
        with pytest.raises(BadRecord, match="not shown because it is personal") as error:
            orders.append(record)
        assert "secret" not in str(error.value)
        assert error.value.row == 0


@pytest.mark.parametrize("customer", [None])
def test_a_personal_value_needs_a_subject(orders: Topic, customer: None) -> None:
    with pytest.raises(BadRecord, match='"customer" names no subject'):
        orders.append(order(4, customer, "ann@example.org"))
    orders.append(order(5, customer, None))


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"personal": {"email": "nobody"}}, BadSchema, "nobody"),
        ({"personal": {"mail": "customer"}}, BadSchema, "did you mean"),
        ({"personal": {"id": "customer"}}, BadSchema, "declare it as STRING"),
        ({"personal": {"name": "customer"}}, BadSchema, "NOT NULL"),
        ({"personal": {"email": "photo"}}, BadSchema, "named by STRING"),
        ({"personal": {"email": "nick", "nick": "customer"}}, BadSchema, "personal itself"),
        ({"personal": ["email"]}, BadOption, "customer_id"),
        ({"personal": {"email": "customer"}, "comparable": ["photo"]}, BadOption, "not personal"),
        ({"personal": {"email": "customer"}, "key": "email"}, BadOption, "comparable"),
        (
            {"personal": {"email": "customer"}, "key": "email", "comparable": ["email"]},
            BadOption,
            "in the key",
        ),
        ({"personal": {"email": "customer"}, "on_forgotten": "ignore"}, BadOption, "blank"),
    ],
)
def test_columns_that_cannot_be_personal_are_refused(
    log: Log, options: dict[str, Any], error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        log.create_topic("t", f"{SCHEMA}, nick STRING, name STRING NOT NULL", **options)


def test_what_is_stored_in_clear_cannot_become_personal_but_a_new_column_can(log: Log) -> None:
    log.create_topic("orders", "id BIGINT, customer BIGINT, name STRING")
    with pytest.raises(BadOption, match="cannot become personal"):
        log.alter_topic("orders", personal={"name": "customer"})
    wider = "id BIGINT, customer BIGINT, name STRING, email STRING"
    topic = log.alter_topic("orders", schema=wider, personal={"email": "customer"})
    topic.append({"id": 1, "customer": 17, "name": "n", "email": "ann@example.org"})
    assert emails(topic.revealed()) == {1: "ann@example.org"}
    with pytest.raises(BadOption, match="cease to be"):
        log.alter_topic("orders", personal={})
    again = ps.open_log(log.port.home).topic("orders")  # type: ignore[attr-defined]
    assert again.settings.personal == topic.settings.personal


def test_a_table_of_an_app_is_revealed_as_it_is_now_and_was(tmp_path: Path) -> None:
    app = ps.App("shop", home=tmp_path)
    users = app.table("users", "id BIGINT, name STRING", key="id", personal={"name": "id"})
    users.upsert([{"id": 1, "name": "Ann"}, {"id": 2, "name": "Bob"}])
    users.upsert({"id": 1, "name": "Anna"})
    assert [row["name"] for row in users.revealed().current()] == ["Anna", "Bob"]
    app.log.port.keys.destroy("1")
    assert [row["name"] for row in users.revealed().current()] == [None, "Bob"]
    app.close()


def test_the_keys_may_be_kept_apart_from_the_log(tmp_path: Path) -> None:
    app = ps.App("shop", home=tmp_path / "home", keys=tmp_path / "safe" / "keys.db")
    app.topic("orders", SCHEMA, personal=PERSONAL).append(order(1, 17, "ann@example.org"))
    app.close()
    assert not (tmp_path / "home" / "keys.db").exists()
    with ps.open_log(tmp_path / "home") as log, pytest.raises(SealBroken, match="not in this key store"):
        emails(log.topic("orders").revealed())  # not the same as forgotten
    with ps.open_log(tmp_path / "home", keys=tmp_path / "safe" / "keys.db") as log:
        assert emails(log.topic("orders").revealed()) == {1: "ann@example.org"}
    with pytest.raises(BadOption, match="is a folder"):
        ps.open_log(tmp_path / "home", keys=tmp_path)


@dataclass
class Signup:
    customer: int
    email: ps.sourcing.Personal[str | None]


def test_a_class_that_says_what_is_personal_needs_the_topic_to_say_whose_it_is(log: Log) -> None:
    with pytest.raises(BadSchema, match='"email" is said to be personal, and would not be sealed') as error:
        log.create_topic("signups", Signup)
    assert 'personal={"email":' in error.value.hint
    log.create_topic("signups", Signup, personal={"email": "customer"})
    log.create_topic("visits", "customer BIGINT")
    with pytest.raises(BadSchema, match="would not be sealed"):
        log.alter_topic("visits", schema=Signup)


def test_what_is_sealed_for_there_already_is_not_sealed_again(log: Log, orders: Topic) -> None:
    (sealed, other, _) = orders.rows()
    orders.append([{**sealed, "id": 4}, {**other, "id": 5, "customer": 17}])
    orders.append({"id": 6, "customer": 17, "email": sealed["email"][:-4] + "abc;", "photo": None})
    assert emails(orders)[4] == sealed["email"]
    found = emails(orders.revealed())
    assert found[4] == "ann@example.org"
    assert found[5] == other["email"]  # of somebody else: text like any other
    assert str(found[6]).endswith("abc;")
