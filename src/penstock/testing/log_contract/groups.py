"""Groups: where they start, what they commit, how far behind they are, and moving them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from penstock.errors import BadInput, BadName, Contended, NotOwner
from penstock.log.log import Log
from penstock.log.port import LogPort, PartitionLag
from penstock.log.topic import Topic
from penstock.testing.log_contract.backend import Backend, counted, fresh, member_of, numbers


def _read_all(topic: Topic, group: str, **options: object) -> list[int]:
    """Read to the end as the only member, commit, and leave."""
    with member_of(topic, group, follow=False, **options) as consumer:
        return [event["n"] for event in consumer]


class Groups(Backend):
    def test_every_group_gets_every_record(self, log: Log) -> None:
        topic = numbers(log, partitions=2)
        topic.append(counted(*range(10)))
        for group in (fresh("mailer"), fresh("index")):
            assert sorted(_read_all(topic, group)) == list(range(10))

    def test_events_say_where_they_come_from(self, log: Log) -> None:
        topic, group = numbers(log), fresh("mailer")
        position = topic.append(counted(1))
        with member_of(topic, group, follow=False) as consumer:
            (event,) = consumer
        assert (event.topic, event.group) == (topic.name, group)
        assert (event.partition, event.offset) == (0, position.offset)

    def test_a_group_goes_on_after_its_last_commit(self, log: Log, other: Log) -> None:
        topic, group = numbers(log), fresh("mailer")
        topic.append(counted(1, 2, 3))
        assert _read_all(topic, group) == [1, 2, 3]
        topic.append(counted(4))
        self.until(lambda: topic.name in other.topics())
        assert _read_all(other.topic(topic.name), group) == [4]

    def test_a_group_stands_in_each_topic_on_its_own(self, log: Log, port: LogPort) -> None:
        first, second, group = numbers(log), numbers(log), fresh("mailer")
        first.append(counted(1, 2))
        position = second.append(counted(3))
        assert _read_all(first, group) == [1, 2]
        assert port.committed(group, second.name) == {}
        assert _read_all(second, group) == [3]
        assert port.committed(group, second.name) == {0: position.ends[0]}
        assert {(group, first.name), (group, second.name)} <= set(log.groups())

    def test_a_commit_covers_the_event_in_hand(self, log: Log, port: LogPort) -> None:
        topic, group = numbers(log), fresh("mailer")
        topic.append(counted(1, 2, 3))
        with member_of(topic, group) as consumer:
            next(consumer)
            event = next(consumer)
            consumer.commit()
            assert port.committed(group, topic.name) == {0: event.offset + 1}

    def test_a_group_without_commits_has_none(self, log: Log, port: LogPort) -> None:
        assert port.committed(fresh("nobody"), numbers(log).name) == {}

    def test_a_new_group_can_start_at_the_end(self, log: Log) -> None:
        topic, group = numbers(log), fresh("mailer")
        topic.append(counted(1))
        with member_of(topic, group, start="latest") as consumer:
            self.until(consumer.assignment)
            topic.append(counted(2))
            assert next(consumer)["n"] == 2

    def test_where_a_new_group_started_is_kept_before_it_has_read_anything(self, log: Log) -> None:
        topic, group = numbers(log), fresh("mailer")
        topic.append(counted(1))
        with member_of(topic, group, start="latest") as consumer:
            self.until(consumer.assignment)
        topic.append(counted(2))
        assert _read_all(topic, group, start="latest") == [2]

    def test_a_new_group_can_start_at_a_time(self, log: Log) -> None:
        topic = numbers(log)
        topic.append(counted(1))
        (first,) = topic.events()
        self.until(lambda: datetime.now(UTC) > first.timestamp + timedelta(milliseconds=4))
        topic.append(counted(2))
        *_, second = topic.events()
        assert _read_all(topic, fresh("mailer"), start=second.timestamp) == [2]

    def test_a_group_needs_a_plain_name(self, log: Log) -> None:
        with pytest.raises(BadName):
            numbers(log).consume(group="a/b")

    # ---- seek ----------------------------------------------------------------------------------------

    def test_seeking_back_replays(self, log: Log) -> None:
        topic, group = numbers(log), fresh("mailer")
        topic.append(counted(1, 2, 3))
        with member_of(topic, group, follow=False) as consumer:
            assert [event["n"] for event in consumer] == [1, 2, 3]
            consumer.seek("earliest")
            assert [event["n"] for event in consumer] == [1, 2, 3]

    def test_seeking_forward_skips(self, log: Log) -> None:
        topic, group = numbers(log), fresh("mailer")
        topic.append(counted(1, 2, 3))
        with member_of(topic, group, follow=False) as consumer:
            first = next(consumer)
            consumer.seek(first.offset + 2, partition=0)
            assert [event["n"] for event in consumer] == [3]
        assert _read_all(topic, group) == []

    def test_a_replay_is_kept_when_it_is_committed(self, log: Log) -> None:
        topic, group = numbers(log), fresh("mailer")
        topic.append(counted(1, 2))
        assert _read_all(topic, group) == [1, 2]
        with member_of(topic, group) as consumer:
            self.until(consumer.assignment)
            consumer.seek("earliest")
            consumer.commit()
        assert _read_all(topic, group) == [1, 2]

    def test_seeking_in_a_partition_that_another_member_has_is_refused(self, log: Log) -> None:
        topic, group = numbers(log), fresh("mailer")
        with member_of(topic, group) as owner:
            self.until(owner.assignment)
            with member_of(topic, group) as standby:
                self.until(lambda: owner.assignment() and (standby.assignment(), standby.waiting)[1])
                with pytest.raises(NotOwner):
                    standby.seek("earliest", partition=0)

    # ---- what is shown ------------------------------------------------------------------------------------

    def test_lag_counts_what_is_not_committed(self, log: Log) -> None:
        topic, group = numbers(log), fresh("mailer")
        position = topic.append(counted(1, 2, 3))
        with member_of(topic, group, follow=False) as consumer:
            next(consumer)
            consumer.commit()
            lag = self._lag(log, group, topic)
            assert (lag.partition, lag.committed, lag.records) == (0, position.offset + 1, 2)
            assert (lag.start, lag.end) == topic.bounds()[0]
            assert self.until(lambda: self._lag(log, group, topic).seconds) < 60
            list(consumer)
            consumer.commit()
            lag = self._lag(log, group, topic)
            assert (lag.records, lag.seconds) == (0, 0.0)

    def test_a_group_that_has_read_everything_has_no_lag_although_the_end_may_lie_further(
        self, log: Log
    ) -> None:
        topic, group, producer = numbers(log), fresh("mailer"), log.producer(fresh("job"))
        for n in range(3):
            producer.append({topic: counted(n)})
        self.until(lambda: len(list(topic.rows())) == 3)
        assert _read_all(topic, group) == [0, 1, 2]
        lag = self._lag(log, group, topic)
        assert (lag.records, lag.seconds) == (0, 0.0)

    def test_lag_before_the_first_commit_counts_from_the_start(self, log: Log, port: LogPort) -> None:
        topic, group = numbers(log, partitions=2), fresh("mailer")
        topic.append(counted(1, 2), partition=1)
        port.reset(group, topic.name, {0: topic.bounds()[0][0]})
        lags = log.group(group, topic.name).lag
        assert [lag.committed is None for lag in lags] == [False, True]
        assert [lag.records for lag in lags] == [0, 2]

    def test_members_are_shown_with_their_partitions(self, log: Log, other: Log) -> None:
        topic, group = numbers(log, partitions=2), fresh("mailer")
        with member_of(topic, group) as consumer:
            self.until(lambda: set(consumer.assignment()) == {0, 1})
            self.until(lambda: topic.name in other.topics())
            self.until(lambda: other.group(group, topic.name).members)
            info = other.group(group, topic.name)
            (member,) = info.members
            assert (member.partitions, member.waiting) == ((0, 1), False)
            assert [lag.owner for lag in info.lag] == [member.member] * 2
        self.until(lambda: not other.group(group, topic.name).members)
        assert [lag.owner for lag in other.group(group, topic.name).lag] == [None, None]

    def test_groups_are_listed_with_their_topics(self, log: Log, other: Log) -> None:
        topic, group = numbers(log), fresh("mailer")
        topic.append(counted(1))
        _read_all(topic, group)
        assert (group, topic.name) in other.groups()

    def test_a_group_that_never_was_is_refused(self, log: Log) -> None:
        with pytest.raises(BadInput):
            log.group(fresh("nobody"), numbers(log).name)

    def test_a_deleted_topic_takes_the_commits_of_its_groups_along(self, log: Log, port: LogPort) -> None:
        topic, group = numbers(log), fresh("mailer")
        topic.append(counted(1, 2))
        _read_all(topic, group)
        log.delete_topic(topic.name)
        again = log.create_topic(topic.name, "n BIGINT")
        self.until(lambda: port.committed(group, again.name) == {})
        again.append(counted(3))
        assert _read_all(again, group) == [3]

    def _lag(self, log: Log, group: str, topic: Topic) -> PartitionLag:
        (lag,) = log.group(group, topic.name).lag
        return lag

    # ---- reset --------------------------------------------------------------------------------------------

    def test_a_group_without_members_can_be_moved(self, log: Log, port: LogPort) -> None:
        topic, group = numbers(log), fresh("mailer")
        position = topic.append(counted(1, 2, 3))
        _read_all(topic, group)
        self.until(lambda: not log.group(group, topic.name).members)
        port.reset(group, topic.name, {0: position.offset + 1})
        assert port.committed(group, topic.name) == {0: position.offset + 1}
        assert _read_all(topic, group) == [2, 3]

    def test_a_group_can_be_placed_before_its_first_member_joins(self, log: Log, port: LogPort) -> None:
        topic, group = numbers(log), fresh("mailer")
        position = topic.append(counted(1, 2))
        port.reset(group, topic.name, {0: position.offset + 1})
        assert _read_all(topic, group) == [2]

    def test_a_group_with_members_cannot_be_moved(self, log: Log, other: Log) -> None:
        topic, group = numbers(log), fresh("mailer")
        position = topic.append(counted(1))
        with member_of(topic, group) as consumer:
            assert next(consumer)["n"] == 1
            consumer.commit()
            with pytest.raises(Contended):
                other.port.reset(group, topic.name, {0: position.offset})
            assert other.port.committed(group, topic.name) == {0: position.offset + 1}
