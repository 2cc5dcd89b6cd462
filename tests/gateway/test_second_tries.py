"""What the disk or a lock refused once can be asked for again: nothing is lost, done twice or forgotten."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from tests.gateway.served import Served
from tests.waiting import wait_until

import penstock as ps
from penstock.errors import LockTimeout, StorageError
from penstock.gateway.jobs import Jobs
from penstock.gateway.keys import Keys
from penstock.gateway.subscriber import Subscriber
from penstock.log.topic import Topic
from penstock.queue.embedded_consumer import EmbeddedConsumer

NOTES = "/topics/notes/records"


def _fails_once(
    work: Callable[..., Any], error: Exception, *, afterwards: bool = False
) -> Callable[..., Any]:
    """`afterwards`: it is done, and nobody is told."""
    errors = [error]

    def failing(*args: Any, **options: Any) -> Any:
        found = work(*args, **options) if afterwards or not errors else None
        if errors:
            raise errors.pop()
        return found

    return failing


def _append(served: Served, key: str) -> tuple[int, Any]:
    answer = served.post(NOTES, json={"text": key}, headers={"Idempotency-Key": key})
    return answer.status_code, answer.json().get("duplicate")


def _texts(served: Served) -> list[str]:
    return [record["value"]["text"] for record in served.get(NOTES).json()["records"]]


def test_an_append_after_one_whose_end_is_unknown_is_stored(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = [f"order-{number}" for number in range(16)]  # several for each producer
    port = served.app.log.port
    for key in keys[:8]:
        failing = _fails_once(port.append_atomically, LockTimeout("the ledger", waited_s=10), afterwards=True)
        with monkeypatch.context() as patch:
            patch.setattr(port, "append_atomically", failing)
            assert _append(served, key)[0] == 503
    assert [_append(served, key) for key in keys[8:]] == [(200, False)] * 8
    assert [_append(served, key) for key in keys[:8]] == [(200, True)] * 8
    assert sorted(_texts(served)) == sorted(keys)


def test_keys_that_could_not_be_read_are_known_at_the_next_try(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert _append(served, "order-7") == (200, False)
    before, served.gateway.keys = served.gateway.keys, Keys(served.app)  # as after a restart
    before.close()
    with monkeypatch.context() as patch:
        patch.setattr(Topic, "read", _fails_once(Topic.read, StorageError("too many open files.")))
        assert _append(served, "order-7")[0] == 503
    assert _append(served, "order-7") == (200, True)
    assert _texts(served) == ["order-7"]


def test_what_a_poll_that_failed_had_read_comes_with_the_next(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = served.app.topics["page_views"]
    for number in (0, 1):
        topic.append({"user_id": 1, "page": str(number)}, partition=number)
    poll = f"/members/{served.post('/groups/mailer/topics/page_views/members').json()['member']}/poll"
    wait_until(lambda: len(served.post(poll, json={"limit": 1}).json()["partitions"]) == 2, what="both")
    before = {"from": {"0": 0, "1": 0}}
    real = Topic.read

    def read(self: Topic, **options: Any) -> Any:
        if options["partition"] == 1:
            raise StorageError("too many open files.")
        return real(self, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Topic, "read", read)
        assert served.post(poll, json=before).status_code == 503
    found = served.post(poll).json()["records"]
    assert [record["value"]["page"] for record in found] == ["0", "1"]


def _delivered(served: Served) -> str:
    with ps.open_queues(served.app.home) as queues:
        queues.queue("mails", max_attempts=1)
    served.post("/queues/mails/messages", json={"body": 1})
    (message,) = served.post("/queues/mails/get", json={"wait_s": 10}).json()["messages"]
    return f"/queues/mails/deliveries/{message['receipt']}"


@pytest.mark.parametrize("deed", ["ack", "nack", "reject"])
def test_a_message_that_could_not_be_settled_keeps_its_receipt(
    served: Served, monkeypatch: pytest.MonkeyPatch, deed: str
) -> None:
    delivery = _delivered(served)
    busy = LockTimeout("the queues", waited_s=10)
    with monkeypatch.context() as patch:
        patch.setattr(EmbeddedConsumer, deed, _fails_once(getattr(EmbeddedConsumer, deed), busy))
        assert served.post(f"{delivery}/{deed}").status_code == 503
    assert served.post(f"{delivery}/{deed}").status_code == 204
    assert served.post(f"{delivery}/{deed}").status_code == 404


def test_a_client_that_left_is_given_no_message(served: Served) -> None:
    with ps.open_queues(served.app.home) as queues:
        queues.queue("mails", max_attempts=1)
    with pytest.raises(httpx.ReadTimeout):
        served.post("/queues/mails/get", json={"wait_s": 30}, timeout=0.3)
    wait_until(lambda: not served.server.server_state.tasks, timeout_s=10, what="its request to end")
    served.post("/queues/mails/messages", json={"body": "for the next"})
    (message,) = served.post("/queues/mails/get", json={"wait_s": 10}).json()["messages"]
    assert message["body"] == "for the next"


def test_what_comes_as_the_time_is_up_is_not_passed_over() -> None:
    """Else the stream would tell a place behind it first; who is cut off then would never hear it."""

    async def waited() -> bytes | None:
        subscriber = Subscriber(1_000)
        waiting = asyncio.create_task(subscriber.next(0.01))
        await asyncio.sleep(0)
        loop = asyncio.get_running_loop()
        # Both are due when the loop looks again, and time is up first.
        loop.call_later(0.01, subscriber.offer, b"news")
        time.sleep(0.05)
        return await waiting

    assert asyncio.run(waited()) == b"news"


def test_who_waited_for_a_lock_in_vain_is_not_told_that_nothing_was_done(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = LockTimeout('topic "page_views" partition 0', waited_s=10)
    monkeypatch.setattr(Topic, "append", _fails_once(Topic.append, lock, afterwards=True))
    answer = served.post("/topics/page_views/records", json={"user_id": 1})
    assert (answer.status_code, answer.headers["Retry-After"]) == (503, "5")
    assert len(served.get("/topics/page_views/records").json()["records"]) == 1


def test_a_verification_that_could_not_be_started_says_so_and_another_can_be_begun() -> None:
    async def ended() -> list[str]:
        jobs = Jobs("shop.py", {"TOO_LONG": "x" * 5_000_000}, now_us=lambda: 1)
        for _ in range(2):
            jobs.verify("visits")
            await asyncio.sleep(0)
            while jobs.all()[0].state == "running":
                await asyncio.sleep(0.01)
        return [job.error or "" for job in jobs.all()]

    assert all("could not be started" in error for error in asyncio.run(asyncio.wait_for(ended(), 20)))
