"""Publishing: what arrives is what was sent, and what cannot be sent says why."""

from __future__ import annotations

import pytest

from penstock.errors import BadName, BadOption, BadRecord, MessageTooLarge, QueueDiffers, UnknownQueue
from penstock.queue.message import Message, message
from penstock.queue.queues import Queues
from penstock.testing.queue_contract.backend import Backend, fresh, new_queue


class Publishing(Backend):
    def test_a_message_arrives_as_it_was_sent(self, queues: Queues) -> None:
        queue = new_queue(queues)
        sent = queue.publish(
            b"\x00\xff", key="a.b", headers={"n": 1, "x": 1.5, "s": "text", "t": True}, id="m1"
        )
        got = self.next(queue)
        assert (got.id, got.body, got.key, got.queue) == (sent, b"\x00\xff", "a.b", queue.name)
        assert dict(got.headers) == {"n": 1, "x": 1.5, "s": "text", "t": True}
        assert (got.attempts, got.redelivered) == (1, False)
        got.ack()

    def test_text_and_json_come_back(self, queues: Queues) -> None:
        queue = new_queue(queues)
        queue.publish("grün")
        queue.publish({"id": 7, "tags": ["a"]})
        text, record = self.next(queue), self.next(queue)
        assert (text.text, record.json()) == ("grün", {"id": 7, "tags": ["a"]})

    def test_a_body_that_is_no_json_says_so(self, queues: Queues) -> None:
        queue = new_queue(queues)
        queue.publish(b"not json")
        with pytest.raises(BadRecord, match="no JSON"):
            self.next(queue).json()

    def test_a_body_that_cannot_be_sent_says_so(self, queues: Queues) -> None:
        queue, deep = new_queue(queues), list[object]()
        for _ in range(100_000):
            deep = [deep]
        for body in ("\ud800", deep, {1, 2}, float("nan")):
            with pytest.raises(BadRecord):
                queue.publish(body)
        with pytest.raises(BadOption, match="body"):
            queue.publish(Message("text"))  # type: ignore[arg-type]
        assert self.is_empty(queue)

    def test_a_body_that_cannot_be_read_says_so(self, queues: Queues) -> None:
        queue = new_queue(queues)
        queue.publish(b"[" * 100_000)
        queue.publish(b"\xff")
        with pytest.raises(BadRecord, match="no JSON"):
            self.next(queue).json()
        with pytest.raises(BadRecord, match="no text"):
            _ = self.next(queue).text

    def test_an_empty_body_is_a_message(self, queues: Queues) -> None:
        queue = new_queue(queues)
        queue.publish(b"")
        assert self.next(queue).body == b""

    def test_many_arrive_in_the_order_of_publishing(self, queues: Queues) -> None:
        queue = new_queue(queues)
        ids = queue.publish_many([message(str(n)) for n in range(50)])
        assert len(set(ids)) == 50
        assert self.bodies(queue, 50) == [str(n) for n in range(50)]

    def test_nothing_published_is_nothing(self, queues: Queues) -> None:
        assert new_queue(queues).publish_many([]) == []

    def test_one_message_is_not_taken_for_several(self, queues: Queues) -> None:
        queue = new_queue(queues)
        for one in ("abc", b"abc", {"id": 7}, message("abc")):
            with pytest.raises(BadOption, match="one message"):
                queue.publish_many(one)  # type: ignore[arg-type]
        assert self.is_empty(queue)

    def test_what_was_published_survives_the_publisher(self, queues: Queues) -> None:
        publisher = self.reopen(queues)
        name = fresh("queue")
        publisher.queue(name).publish("kept")
        self.crash(publisher)
        assert self.bodies(queues.open_queue(name), 1) == ["kept"]

    def test_an_unknown_queue_is_refused(self, queues: Queues) -> None:
        name = fresh("orders")
        queues.queue(name)
        with pytest.raises(UnknownQueue) as refused:
            queues.open_queue(name[:-1])
        assert refused.value.did_you_mean == name

    def test_publishing_to_a_deleted_queue_is_refused(self, queues: Queues) -> None:
        queue = new_queue(queues)
        queue.delete()
        with pytest.raises(UnknownQueue):
            queue.publish("lost")

    def test_an_oversize_message_is_refused(self, queues: Queues) -> None:
        queue = new_queue(queues, max_message_bytes=10)
        with pytest.raises(MessageTooLarge) as refused:
            queue.publish_many([b"small", b"x" * 11])
        assert (refused.value.size_bytes, refused.value.size_bytes_max) == (11, 10)
        assert self.is_empty(queue)

    def test_declaring_a_queue_twice_is_fine_and_differently_is_not(self, queues: Queues) -> None:
        name = fresh("queue")
        queues.queue(name, max_attempts=3)
        queues.queue(name, max_attempts=3)
        assert queues.queue(name).settings.max_attempts == 3
        with pytest.raises(QueueDiffers):
            queues.queue(name, max_attempts=4)

    @pytest.mark.parametrize("name", ["", "a b", "../up", "x" * 250])
    def test_a_bad_name_is_refused(self, queues: Queues, name: str) -> None:
        with pytest.raises(BadName):
            queues.queue(name)

    def test_bad_options_are_refused_with_a_proposal(self, queues: Queues) -> None:
        with pytest.raises(BadOption, match="did you mean max_length"):
            queues.queue(fresh("queue"), max_lenght=3)
        with pytest.raises(BadOption, match="drop_oldest, reject, block"):
            queues.queue(fresh("queue"), overflow="explode")
        with pytest.raises(BadOption, match="True or False"):
            queues.queue(fresh("queue"), single_active_consumer="no")

    @pytest.mark.parametrize(
        "about",
        [
            {"priority": 10},
            {"priority": 1.5},
            {"priority": "5"},
            {"delay": "400 days"},
            {"ttl": 1, "delay": 2},
            {"ttl": 1e18},
            {"key": "x" * 256},
            {"key": "\udcff"},
            {"headers": {"x-own": 1}},
            {"headers": {"list": [1]}},
            {"headers": {1: "a"}},
            {"headers": {"a": "\udcff"}},
            {"headers": {"a": "x" * 40_000}},
        ],
        ids=ascii,
    )
    def test_a_bad_message_is_refused(self, queues: Queues, about: dict[str, object]) -> None:
        with pytest.raises(BadOption):
            message("text", **about)  # type: ignore[arg-type]

    def test_a_delivery_can_be_published_elsewhere(self, queues: Queues) -> None:
        first, second = new_queue(queues), new_queue(queues)
        first.publish("text", headers={"a": 1}, key="k", id="m1")
        got = self.next(first)
        second.publish(got.message)
        got.ack()
        assert self.next(second).message == Message(
            b"text", key="k", headers={"a": 1}, id="m1", content_type="text/plain"
        )
