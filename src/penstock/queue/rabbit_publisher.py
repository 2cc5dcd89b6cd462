"""Publishing to a RabbitMQ with confirms: many at once, and the broker's word for each of them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Literal

import pika
from pika.channel import Channel

from penstock.errors import PenstockError, Unreachable
from penstock.queue.rabbit_link import Link, LinkLost, Prepare, Server

Word = Literal["stored", "refused", "returned"]
_CONNECT_FOR_S = 10.0
_PAUSE_S_MAX = 1.0
_AT_ONCE = 1_000
_NOT_FOUND = 404
Sent = tuple[str, str, str]
"""Exchange, route and message id: what the broker names when it returns a message."""


@dataclass(frozen=True, slots=True)
class Outgoing:
    """One message on its way. `route`: a queue, with the exchange ""."""

    exchange: str
    route: str
    properties: pika.BasicProperties
    body: bytes
    mandatory: bool = True

    @property
    def sent(self) -> Sent:
        return self.exchange, self.route, self.properties.message_id


class _Batch:
    """Messages of one call, until the broker has said something about each."""

    def __init__(self, size: int, future: Future[Any]) -> None:
        self.words: list[Word] = ["stored"] * size
        self.open = size
        self.future = future


class Publisher:
    """Thread-safe: the messages of all threads go over one channel, without waiting for each other."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._mutex = threading.Lock()
        self._link: Link | None = None
        self._closed = False
        self._next_tag = 1
        self._waiting: dict[int, tuple[_Batch, int, Sent]] = {}  # by the broker's tag
        self._last: dict[Sent, tuple[_Batch, int]] = {}  # of those sent alike, which share their fate

    def publish(self, messages: Sequence[Outgoing]) -> list[Word]:
        """The broker's word for each. Raises Unreachable when it is not known which are stored."""
        found: list[Word] = []
        for start in range(0, len(messages), _AT_ONCE):
            found += self._publish(messages[start : start + _AT_ONCE])
        return found

    def _publish(self, messages: Sequence[Outgoing]) -> list[Word]:
        link = self._open()
        try:
            words: list[Word] = link.call(lambda channel, future: self._send(channel, future, messages))
        except LinkLost as lost:
            if lost.code == _NOT_FOUND:
                raise
            raise Unreachable(
                self._server.label,
                f"the connection was lost before it confirmed {len(messages)} messages ({lost.text})",
                hint="they may be stored or not: publish again with the same ids, and let consumers ignore "
                "an id they know",
            ) from lost
        return words

    # ---- in the link's thread --------------------------------------------------------------------

    def _send(self, channel: Channel, future: Future[Any], messages: Sequence[Outgoing]) -> None:
        batch = _Batch(len(messages), future)
        for n, each in enumerate(messages):
            self._waiting[self._next_tag] = (batch, n, each.sent)
            self._last[each.sent] = (batch, n)
            self._next_tag += 1
            channel.basic_publish(each.exchange, each.route, each.body, each.properties, each.mandatory)

    def _prepare(self, link: Link, channel: Channel, ready: Callable[[], None]) -> None:
        self._next_tag = 1
        self._waiting.clear()
        self._last.clear()
        channel.add_on_return_callback(self._on_return)
        channel.confirm_delivery(self._on_confirm, callback=lambda _: ready())

    def _on_return(
        self, channel: Channel, method: Any, properties: pika.BasicProperties, body: bytes
    ) -> None:
        batch, n = self._last[method.exchange, method.routing_key, properties.message_id]
        batch.words[n] = "returned"

    def _on_confirm(self, frame: Any) -> None:
        method = frame.method
        refused = method.NAME == "Basic.Nack"
        tags = [method.delivery_tag]
        if method.multiple:
            tags = [tag for tag in self._waiting if tag <= method.delivery_tag]
        for tag in tags:
            batch, n, sent = self._waiting.pop(tag)
            if self._last.get(sent) == (batch, n):  # else one sent after it may still be returned
                del self._last[sent]
            if refused:
                batch.words[n] = "refused"
            batch.open -= 1
            if not batch.open and not batch.future.done():
                batch.future.set_result(batch.words)

    # ---- the connection --------------------------------------------------------------------------

    def _open(self) -> Link:
        with self._mutex:
            if self._closed:
                raise Unreachable(self._server.label, "these queues were closed", hint="open them anew")
            if self._link is not None and self._link.is_lost:
                self._link.close()
                self._link = None
            if self._link is None:
                self._link = connected(self._server, self._prepare, for_s=_CONNECT_FOR_S)
            return self._link

    def close(self) -> None:
        with self._mutex:
            self._closed = True
            link, self._link = self._link, None
        if link is not None:
            link.close()


def connected(server: Server, prepare: Prepare, *, for_s: float) -> Link:
    """A link, tried again for a while with growing pauses. Raises Unreachable or NotAllowed."""
    deadline, pause_s = time.monotonic() + for_s, 0.05
    while True:
        try:
            return Link(server, prepare)
        except Unreachable:
            if time.monotonic() + pause_s > deadline:
                raise
        except PenstockError:
            raise
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, _PAUSE_S_MAX)
