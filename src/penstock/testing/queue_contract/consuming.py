"""Consuming: every message to one consumer, until it is settled or comes back."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from penstock.errors import BadOption, DeliveryExpired, UnknownDelivery, UnknownQueue
from penstock.queue.queues import Queues
from penstock.testing.queue_contract.backend import Backend, fresh, new_queue


class Consuming(Backend):
    def test_an_empty_queue_gives_nothing(self, queues: Queues) -> None:
        queue = new_queue(queues)
        assert queue.get() is None
        assert queue.get_many(5, timeout=0.01) == []

    def test_competing_consumers_share_the_messages(self, queues: Queues, other: Queues) -> None:
        queue = new_queue(queues)
        with queue.consume(prefetch=1) as first, other.open_queue(queue.name).consume(prefetch=1) as second:
            queue.publish_many(["a", "b"])
            one, two = self.next(first), self.next(second)
            assert {one.text, two.text} == {"a", "b"}
            one.ack()
            two.ack()
        assert queue.get() is None

    def test_iterating_ends_when_no_message_comes(self, queues: Queues) -> None:
        queue = new_queue(queues)
        queue.publish_many([str(n) for n in range(10)])
        found = []
        with queue.consume(idle=1, prefetch=3) as consumer:
            for delivery in consumer:
                found.append(delivery.text)
                delivery.ack()
        assert found == [str(n) for n in range(10)]

    def test_an_acked_message_is_gone(self, queues: Queues, other: Queues) -> None:
        queue = new_queue(queues)
        queue.publish("once")
        with queue.consume() as consumer:
            self.next(consumer).ack()
            consumer.flush()
        assert other.open_queue(queue.name).get(timeout=0.1) is None

    def test_acks_together_are_done_when_the_consumer_is_closed(self, queues: Queues, other: Queues) -> None:
        queue = new_queue(queues)
        queue.publish_many([str(n) for n in range(20)])
        with queue.consume(acks="together", prefetch=7) as consumer:
            self.bodies(consumer, 20)
        assert other.open_queue(queue.name).get(timeout=0.1) is None

    def test_several_are_acked_at_once(self, queues: Queues) -> None:
        queue = new_queue(queues)
        queue.publish_many([str(n) for n in range(20)])
        with queue.consume(prefetch=20) as consumer:
            found = [self.next(consumer) for _ in range(20)]
            consumer.ack(found)
        assert queue.get(timeout=0.1) is None

    def test_a_nacked_message_comes_again_and_counts(self, queues: Queues) -> None:
        queue = new_queue(queues)
        queue.publish("again")
        self.next(queue).nack("not now")
        got = self.next(queue)
        assert (got.text, got.attempts, got.redelivered) == ("again", 2, True)
        got.ack()

    def test_a_requeued_message_comes_before_those_behind_it(self, queues: Queues) -> None:
        queue = new_queue(queues)
        queue.publish_many(["a", "b", "c"])
        self.next(queue).nack()
        assert self.until(lambda: queue.stats().ready == 3)
        assert self.bodies(queue, 3) == ["a", "b", "c"]

    def test_what_a_closed_consumer_held_goes_back(self, queues: Queues) -> None:
        queue = new_queue(queues)
        queue.publish_many(["a", "b", "c"])
        with queue.consume() as consumer:
            held = self.next(consumer)
        with pytest.raises(DeliveryExpired, match="closed"):
            held.ack()
        assert sorted(self.bodies(queue, 3)) == ["a", "b", "c"]

    def test_a_closed_consumer_gets_nothing_and_the_next_one_does(self, queues: Queues) -> None:
        queue = new_queue(queues)
        with queue.consume() as closed:
            pass
        queue.publish("a")
        assert closed.get(timeout=0.1) is None
        assert self.next(queue).attempts == 1

    def test_what_a_dead_consumer_held_comes_again(self, queues: Queues) -> None:
        queue = new_queue(queues)
        queue.publish("job")
        doomed = self.reopen(queues)
        consumer = doomed.open_queue(queue.name).consume()
        assert self.next(consumer).attempts == 1
        self.crash(doomed)
        got = self.next(queue)
        assert (got.text, got.attempts, got.redelivered) == ("job", 2, True)
        got.ack()

    def test_a_delivery_is_settled_once(self, queues: Queues) -> None:
        queue = new_queue(queues)
        queue.publish("job")
        got = self.next(queue)
        got.ack()
        for settle in (got.ack, got.nack, got.reject, got.extend):
            with pytest.raises(UnknownDelivery, match="acked"):
                settle()

    def test_higher_priorities_come_first_and_within_one_the_oldest(self, queues: Queues) -> None:
        queue = new_queue(queues, max_priority=5)
        for body, priority in [("a", 0), ("b", 5), ("c", 2), ("d", 5), ("e", 9)]:
            queue.publish(body, priority=priority)
        assert self.bodies(queue, 5) == ["b", "d", "e", "c", "a"]

    def test_attempts_are_counted_with_priorities_too(self, queues: Queues) -> None:
        queue = new_queue(queues, max_priority=3, max_attempts=3)
        queue.publish("job", priority=2)
        self.next(queue).nack("first")
        doomed = self.reopen(queues)
        with_priorities = doomed.queue(queue.name, max_priority=3, max_attempts=3)
        assert self.next(with_priorities.consume()).attempts == 2
        self.crash(doomed)
        got = self.next(queue)
        assert (got.attempts, got.redelivered) == (3, True)
        got.nack("last")
        assert self.until(lambda: queue.stats().dead) == 1

    def test_without_priorities_they_are_not_looked_at(self, queues: Queues) -> None:
        queue = new_queue(queues)
        queue.publish("a", priority=0)
        queue.publish("b", priority=5)
        assert self.bodies(queue, 2) == ["a", "b"]

    def test_one_active_consumer_gets_everything_until_it_is_gone(
        self, queues: Queues, other: Queues
    ) -> None:
        queue = new_queue(queues, single_active_consumer=True)
        queue.publish_many(["a", "b", "c", "d"])
        first = queue.consume()
        one = self.next(first)
        with other.open_queue(queue.name).consume(prefetch=1) as second:
            assert second.get(timeout=0.2) is None
            one.ack()
            assert self.next(first).text == "b"  # and it is not acked
            first.close()
            assert self.bodies(second, 3) == ["b", "c", "d"]

    def test_get_is_refused_where_one_consumer_is_active(self, queues: Queues) -> None:
        with pytest.raises(BadOption, match="consume"):
            new_queue(queues, single_active_consumer=True).get()

    def test_a_consumer_of_an_unknown_queue_is_refused(self, queues: Queues) -> None:
        queue = queues.queue(fresh("queue"))
        queue.delete()
        with pytest.raises(UnknownQueue):
            queue.consume()

    def test_a_consumer_of_a_deleted_queue_is_told_and_gets_nothing_of_a_new_one(
        self, queues: Queues
    ) -> None:
        queue = new_queue(queues)
        assert queue.get() is None
        with queue.consume() as consumer:
            queues.port.delete_queue(queue.name)  # as another process would
            with pytest.raises(UnknownQueue):
                self.until(lambda: consumer.get(timeout=0.1))
            queues.queue(queue.name).publish("new")
            with pytest.raises(UnknownQueue):
                consumer.get(timeout=0.1)
        assert self.bodies(queue, 1) == ["new"]

    def test_threads_may_get_from_one_queue(self, queues: Queues) -> None:
        queue = new_queue(queues)
        ids = queue.publish_many([str(n) for n in range(60)])

        def take(_: int) -> list[str]:
            found = []
            while some := queue.get_many(3, timeout=0.2):
                found += [each.id for each in some]
                for each in some:
                    each.ack()
            return found

        with ThreadPoolExecutor(4) as pool:
            taken = [id for found in pool.map(take, range(4)) for id in found]
        assert sorted(taken) == sorted(ids)

    @pytest.mark.parametrize("limit", [0, -1, 10**30])
    def test_a_limit_that_is_none_is_refused(self, queues: Queues, limit: int) -> None:
        queue = new_queue(queues)
        for ask in (queue.get_many, queue.dead_letters):
            with pytest.raises(BadOption, match="limit"):
                ask(limit)

    def test_purging_removes_what_waits(self, queues: Queues) -> None:
        queue = new_queue(queues)
        queue.publish_many(["a", "b", "c"])
        held = self.next(queue)
        assert queue.purge() == 2
        held.ack()
        assert queue.get(timeout=0.1) is None
