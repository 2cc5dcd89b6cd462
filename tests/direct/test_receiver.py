"""A bounded receiver of webhooks: what it takes, what it refuses, and how."""

from __future__ import annotations

import http.client
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any

import pytest
from tests.waiting import wait_until

import penstock as ps


@contextmanager
def connected(receiver: ps.Receiver) -> Iterator[http.client.HTTPConnection]:
    connection = http.client.HTTPConnection("127.0.0.1", receiver.port, timeout=30)
    try:
        yield connection
    finally:
        connection.close()


def post(
    receiver: ps.Receiver, body: bytes = b"{}", *, method: str = "POST", **headers: str
) -> http.client.HTTPResponse:
    with connected(receiver) as connection:
        connection.request(method, "/orders", body, {k.replace("_", "-"): v for k, v in headers.items()})
        answer = connection.getresponse()
        answer.read()
        return answer


def bodies(receiver: ps.Receiver) -> list[bytes]:
    found = []
    while (message := receiver.receive(timeout=0)) is not None:
        found.append(message.body)
    return found


def test_a_message_is_accepted_and_received() -> None:
    with ps.Receiver() as receiver:
        answer = post(receiver, b'{"id": 7}', Content_Type="application/json")
        message = receiver.receive(timeout="20 seconds")
    assert answer.status == 202
    assert message is not None
    assert (message.path, message.json(), message.key) == ("/orders", {"id": 7}, None)
    assert message.headers["content-type"] == "application/json"


def test_a_body_that_is_no_json_is_told_when_it_is_read() -> None:
    with ps.Receiver() as receiver:
        post(receiver, b"{oh")
        message = receiver.receive()
    assert message is not None
    with pytest.raises(ps.BadRecord, match="no JSON"):
        message.json()


def test_a_connection_is_used_again() -> None:
    with ps.Receiver() as receiver, connected(receiver) as connection:
        for number in range(3):
            connection.request("POST", "/", str(number))
            assert connection.getresponse().read() == b'{"accepted": true}'
        assert bodies(receiver) == [b"0", b"1", b"2"]


def test_it_listens_on_the_loopback_alone_unless_it_has_a_token() -> None:
    with ps.Receiver() as receiver:
        assert receiver.url == f"http://127.0.0.1:{receiver.port}/"
    with pytest.raises(ps.BadOption, match="anybody"):
        ps.Receiver(host="0.0.0.0")


@pytest.mark.parametrize("options", [{"port": 70_000}, {"port": -1}, {"token": ""}, {"token": " "}], ids=str)
def test_a_port_and_a_token_that_are_none_are_refused(options: dict[str, Any]) -> None:
    (option,) = options
    with pytest.raises(ps.BadOption, match=option):
        ps.Receiver(**options)


def test_a_port_that_is_taken_is_told() -> None:
    with ps.Receiver() as receiver, pytest.raises(ps.Unreachable, match="in use"):
        ps.Receiver(receiver.port)


# ---- what is too much ---------------------------------------------------------------------------


def test_reject_answers_429_and_when_to_come_back() -> None:
    with ps.Receiver(capacity=2) as receiver:
        answers = [post(receiver, str(number).encode()) for number in range(4)]
        assert [answer.status for answer in answers] == [202, 202, 429, 429]
        assert answers[-1].headers["Retry-After"] == "1"
        assert (receiver.accepted, receiver.rejected, receiver.dropped) == (2, 2, 0)
        assert bodies(receiver) == [b"0", b"1"]
        assert post(receiver).status == 202


def test_drop_oldest_accepts_and_counts_what_it_dropped() -> None:
    with ps.Receiver(capacity=2, overflow="drop_oldest") as receiver:
        assert [post(receiver, str(number).encode()).status for number in range(5)] == [202] * 5
        assert (bodies(receiver), receiver.dropped) == ([b"3", b"4"], 3)


