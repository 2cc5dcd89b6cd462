"""The buffered producer: bounded, and clear about what happens when it is full."""

from __future__ import annotations

import pytest

from penstock.errors import BadRecord, BufferFull, RecordTooLarge
from penstock.log.log import Log
from penstock.log.topic import Topic
from penstock.testing.log_contract.backend import Backend, column, fresh, numbers

_LINGER = "1 hour"  # nothing leaves the buffer before it has to
_ROOM_FOR = 10
_ROOM = _ROOM_FOR * 1_000


def _texts(log: Log) -> Topic:
    return log.create_topic(fresh("texts"), "text STRING")


def _text(n: int) -> dict[str, str]:
    return {"text": f"{n:0936d}"}  # with 64 bytes that a record costs, 1,000


class Producers(Backend):
    def test_everything_sent_is_stored_in_order_when_the_block_ends(self, log: Log) -> None:
        topic = numbers(log)
        with topic.producer() as producer:
            for n in range(1_000):
                assert producer.send({"n": n})
        assert column(topic) == list(range(1_000))
        assert (producer.stored, producer.dropped) == (1_000, 0)

    def test_a_flush_says_where_the_last_batch_ended(self, log: Log) -> None:
        topic = numbers(log)
        with topic.producer(linger=_LINGER) as producer:
            producer.send({"n": 1})
            position = producer.flush()
            assert column(topic) == [1]
            assert position is not None
            assert position.ends[0] > position.offset

    def test_what_is_sent_is_stored_soon_without_a_flush(self, log: Log) -> None:
        topic = numbers(log)
        with topic.producer(linger="1 ms") as producer:
            producer.send({"n": 1})
            self.until(lambda: column(topic) == [1])

    def test_a_full_buffer_makes_the_sender_wait(self, log: Log) -> None:
        topic = _texts(log)
        with topic.producer(linger=_LINGER, buffer_bytes=_ROOM, overflow="block") as producer:
            for n in range(5 * _ROOM_FOR):
                assert producer.send(_text(n))
        assert [int(text) for text in column(topic, "text")] == list(range(5 * _ROOM_FOR))

    def test_a_full_buffer_refuses_with_an_error(self, log: Log) -> None:
        topic = _texts(log)
        with topic.producer(linger=_LINGER, buffer_bytes=_ROOM, overflow="error") as producer:
            for n in range(_ROOM_FOR):
                producer.send(_text(n))
            with pytest.raises(BufferFull) as refused:
                producer.send(_text(99))
        assert (refused.value.topic, refused.value.buffered_bytes_max) == (topic.name, _ROOM)
        assert [int(text) for text in column(topic, "text")] == list(range(_ROOM_FOR))

    def test_a_full_buffer_drops_what_is_being_sent(self, log: Log) -> None:
        topic = _texts(log)
        with topic.producer(linger=_LINGER, buffer_bytes=_ROOM, overflow="drop_newest") as producer:
            taken = [producer.send(_text(n)) for n in range(_ROOM_FOR + 3)]
        assert taken == [True] * _ROOM_FOR + [False] * 3
        assert producer.dropped == 3
        assert [int(text) for text in column(topic, "text")] == list(range(_ROOM_FOR))

    def test_a_full_buffer_drops_what_was_sent_first(self, log: Log) -> None:
        topic = _texts(log)
        with topic.producer(linger=_LINGER, buffer_bytes=_ROOM, overflow="drop_oldest") as producer:
            assert all(producer.send(_text(n)) for n in range(_ROOM_FOR + 3))
        assert producer.dropped == 3
        assert [int(text) for text in column(topic, "text")] == list(range(3, _ROOM_FOR + 3))

    def test_a_record_that_does_not_fit_is_reported_and_the_others_are_stored(self, log: Log) -> None:
        topic = numbers(log)
        producer = topic.producer(linger=_LINGER)
        for n in (1, "two", 3):
            producer.send({"n": n})
        with pytest.raises(BadRecord):
            producer.close()
        assert column(topic) == [1, 3]

    def test_a_record_that_is_too_large_is_reported_and_the_others_are_stored(self, log: Log) -> None:
        topic = log.create_topic(fresh("texts"), "text STRING", record_bytes_max=100)
        producer = topic.producer(linger=_LINGER)
        for text in ("short", "x" * 101, "also short"):
            producer.send({"text": text})
        with pytest.raises(RecordTooLarge):
            producer.close()
        assert column(topic, "text") == ["short", "also short"]

    def test_a_producer_with_an_id_goes_on_after_its_position(self, log: Log, other: Log) -> None:
        topic, job = numbers(log), fresh("import")
        with topic.producer(id=job) as producer:
            for n in range(5):
                producer.send({"n": n}, position=b"%d" % n)
        self.until(lambda: topic.name in other.topics())
        with other.topic(topic.name).producer(id=job) as again:
            assert again.position() == b"4"
            again.send({"n": 5}, position=b"5")
        self.until(lambda: column(topic) == list(range(6)))
