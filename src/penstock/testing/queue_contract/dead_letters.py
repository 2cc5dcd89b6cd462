"""Dead letters: what was given up, why, and how it gets another chance."""

from __future__ import annotations

import pytest

from penstock.errors import BadOption, UnknownQueue
from penstock.queue.delivery import DeadLetter
from penstock.queue.queue import Queue
from penstock.queue.queues import Queues
from penstock.testing.queue_contract.backend import Backend, new_queue


class DeadLetters(Backend):
    def _reject_all(self, queue: Queue, *bodies: str) -> None:
        for body in bodies:
            queue.publish({"id": body}, key=body, headers={"h": body})
        for body in bodies:
            self.next(queue).reject(f"no {body}")
        assert self.until(lambda: queue.stats().dead == len(bodies))

    def test_a_rejected_message_is_a_dead_letter_with_its_reason(self, queues: Queues) -> None:
        queue = new_queue(queues)
        self._reject_all(queue, "a")
        (letter,) = queue.dead_letters()
        assert (letter.cause, letter.reason, letter.attempts) == ("rejected", "no a", 1)
        assert (letter.json(), letter.message.key, dict(letter.message.headers)) == (
            {"id": "a"},
            "a",
            {"h": "a"},
        )
        assert letter.at is not None
        assert [(attempt.number, attempt.outcome) for attempt in letter.history] == [(1, "rejected")]
        assert queue.get(timeout=0.1) is None

    def test_after_its_last_attempt_a_message_is_a_dead_letter(self, queues: Queues) -> None:
        queue = new_queue(queues, max_attempts=3)
        queue.publish("poison")
        for attempt in (1, 2, 3):
            got = self.next(queue)
            assert got.attempts == attempt
            got.nack(f"failed {attempt}")
        (letter,) = self.until(queue.dead_letters)
        assert (letter.cause, letter.reason, letter.attempts) == ("attempts", "failed 3", 3)
        assert queue.get(timeout=0.1) is None

    def test_with_delays_between_them_the_history_of_attempts_is_kept(self, queues: Queues) -> None:
        queue = new_queue(queues, max_attempts=3)
        queue.publish("poison")
        for attempt in (1, 2, 3):
            self.next(queue).nack(f"failed {attempt}", delay=self.moment_s / 10)
            self.pass_time(queues, self.moment_s / 10)
        (letter,) = self.until(queue.dead_letters)
        assert letter.attempts == 3
        assert [(attempt.number, attempt.reason) for attempt in letter.history] == [
            (1, "failed 1"), (2, "failed 2"), (3, "failed 3"),
        ]  # fmt: skip

    def test_a_message_that_kills_its_consumers_is_a_dead_letter_in_the_end(self, queues: Queues) -> None:
        queue = new_queue(queues, max_attempts=2)
        queue.publish("poison")
        for _ in range(2):
            doomed = self.reopen(queues)
            self.next(doomed.queue(queue.name, max_attempts=2).consume())
            self.crash(doomed)

        def given_up() -> bool:
            assert queue.get() is None
            return queue.stats().dead == 1

        assert self.until(given_up)
        (letter,) = self.until(queue.dead_letters)
        assert (letter.message.text, letter.cause) == ("poison", "attempts")

    def test_a_reason_may_be_long_and_no_text(self, queues: Queues) -> None:
        queue = new_queue(queues)
        queue.publish("job")
        self.next(queue).nack("busy" * 100_000, delay=0.01)
        self.pass_time(queues, 0.02)
        self.next(queue).reject("no file \udcff" + "é" * 100_000)
        (letter,) = self.until(queue.dead_letters)
        assert letter.reason.startswith("no file \\udcffé")
        assert len(letter.reason) < 2_000

    def test_looking_at_dead_letters_leaves_them(self, queues: Queues) -> None:
        queue = new_queue(queues)
        self._reject_all(queue, "a", "b", "c")
        assert [letter.json()["id"] for letter in queue.dead_letters(2)] == ["a", "b"]
        assert self.until(lambda: queue.stats().dead == 3)
        assert [letter.json()["id"] for letter in queue.dead_letters()] == ["a", "b", "c"]

    def test_a_letter_that_was_looked_at_often_is_still_there(self, queues: Queues) -> None:
        queue = new_queue(queues)
        self._reject_all(queue, "a")
        for _ in range(25):  # more often than a RabbitMQ hands a message out, if nobody says otherwise
            assert self.until(lambda: queue.stats().dead == 1)
            self.until(queue.dead_letters)

    def test_redriven_letters_are_new_messages(self, queues: Queues) -> None:
        queue = new_queue(queues)
        self._reject_all(queue, "a", "b")
        ids = [letter.id for letter in queue.dead_letters()]
        assert self.until(queue.redrive) == 2
        got = [self.next(queue), self.next(queue)]
        assert [(each.id, each.attempts, each.redelivered) for each in got] == [(id, 1, False) for id in ids]
        assert [each.json() for each in got] == [{"id": "a"}, {"id": "b"}]
        assert self.until(lambda: queue.stats().dead == 0)

    def test_letters_are_redriven_by_filter_and_with_an_edited_body(self, queues: Queues) -> None:
        queue = new_queue(queues)
        self._reject_all(queue, "a", "b", "c")

        def wanted(letter: DeadLetter) -> bool:
            return letter.message.key in ("a", "c")

        assert queue.redrive(wanted, edit=lambda letter: {**letter.json(), "mended": True}) == 2
        got = [self.next(queue), self.next(queue)]
        assert [each.json() for each in got] == [{"id": "a", "mended": True}, {"id": "c", "mended": True}]
        assert [dict(each.headers) for each in got] == [{"h": "a"}, {"h": "c"}]
        (left,) = self.until(queue.dead_letters)
        assert left.json() == {"id": "b"}

    def test_letters_are_redriven_elsewhere_and_only_so_many(self, queues: Queues) -> None:
        queue, target = new_queue(queues), new_queue(queues)
        self._reject_all(queue, "a", "b")
        assert queue.redrive("rejected", to=target, limit=1) == 1
        assert self.next(target).json() == {"id": "a"}
        assert queue.redrive("expired") == 0

    def test_nowhere_is_no_place_to_redrive_to(self, queues: Queues) -> None:
        with pytest.raises(UnknownQueue):
            new_queue(queues).redrive(to="nowhere")

    def test_a_cause_that_there_is_not_is_refused(self, queues: Queues) -> None:
        queue = new_queue(queues)
        with pytest.raises(BadOption, match="rejected"):
            queue.redrive("rejcted")  # type: ignore[arg-type]
        with pytest.raises(BadOption, match="rejected"):
            queue.purge_dead("rejcted")  # type: ignore[arg-type]
        with pytest.raises(BadOption):
            queue.redrive(limit=-1)

    def test_purged_letters_are_gone(self, queues: Queues) -> None:
        queue = new_queue(queues)
        self._reject_all(queue, "a", "b")
        assert queue.purge_dead(lambda letter: letter.message.key == "a") == 1
        assert self.until(lambda: queue.stats().dead == 1)

    def test_without_dead_letters_a_rejected_message_is_gone(self, queues: Queues) -> None:
        queue = new_queue(queues, dead_letters=False)
        queue.publish("job")
        self.next(queue).reject("no")
        assert queue.get(timeout=0.1) is None
        assert queue.dead_letters() == []