def test_block_makes_the_sender_wait_for_room() -> None:
    with ps.Receiver(capacity=1, overflow="block") as receiver, ThreadPoolExecutor(1) as pool:
        post(receiver, b"0")
        second = pool.submit(post, receiver, b"1")
        wait_until(lambda: receiver._channel._room._waiters, what="the second to wait")  # type: ignore[attr-defined]
        assert not second.done()
        assert bodies(receiver)[:1] == [b"0"]
        assert second.result(30).status == 202


def test_block_answers_429_when_there_is_no_room_in_time() -> None:
    with ps.Receiver(capacity=1, overflow="block", block_for="1 ms") as receiver:
        assert [post(receiver).status for _ in range(2)] == [202, 429]


def test_a_body_that_is_too_large_is_refused_before_it_is_read() -> None:
    with ps.Receiver(body_bytes_max=100) as receiver:
        head = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000000000\r\n\r\n"
        # Nothing of the body is ever sent, and the answer is there.
        with socket.create_connection(("127.0.0.1", receiver.port), timeout=30) as connection:
            connection.sendall(head)
            assert connection.recv(4_096).startswith(b"HTTP/1.1 413 ")
        assert post(receiver, b"x" * 101).status == 413
        assert post(receiver, b"x" * 100).status == 202
        assert receiver.accepted == 1


def test_a_sender_that_asks_first_is_refused_before_it_sends() -> None:
    ask = b"POST / HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: %d\r\n\r\n"
    with ps.Receiver(body_bytes_max=100) as receiver:
        with socket.create_connection(("127.0.0.1", receiver.port), timeout=30) as connection:
            connection.sendall(ask % 101)
            assert connection.recv(4_096).startswith(b"HTTP/1.1 413 ")
        with socket.create_connection(("127.0.0.1", receiver.port), timeout=30) as connection:
            connection.sendall(ask % 2)
            assert connection.recv(4_096).startswith(b"HTTP/1.1 100 ")
            connection.sendall(b"ok")
            assert connection.recv(4_096).startswith(b"HTTP/1.1 202 ")


def test_one_connection_too_many_is_told_to_come_back() -> None:
    with ps.Receiver(connections_max=2) as receiver, connected(receiver) as a, connected(receiver) as b:
        for connection in (a, b):
            connection.request("POST", "/", b"1")
            connection.getresponse().read()
        # Its answer, or what a connection that was closed at once says, if that was quicker.
        with suppress(ConnectionError):
            assert post(receiver).status == 503
        a.close()
        wait_until(lambda: _is_taken(receiver), what="the place to be free")


def _is_taken(receiver: ps.Receiver) -> bool:
    try:
        return post(receiver).status == 202
    except ConnectionError:
        return False


def test_a_sender_that_drips_its_request_is_cut_off() -> None:
    with ps.Receiver(request_timeout="100 ms") as receiver:
        over = threading.Event()
        with socket.create_connection(("127.0.0.1", receiver.port), timeout=30) as connection:
            connection.sendall(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 10000\r\n\r\n")
            with pytest.raises(ConnectionError):
                for _ in range(3_000):  # a byte each time: no single one of them comes too late
                    connection.sendall(b"d")
                    over.wait(0.01)
        assert receiver.accepted == 0


# ---- what is wrong ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("request_head", "status"),
    [
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", 405),
        (b"POST / HTTP/1.1\r\nHost: x\r\n\r\n", 411),
        (b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nContent-Length: 2\r\n\r\n", 411),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: two\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: -2\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nOrigin: http://evil\r\n\r\n", 403),
        (b"POST / HTTP/1.1\r\nContent-Length: 2\r\nIdempotency-Key: " + b"k" * 513 + b"\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nX: " + b"x" * 70_000 + b"\r\n\r\n", 431),
        (b"nonsense\r\n\r\n", 400),
    ],
    ids=["get", "no length", "chunked", "a word", "negative", "two", "browser", "key", "header", "bad"],
)  # fmt: skip
def test_a_request_that_cannot_be_taken_is_refused(request_head: bytes, status: int) -> None:
    with ps.Receiver() as receiver:
        with socket.create_connection(("127.0.0.1", receiver.port), timeout=30) as connection:
            connection.sendall(request_head)
            assert str(status).encode() in connection.recv(4_096)
        assert post(receiver).status == 202
        assert receiver.accepted == 1


