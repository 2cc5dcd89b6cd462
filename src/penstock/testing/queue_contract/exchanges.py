"""Exchanges: one publication to several queues."""

from __future__ import annotations

import pytest

from penstock.errors import BadOption, BadPattern, QueueDiffers, UnknownExchange, UnknownQueue, Unroutable
from penstock.queue.message import message
from penstock.queue.queues import Queues
from penstock.testing.queue_contract.backend import Backend, fresh, new_queue


class Exchanges(Backend):
    def test_fan_out_reaches_every_queue(self, queues: Queues) -> None:
        first, second = new_queue(queues), new_queue(queues)
        exchange = queues.exchange(fresh("news"), "fanout")
        exchange.bind(first)
        exchange.bind(second)
        sent = exchange.publish("hello", headers={"a": 1})
        for queue in (first, second):
            got = self.next(queue)
            assert (got.id, got.text, dict(got.headers)) == (sent, "hello", {"a": 1})
            got.ack()

    def test_direct_goes_by_the_key(self, queues: Queues) -> None:
        paid, sent = new_queue(queues), new_queue(queues)
        exchange = queues.exchange(fresh("orders"))
        exchange.bind(paid, "paid")
        exchange.bind(sent, "sent")
        exchange.publish_many([message("1", key="paid"), message("2", key="sent")])
        assert (self.bodies(paid, 1), self.bodies(sent, 1)) == (["1"], ["2"])

    @pytest.mark.parametrize(
        ("pattern", "taken"),
        [
            ("orders.*.paid", ["orders.eu.paid"]),
            ("orders.#", ["orders", "orders.eu.paid", "orders.eu.north.paid"]),
            ("#.paid", ["orders.eu.paid", "orders.eu.north.paid"]),
            ("#", ["orders", "orders.eu.paid", "orders.eu.north.paid", "users"]),
            ("*", ["orders", "users"]),
            ("orders.#.north.#", ["orders.eu.north.paid"]),
        ],
    )
    def test_topics_go_by_a_pattern_of_words(self, queues: Queues, pattern: str, taken: list[str]) -> None:
        queue, exchange = new_queue(queues), queues.exchange(fresh("events"), "topic")
        exchange.bind(queue, pattern)
        keys = ["orders", "orders.eu.paid", "orders.eu.north.paid", "users"]
        exchange.publish_many([message(key, key=key) for key in keys], mandatory=False)
        assert self.bodies(queue, len(taken)) == taken
        assert queue.get() is None

    def test_a_queue_that_two_bindings_name_gets_a_message_once(self, queues: Queues) -> None:
        queue, exchange = new_queue(queues), queues.exchange(fresh("events"), "topic")
        exchange.bind(queue, "a.*")
        exchange.bind(queue, "*.b")
        exchange.bind(queue, "*.b")
        exchange.publish("once", key="a.b")
        assert self.bodies(queue, 1) == ["once"]
        assert queue.get(timeout=0.1) is None

    def test_a_message_that_nobody_would_get_is_refused_unless_that_is_meant(self, queues: Queues) -> None:
        exchange = queues.exchange(fresh("events"))
        with pytest.raises(Unroutable) as refused:
            exchange.publish("lost", key="nobody")
        assert (refused.value.exchange, refused.value.key) == (exchange.name, "nobody")
        assert exchange.publish("lost", key="nobody", mandatory=False)

    def test_of_several_with_one_id_those_that_nobody_would_get_are_told(self, queues: Queues) -> None:
        queue, exchange = new_queue(queues), queues.exchange(fresh("events"))
        exchange.bind(queue, "known")
        for keys in (["nobody", "nobody"], ["nobody", "known"], ["known", "nobody"]):
            with pytest.raises(Unroutable) as refused:
                exchange.publish_many([message("lost", key=key, id="one") for key in keys])
            assert refused.value.key == "nobody"

    def test_an_unbound_queue_gets_no_more(self, queues: Queues) -> None:
        queue, exchange = new_queue(queues), queues.exchange(fresh("events"))
        exchange.bind(queue, "a")
        exchange.unbind(queue, "a")
        with pytest.raises(Unroutable):
            exchange.publish("lost", key="a")

    def test_what_is_unknown_is_refused(self, queues: Queues) -> None:
        exchange = queues.exchange(fresh("events"))
        with pytest.raises(UnknownExchange) as refused:
            queues.open_exchange(exchange.name[:-1])
        assert refused.value.did_you_mean == exchange.name
        with pytest.raises(UnknownQueue):
            exchange.bind(fresh("nothing"), "a")
        exchange.delete()
        with pytest.raises(UnknownExchange):
            exchange.publish("lost")

    def test_bad_patterns_and_kinds_are_refused(self, queues: Queues) -> None:
        queue, exchange = new_queue(queues), queues.exchange(fresh("events"), "topic")
        with pytest.raises(BadPattern, match="whole words"):
            exchange.bind(queue, "orders.eu*")
        with pytest.raises(BadPattern, match="every message"):
            queues.exchange(fresh("all"), "fanout").bind(queue, "a")
        with pytest.raises(BadOption, match="direct, topic, fanout"):
            queues.exchange(fresh("events"), "headers")  # type: ignore[arg-type]
        with pytest.raises(QueueDiffers):
            queues.exchange(exchange.name, "fanout")

    def test_an_exchange_that_exists_is_opened_with_its_kind(self, queues: Queues, other: Queues) -> None:
        exchange = queues.exchange(fresh("events"), "fanout")
        assert other.open_exchange(exchange.name).kind == "fanout"
