"""Who is told what, and how often."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest
from tests.waiting import wait_until

import penstock as ps
from penstock.errors import BadOption
from penstock.follow.deliveries import Message
from penstock.follow.table import TableSpec
from penstock.gateway.pages.alarms import Alarms, senders_of
from penstock.gateway.pages.health import Need

NEED = Need("failed", "per_5s", "fail", "per_5s failed at 10:00:00", "It is tried again: no such luck")
SECOND = 1_000_000


def test_something_is_told_once_when_it_has_lasted_and_once_when_it_is_over() -> None:
    with ps.Receiver() as receiver:
        alarms = Alarms("shop", senders_of([receiver.url]), holding_s=10)
        for second in range(30):
            alarms.look([NEED], second * SECOND)
        for second in range(30, 60):
            alarms.look([], second * SECOND)
        messages = [receiver.receive(timeout="60 seconds") for _ in range(2)]
        rows = [message.json()["row"] for message in messages if message]
        assert [row["state"] for row in rows] == ["began", "over"]
        assert (rows[0]["app"], rows[0]["kind"], rows[0]["about"]) == ("shop", "failed", "per_5s")
        assert receiver.receive(timeout=0) is None
        alarms.close()


def test_what_comes_and_goes_does_not_ring() -> None:
    alarms = Alarms("shop", [], holding_s=10)
    for second in range(100):
        alarms.look([NEED] if second % 5 == 0 else [], second * SECOND)
    assert alarms.history() == []


def test_what_lasts_is_in_the_history_and_stays_there_when_it_is_over() -> None:
    alarms = Alarms("shop", [], holding_s=10)
    for second in range(20):
        alarms.look([NEED], second * SECOND)
    (lasting,) = alarms.history()
    assert (lasting.need, lasting.over_us) == (NEED, None)
    for second in range(20, 40):
        alarms.look([], second * SECOND)
    (past,) = alarms.history()
    assert past.over_us == 20 * SECOND


def test_a_place_that_does_not_answer_is_told_on_the_page() -> None:
    with ps.Receiver(token="secret") as receiver:
        alarms = Alarms("shop", senders_of([receiver.url]), holding_s=1)
        for second in range(5):
            alarms.look([NEED], second * SECOND)
        wait_until(lambda: alarms.history()[0].error, timeout_s=60, what="a refusal")
        alarms.close()


class Silent:
    """A place that takes what it is told, and does not answer."""

    label = identity = "silent"
    batch = 1

    def __init__(self) -> None:
        self.asked, self.over = threading.Event(), threading.Event()

    def check(self, spec: TableSpec) -> None: ...

    def send(self, key: str, messages: Sequence[Message]) -> None:
        self.asked.set()
        self.over.wait(60)

    def close(self) -> None:
        self.over.set()


def test_a_place_that_does_not_answer_keeps_no_other_from_being_told() -> None:
    silent = Silent()
    with ps.Receiver() as receiver:
        alarms = Alarms("shop", [silent, *senders_of([receiver.url])], holding_s=1)
        for second in range(5):
            alarms.look([NEED], second * SECOND)
        assert silent.asked.wait(60)
        message = receiver.receive(timeout="20 seconds")
        assert message is not None
        assert message.json()["row"]["about"] == "per_5s"
        silent.over.set()
        alarms.close()


@pytest.mark.parametrize(
    "place",
    ["ftp://example.org", "smtp://localhost", "nonsense", "https://example.org:99999/", "https://[::1",
     "smtp://localhost:mail?to=a@b", "https://", "https://ex ample.org/", "https://example.org/é"],
)  # fmt: skip
def test_a_place_that_cannot_be_told_is_refused(place: str) -> None:
    with pytest.raises(BadOption):
        senders_of([place])
