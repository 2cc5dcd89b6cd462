"""What is held for clients, and what is not: bodies, slow readers, too many at once."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import requests
from tests.gateway.conftest import shop
from tests.gateway.served import WAIT_S, Served, serving
from tests.waiting import wait_until

import penstock as ps
from penstock.gateway import connection
from penstock.gateway.gateway import Settings
from penstock.gateway.limits import Limits
from penstock.gateway.pages import messages

SLOW = 500


def _connection(served: Served) -> socket.socket:
    host, port = served.url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=WAIT_S)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    app = shop(tmp_path_factory.mktemp("bounds"))
    limits = Limits(body_bytes=100_000, bodies_bytes=150_000, question_bytes=10_000, subscribers=3)
    with serving(app, Settings(limits=limits)) as served:
        yield served
    app.close()


def test_a_body_whose_length_is_too_large_is_refused_before_it_is_sent(small: Served) -> None:
    with _connection(small) as client:
        client.sendall(
            b"POST /api/v1/topics/notes/records HTTP/1.1\r\nHost: localhost\r\n"
            b"Content-Type: application/json\r\nContent-Length: 1000000000000\r\n\r\n"
        )
        assert client.recv(4_096).startswith(b"HTTP/1.1 413 ")


def test_a_body_without_a_length_is_cut_off_at_the_bound(small: Served) -> None:
    """As much as is sent before the answer stays in the buffers of the system, whose size is bounded, too."""
    sent = 0
    piece = b"x" * 65_536
    with _connection(small) as client:
        client.sendall(
            b"POST /api/v1/topics/notes/records HTTP/1.1\r\nHost: localhost\r\n"
            b"Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        with contextlib.suppress(ConnectionError):  # it does not want the rest
            while sent < 1 << 30:
                client.sendall(b"%x\r\n%s\r\n" % (len(piece), piece))
                sent += len(piece)
        with contextlib.suppress(ConnectionError):
            assert client.recv(4_096).startswith(b"HTTP/1.1 413 ")
    assert sent < 64 << 20


def test_other_bodies_have_a_bound_of_their_own(small: Served) -> None:
    answer = small.post("/verify", json={"view": "x" * 20_000})
    assert (answer.status_code, answer.json()["error"]["type"]) == (413, "BodyTooLarge")


def test_headers_have_a_bound(small: Served) -> None:
    with _connection(small) as client:
        client.sendall(
            b"GET /api/v1/topics HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 5_000_000 + b"\r\n\r\n"
        )
        answer = b"".join(iter(lambda: client.recv(4_096), b""))
    assert answer.startswith(b"HTTP/1.1 431 ")
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["type"] == "BadRequest"


def test_an_address_has_the_same_bound(small: Served) -> None:
    answer = requests.get(f"{small.url}/api/v1/topics?{'x' * 200_000}", timeout=WAIT_S)
    assert (answer.status_code, answer.json()["error"]["type"]) == (431, "BadRequest")


@pytest.mark.parametrize(
    "sent", [b"", b"GET /api/v1/topics HTT", b"GET /health/live HTTP/1.1\r\nHost: localh"]
)
def test_who_does_not_ask_is_not_waited_for(
    small: Served, sent: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "HEAD_S", 0.2)
    with _connection(small) as client:
        client.sendall(sent)
        assert client.recv(4_096) == b""


def test_a_body_that_does_not_come_makes_room(home: Path) -> None:
    app = shop(home)
    with serving(app, Settings(limits=Limits(body_silent_s=0.3))) as served:
        for path in (b"topics/notes/records", b"queues/mails/get"):
            with _connection(served) as client:
                client.sendall(
                    b"POST /api/v1/%s HTTP/1.1\r\nHost: localhost\r\n"
                    b'Content-Type: application/json\r\nContent-Length: 90\r\n\r\n{"' % path
                )
                answer = b"".join(iter(lambda: client.recv(4_096), b""))
            assert answer.startswith(b"HTTP/1.1 408 ")
        assert served.gateway.bodies_bytes == 0
    app.close()


def test_more_bodies_than_there_is_room_for_are_told_to_come_back(small: Served) -> None:
    head = (
        b"POST /api/v1/topics/notes/records HTTP/1.1\r\nHost: localhost\r\n"
        b"Content-Type: application/json\r\nContent-Length: 90000\r\n\r\n"
    )
    with _connection(small) as first:
        first.sendall(head)
        wait_until(lambda: small.gateway.bodies_bytes == 90_000, timeout_s=WAIT_S)
        answer = small.post("/topics/notes/records", json={"text": "x" * 80_000})
        assert (answer.status_code, answer.json()["error"]["type"]) == (429, "Busy")
        assert int(answer.headers["Retry-After"]) >= 1
    wait_until(lambda: small.gateway.bodies_bytes == 0, timeout_s=WAIT_S)


def test_more_connections_than_there_is_room_for_are_told_to_come_back(home: Path) -> None:
    app = shop(home)
    with serving(app, Settings(limits=Limits(connections=3))) as served, ExitStack() as opened:
        for _ in range(2):
            opened.enter_context(_connection(served))
        answer = requests.get(f"{served.url}/health/live", timeout=WAIT_S)
        assert (answer.status_code, answer.json()["error"]["type"]) == (429, "Busy")
        assert int(answer.headers["Retry-After"]) >= 1
    app.close()


def test_more_subscribers_than_there_is_room_for_are_told_to_come_back(small: Served) -> None:
    opened = [small.events("/topics/notes/tail").__enter__() for _ in range(3)]
    answer = small.get("/topics/notes/tail")
    assert (answer.status_code, answer.json()["error"]["type"]) == (429, "Busy")
    for stream in opened:
        stream.__exit__(None, None, None)
    wait_until(lambda: small.gateway.channels.subscribers == 0, timeout_s=WAIT_S)


def test_an_answer_holds_so_many_bytes_and_leads_to_the_rest(home: Path) -> None:
    app = shop(home)
    app.topics["notes"].append([{"text": f"{number}{'x' * 3_000}"} for number in range(10)])
    app.topics["users"].append([{"id": number, "name": "x" * 3_000} for number in range(10)])
    with serving(app, Settings(limits=Limits(page_bytes=10_000))) as served:
        offsets, start, sizes = [], "earliest", []
        while start != "0:10":
            page = served.get("/topics/notes/records", params={"from": start, "limit": 1_000}).json()
            offsets += [record["offset"] for record in page["records"]]
            sizes.append(len(page["records"]))
            start = page["next"]
        assert (offsets, sizes, page["at_end"]) == (list(range(10)), [4, 4, 2], True)
        newest = served.get("/topics/notes/records", params={"last": 1_000}).json()
        assert [record["offset"] for record in newest["records"]] == [7, 8, 9]
        ids, skip = [], 0
        while skip is not None:
            rows = served.get("/tables/users/rows", params={"skip": skip, "limit": 1_000}).json()
            assert len(rows["rows"]) <= 3
            ids += [row["id"] for row in rows["rows"]]
            skip = rows["next"]
        assert ids == list(range(10))
        member = served.post("/groups/mailer/topics/notes/members").json()["member"]
        polled = served.post(f"/members/{member}/poll", json={"limit": 1_000, "wait_s": 10}).json()
        assert ([record["offset"] for record in polled["records"]], polled["partitions"]) == (
            [0, 1, 2, 3],
            {"0": 4},
        )
    app.close()


def _peak_mib(*, anew: bool = False) -> float:
    """The most memory this process had; `anew`: from now on, whatever earlier tests took."""
    if anew:
        Path("/proc/self/clear_refs").write_text("5")
    (line,) = re.findall(r"VmHWM:\s*(\d+) kB", Path("/proc/self/status").read_text())
    return int(line) / 1024


def _subscribe(served: Served, query: str = "") -> http.client.HTTPConnection:
    host, port = served.url.removeprefix("http://").split(":")
    client = http.client.HTTPConnection(host, int(port), timeout=WAIT_S)
    client.connect()
    client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    client.request("GET", f"/api/v1/topics/notes/tail{query}")
    return client


def test_slow_readers_of_what_lies_far_back_take_little_memory(home: Path, report: object) -> None:
    assert callable(report)
    app = shop(home)
    count, clients, text = 1_000, 60, "x" * 20_000
    for _ in range(0, count, 100):
        app.topics["notes"].append([{"text": text}] * 100)
    with serving(app) as served:
        before_mib = _peak_mib(anew=True)
        slow = [_subscribe(served, "?from=earliest") for _ in range(clients)]
        wait_until(lambda: served.gateway.channels.subscribers == clients, timeout_s=WAIT_S)
        with served.events("/topics/notes/tail?from=earliest") as fast:
            assert [event.data["offset"] for event in fast.take(count)] == list(range(count))
        grown_mib = _peak_mib() - before_mib
        report(f"gateway: {clients} slow clients, each 20 MB behind: memory grew by {grown_mib:.0f} MiB")
        assert grown_mib < 400  # to hold what each has yet to read would take 1.2 GB
        for client in slow:
            client.close()
    app.close()


def test_a_feed_has_a_bound_of_rows_also_when_they_come_later(home: Path) -> None:
    app = shop(home)
    with serving(app, Settings(limits=Limits(feed_rows=3))) as served:
        app.topics["users"].append([{"id": number, "name": "Ann"} for number in range(3)])
        with served.events("/tables/users/changes") as stream:
            assert [event.kind for event in stream.take(4)] == [*["insert"] * 3, "current"]
            app.topics["users"].delete({"id": 0})
            app.topics["users"].append([{"id": number, "name": "Bob"} for number in (3, 4)])
            *told, last = list(stream)
        assert [event.kind for event in told] == ["delete", "insert"]
        assert "more than 3 rows" in last.data["error"]["message"]
    app.close()


def test_a_feed_has_a_bound_of_bytes(home: Path) -> None:
    app = shop(home)
    with serving(app, Settings(limits=Limits(feed_bytes=10_000))) as served:
        app.topics["users"].append([{"id": number, "name": "x" * 3_000} for number in range(3)])
        with served.events("/tables/users/changes") as stream:
            stream.take(4)
            app.topics["users"].append([{"id": 2, "name": "y" * 3_000}])  # in the place of the one before
            app.topics["users"].append([{"id": 3, "name": "z" * 3_000}])
            *told, last = list(stream)
        assert [event.kind for event in told] == ["update"]
        assert "more than 10,000 bytes" in last.data["error"]["message"]
    app.close()


def test_a_server_that_ends_does_not_wait_for_who_does_not_read(
    home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    app = shop(home)
    for _ in range(20):
        app.topics["notes"].append([{"text": "x" * 20_000}] * 100)
    with serving(app) as served:
        slow = [_subscribe(served, "?from=earliest") for _ in range(3)]
        wait_until(lambda: served.gateway.channels.subscribers == 3, timeout_s=WAIT_S)
        wait_until(lambda: served.gateway.measures.sent > 0, timeout_s=WAIT_S)
    assert "timeout graceful shutdown" not in caplog.text
    for client in slow:
        client.close()
    app.close()


def test_who_comes_back_after_too_much_begins_anew(home: Path) -> None:
    app = shop(home)
    with serving(app, Settings(limits=Limits(replay_bytes=2_000))) as served:
        app.topics["users"].append({"id": 1, "name": "Ann"})
        with served.events("/tables/users/changes") as stream:
            place = stream.take(2)[-1].id or ""
        app.topics["users"].append([{"id": number, "name": "x" * 300} for number in range(9)])
        assert served.get("/tables/users/changes", headers={"Last-Event-ID": place}).status_code == 410
    app.close()


def _hears(served: Served, topic: ps.Topic, count: int) -> tuple[list[int], float, float]:
    """Offsets that one who reads everything is told, in how many seconds, and by how much memory grows."""
    with served.events("/topics/notes/tail") as fast:
        before_mib, began = _peak_mib(anew=True), time.monotonic()
        events, heard = iter(fast), list[int]()
        while len(heard) < count:
            topic.append([{"text": "x" * 2_000}] * 50)
            heard += [next(events).data["offset"] for _ in range(50)]
        return heard, time.monotonic() - began, _peak_mib() - before_mib


def test_slow_readers_are_dropped_and_a_fast_one_misses_nothing(home: Path, report: object) -> None:
    """Five hundred that read nothing beside one that reads everything: memory stays bounded."""
    assert callable(report)
    app, count = shop(home), 2_000
    limits = Limits(subscribers=SLOW + 10)
    with serving(app, Settings(limits=limits)) as served:
        _, alone_s, _ = _hears(served, app.topics["notes"], count)
        slow = [_subscribe(served) for _ in range(SLOW)]
        wait_until(lambda: served.gateway.channels.subscribers == SLOW, timeout_s=WAIT_S)
        heard, took_s, grown_mib = _hears(served, app.topics["notes"], count)
        assert heard == list(range(count, 2 * count))
        wait_until(lambda: served.gateway.measures.dropped == SLOW, timeout_s=WAIT_S)
        report(
            f"gateway: {SLOW} slow clients beside a fast one: {count:,} events of 2,000 bytes in "
            f"{took_s:.1f} s (alone {alone_s:.1f} s), {SLOW} dropped, memory grew by {grown_mib:.0f} MiB"
        )
        # To hold everything for everybody would take 2 GB.
        assert grown_mib < 400
        # Each of the slow ones is written to until it is dropped; to wait for one of them would take minutes.
        assert took_s < 10 * alone_s + 10
        for client in slow:
            client.close()
    app.close()


def test_a_page_of_messages_shows_the_beginning_of_what_is_long(home: Path) -> None:
    app = shop(home)
    for number in range(3):
        app.topics["notes"].append([{"text": f"{number}{'x' * 900_000}"}] * 10)
    app.topics["notes"].append({"text": "short"})
    with serving(app) as served:
        for start in ("latest", "earliest"):
            page = served.http.get("/topics/notes/messages", params={"from": start})
            assert len(page.content) < 500_000
            assert "from=0&amp;limit=1" in page.text or start == "latest"
            assert "Resend message 0:30" in page.text or start == "earliest"
            assert "Resend message 0:29" not in page.text
            sent = served.http.get("/topics/notes/export", params={"from": start}).content
            assert 15_000_000 < len(sent) < 18_000_000
    app.close()


def test_long_messages_are_paged_without_a_gap(home: Path) -> None:
    app = shop(home)
    app.topics["notes"].append([{"text": f"{number:02}{'x' * 900_000}"} for number in range(40)])
    found: list[int] = []
    after = ""
    while len(found) < 40:
        page = messages.onwards(app, "notes", place="earliest", after=after, partition=None, filter_="")
        found += [message.offset for message in page.messages]
        after = page.after
    assert (found, after) == (list(range(40)), "")
    newest = messages.newest(app, "notes", partition=None, filter_="").messages
    assert [message.offset for message in newest] == list(range(39, 39 - len(newest), -1))
    assert 15 <= len(newest) <= 20
    app.close()
