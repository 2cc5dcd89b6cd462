"""The buffered producer: bounded, honest about what it dropped, and nothing lost by one bad record."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.waiting import wait_until

import penstock as ps
from penstock.log.embedded import EmbeddedLog
from penstock.log.log import Log


class SlowLog(EmbeddedLog):
    """An embedded log whose appends wait at a gate, and fail while there is a fault."""

    def __init__(self, home: Path) -> None:
        super().__init__(home)
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Event()
        self.fault: Exception | None = None
        self.appends: list[int] = []

    def append(self, wanted: Any, parts: Any) -> Any:
        self.entered.set()
        assert self.gate.wait(20)
        if self.fault is not None:
            raise self.fault
        self.appends.append(sum(batch.num_rows for batches in parts.values() for batch in batches))
        return super().append(wanted, parts)


@pytest.fixture
def port(home: Path) -> Iterator[SlowLog]:
    opened = SlowLog(home)
    yield opened
    opened.gate.set()
    opened.close()


@pytest.fixture
def topic(port: SlowLog) -> ps.Topic:
    return Log(port).create_topic("t", "id BIGINT, text STRING")


def ids(topic: ps.Topic) -> list[Any]:
    return [row["id"] for row in topic.rows()]


def record(number: int) -> dict[str, Any]:
    return {"id": number, "text": "x" * 100}


def full_producer(topic: ps.Topic, port: SlowLog, overflow: Any) -> ps.Producer:
    """Record 0 is on its way but held at the gate; records 1 to 4 fill the buffer."""
    port.gate.clear()
    producer = topic.producer(linger=0, batch_rows=1, buffer_bytes=5 * 164, overflow=overflow)
    assert producer.send(record(0))
    assert port.entered.wait(20)
    for number in range(1, 5):
        assert producer.send(record(number))
    return producer


def test_everything_sent_is_stored_in_order_when_the_block_is_left(topic: ps.Topic) -> None:
    with topic.producer() as producer:
        for number in range(5_000):
            producer.send(record(number))
    assert ids(topic) == list(range(5_000))
    assert producer.stored == 5_000


def test_records_that_come_together_are_stored_together(topic: ps.Topic, port: SlowLog) -> None:
    with topic.producer(linger="10 seconds", batch_rows=100) as producer:
        for number in range(250):
            producer.send(record(number))
        wait_until(lambda: producer.stored == 200, what="two full batches")
        position = producer.flush()
    assert port.appends == [100, 100, 50]
    assert position is not None
    assert position.ends == {0: 250}


def test_a_record_waits_no_longer_than_the_linger(topic: ps.Topic) -> None:
    with topic.producer(linger="20 ms", batch_rows=1_000_000) as producer:
        producer.send(record(1))
        wait_until(lambda: ids(topic) == [1], what="the record, without a flush")


def test_a_full_buffer_blocks(topic: ps.Topic, port: SlowLog) -> None:
    producer = full_producer(topic, port, "block")
    sender = threading.Thread(target=lambda: producer.send(record(5)))
    sender.start()
    sender.join(0.2)
    assert sender.is_alive()
    port.gate.set()
    sender.join(20)
    producer.close()
    assert ids(topic) == [0, 1, 2, 3, 4, 5]
    assert producer.dropped == 0


def test_a_full_buffer_drops_the_newest(topic: ps.Topic, port: SlowLog) -> None:
    producer = full_producer(topic, port, "drop_newest")
    assert not producer.send(record(5))
    port.gate.set()
    producer.close()
    assert ids(topic) == [0, 1, 2, 3, 4]
    assert producer.dropped == 1


def test_a_full_buffer_drops_the_oldest(topic: ps.Topic, port: SlowLog) -> None:
    producer = full_producer(topic, port, "drop_oldest")
    assert producer.send(record(5))
    port.gate.set()
    producer.close()
    assert ids(topic) == [0, 2, 3, 4, 5]
    assert producer.dropped == 1


def test_a_full_buffer_is_an_error(topic: ps.Topic, port: SlowLog) -> None:
    producer = full_producer(topic, port, "error")
    with pytest.raises(ps.BufferFull) as raised:
        producer.send(record(5))
    assert raised.value.buffered_bytes <= raised.value.buffered_bytes_max
    port.gate.set()
    producer.close()
    assert ids(topic) == [0, 1, 2, 3, 4]


def test_a_bad_record_is_reported_and_takes_no_other_with_it(topic: ps.Topic) -> None:
    producer = topic.producer(linger="10 seconds")
    for number in range(10):
        producer.send(record(number) if number != 4 else {"id": "four"})
    with pytest.raises(ps.BadRecord, match="four"):
        producer.flush()
    producer.close()
    assert ids(topic) == [0, 1, 2, 3, 5, 6, 7, 8, 9]


def test_appending_is_tried_again_until_there_is_room(topic: ps.Topic, port: SlowLog) -> None:
    port.fault = ps.DiskFull("disk")
    with topic.producer(linger=0) as producer:
        producer.send(record(1))
        assert port.entered.wait(20)
        port.fault = None
    assert ids(topic) == [1]


def test_what_could_not_be_stored_is_raised_and_kept(
    topic: ps.Topic, port: SlowLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.log.producer._RETRY_FOR_S", 0.05)
    port.fault = ps.DiskFull("disk")
    producer = topic.producer(linger=0)
    producer.send(record(1))
    with pytest.raises(ps.DiskFull):
        producer.flush()
    port.fault = None
    producer.flush()
    producer.close()
    assert ids(topic) == [1]


def test_leaving_the_block_raises_when_something_could_not_be_stored(
    topic: ps.Topic, port: SlowLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.log.producer._RETRY_FOR_S", 0.05)
    port.fault = ps.DiskFull("disk")
    with pytest.raises(ps.DiskFull), topic.producer(linger=0) as producer:
        producer.send(record(1))
    assert ids(topic) == []


def test_what_nobody_expected_is_raised_by_flush_and_does_not_hang_it(topic: ps.Topic, port: SlowLog) -> None:
    """The thread that appends must not die of it in silence."""
    producer = topic.producer(linger=0)
    port.fault = MemoryError("no room")
    producer.send(record(1))
    with pytest.raises(MemoryError):
        producer.flush()
    port.fault = None
    producer.close()
    assert ids(topic) == [1]


def test_a_bad_record_is_reported_once_even_if_its_batch_has_to_be_tried_again(
    topic: ps.Topic, port: SlowLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.log.producer._RETRY_FOR_S", 0.05)
    port.fault = ps.DiskFull("disk")
    producer = topic.producer(linger="10 seconds")
    for number in range(4):
        producer.send(record(number) if number != 2 else {"id": "two"})
    with pytest.raises(ps.DiskFull):
        producer.flush()
    port.fault = None
    with pytest.raises(ps.BadRecord, match="two"):
        producer.flush()
    producer.close()
    assert ids(topic) == [0, 1, 3]


def test_an_append_that_failed_in_doubt_but_was_stored_takes_no_later_record_with_it(
    topic: ps.Topic, port: SlowLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its sequence is stored, so whatever is sent under it again passes for a repetition."""
    monkeypatch.setattr("penstock.log.producer._RETRY_FOR_S", 0.05)
    append = port.append_atomically
    producer = topic.producer(id="p", linger="10 seconds")

    def stored_but_failing(*args: Any) -> Any:
        append(*args)
        raise ps.LockTimeout("the ledger", waited_s=0.1)

    monkeypatch.setattr(port, "append_atomically", stored_but_failing)
    producer.send(record(0), position=b"0")
    with pytest.raises(ps.LockTimeout):
        producer.flush()
    monkeypatch.setattr(port, "append_atomically", append)
    for number in (1, 2):
        producer.send(record(number), position=b"%d" % number)
    producer.close()
    assert ids(topic) == [0, 1, 2]
    assert port.producer_position("p").position == b"2"