def test_a_token_is_asked_for() -> None:
    with ps.Receiver(host="0.0.0.0", token="secret") as receiver:
        assert post(receiver).status == 401
        assert post(receiver, Authorization="Bearer wrong").status == 401
        assert post(receiver, Authorization="Bearer secret").status == 202
        message = receiver.receive()
    assert message is not None
    assert "authorization" not in message.headers


def test_a_sender_that_leaves_in_the_middle_sends_nothing() -> None:
    with ps.Receiver() as receiver:
        with socket.create_connection(("127.0.0.1", receiver.port), timeout=30) as connection:
            connection.sendall(b"POST / HTTP/1.1\r\nContent-Length: 10\r\n\r\nabc")
            connection.shutdown(socket.SHUT_WR)
            assert connection.recv(4_096) == b""
        assert receiver.accepted == 0


# ---- the same message again ---------------------------------------------------------------------


def test_a_key_that_came_before_is_accepted_again_and_received_once() -> None:
    with ps.Receiver() as receiver:
        assert [post(receiver, Idempotency_Key="k").status for _ in range(3)] == [202] * 3
        assert len(bodies(receiver)) == 1
        # Also once it was worked on.
        assert post(receiver, Idempotency_Key="k").status == 202
        assert (bodies(receiver), receiver.duplicates, receiver.accepted) == ([], 3, 1)


def test_a_key_that_was_refused_may_come_again() -> None:
    with ps.Receiver(capacity=1) as receiver:
        post(receiver, b"0", Idempotency_Key="a")
        assert post(receiver, b"1", Idempotency_Key="b").status == 429
        assert bodies(receiver) == [b"0"]
        assert post(receiver, b"1", Idempotency_Key="b").status == 202
        assert bodies(receiver) == [b"1"]


def test_a_key_that_is_being_taken_is_told_to_come_back() -> None:
    with ps.Receiver(capacity=1, overflow="block") as receiver, ThreadPoolExecutor(1) as pool:
        post(receiver, b"0")
        first = pool.submit(post, receiver, b"1", Idempotency_Key="k")
        wait_until(lambda: receiver._channel._room._waiters, what="the first to wait")  # type: ignore[attr-defined]
        assert post(receiver, b"1", Idempotency_Key="k").status == 503
        assert receiver.receive() is not None
        assert first.result(30).status == 202


def test_keys_are_remembered_within_a_bound() -> None:
    with ps.Receiver(remember=2) as receiver:
        for key in ("a", "b", "c", "a"):
            post(receiver, key.encode(), Idempotency_Key=key)
        assert bodies(receiver) == [b"a", b"b", b"c", b"a"]


# ---- the end ------------------------------------------------------------------------------------


def test_what_was_taken_can_be_received_after_it_closed() -> None:
    with ps.Receiver() as receiver, connected(receiver) as connection:
        connection.request("POST", "/", b"1")
        connection.getresponse().read()  # and the connection stays open
    assert [message.body for message in receiver] == [b"1"]
    with pytest.raises(ConnectionError):
        post(receiver)


def test_who_waits_for_room_is_told_that_it_closes() -> None:
    answers: list[Any] = []
    with ps.Receiver(capacity=1, overflow="block") as receiver:
        post(receiver, b"0")
        thread = threading.Thread(target=lambda: answers.append(post(receiver, b"1").status))
        thread.start()
        wait_until(lambda: receiver._channel._room._waiters, what="the second to wait")  # type: ignore[attr-defined]
    thread.join(30)
    assert answers == [503]
