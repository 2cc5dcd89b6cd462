"""What is lost without a broker, and what a log behind the sender changes."""

from __future__ import annotations

import http.client
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.direct import receiving
from tests.servers import free_port
from tests.waiting import wait_until

import penstock as ps
from penstock.errors import Unreachable
from penstock.follow import Follower, spec_of
from penstock.follow.deliveries import Deliveries
from penstock.follow.positions import Positions
from penstock.follow.webhook import Webhook


@contextmanager
def killed_receiver(port: int, *, work: int) -> Iterator[subprocess.Popen[str]]:
    """Listens, works on the first messages, and dies at a word."""
    command = [sys.executable, receiving.__file__, str(port), str(work)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        assert process.stdout.readline().startswith("listening")
        try:
            yield process
        finally:
            process.kill()


def post(port: int, body: str) -> bool:
    """A sender that keeps nothing: True when it was told that its message was accepted."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request("POST", "/", body)
        return connection.getresponse().status == 202
    except OSError:
        return False
    finally:
        connection.close()


def test_an_offline_receiver_loses_what_waited_and_what_was_sent_meanwhile() -> None:
    port = free_port()
    with killed_receiver(port, work=3) as process:
        accepted = [number for number in range(10) if post(port, str(number))]
        assert process.stdout and process.stdin
        worked_on = [int(process.stdout.readline().rpartition(" ")[2]) for _ in range(3)]
        process.stdin.write("die\n")
        process.stdin.flush()
        process.wait(30)
    meanwhile = [number for number in range(10, 15) if post(port, str(number))]
    with ps.Receiver(port) as again:
        back = [number for number in range(15, 17) if post(port, str(number))]
        received = [int(message.body) for _ in back if (message := again.receive(timeout="20 seconds"))]
        assert again.receive(timeout=0) is None
    assert (accepted, worked_on) == (list(range(10)), [0, 1, 2])
    assert meanwhile == []  # the sender is told, and keeps nothing
    lost = set(range(17)) - set(worked_on) - set(received)
    assert lost == {*range(3, 10), *range(10, 15)}


def follower(log: ps.Log, topic: ps.Topic, home: Path, url: str) -> tuple[Follower, Deliveries]:
    sender = Webhook(url, label="web", headers={}, batch=1, timeout_s=10)
    sink = Deliveries(sender, Positions(home / "follow" / "x.db"), log, give_up_after_s=600)
    return Follower(topic, sink, spec_of(topic.schema.arrow, (), name=topic.name), kind="stream"), sink


def test_from_the_log_what_was_sent_while_nobody_listened_comes_later(log: ps.Log, home: Path) -> None:
    orders = log.create_topic("orders", "id BIGINT")
    orders.append([{"id": number} for number in range(5)])
    port = free_port()
    deliveries, sink = follower(log, orders, home, f"http://127.0.0.1:{port}/")
    with pytest.raises(Unreachable):
        deliveries.step(timeout_s=0)
    with ps.Receiver(port) as receiver:
        assert deliveries.step(timeout_s=0) == 5
        found = [message.json()["row"]["id"] for _ in range(5) if (message := receiver.receive(timeout=20))]
    sink.close()
    assert found == [0, 1, 2, 3, 4]


def test_a_full_receiver_makes_the_log_wait_and_nothing_is_lost(log: ps.Log, home: Path) -> None:
    orders = log.create_topic("orders", "id BIGINT")
    orders.append([{"id": number} for number in range(5)])
    with ps.Receiver(capacity=2) as receiver:
        deliveries, sink = follower(log, orders, home, receiver.url)
        found: list[int] = []

        def delivered() -> bool:
            try:
                deliveries.step(timeout_s=0)
            except Unreachable as error:
                assert (error.reason, error.retry_after_s) == ("it answers 429 Too Many Requests", 1)
            while (message := receiver.receive(timeout=0)) is not None:
                found.append(message.json()["row"]["id"])
            return len(found) >= 5

        wait_until(delivered, what="all of them")
        sink.close()
        assert found == [0, 1, 2, 3, 4]
        assert receiver.rejected > 0


def test_a_delivery_that_is_made_again_is_received_once(log: ps.Log, home: Path) -> None:
    """The note of the position is lost, as when the sender is killed right after the answer."""
    orders = log.create_topic("orders", "id BIGINT")
    orders.append([{"id": number} for number in range(3)])
    with ps.Receiver() as receiver:
        for folder in ("first", "second"):
            deliveries, sink = follower(log, orders, home / folder, receiver.url)
            assert deliveries.step(timeout_s=0) == 3
            sink.close()
        found = []
        while (message := receiver.receive(timeout=0)) is not None:
            found.append(message.json()["offset"])
        assert (found, receiver.duplicates) == ([0, 1, 2], 3)
