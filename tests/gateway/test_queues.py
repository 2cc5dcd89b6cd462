"""Queues over HTTP."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from tests.gateway.served import Served

import penstock as ps

JSON = {"Content-Type": "application/json"}


def _declare(served: Served) -> None:
    with ps.open_queues(served.app.home) as queues:
        queues.queue("mails", max_attempts=2)


def _get(served: Served, **options: Any) -> list[dict[str, Any]]:
    answer = served.post("/queues/mails/get", json=options)
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json()["messages"]
    return found


def test_a_message_is_published_got_and_acked(served: Served) -> None:
    assert served.get("/queues").json() == {"queues": []}
    _declare(served)
    id = served.post("/queues/mails/messages", json={"body": {"to": "ann"}, "key": "a"}).json()["id"]
    (message,) = _get(served, wait_s=5)
    assert (message["id"], message["body"], message["key"], message["attempts"]) == (
        id,
        {"to": "ann"},
        "a",
        1,
    )
    path = f"/queues/mails/deliveries/{message['receipt']}/ack"
    assert served.post(path).status_code == 204
    assert served.post(path).status_code == 404
    assert _get(served) == []


def test_what_is_given_up_is_a_dead_letter_and_is_redriven(served: Served) -> None:
    _declare(served)
    served.post("/queues/mails/messages", json={"body": "poison"})
    for _ in range(2):
        (message,) = _get(served, wait_s=5)
        receipt = message["receipt"]
        assert (
            served.post(f"/queues/mails/deliveries/{receipt}/nack", json={"reason": "no"}).status_code == 204
        )
    (letter,) = served.get("/queues/mails/dead").json()["letters"]
    assert (letter["body"], letter["cause"], letter["reason"]) == ("poison", "attempts", "no")
    assert served.get("/queues/mails").json()["dead"] == 1
    assert served.post("/queues/mails/redrive", json={"ids": ["other"]}).json() == {"redriven": 0}
    assert served.post("/queues/mails/redrive", json={"cause": "attempts"}).json() == {"redriven": 1}
    assert _get(served, wait_s=5)[0]["attempts"] == 1


def test_a_full_queue_says_when_to_come_back(served: Served) -> None:
    with ps.open_queues(served.app.home) as queues:
        queues.queue("mails", max_length=1, overflow="reject")
    assert served.post("/queues/mails/messages", json={"body": 1}).status_code == 200
    answer = served.post("/queues/mails/messages", json={"body": 2})
    assert (answer.status_code, answer.json()["error"]["type"]) == (429, "QueueFull")
    assert int(answer.headers["Retry-After"]) >= 1


@pytest.mark.parametrize(
    "body",
    ["1" * 400, "[" * 600 + "]" * 600, '{"a": "\\ud800"}', '"\\u0000<script>"', "1.0", "1e400000", '"é\\n"'],
    ids=["a large number", "nested", "half a character", "control", "a float", "infinite", "text"],
)
def test_a_message_that_can_be_published_can_be_got(served: Served, body: str) -> None:
    _declare(served)
    content = f'{{"body": {body}}}'.encode()
    answer = served.post("/queues/mails/messages", content=content, headers=JSON)
    if answer.status_code != 200:
        assert (answer.status_code, answer.json()["error"]["type"]) == (400, "BadRecord")
        return
    (message,) = _get(served, wait_s=5)
    assert message["body"] == json.loads(body)
    served.post(f"/queues/mails/deliveries/{message['receipt']}/reject", json={})
    assert served.get("/queues/mails/dead").json()["letters"][0]["body"] == json.loads(body)


@pytest.mark.parametrize(
    "fields",
    ['"body": "\\ud800"', '"body": 1, "key": "\\ud800"', '"body": 1, "headers": {"\\ud800": 1}',
     '"body": 1, "headers": {"a": "\\ud800"}', '"body": 1, "id": "\\ud800"', '"body": NaN'],
)  # fmt: skip
def test_a_message_that_cannot_be_stored_is_refused(served: Served, fields: str) -> None:
    _declare(served)
    answer = served.post("/queues/mails/messages", content=f"{{{fields}}}".encode(), headers=JSON)
    assert answer.status_code in (400, 422), answer.text
    assert _get(served) == []


def test_a_queue_that_is_not_there_is_not_made(served: Served) -> None:
    answer = served.post("/queues/mials/messages", json={"body": 1})
    assert (answer.status_code, answer.json()["error"]["type"]) == (404, "UnknownQueue")


@pytest.mark.parametrize(("deed", "cause"), [("nack", "attempts"), ("reject", "rejected")])
def test_what_needs_no_body_is_done_without_one(served: Served, deed: str, cause: str) -> None:
    with ps.open_queues(served.app.home) as queues:
        queues.queue("mails", max_attempts=1)
    served.post("/queues/mails/messages", json={"body": 1})
    (message,) = served.post("/queues/mails/get").json()["messages"]
    assert served.post(f"/queues/mails/deliveries/{message['receipt']}/{deed}").status_code == 204
    assert served.get("/queues/mails/dead").json()["letters"][0]["cause"] == cause
    assert served.post("/queues/mails/redrive").json() == {"redriven": 1}


def _dead(served: Served, body: object) -> str:
    """The id of a message that was rejected."""
    served.post("/queues/mails/messages", json={"body": body})
    (message,) = _get(served, wait_s=5)
    served.post(f"/queues/mails/deliveries/{message['receipt']}/reject", json={})
    return str(message["id"])


def test_a_letter_that_is_edited_on_its_page_stays_json(served: Served) -> None:
    _declare(served)
    page = "/queues/mails/redrive"
    edited = {"id": _dead(served, {"to": "nobody"}), "body": '{"to": "ann"'}
    assert served.http.post(page, json=edited).status_code == 400
    assert served.http.post(page, json={**edited, "body": '{"to": "ann"}'}).status_code == 200
    assert _get(served, wait_s=5)[0]["body"] == {"to": "ann"}


def test_a_letter_that_is_shown_in_part_is_not_edited(served: Served) -> None:
    """Else what is not shown would be lost."""
    _declare(served)
    _dead(served, {"to": "x" * 5_000})
    page = served.http.get("/queues/mails").text
    assert "x" * 3_000 in page
    assert ">Edit<" not in page
    _dead(served, {"to": "ann"})
    assert ">Edit<" in served.http.get("/queues/mails").text


def test_of_letters_with_the_same_id_the_one_that_was_chosen_is_meant(served: Served) -> None:
    _declare(served)
    for body in (1, 2, 3):
        served.post("/queues/mails/messages", json={"body": body, "id": "order-7"})
        (message,) = _get(served, wait_s=5)
        served.post(f"/queues/mails/deliveries/{message['receipt']}/reject", json={})
    page = served.http.get("/queues/mails").text
    moments = re.findall(r'id="letter-order-7-(\d+)"', page)
    assert page.count(f'name="died_us" value="{moments[2]}"') == 2
    assert served.http.post("/queues/mails/discard", json={"id": "order-7", "died_us": moments[2]}).is_success
    edited = {"id": "order-7", "died_us": moments[1], "body": "22"}
    assert served.http.post("/queues/mails/redrive", json=edited).is_success
    assert [letter["body"] for letter in served.get("/queues/mails/dead").json()["letters"]] == [1]
    assert _get(served, wait_s=5)[0]["body"] == 22