def test_an_empty_key_of_a_compacted_topic_takes_no_other_record_with_it(port: SlowLog) -> None:
    topic = Log(port).create_topic("c", "id BIGINT, text STRING", key="id", cleanup="compact")
    producer = topic.producer(linger="10 seconds")
    for number in (0, None, 2):
        producer.send({"id": number, "text": "x"})
    with pytest.raises(ps.BadRecord, match="key"):
        producer.flush()
    producer.close()
    assert ids(topic) == [0, 2]


def test_a_closed_producer_takes_nothing_more(topic: ps.Topic) -> None:
    producer = topic.producer()
    producer.close()
    with pytest.raises(ps.BadOption, match="closed"):
        producer.send(record(1))


def test_a_producer_with_an_id_goes_on_where_it_was(topic: ps.Topic) -> None:
    with topic.producer(id="importer") as producer:
        assert producer.position() is None
        for number in range(10):
            producer.send(record(number), position=b"%d" % number)
    with topic.producer(id="importer") as producer:
        begin = int(producer.position() or b"-1") + 1
        assert begin == 10
        for number in range(begin, 15):
            producer.send(record(number), position=b"%d" % number)
    assert ids(topic) == list(range(15))


def test_a_newer_producer_with_the_same_id_fences_the_older(topic: ps.Topic) -> None:
    older = topic.producer(id="importer", linger=0)
    older.send(record(1))
    older.flush()
    newer = topic.producer(id="importer", linger=0)
    older.send(record(2))
    with pytest.raises(ps.Fenced):
        older.close()
    newer.send(record(3))
    newer.close()
    assert ids(topic) == [1, 3]


def test_a_producer_without_an_id_has_no_position(topic: ps.Topic) -> None:
    with topic.producer() as producer, pytest.raises(ps.BadOption, match="no id"):
        producer.position()
