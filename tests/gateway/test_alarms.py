"""Who is told what, and how often."""

from __future__ import annotations

import pytest
from tests.waiting import wait_until

import penstock as ps
from penstock.errors import BadOption
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


@pytest.mark.parametrize("place", ["ftp://example.org", "smtp://localhost", "nonsense"])
def test_a_place_that_cannot_be_told_is_refused(place: str) -> None:
    with pytest.raises(BadOption):
        senders_of([place])
