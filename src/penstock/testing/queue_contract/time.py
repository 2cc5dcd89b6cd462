"""Time: leases, delays, and messages that live only so long."""

from __future__ import annotations

import pytest

from penstock.errors import BadOption, DeliveryExpired
from penstock.queue.queues import Queues
from penstock.testing.queue_contract.backend import Backend, new_queue


class Time(Backend):
    def test_after_its_lease_a_message_comes_again_and_the_late_ack_is_refused(self, queues: Queues) -> None:
        queue = new_queue(queues)
        queue.publish("job")
        with queue.consume(lease=self.moment_s) as slow:
            held = self.next(slow)
            self.pass_time(queues, 1.5 * self.moment_s)
            with pytest.raises(DeliveryExpired) as refused:
                held.ack()
            assert refused.value.message_ids == (held.id,)
            got = self.next(slow)
            assert (got.text, got.attempts) == ("job", 2)
            got.ack()

    def test_a_lease_ends_also_while_its_consumer_asks_for_nothing(
        self, queues: Queues, other: Queues
    ) -> None:
        queue = new_queue(queues)
        queue.publish("job")
        with queue.consume(lease=self.moment_s) as silent, other.open_queue(queue.name).consume() as second:
            assert self.next(silent).attempts == 1
            self.pass_time(queues, 1.5 * self.moment_s)
            got = self.next(second)
            assert (got.text, got.attempts) == ("job", 2)
            got.ack()

    def test_an_extended_lease_lasts_longer(self, queues: Queues) -> None:
        queue = new_queue(queues)
        queue.publish("job")
        with queue.consume(lease=2 * self.moment_s) as consumer:
            held = self.next(consumer)
            for _ in range(3):
                self.pass_time(queues, self.moment_s)
                held.extend()
            held.ack()
        assert queue.get(timeout=0.1) is None

    def test_a_delayed_message_waits(self, queues: Queues) -> None:
        queue = new_queue(queues)
        queue.publish("later", delay=self.moment_s)
        queue.publish("now")
        assert self.bodies(queue, 1) == ["now"]
        self.pass_time(queues, self.moment_s)
        assert self.bodies(queue, 1) == ["later"]

    def test_a_message_requeued_with_a_delay_waits(self, queues: Queues) -> None:
        queue = new_queue(queues)
        queue.publish_many(["a", "b"])
        first = self.next(queue)
        with pytest.raises(BadOption, match="delay"):
            first.nack("busy", delay="400 days")
        first.nack("busy", delay=self.moment_s)
        assert self.bodies(queue, 1) == ["b"]
        self.pass_time(queues, self.moment_s)
        got = self.next(queue)
        assert (got.text, got.attempts, got.redelivered) == ("a", 2, True)
        got.ack()

    def test_a_message_that_waited_longer_than_its_ttl_is_a_dead_letter(self, queues: Queues) -> None:
        queue = new_queue(queues)
        queue.publish("short", ttl=self.moment_s)
        queue.publish("long")
        self.pass_time(queues, 1.5 * self.moment_s)
        assert self.bodies(queue, 1) == ["long"]
        (letter,) = self.until(queue.dead_letters)
        assert (letter.message.text, letter.cause, letter.attempts) == ("short", "expired", 0)

    def test_a_queue_can_have_a_ttl_for_all(self, queues: Queues) -> None:
        queue = new_queue(queues, ttl=self.moment_s)
        queue.publish_many(["a", "b"])
        self.pass_time(queues, 1.5 * self.moment_s)
        assert queue.get(timeout=0.1) is None
        assert self.until(lambda: queue.stats().dead == 2)

    def test_a_ttl_outlasts_a_delay(self, queues: Queues) -> None:
        queue = new_queue(queues)
        queue.publish("job", delay=self.moment_s, ttl=60)
        self.pass_time(queues, self.moment_s)
        assert self.bodies(queue, 1) == ["job"]

    def test_the_ttl_of_a_queue_begins_after_a_delay(self, queues: Queues) -> None:
        queue = new_queue(queues, ttl=2 * self.moment_s)
        with queue.consume(prefetch=1) as consumer:
            queue.publish("job", delay=2 * self.moment_s)
            self.pass_time(queues, 2 * self.moment_s)
            self.next(consumer).ack()

    def test_a_delivered_message_does_not_expire(self, queues: Queues) -> None:
        queue = new_queue(queues)
        with queue.consume(prefetch=1) as consumer:  # before the message, which does not wait for long
            queue.publish("job", ttl=self.moment_s)
            got = self.next(consumer)
            self.pass_time(queues, 1.5 * self.moment_s)
            got.ack()
        assert queue.stats().dead == 0
