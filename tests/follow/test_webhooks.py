"""Records to a real web server that fails as it is told: at least once, and known by their key."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from tests.follow import dying_delivery
from tests.follow.backends import changelog, delete, record, upsert
from tests.follow.receivers import CUT, Answer, WebServer, web_server

import penstock as ps
from penstock.errors import Contended, Unreachable
from penstock.follow import Follower, TableSpec, spec_of
from penstock.follow.deliveries import Deliveries, Message, Refused
from penstock.follow.feed import Kind
from penstock.follow.follower import _pause_s
from penstock.follow.positions import Positions
from penstock.follow.target import Site
from penstock.follow.webhook import Webhook


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def web() -> Iterator[WebServer]:
    with web_server() as server:
        yield server
        for close in server.at_the_end:
            close()


@pytest.fixture
def orders(log: ps.Log) -> ps.Topic:
    return log.create_topic("orders", "id BIGINT, at TIMESTAMP")


def spec(topic: ps.Topic) -> TableSpec:
    return spec_of(topic.schema.arrow, topic.settings.key, name=topic.name)


def fill(topic: ps.Topic, *ids: int) -> None:
    topic.append([{"id": number, "at": datetime(2026, 11, 16, 12, tzinfo=UTC)} for number in ids])


def follower(
    topic: ps.Topic,
    log: ps.Log,
    home: Path,
    web: WebServer,
    *,
    batch: int = 1,
    kind: Kind = "stream",
    clock: Clock | None = None,
) -> Follower:
    sender = Webhook(web.url, label="web", headers={}, batch=batch, timeout_s=10)
    positions = Positions(home / "follow" / "shop.db")
    sink = Deliveries(sender, positions, log, give_up_after_s=60, clock=clock or Clock())
    web.at_the_end.append(sink.close)
    return Follower(topic, sink, spec(topic), kind=kind)


def test_each_record_is_posted_with_a_key_of_its_own(
    web: WebServer, orders: ps.Topic, log: ps.Log, home: Path
) -> None:
    fill(orders, 7, 8)
    assert follower(orders, log, home, web).step(timeout_s=0) == 2
    place = f"orders-{orders.settings.id}-0"
    assert web.keys == [f"{place}-0", f"{place}-1"]
    body = web.taken[0][1]
    assert (body["topic"], body["partition"], body["offset"]) == ("orders", 0, 0)
    assert body["row"] == {"id": 7, "at": "2026-11-16T12:00:00Z"}
    assert "op" not in body
    assert web.headers[0]["Content-Type"] == "application/json"
    assert follower(orders, log, home, web).step(timeout_s=0) == 0


@pytest.mark.parametrize("answer", [500, 503, 429, 408, CUT], ids=str)
def test_what_failed_is_posted_again_under_the_same_key(
    web: WebServer, orders: ps.Topic, log: ps.Log, home: Path, answer: Answer
) -> None:
    web.script += [200, answer, answer]
    fill(orders, 1, 2, 3)
    sending = follower(orders, log, home, web)
    with pytest.raises(Unreachable):
        sending.step(timeout_s=0)
    while sending.lag():  # a connection that was open before gets a second chance at once
        with suppress(Unreachable):
            sending.step(timeout_s=0)
    assert web.offsets() == [0, 1, 1, 1, 2]
    assert web.good == list(dict.fromkeys(web.keys))
    assert "orders.dead" not in log.topics()


@contextmanager
def raw_server(talk: Callable[[socket.socket], object]) -> Iterator[str]:
    """Takes one connection, and the address is where."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            with suppress(OSError):
                connection, _ = listening.accept()
                with connection:
                    talk(connection)

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/hook"
    thread.join()


def _dripping(connection: socket.socket) -> None:
    connection.recv(100_000)
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 9999\r\n\r\n")
    while True:
        connection.sendall(b".")
        time.sleep(0.02)


def _without_end(connection: socket.socket) -> None:
    connection.recv(100_000)
    connection.sendall(b"HTTP/1.1 200 OK\r\n\r\nthank you")
    connection.recv(1)  # until the other end closes


