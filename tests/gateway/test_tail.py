"""Topics as server-sent events."""

from __future__ import annotations

import pytest
from tests.gateway.served import Served

TAIL = "/topics/page_views/tail"


def _append(served: Served, first: int, count: int) -> None:
    rows = [{"user_id": number, "page": "/"} for number in range(first, first + count)]
    served.app.topics["page_views"].append(rows)


def test_a_stream_tells_what_there_is_and_then_what_comes(served: Served) -> None:
    _append(served, 0, 5)
    with served.events(TAIL, params={"from": "earliest"}) as stream:
        old = stream.take(5)
        _append(served, 5, 5)
        new = stream.take(5)
    assert {event.kind for event in old + new} == {"record"}
    assert sorted(event.data["value"]["user_id"] for event in old + new) == list(range(10))


@pytest.mark.parametrize("cut", range(1, 12))
def test_a_stream_goes_on_where_it_was_cut_off(shared: Served, cut: int) -> None:
    first, begin = (
        cut * 100,
        shared.get("/topics/page_views/records", params={"from": "latest"}).json()["next"],
    )
    _append(shared, first, 4)
    with shared.events(TAIL, params={"from": begin}) as stream:
        heard = stream.take(2)
        _append(shared, first + 4, 8)
        heard += stream.take(cut - 2) if cut > 2 else []
        last = heard[cut - 1].id
    _append(shared, first + 12, 4)
    with shared.events(TAIL, headers={"Last-Event-ID": last or ""}) as stream:
        heard = heard[:cut] + stream.take(16 - cut)
    assert sorted(event.data["value"]["user_id"] for event in heard) == list(range(first, first + 16))


def test_a_stream_of_some_records(served: Served) -> None:
    with served.events(TAIL, params={"where": "user_id >= 8"}) as stream:
        _append(served, 0, 10)
        assert sorted(event.data["value"]["user_id"] for event in stream.take(2)) == [8, 9]


def test_a_topic_that_is_deleted_ends_its_streams(served: Served) -> None:
    with served.events("/topics/notes/tail") as stream:
        served.app.log.delete_topic("notes")
        (last,) = list(stream)
    assert (last.kind, last.data["error"]["type"]) == ("error", "UnknownTopic")


def test_a_place_that_the_topic_does_not_hold_is_refused(served: Served) -> None:
    answer = served.get("/topics/notes/tail", headers={"Last-Event-ID": "0:99"})
    assert (answer.status_code, answer.json()["error"]["type"]) == (416, "OffsetOutOfRange")
