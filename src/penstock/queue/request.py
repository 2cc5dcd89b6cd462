"""Request and reply: a question in one queue, its answer in another that goes with the one who asked."""

from __future__ import annotations

import threading
import time
import uuid
from dataclasses import replace

from penstock import fork
from penstock.errors import BadOption, NoReply
from penstock.fork import Forking
from penstock.queue.delivery import Delivery
from penstock.queue.message import Message
from penstock.queue.port import ConsumerOptions, ConsumerPort, QueuePort

_LEASE_MS = 60_000
_STEP_S = 0.5


class Replies(Forking):
    """The answers to what this program asked. Thread-safe: whoever waits first reads for all."""

    def __init__(self, port: QueuePort) -> None:
        self._port = port
        self.after_fork_in_child()
        fork.tell(self)

    def after_fork_in_child(self) -> None:
        self._changed = threading.Condition()
        self._waiting: dict[str, Message | None] = {}
        self._name = ""
        self._consumer: ConsumerPort | None = None
        self._reading = False

    def ask(self, queue: str, question: Message, *, timeout_s: float) -> Message:
        """Raises NoReply when no answer came within `timeout_s`."""
        if timeout_s <= 0:
            raise BadOption("a request without time for an answer.", hint="give it a timeout")
        self._open()
        deadline = time.monotonic() + timeout_s
        about = uuid.uuid4().hex
        with self._changed:
            self._waiting[about] = None
        ttl_ms = question.ttl_ms or max(1, round(timeout_s * 1_000)) + question.delay_ms
        asked = replace(question, reply_to=self._name, correlation_id=about, ttl_ms=ttl_ms)
        try:
            self._port.publish(queue, [asked], timeout_s=timeout_s)
            return self._answer(queue, asked, deadline, timeout_s)
        finally:
            with self._changed:
                del self._waiting[about]

    def _open(self) -> None:
        with self._changed:
            if self._consumer is None:
                self._name = f"reply-{uuid.uuid4().hex}"
                self._port.declare_reply_queue(self._name)
                self._consumer = self._port.consumer(self._name, ConsumerOptions(100, _LEASE_MS, "together"))

    def _answer(self, queue: str, asked: Message, deadline: float, timeout_s: float) -> Message:
        while True:
            left_s = deadline - time.monotonic()
            with self._changed:
                found = self._waiting[asked.correlation_id]
                if found is not None:
                    return found
                if left_s <= 0:
                    raise NoReply(queue, asked.id, waited_s=timeout_s)
                if self._reading:
                    self._changed.wait(min(left_s, _STEP_S))
                    continue
                self._reading = True
            self._read(min(left_s, _STEP_S))

    def _read(self, timeout_s: float) -> None:
        found: list[Delivery] = []
        try:
            assert self._consumer is not None
            found = self._consumer.receive(100, timeout_s)
            if found:
                self._consumer.ack(found)
        finally:
            with self._changed:
                for delivery in found:
                    if delivery.correlation_id in self._waiting:  # else whoever asked has given up
                        self._waiting[delivery.correlation_id] = delivery.message
                self._reading = False
                self._changed.notify_all()

    def close(self) -> None:
        with self._changed:
            consumer, self._consumer = self._consumer, None
        if consumer is not None:
            consumer.close()
