"""What queues should do, as a small model, and a machine that compares them with it step by step.

The model knows for every message what may become of it next. Where a backend goes by its own clock (a real
broker), a lease or a ttl may be over a little earlier or later than the model thinks: then both are right.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import hypothesis.strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from penstock.errors import DeliveryExpired
from penstock.queue.delivery import Delivery
from penstock.queue.queue import Queue
from penstock.queue.queues import Queues
from penstock.testing.queue_contract.backend import fresh

MAX_ATTEMPTS = 2
MAX_PRIORITY = 3
_FOR_EVER = float("inf")

State = Literal["ready", "held", "delayed", "dead", "gone"]


@dataclass(slots=True)
class Modelled:
    """One message as the model sees it. Times in seconds of the machine's clock."""

    id: str
    number: int
    priority: int
    state: State
    attempts: int = 0
    ends: float = _FOR_EVER  # its ttl
    until: float = _FOR_EVER  # its delay or its lease
    client: int = -1


class QueueMachine(RuleBasedStateMachine):
    """A backend's machine says how to open, to crash and to let time pass."""

    is_exact: ClassVar[bool] = True
    moment_s: ClassVar[float] = 1.0  # a lease, a ttl and a delay
    patience_s: ClassVar[float] = 0.0
    priorities: ClassVar[int] = MAX_PRIORITY

    def __init__(self) -> None:
        super().__init__()
        self.messages: dict[str, Modelled] = {}
        self.held: list[tuple[Delivery, Modelled]] = []
        self.stale: list[Delivery] = []  # whose lease is over
        self.clients = [self.opened(), self.opened()]
        self.name = fresh("model")
        self.options = {"max_attempts": MAX_ATTEMPTS, "max_priority": self.priorities}
        self.queues = [client.queue(self.name, **self.options) for client in self.clients]
        self.consumers = [self.consumer(queue) for queue in self.queues]

    def opened(self) -> Queues:
        raise AssertionError("a backend's machine opens its queues")

    def crashed(self, client: Queues) -> None:
        raise AssertionError("a backend's machine ends a client without a word")

    def now(self) -> float:
        raise AssertionError("a backend's machine has a clock")

    def wait(self, seconds: float) -> None:
        raise AssertionError("a backend's machine lets time pass")

    def consumer(self, queue: Queue) -> Any:
        return queue.consume(prefetch=1, lease=self.moment_s)

    # ---- what is done ----------------------------------------------------------------------------

    @rule(
        priority=st.integers(0, MAX_PRIORITY),
        ttl=st.booleans(),
        delay=st.booleans(),
        client=st.integers(0, 1),
    )
    def publish(self, priority: int, ttl: bool, delay: bool, client: int) -> None:
        began = self.now()
        lives_s, waits_s = (3 * self.moment_s if ttl else None), (self.moment_s if delay else 0)
        id = self.queues[client].publish(
            str(len(self.messages)), priority=priority, ttl=lives_s, delay=waits_s
        )
        self.messages[id] = Modelled(
            id, len(self.messages), min(priority, self.priorities), "delayed" if delay else "ready",
            ends=began + lives_s if lives_s else _FOR_EVER, until=began + waits_s,
        )  # fmt: skip

    @rule(client=st.integers(0, 1))
    def get(self, client: int) -> None:
        if any(each.client == client for _, each in self.held):
            return  # a consumer that holds one message, its prefetch, gets no other
        delivery = self.consumers[client].get(timeout=self.patience_s)
        self.settle_time()
        ready = [each for each in self.messages.values() if each.state == "ready"]
        if delivery is None:
            assert not ready or not self.is_exact
            return
        found = self.messages[delivery.id]
        assert found.state not in ("gone", "dead"), f"message {found.number} was {found.state}"
        if self.is_exact:
            assert found is min(ready, key=lambda each: (-each.priority, each.number))
            assert delivery.attempts == found.attempts + 1
        assert delivery.attempts <= MAX_ATTEMPTS
        found.state, found.attempts, found.client = "held", delivery.attempts, client
        found.until = self.now() + self.moment_s
        self.held.append((delivery, found))

    # No precondition: a broker may be slower the next time, and the same rules have to be there then.
    @rule(which=st.integers(0, 9), how=st.sampled_from(["ack", "ack", "nack", "later", "reject", "extend"]))
    def settle(self, which: int, how: str) -> None:
        if not self.held:
            return
        delivery, found = self.held[which % len(self.held)]
        acts = {"later": lambda: delivery.nack("later", delay=self.moment_s)}
        try:
            acts.get(how, getattr(delivery, how, None) or delivery.ack)()
        except DeliveryExpired:
            assert self.now() >= found.until or not self.is_exact, "refused within its lease"
            self.held.remove((delivery, found))
            self._returned(found)
            return
        assert self.now() < found.until or not self.is_exact, "taken after its lease"
        if how == "extend":
            found.until = self.now() + self.moment_s
            return
        self.held.remove((delivery, found))
        if how == "ack":
            found.state = "gone"
        elif how == "reject":
            found.state = "dead"
        else:
            self._returned(found, delay_s=self.moment_s if how == "later" else 0)

    @rule(client=st.integers(0, 1))
    def fail(self, client: int) -> None:
        self.get(client)
        for n, (_, found) in enumerate(self.held):
            if found.client == client:
                self.settle(n, "nack")
                return

    @rule(client=st.integers(0, 1), how=st.sampled_from(["ack", "nack", "reject", "extend"]))
    def take_too_long(self, client: int, how: str) -> None:
        self.get(client)
        self.wait(self.moment_s)
        self.settle_time()
        while self.stale:
            delivery = self.stale.pop()
            try:
                getattr(delivery, how)()
            except DeliveryExpired:
                continue
            raise AssertionError("taken after its lease")

    @rule(halves=st.integers(1, 3))
    def pass_time(self, halves: int) -> None:
        self.wait(halves * self.moment_s / 2)
        self.settle_time()

    @rule(client=st.integers(0, 1), crash=st.booleans())
    def end(self, client: int, crash: bool) -> None:
        """A process is killed, or it ends, and starts again."""
        if crash:
            self.crashed(self.clients[client])
        else:
            self.clients[client].close()
        self._reopened(client)

    def _reopened(self, client: int) -> None:
        self.wait(self.moment_s / 4)
        self.clients[client] = self.opened()
        self.queues[client] = self.clients[client].queue(self.name, **self.options)
        self.consumers[client] = self.consumer(self.queues[client])
        self.stale.clear()
        for pair in [pair for pair in self.held if pair[1].client == client]:
            self.held.remove(pair)
            self._returned(pair[1])
        self.settle_time()

    # ---- what should follow ----------------------------------------------------------------------

    def _returned(self, found: Modelled, delay_s: float = 0) -> None:
        found.client = -1
        if found.attempts >= MAX_ATTEMPTS or self.now() >= found.ends:
            found.state = "dead" if self.is_exact else found.state
        if found.state == "held":
            found.state = "delayed" if delay_s else "ready"
            found.until = self.now() + delay_s

    def settle_time(self) -> None:
        """What the passing of time does to messages that nobody touches."""
        if not self.is_exact:
            return
        for pair in [pair for pair in self.held if self.now() >= pair[1].until]:
            self.held.remove(pair)
            self.stale.append(pair[0])
            self._returned(pair[1])
        for each in self.messages.values():
            if each.state == "delayed" and self.now() >= each.until:
                each.state = "ready"
            if each.state == "ready" and self.now() >= each.ends:
                each.state = "dead"

    def teardown(self) -> None:
        """Whatever is left is delivered or a dead letter, and nothing else is."""
        try:
            self._drain()
        finally:
            for client in self.clients:
                client.close()

    def _drain(self) -> None:
        for _, found in list(self.held):
            self._returned(found)
        self.held.clear()
        for client in self.clients[1:]:
            client.close()
        self.consumers[0].close()
        left = {each.id for each in self.messages.values() if each.state != "gone"}
        queue, seen = self.queues[0], set[str]()
        deadline = time.monotonic() + 60
        while left != seen:
            self.wait(self.moment_s / 4)
            for delivery in queue.get_many(100):
                seen.add(delivery.id)
                delivery.ack()
            seen |= {letter.id for letter in queue.dead_letters(1_000)}
            assert seen <= left, "delivered after its ack"
            assert time.monotonic() < deadline, (
                f"lost: {sorted(self.messages[id].number for id in left - seen)}"
            )
        queue.delete()
