"""Who only opens a queue treats it as whoever declared it said."""

from __future__ import annotations

import pytest

from penstock.errors import MessageTooLarge, QueueDiffers, QueueFull, StorageError
from penstock.queue.queues import Queues
from penstock.testing.queue_contract.backend import Backend, fresh, new_queue

_ABOUT = 20  # a broker may take a few more than the limit before it notices


class Opening(Backend):
    def test_an_opened_queue_has_the_settings_of_its_declaration(self, queues: Queues, other: Queues) -> None:
        declared = new_queue(
            queues, max_attempts=2, max_priority=3, max_length=7, overflow="block", ttl="1 hour",
            max_message_bytes=10, single_active_consumer=False,
        )  # fmt: skip
        assert other.queue(declared.name).settings == other.open_queue(declared.name).settings
        assert other.open_queue(declared.name).settings == declared.settings

    @pytest.mark.parametrize("priorities", [0, 3])
    @pytest.mark.parametrize("delay", [0, 0.05])
    def test_an_opened_queue_gives_a_message_up_after_its_last_attempt(
        self, queues: Queues, other: Queues, priorities: int, delay: float
    ) -> None:
        name = new_queue(queues, max_attempts=2, max_priority=priorities).name
        opened = other.queue(name)
        opened.publish("poison")
        for attempt in (1, 2):
            delivery = self.next(opened)
            assert delivery.attempts == attempt
            delivery.nack("failed", delay=delay)
            self.pass_time(queues, delay)
        assert self.until(opened.dead_letters)[0].cause == "attempts"
        assert opened.get(timeout=0.1) is None

    def test_an_opened_queue_refuses_an_oversize_message(self, queues: Queues, other: Queues) -> None:
        opened = other.open_queue(new_queue(queues, max_message_bytes=10).name)
        with pytest.raises(MessageTooLarge):
            opened.publish(b"x" * 11)

    def test_an_opened_queue_that_is_full_blocks(self, queues: Queues, other: Queues) -> None:
        opened = other.open_queue(new_queue(queues, max_length=2, overflow="block").name)
        with pytest.raises(QueueFull) as refused:
            for n in range(2 + _ABOUT):
                opened.publish(str(n), timeout=0.2)
        assert (refused.value.length_max, refused.value.waited_s) == (2, 0.2)

    def test_a_queue_that_was_declared_anew_is_opened_as_it_is_now(
        self, queues: Queues, other: Queues
    ) -> None:
        name = fresh("queue")
        queues.queue(name, max_attempts=2)
        assert other.open_queue(name).settings.max_attempts == 2
        queues.open_queue(name).delete()
        queues.queue(name, max_attempts=3)
        assert other.open_queue(name).settings.max_attempts == 3

    def test_what_differs_from_the_declaration_of_another_is_named(
        self, queues: Queues, other: Queues
    ) -> None:
        name = new_queue(queues, max_message_bytes=10, ttl="1 hour").name
        with pytest.raises(QueueDiffers) as differs:
            other.queue(name, max_message_bytes=20, ttl="1 hour")
        assert "max_message_bytes" in differs.value.message

    def test_queues_that_were_closed_give_and_take_nothing(self, queues: Queues) -> None:
        closed = self.reopen(queues)
        queue = closed.queue(new_queue(queues).name)
        closed.close()
        for asked in (lambda: queue.publish("late"), queue.get, queue.consume):
            with pytest.raises(StorageError, match="closed"):
                asked()
