"""The atomic append with a position: all of it or nothing, once, by the newest instance."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.errors import BadName, BadRecord, Fenced, StorageError, UnknownTopic
from penstock.log.log import Log
from penstock.log.port import AtomicResult, LogPort
from penstock.log.topic import Topic
from penstock.testing.log_contract.backend import Backend, column, counted, fresh, numbers


class _Unheard:
    """A port whose atomic appends are stored, and whoever asked is told of an error."""

    def __init__(self, port: LogPort) -> None:
        self._port = port

    def __getattr__(self, name: str) -> Any:
        return getattr(self._port, name)

    def append_atomically(self, *told: Any) -> AtomicResult:
        self._port.append_atomically(*told)
        raise StorageError("the answer was lost.", hint="try again")


class Atomic(Backend):
    def test_records_of_several_topics_and_partitions_become_visible(self, log: Log, other: Log) -> None:
        first, second = numbers(log, key="n", partitions=3), numbers(log)
        records: dict[Topic | str, Any] = {first: counted(*range(10)), second: counted(7)}
        result = log.producer(fresh("job")).append(records, position=b"p")
        assert not result.duplicate
        assert {position.topic for position in result.positions} == {first.name, second.name}
        self.until(lambda: sorted(column(first)) == list(range(10)) and column(second) == [7])
        self.until(lambda: second.name in other.topics())
        self.until(lambda: sorted(column(other.topic(first.name))) == list(range(10)))

    def test_records_are_where_the_positions_say(self, log: Log) -> None:
        topic = numbers(log, partitions=2)
        topic.append(counted(0), partition=1)
        (position,) = log.producer(fresh("job")).append({topic: counted(5)}).positions
        self.until(lambda: topic.bounds()[position.partition][1] >= position.ends[position.partition])
        partition, end = position.partition, position.ends[position.partition]
        assert column(topic, partition=partition, start=position.offset, end=end) == [5]

    def test_waiting_for_the_positions_is_waiting_for_the_records(self, log: Log, other: Log) -> None:
        topic, producer = numbers(log, partitions=2), log.producer(fresh("job"))
        self.until(lambda: topic.name in other.topics())
        theirs = other.topic(topic.name)
        for n in range(5):
            (position,) = producer.append({topic: counted(n)}).positions
            assert theirs.wait({position.partition: position.offset}, self.patience_s)
            assert n in column(theirs, partition=position.partition)

    def test_plain_and_atomic_appends_go_to_one_topic(self, log: Log) -> None:
        topic, producer = numbers(log), log.producer(fresh("job"))
        for n in range(0, 10, 2):
            topic.append(counted(n))
            producer.append({topic: counted(n + 1)})
        self.until(lambda: column(topic) == list(range(10)))

    def test_nothing_is_stored_when_one_record_does_not_fit(self, log: Log) -> None:
        first, second = numbers(log), numbers(log)
        producer = log.producer(fresh("job"))
        with pytest.raises(BadRecord):
            producer.append({first: counted(1), second: [{"n": "wrong"}]}, position=b"p")
        assert producer.position() is None
        producer.append({first: counted(2)}, position=b"q")
        self.until(lambda: column(first) == [2])
        assert column(second) == []

    def test_nothing_is_stored_when_one_topic_is_missing(self, log: Log) -> None:
        topic, producer = numbers(log), log.producer(fresh("job"))
        with pytest.raises(UnknownTopic):
            producer.append({topic: counted(1), fresh("nowhere"): counted(1)}, position=b"p")
        producer.append({topic: counted(2)})
        self.until(lambda: column(topic) == [2])

    # ---- position -----------------------------------------------------------------------------------

    def test_a_new_producer_has_no_position(self, log: Log) -> None:
        assert log.producer(fresh("job")).position() is None

    def test_the_position_is_that_of_the_last_append(self, log: Log) -> None:
        topic, producer = numbers(log), log.producer(fresh("job"))
        for n in range(3):
            producer.append({topic: counted(n)}, position=b"after %d" % n)
            assert producer.position() == b"after %d" % n

    def test_the_position_is_there_after_a_restart(self, log: Log, other: Log) -> None:
        topic, job = numbers(log), fresh("job")
        log.producer(job).append({topic: counted(1)}, position=b"\x00 any bytes \xff")
        again = other.producer(job)
        assert again.position() == b"\x00 any bytes \xff"
        self.until(lambda: topic.name in other.topics())
        again.append({topic.name: counted(2)}, position=b"next")
        assert again.position() == b"next"
        self.until(lambda: column(topic) == [1, 2])

    def test_a_position_can_be_stored_without_records(self, log: Log, other: Log) -> None:
        job = fresh("job")
        log.producer(job).append({}, position=b"nothing to write")
        assert other.producer(job).position() == b"nothing to write"

    def test_the_position_outlives_the_topic(self, log: Log, other: Log) -> None:
        topic, job = numbers(log), fresh("job")
        log.producer(job).append({topic: counted(1)}, position=b"kept")
        log.delete_topic(topic.name)
        assert other.producer(job).position() == b"kept"

    def test_producers_of_other_names_do_not_disturb(self, log: Log) -> None:
        topic = numbers(log)
        first, second = log.producer(fresh("job")), log.producer(fresh("job"))
        first.append({topic: counted(1)}, position=b"first")
        second.append({topic: counted(2)}, position=b"second")
        first.append({topic: counted(3)}, position=b"first again")
        assert (first.position(), second.position()) == (b"first again", b"second")
        self.until(lambda: column(topic) == [1, 2, 3])

    def test_a_producer_needs_a_plain_name(self, log: Log) -> None:
        with pytest.raises(BadName):
            log.producer("a/b")

    # ---- once -----------------------------------------------------------------------------------------

    def test_a_repeated_sequence_changes_nothing(self, log: Log) -> None:
        topic, producer = numbers(log), log.producer(fresh("job"))
        producer.append({topic: counted(1)}, position=b"one", sequence=5)
        again = producer.append({topic: counted(2)}, position=b"two", sequence=5)
        assert (again.duplicate, again.sequence) == (True, 5)
        assert producer.position() == b"one"
        producer.append({topic: counted(3)}, sequence=6)
        self.until(lambda: column(topic) == [1, 3])

    def test_a_sequence_repeated_after_a_restart_changes_nothing(self, log: Log, other: Log) -> None:
        topic, job = numbers(log), fresh("job")
        log.producer(job).append({topic: counted(1)}, position=b"one", sequence=5)
        self.until(lambda: topic.name in other.topics())
        again = other.producer(job)
        assert again.next_sequence == 6
        for sequence in (5, 2):
            assert again.append({topic.name: counted(2)}, position=b"two", sequence=sequence).duplicate
        assert again.position() == b"one"
        again.append({topic.name: counted(3)})
        self.until(lambda: column(topic) == [1, 3])

    def test_after_an_append_that_was_stored_with_an_error_the_next_one_is_stored_too(self, log: Log) -> None:
        topic, producer = numbers(log), log.producer(fresh("job"))
        producer.append({topic: counted(1)}, position=b"one")
        producer._port = _Unheard(log.port)
        with pytest.raises(StorageError):
            producer.append({topic: counted(2)}, position=b"two")
        producer._port = log.port
        assert producer.append({topic: counted(2)}, position=b"two").duplicate
        producer._port = _Unheard(log.port)
        with pytest.raises(StorageError):
            producer.append({topic: counted(3)}, position=b"three")
        producer._port = log.port
        assert not producer.append({topic: counted(4)}, position=b"four").duplicate
        assert producer.position() == b"four"
        self.until(lambda: column(topic) == [1, 2, 3, 4])

    def test_an_older_instance_is_fenced(self, log: Log, other: Log) -> None:
        topic, job = numbers(log), fresh("job")
        older = log.producer(job)
        older.append({topic: counted(1)}, position=b"older")
        newer = other.producer(job)
        with pytest.raises(Fenced) as fenced:
            older.append({topic: counted(2)}, position=b"too late")
        assert (fenced.value.producer, fenced.value.epoch) == (job, older.epoch)
        assert newer.position() == b"older"
        self.until(lambda: topic.name in other.topics())
        newer.append({topic.name: counted(3)}, position=b"newer")
        self.until(lambda: column(topic) == [1, 3])

    def test_an_older_instance_of_the_same_client_is_fenced(self, log: Log) -> None:
        topic, job = numbers(log), fresh("job")
        older, newer = log.producer(job), log.producer(job)
        assert newer.epoch > older.epoch
        with pytest.raises(Fenced):
            older.append({topic: counted(1)})
        newer.append({topic: counted(2)})
        self.until(lambda: column(topic) == [2])

    def test_a_fenced_instance_stays_fenced(self, log: Log, other: Log) -> None:
        topic, job = numbers(log), fresh("job")
        older = log.producer(job)
        other.producer(job)
        for _ in range(2):
            with pytest.raises(Fenced):
                older.append({topic: counted(1)})
        assert column(topic) == []
