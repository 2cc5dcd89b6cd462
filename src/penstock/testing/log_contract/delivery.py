"""What a crash repeats, loses or neither; and records that retention took first."""

from __future__ import annotations

import sqlite3
from itertools import islice

import pytest

from penstock.errors import RecordsLost
from penstock.log.event import Event
from penstock.log.log import Log
from penstock.log.once import once
from penstock.log.port import LogPort
from penstock.log.topic import Topic
from penstock.testing.log_contract.backend import Backend, counted, fresh, member_of, numbers


class Delivery(Backend):
    def _crashed_after(
        self, port: LogPort, topic: Topic, group: str, count: int, **options: str
    ) -> list[int]:
        """A process reads so many records, processes all but the last one, and dies."""
        handle = self.reopen(port)
        consumer = member_of(
            Log(handle).topic(topic.name), group, lease=self.lease_s, commit_every="1 hour", **options
        )
        read = [event["n"] for event in islice(consumer, count)]
        handle.close()
        return read

    def _restarted(self, topic: Topic, group: str, **options: str) -> list[int]:
        with member_of(topic, group, lease=self.lease_s, follow=False, **options) as consumer:
            self.until(consumer.assignment)
            return [event["n"] for event in consumer]

    def test_at_least_once_repeats_what_was_not_committed(self, log: Log, port: LogPort) -> None:
        topic, group = numbers(log), fresh("mailer")
        topic.append(counted(*range(5)))
        assert self._crashed_after(port, topic, group, 3) == [0, 1, 2]
        assert self._restarted(topic, group) == [0, 1, 2, 3, 4]

    def test_at_least_once_repeats_nothing_before_the_last_commit(self, log: Log, port: LogPort) -> None:
        topic, group = numbers(log), fresh("mailer")
        topic.append(counted(*range(5)))
        handle = self.reopen(port)
        consumer = member_of(Log(handle).topic(topic.name), group, lease=self.lease_s, commit_every="1 hour")
        list(islice(consumer, 2))
        consumer.commit()
        next(consumer)
        handle.close()
        assert self._restarted(topic, group) == [2, 3, 4]

    def test_progress_is_committed_while_reading(self, log: Log, port: LogPort) -> None:
        topic, group = numbers(log), fresh("mailer")
        topic.append(counted(*range(5)))
        with member_of(topic, group, commit_every=0) as consumer:
            list(islice(consumer, 3))
            assert list(port.committed(group, topic.name).values()) == [2]

    def test_at_most_once_never_repeats(self, log: Log, port: LogPort) -> None:
        topic, group = numbers(log), fresh("mailer")
        topic.append(counted(*range(5)))
        before = self._crashed_after(port, topic, group, 2, delivery="at_most_once")
        assert before == [0, 1]
        after = self._restarted(topic, group, delivery="at_most_once")
        assert not set(before) & set(after)
        topic.append(counted(5))
        assert self._restarted(topic, group, delivery="at_most_once") == [5]

    def test_exactly_once_repeats_the_event_but_not_its_effect(self, log: Log, port: LogPort) -> None:
        topic, group = numbers(log), fresh("books")
        topic.append(counted(*range(5)))
        handle, database = self.reopen(port), _books()
        options = {"lease": self.lease_s, "delivery": "exactly_once"}
        dies = member_of(Log(handle).topic(topic.name), group, commit_every="1 hour", **options)
        for event in islice(dies, 3):
            _book(database, event)
        handle.close()
        with member_of(topic, group, follow=False, **options) as consumer:
            self.until(consumer.assignment)
            repeated = [_book(database, event) for event in consumer]
        assert repeated == [False, False, False, True, True]
        assert _booked(database) == [0, 1, 2, 3, 4]

    def test_exactly_once_repeats_an_effect_that_was_rolled_back(self, log: Log) -> None:
        topic, group, database = numbers(log), fresh("books"), _books()
        topic.append(counted(1))
        with member_of(topic, group, follow=False, delivery="exactly_once") as consumer:
            event = next(consumer)
            with pytest.raises(ZeroDivisionError), once(database, event):
                database.execute("INSERT INTO books VALUES (?)", (event["n"] / 0,))
            assert _book(database, event)
        assert _booked(database) == [1]

    # ---- lost to retention ----------------------------------------------------------------------------

    @pytest.fixture
    def late(self, log: Log, port: LogPort) -> tuple[Topic, str]:
        """A topic of five numbers, and a group that stands at the first, which retention has taken."""
        topic, group = numbers(log, segment_bytes=1), fresh("mailer")
        positions = [topic.append(counted(n)) for n in range(5)]
        port.reset(group, topic.name, {0: positions[0].offset})
        self.expire(port, topic.name, 0)
        return topic, group

    def test_lost_records_are_an_error(self, late: tuple[Topic, str]) -> None:
        topic, group = late
        with member_of(topic, group) as consumer:
            with pytest.raises(RecordsLost) as lost:
                next(consumer)
            start, end = topic.bounds()[0]
            assert (lost.value.start, lost.value.end) == (start, end)
            assert lost.value.missed == start - lost.value.offset > 0

    def test_lost_records_can_be_passed_over(self, late: tuple[Topic, str]) -> None:
        topic, group = late
        left = [event["n"] for event in topic.events()]
        with member_of(topic, group, on_lost="earliest", follow=False) as consumer:
            assert [event["n"] for event in consumer] == left
            assert consumer.missed == 5 - len(left)

    def test_lost_records_can_be_a_reason_to_start_from_the_end(self, late: tuple[Topic, str]) -> None:
        topic, group = late
        with member_of(topic, group, on_lost="latest", follow=False) as consumer:
            assert list(consumer) == []
            assert consumer.missed == 5
            topic.append(counted(9))
            assert [event["n"] for event in consumer] == [9]


def _books() -> sqlite3.Connection:
    database = sqlite3.connect(":memory:")
    database.execute("CREATE TABLE books (n INTEGER)")
    database.commit()
    return database


def _book(database: sqlite3.Connection, event: Event) -> bool:
    with once(database, event) as first:
        if first:
            database.execute("INSERT INTO books VALUES (?)", (event["n"],))
    return first


def _booked(database: sqlite3.Connection) -> list[int]:
    return [n for (n,) in database.execute("SELECT n FROM books ORDER BY n")]
