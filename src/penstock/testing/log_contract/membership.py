"""Members of one group: who has which partition, and what happens when one goes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from penstock.errors import NotOwner
from penstock.log.consumer import Consumer
from penstock.log.log import Log
from penstock.log.port import LogPort, Member
from penstock.log.topic import Topic
from penstock.testing.log_contract.backend import Backend, counted, fresh, member_of, numbers


def _shared(*members: Consumer) -> Callable[[], bool]:
    """Polls all members; true when they have all of four partitions between them, none twice, evenly."""

    def shared() -> bool:
        held = [set(member.assignment()) for member in members]
        even = all(len(parts) in (4 // len(members), -(-4 // len(members))) for parts in held)
        return even and sorted(part for parts in held for part in parts) == [0, 1, 2, 3]

    return shared


class Membership(Backend):
    def test_the_only_member_gets_all_partitions(self, log: Log) -> None:
        topic = numbers(log, partitions=4)
        with member_of(topic, fresh("mailer")) as consumer:
            self.until(_shared(consumer))
            assert not consumer.waiting

    def test_members_share_the_partitions_evenly(self, log: Log, other: Log) -> None:
        topic, group = numbers(log, partitions=4), fresh("mailer")
        self.until(lambda: topic.name in other.topics())
        with member_of(topic, group) as first:
            self.until(_shared(first))
            with member_of(other.topic(topic.name), group) as second:
                self.until(_shared(first, second))
                with member_of(topic, group) as third:
                    self.until(_shared(first, second, third))

    def test_members_share_the_records(self, log: Log) -> None:
        topic, group = numbers(log, partitions=4, key="n"), fresh("mailer")
        with member_of(topic, group, follow=False) as first, member_of(topic, group, follow=False) as second:
            self.until(_shared(first, second))
            topic.append(counted(*range(100)))
            shares = [[event["n"] for event in member] for member in (first, second)]
        assert all(shares)
        assert sorted(shares[0] + shares[1]) == list(range(100))

    def test_a_partition_has_one_reader_at_a_time(self, log: Log, port: LogPort) -> None:
        topic, group = numbers(log, partitions=4), fresh("mailer")
        members = [port.join(group, topic.name, lease_s=30.0) for _ in range(3)]
        held: list[set[int]] = [set(), set(), set()]

        def settled() -> bool:
            for number, member in enumerate(members):
                held[number] = _owned(member)
                assert sum(map(len, held)) == len(set().union(*held)), held
            return sum(map(len, held)) == 4 and all(held)

        self.until(settled)
        for member in members:
            member.leave()

    def test_a_member_that_leaves_is_replaced(self, log: Log) -> None:
        topic, group = numbers(log, partitions=4), fresh("mailer")
        with member_of(topic, group) as stays:
            with member_of(topic, group) as leaves:
                self.until(_shared(stays, leaves))
            self.until(_shared(stays))

    def test_a_member_that_dies_is_replaced(self, log: Log, port: LogPort) -> None:
        topic, group = numbers(log, partitions=4), fresh("mailer")
        handle = self.reopen(port)
        dies = member_of(Log(handle).topic(topic.name), group, lease=self.lease_s)
        with member_of(topic, group, lease=self.lease_s) as stays:
            self.until(_shared(stays, dies))
            handle.close()
            self.until(_shared(stays))

    def test_a_member_that_stops_polling_is_replaced_and_its_commit_refused(
        self, log: Log, port: LogPort
    ) -> None:
        topic, group = numbers(log), fresh("mailer")
        position = topic.append(counted(1, 2, 3))
        hangs = port.join(group, topic.name, lease_s=self.lease_s)
        self.until(lambda: _owned(hangs))
        stays = port.join(group, topic.name, lease_s=self.lease_s)
        self.until(lambda: _owned(stays))
        stays.commit({0: position.offset + 2})
        with pytest.raises(NotOwner):
            hangs.commit({0: position.offset + 1})
        assert port.committed(group, topic.name) == {0: position.offset + 2}
        stays.leave()

    def test_a_commit_for_a_partition_of_another_member_is_refused_whole(
        self, log: Log, port: LogPort
    ) -> None:
        topic, group = numbers(log, partitions=2), fresh("mailer")
        first, second = (port.join(group, topic.name, lease_s=30.0) for _ in range(2))
        self.until(lambda: [len(_owned(member)) for member in (first, second)] == [1, 1])
        with pytest.raises(NotOwner) as refused:
            first.commit({0: 0, 1: 0})
        assert len(refused.value.partitions) == 1
        assert port.committed(group, topic.name) == {}
        for member in (first, second):
            member.leave()

    def test_a_partition_that_came_back_has_a_new_term(self, log: Log, port: LogPort) -> None:
        topic, group = numbers(log, partitions=2), fresh("mailer")
        first = port.join(group, topic.name, lease_s=30.0)
        self.until(lambda: _owned(first) == {0, 1})
        before = first.poll().partitions
        second = port.join(group, topic.name, lease_s=30.0)
        self.until(lambda: len(_owned(first)) == len(_owned(second)) == 1)
        (moved,) = _owned(second)
        second.leave()
        self.until(lambda: _owned(first) == {0, 1})
        assert first.poll().partitions[moved].term != before[moved].term
        first.leave()

    def test_more_members_than_partitions_stand_by(self, log: Log) -> None:
        topic, group = numbers(log), fresh("mailer")
        with member_of(topic, group) as owner:
            self.until(owner.assignment)
            with member_of(topic, group) as standby:
                self.until(lambda: owner.assignment() and (standby.assignment(), standby.waiting)[1])
                assert standby.assignment() == {}
                owner.close()
                self.until(standby.assignment)
                assert not standby.waiting

    def test_who_takes_over_goes_on_after_the_last_commit(self, log: Log) -> None:
        topic, group = numbers(log), fresh("mailer")
        topic.append(counted(1, 2, 3))
        with member_of(topic, group) as owner:
            assert next(owner)["n"] == 1
            with member_of(topic, group, follow=False) as standby:
                self.until(lambda: owner.assignment() and (standby.assignment(), standby.waiting)[1])
                owner.commit()
                owner.close()
                self.until(standby.assignment)
                assert [event["n"] for event in standby] == [2, 3]

    def test_a_partition_given_away_is_committed_first(self, log: Log) -> None:
        topic, group = numbers(log, partitions=2), fresh("mailer")
        for partition in (0, 1):
            topic.append(counted(1, 2, 3), partition=partition)
        with member_of(topic, group, follow=False, commit_every="1 hour") as first:
            seen = [(event.partition, event["n"]) for event in first]
            with member_of(topic, group, follow=False) as second:
                self.until(lambda: len(first.assignment()) == len(second.assignment()) == 1)
                seen += [(event.partition, event["n"]) for event in second]
        assert sorted(seen) == [(0, 1), (0, 2), (0, 3), (1, 1), (1, 2), (1, 3)]

    def test_a_loop_that_does_not_follow_waits_for_its_share(self, log: Log) -> None:
        topic, group = numbers(log, partitions=2), fresh("mailer")
        topic.append(counted(0), partition=0)
        topic.append(counted(1), partition=1)
        with member_of(topic, group) as first:
            self.until(lambda: set(first.assignment()) == {0, 1})
            with self._polled(first), member_of(topic, group, follow=False) as second:
                share = [event["n"] for event in second]
                assert share == list(second.assignment())

    @contextmanager
    def _polled(self, member: Consumer) -> Iterator[None]:
        """Somebody else's loop, which keeps its lease and gives up what it is asked for."""
        done = threading.Event()

        def keep_polling() -> None:
            while not done.wait(0.01):
                member.assignment()

        thread = threading.Thread(target=keep_polling)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()

    def test_added_partitions_are_read_after_what_their_keys_left_in_the_old_ones(self, log: Log) -> None:
        topic, group = numbers(log, key="n", partitions=2), fresh("mailer")
        topic.append(counted(*range(20)))
        log.alter_topic(topic.name, partitions=4)
        topic.append(counted(*range(20)))
        with member_of(topic, group, commit_every="10 ms") as consumer:
            read: list[tuple[int, int]] = []
            while len(read) < 40:
                event = next(consumer)
                read.append((event["n"], event.partition))
        _assert_read_in_order(topic, read)

    def test_added_partitions_are_read_although_the_end_of_the_old_ones_may_lie_further(
        self, log: Log
    ) -> None:
        topic, group = numbers(log, key="n", partitions=2), fresh("mailer")
        log.producer(fresh("job")).append({topic: counted(*range(20))})
        self.until(lambda: len(list(topic.rows())) == 20)
        log.alter_topic(topic.name, partitions=4)
        topic.append(counted(*range(20)))
        with member_of(topic, group, follow=False) as consumer:
            read = [(event["n"], event.partition) for event in consumer]
        assert len(read) == 40
        _assert_read_in_order(topic, read)


def _owned(member: Member) -> set[int]:
    """Poll as a consumer does: give up what was revoked, keep the rest."""
    assignment = member.poll()
    revoked = {part for part, owned in assignment.partitions.items() if owned.revoked}
    if revoked:
        member.release(revoked)
    return set(assignment.partitions) - revoked


def _assert_read_in_order(topic: Topic, read: list[tuple[int, int]]) -> None:
    """Each key was read from the partitions in which it was appended, in that order."""
    appended = [(e["n"], e.partition) for e in sorted(topic.events(), key=lambda e: e.time_us)]
    for key in {n for n, _ in appended}:
        assert [place for place in read if place[0] == key] == [
            place for place in appended if place[0] == key
        ]