def _cut(connection: socket.socket) -> None:
    connection.recv(100_000)
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nth")


@pytest.mark.parametrize("talk", [_dripping, _without_end, _cut])
def test_what_was_taken_is_not_sent_again_whatever_the_rest_of_the_answer_is(
    talk: Callable[[socket.socket], object],
) -> None:
    with raw_server(talk) as url:
        sender = Webhook(url, label="web", headers={}, batch=1, timeout_s=0.3)
        sender.send("key", [Message("orders", 0, 7, "2026-11-16T12:00:00Z", None, {"id": 1})])
        sender.close()


def test_what_is_refused_before_all_of_it_was_sent_is_refused() -> None:
    def talk(connection: socket.socket) -> None:
        connection.recv(1_000)
        connection.sendall(b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n")
        connection.shutdown(socket.SHUT_RD)

    with raw_server(talk) as url:
        sender = Webhook(url, label="web", headers={}, batch=1, timeout_s=10)
        with pytest.raises(Refused, match="413 Too Large"):
            sender.send("key", [Message("o", 0, 7, "2026-11-16T12:00:00Z", None, {"text": "x" * 30_000_000})])
        sender.close()


def test_a_server_says_when_to_come_back(web: WebServer, orders: ps.Topic, log: ps.Log, home: Path) -> None:
    web.script += [(429, {"Retry-After": "17"})]
    fill(orders, 1)
    with pytest.raises(Unreachable) as told:
        follower(orders, log, home, web).step(timeout_s=0)
    assert told.value.retry_after_s == 17
    assert _pause_s(1, told.value) == 17


@pytest.mark.parametrize("answer", [400, 404, 410, 301])
def test_what_is_refused_is_put_aside_with_the_reason_and_the_next_has_its_turn(
    web: WebServer, orders: ps.Topic, log: ps.Log, home: Path, answer: int
) -> None:
    web.script += [200, answer, 200]
    fill(orders, 1, 2, 3)
    assert follower(orders, log, home, web).step(timeout_s=0) == 3
    assert web.offsets() == [0, 1, 2]
    (dead,) = log.topic("orders.dead").rows()
    assert str(answer) in str(dead.pop("reason"))
    row = '{"id": 2, "at": "2026-11-16T12:00:00Z"}'
    place = {"partition": 0, "offset": 1, "op": None}
    assert dead == {"key": web.keys[1], "target": "web", **place, "row": row}


def test_what_fails_for_too_long_is_put_aside(
    web: WebServer, orders: ps.Topic, log: ps.Log, home: Path
) -> None:
    web.script += [500, 500, 500]
    fill(orders, 1, 2)
    clock = Clock()
    sending = follower(orders, log, home, web, clock=clock)
    for clock.now in (0, 59):
        with pytest.raises(Unreachable):
            sending.step(timeout_s=0)
    clock.now = 60
    assert sending.step(timeout_s=0) == 2
    assert web.offsets() == [0, 0, 0, 1]
    (dead,) = log.topic("orders.dead").rows()
    assert "500" in dead["reason"]
    assert "60 s" in dead["reason"]


def test_a_delivery_of_several_is_the_same_when_it_is_made_again(
    web: WebServer, orders: ps.Topic, log: ps.Log, home: Path
) -> None:
    web.script += [200, 500]
    fill(orders, 1, 2, 3, 4, 5)
    with pytest.raises(Unreachable):
        follower(orders, log, home, web, batch=3).step(timeout_s=0)
    fill(orders, 6, 7)
    assert follower(orders, log, home, web, batch=3).step(timeout_s=0) == 4
    sent = [[message["row"]["id"] for message in body] for _, body in web.taken]
    assert sent == [[1, 2, 3], [4, 5], [4, 5], [6, 7]]
    assert web.offsets() == [0, 3, 3, 5]


def test_a_view_sends_what_changes(web: WebServer, log: ps.Log, home: Path) -> None:
    topic, counts = changelog(log, "counts", "k STRING, v BIGINT", ("k",))
    topic.append([upsert(k="a", v=1), record("w"), delete(k="a", v=None), record("w")])
    sender = Webhook(web.url, label="web", headers={}, batch=1, timeout_s=10)
    sink = Deliveries(sender, Positions(home / "shop.db"), log, give_up_after_s=60)
    sending = Follower(topic, sink, counts)
    sending.step(timeout_s=0)
    sink.close()
    told = [(body["op"], body["row"]) for _, body in web.taken]
    assert told == [("u", {"k": "a", "v": 1}), ("d", {"k": "a"})]
    assert sending.lag() == 0


def test_a_table_of_several_partitions_sends_everything(web: WebServer, home: Path) -> None:
    app = ps.App("shop", home=home)
    users = app.table("users", "id BIGINT", key="id", partitions=3)
    users.upsert([{"id": number} for number in range(12)])
    users.delete({"id": 3})
    follower(users, app.log, home, web, kind="table").step(timeout_s=0)
    told = sorted((body["op"], body["row"]["id"]) for _, body in web.taken)
    assert told == sorted([("d", 3), *(("u", number) for number in range(12))])
    assert len(set(web.keys)) == 13
    app.close()


def test_two_programs_do_not_move_one_position(
    web: WebServer, orders: ps.Topic, log: ps.Log, home: Path
) -> None:
    first, second = (follower(orders, log, home, web) for _ in range(2))
    first.step(timeout_s=0)
    second.step(timeout_s=0)
    fill(orders, 1)
    first.step(timeout_s=0)
    with pytest.raises(Contended):
        second.step(timeout_s=0)
    assert web.offsets() == [0]


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("step", ["begun", "sent", "noted"])
def test_a_killed_follower_delivers_everything_and_under_the_same_keys(
    web: WebServer, orders: ps.Topic, log: ps.Log, home: Path, step: str, batch: int
) -> None:
    fill(orders, *range(6))
    child = subprocess.run(
        [sys.executable, dying_delivery.__file__, web.url, str(home), step, "2", str(batch)],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert child.returncode == -signal.SIGKILL, child.stderr
    assert len(web.taken) == (1 if step == "begun" else 2)
    fill(orders, 6)
    follower(orders, log, home, web, batch=batch).step(timeout_s=0)
    repeated = 1 if step == "sent" else 0
    assert len(web.taken) == len(set(web.keys)) + repeated
    by_key: dict[str, Any] = {}
    for key, body in web.taken:
        assert by_key.setdefault(key, body) == body
    bodies = [body if batch > 1 else [body] for body in by_key.values()]
    assert [message["row"]["id"] for body in bodies for message in body] == list(range(7))


def test_secrets_are_in_no_error_and_in_no_file(orders: ps.Topic, log: ps.Log, home: Path) -> None:
    url = "http://ann:hidden-word@127.0.0.1:1/hidden-path?token=hidden-token"
    target = ps.to.webhook(url, headers={"X-Key": "hidden-header"})
    fill(orders, 1)
    sink = target.open(Site("shop", home, log))
    sending = Follower(orders, sink, spec(orders), kind="stream")
    with pytest.raises(Unreachable) as told:
        sending.step(timeout_s=0)
    sink.close()
    assert "127.0.0.1:1" in str(told.value)
    files = b"".join(path.read_bytes() for path in home.rglob("*") if path.is_file())
    shown = " ".join([str(told.value), repr(target), target.label, repr(sink)])
    assert b"webhook-" in files
    assert "hidden" not in shown
    assert b"hidden" not in files


def test_a_name_and_password_in_the_address_are_sent_as_such(
    web: WebServer, orders: ps.Topic, log: ps.Log, home: Path
) -> None:
    target = ps.to.webhook(web.url.replace("//", "//ann:se%20cret@"), headers={"X-Shop": "1"})
    fill(orders, 1)
    sink = target.open(Site("shop", home, log))
    Follower(orders, sink, spec(orders), kind="stream").step(timeout_s=0)
    sink.close()
    assert web.headers[0]["Authorization"] == "Basic YW5uOnNlIGNyZXQ="
    assert web.headers[0]["X-Shop"] == "1"
