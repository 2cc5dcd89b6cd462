"""Request and reply over queues."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from penstock.errors import BadOption, NoReply
from penstock.queue.queue import Queue
from penstock.queue.queues import Queues
from penstock.testing.queue_contract.backend import Backend, new_queue


class Requests(Backend):
    def _serve(self, queue: Queue, count: int) -> None:
        with queue.consume(prefetch=10) as consumer:
            for _ in range(count):
                asked = self.next(consumer)
                assert asked.reply(asked.text.upper())
                asked.ack()

    def test_a_request_gets_its_own_reply(self, queues: Queues, other: Queues) -> None:
        queue = new_queue(queues)
        served = other.open_queue(queue.name)
        server = threading.Thread(target=self._serve, args=(served, 8))
        server.start()
        with ThreadPoolExecutor(4) as pool:
            asked = [f"word {n}" for n in range(8)]
            answers = pool.map(lambda word: queue.request(word, timeout=self.patience_s).text, asked)
            assert list(answers) == [word.upper() for word in asked]
        server.join(self.patience_s)

    def test_a_request_that_nobody_answers_is_an_error_in_time(self, queues: Queues) -> None:
        queue = new_queue(queues)
        with pytest.raises(NoReply) as nobody:
            queue.request("hello", timeout=0.05)
        assert (nobody.value.queue, nobody.value.waited_s) == (queue.name, 0.05)

    def test_a_reply_to_somebody_who_is_gone_goes_nowhere(self, queues: Queues) -> None:
        queue = new_queue(queues)
        asking = self.reopen(queues)
        with pytest.raises(NoReply):
            asking.open_queue(queue.name).request("hello", timeout=0.3, ttl=60)
        asked = self.next(queue)
        asking.close()
        assert self.until(lambda: not asked.reply("too late"))

    def test_what_asks_for_no_reply_gets_none(self, queues: Queues) -> None:
        queue = new_queue(queues)
        queue.publish("hello")
        with pytest.raises(BadOption, match="no reply"):
            self.next(queue).reply("why")
