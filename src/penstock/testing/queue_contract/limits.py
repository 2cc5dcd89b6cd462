"""Limits: what happens when a queue is full."""

from __future__ import annotations

import threading

import pytest

from penstock.errors import QueueFull
from penstock.queue.queues import Queues
from penstock.testing.queue_contract.backend import Backend, new_queue

_ABOUT = 20  # a broker may take a few more than the limit before it notices


class Limits(Backend):
    def test_a_full_queue_rejects(self, queues: Queues) -> None:
        queue = new_queue(queues, max_length=3)
        with pytest.raises(QueueFull) as refused:
            for n in range(3 + _ABOUT):
                queue.publish(str(n))
        assert refused.value.queue == queue.name
        assert 3 <= self.until(lambda: queue.stats().ready) < 3 + _ABOUT

    def test_there_is_room_again_after_a_message_was_taken(self, queues: Queues) -> None:
        queue = new_queue(queues, max_length=2)
        with pytest.raises(QueueFull):
            for n in range(2 + _ABOUT):
                queue.publish(str(n))
        while got := queue.get(timeout=0.1):
            got.ack()

        def fits() -> bool:
            try:
                queue.publish("fits")
            except QueueFull:
                return False
            return True

        assert self.until(fits)

    def test_a_full_queue_drops_the_oldest(self, queues: Queues) -> None:
        queue = new_queue(queues, max_length=3, overflow="drop_oldest")
        for n in range(6):
            queue.publish(str(n))
        assert self.until(lambda: queue.stats().dead == 3)
        assert self.bodies(queue, 3) == ["3", "4", "5"]
        letters = self.until(queue.dead_letters)
        assert [(letter.message.text, letter.cause) for letter in letters] == [
            ("0", "dropped"), ("1", "dropped"), ("2", "dropped"),
        ]  # fmt: skip

    def test_redriving_what_is_dropped_again_comes_to_an_end(self, queues: Queues) -> None:
        queue = new_queue(queues, max_length=1, overflow="drop_oldest")
        for n in range(3):
            queue.publish(str(n))
        assert self.until(lambda: queue.stats().dead == 2)
        assert queue.redrive() == 2
        assert self.until(lambda: queue.stats().dead == 2)

    def test_dropped_messages_are_gone_where_no_dead_letters_are_kept(self, queues: Queues) -> None:
        queue = new_queue(queues, max_length=1, overflow="drop_oldest", dead_letters=False)
        queue.publish("a")
        queue.publish("b")
        assert self.bodies(queue, 1) == ["b"]
        assert queue.stats().dead == 0

    def test_a_full_queue_blocks_until_there_is_room(self, queues: Queues, other: Queues) -> None:
        queue = new_queue(queues, max_length=2, overflow="block")
        blocked = 0
        with pytest.raises(QueueFull) as refused:
            for _ in range(2 + _ABOUT):
                queue.publish("early", timeout=0.2)
                blocked += 1
        assert refused.value.waited_s == 0.2
        publisher = threading.Thread(target=lambda: queue.publish("late", timeout=self.patience_s))
        publisher.start()
        taker = other.open_queue(queue.name)
        assert self.bodies(taker, blocked + 1) == ["early"] * blocked + ["late"]
        publisher.join(self.patience_s)
        assert not publisher.is_alive()
