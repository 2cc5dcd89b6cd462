"""Appends that come at the same time share a write, and nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from tests.gateway.served import Served

import penstock as ps
from penstock.errors import BadRecord, StorageError
from penstock.gateway.appending import ARROW, JSON, NDJSON
from penstock.gateway.refusals import Busy
from penstock.gateway.together import BODY_BYTES_MAX, Outcome, Stored, Together, store

NOTES = "/topics/notes/records"


def _texts(app: ps.App, name: str = "notes") -> list[str]:
    return [event.value["text"] for event in app.log.topic(name).events()]


def _body(text: str) -> bytes:
    return b'{"text": "%s"}' % text.encode()


def test_each_is_told_where_its_own_records_are(app: ps.App) -> None:
    topic = app.topics["notes"]
    topic.append({"text": "before"})
    bodies = [
        (JSON, _body("a")),
        (NDJSON, _body("b") + b"\n" + _body("c")),
        (JSON, b"[]"),
        (JSON, _body("d")),
    ]
    found = [outcome for outcome in store(topic, bodies) if isinstance(outcome, Stored)]
    assert [outcome.records for outcome in found] == [1, 2, 0, 1]
    places = [(place.position.firsts[0], place.position.ends[0]) for place in found if place.position]
    assert places == [(1, 2), (2, 4), (4, 5)]
    assert _texts(app) == ["before", "a", "b", "c", "d"]


@pytest.mark.parametrize("bad", [b"nothing", b'{"text": 5}', b'{"txt": "x"}', b"[1]"])
def test_one_that_is_refused_keeps_no_other_back(app: ps.App, bad: bytes) -> None:
    first, refused, last = store(app.topics["notes"], [(JSON, _body("a")), (JSON, bad), (JSON, _body("b"))])
    assert isinstance(first, Stored)
    assert isinstance(last, Stored)
    assert isinstance(refused, BadRecord)
    assert (refused.row or 0) == 0, "it is counted in its own request"
    assert _texts(app) == ["a", "b"]


def _counted(app: ps.App) -> tuple[list[int], Callable[..., Any]]:
    """Sizes of the writes; the first one begins when all others have come."""
    sizes: list[int] = []

    async def write(work: Callable[..., list[Outcome]], topic: str, bodies: Any) -> list[Outcome]:
        sizes.append(len(bodies))
        for _ in range(100):
            await asyncio.sleep(0)
        return work(topic, bodies)

    return sizes, write


def test_what_comes_during_a_write_is_the_next_write(app: ps.App) -> None:
    sizes, write = _counted(app)

    async def all_of_them() -> list[Stored]:
        together = Together(app, write, waiting_max=100)
        wishes = [together.append("notes", JSON, _body(str(number))) for number in range(20)]
        return list(await asyncio.gather(*wishes))

    found = asyncio.run(all_of_them())
    assert sum(sizes) == 20
    assert len(sizes) <= 2
    texts = _texts(app)
    for number, outcome in enumerate(found):
        assert outcome.position is not None
        assert texts[outcome.position.offset] == str(number)


def test_a_disk_that_fails_is_told_to_everybody_and_too_many_are_told_to_come_back(app: ps.App) -> None:
    async def write(work: Any, topic: str, bodies: Any) -> list[Outcome]:
        await asyncio.sleep(0)
        raise StorageError("the disk is on fire.", hint="run")

    async def all_of_them() -> list[Stored | BaseException]:
        together = Together(app, write, waiting_max=3)
        wishes = [together.append("notes", JSON, _body("a")) for _ in range(5)]
        return list(await asyncio.gather(*wishes, return_exceptions=True))

    kinds = [type(outcome) for outcome in asyncio.run(all_of_them())]
    assert kinds == [StorageError] * 3 + [Busy] * 2


def test_only_small_appends_to_one_partition_share_a_write(served: Served) -> None:
    together = served.gateway.together
    assert not together.takes("notes", JSON, b"{}")
    for topic, record in (("notes", {"text": "a"}), ("page_views", {"user_id": 1})):
        assert served.post(f"/topics/{topic}/records", json=record).status_code == 200
    assert together.takes("notes", JSON, b"{}")
    assert not together.takes("page_views", JSON, b"{}")
    assert not together.takes("notes", ARROW, b"{}")
    assert not together.takes("notes", JSON, b" " * (BODY_BYTES_MAX + 1))


def test_clients_that_append_at_once_each_get_their_own_answer(served: Served) -> None:
    def append(number: int) -> tuple[int, int, Any]:
        record = {"text": str(number)} if number % 5 else {"text": number}
        answer = served.post(NOTES, json=record)
        return number, answer.status_code, answer.json()

    with ThreadPoolExecutor(16) as clients:
        answers = list(clients.map(append, range(100)))
    texts = _texts(served.app)
    assert sorted(texts) == sorted(str(number) for number in range(100) if number % 5)
    for number, status, told in answers:
        assert status == (200 if number % 5 else 400)
        if status == 200:
            place = told["partitions"]["0"]
            assert (place["end"] - place["first"], texts[place["first"]]) == (1, str(number))
    assert served.gateway.measures.appended == 80


def test_a_topic_that_went_away_is_told(served: Served) -> None:
    served.post(NOTES, json={"text": "a"})
    served.app.log.delete_topic("notes")
    answer = served.post(NOTES, json={"text": "b"})
    assert (answer.status_code, answer.json()["error"]["type"]) == (404, "UnknownTopic")
