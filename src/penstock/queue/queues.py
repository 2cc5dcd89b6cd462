"""Queues and exchanges as programs use them: the same on every backend."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Self

from penstock.errors import NotSupported, UnknownQueue
from penstock.queue.exchange import Exchange
from penstock.queue.port import QueuePort
from penstock.queue.queue import Queue
from penstock.queue.request import Replies
from penstock.queue.settings import (
    Binding,
    ExchangeKind,
    changed,
    check_kind,
    check_queue_name,
    queue_settings,
)


class Queues:
    """The queues of a file or of a RabbitMQ. Thread-safe; a context manager. `ps.open_queues()` gives one."""

    def __init__(self, port: QueuePort) -> None:
        self.port = port
        self.replies = Replies(port)
        self._queues: dict[str, Queue] = {}
        self._mutex = threading.Lock()

    @property
    def capabilities(self) -> frozenset[str]:
        """What this backend keeps besides what all do; see `penstock.queue`."""
        return self.port.capabilities

    def require(self, *capabilities: str) -> None:
        """Raises NotSupported for what this backend lacks."""
        for wanted in capabilities:
            if wanted not in self.capabilities:
                raise NotSupported(
                    f'these queues do not offer "{wanted}".',
                    hint=f"they offer {', '.join(sorted(self.capabilities)) or 'nothing beyond the port'}; "
                    "queues in a file offer all of it",
                )

    def queue(self, name: str, **options: Any) -> Queue:
        """Declare a queue: it is created if there is none. Raises QueueDiffers if there is a different one.

        Without options, a queue that exists is taken as it is. They are `max_attempts`, `max_priority`,
        `max_length`, `overflow`, `ttl`, `max_message_bytes`, `dead_letters` and `single_active_consumer`.
        """
        settings = queue_settings(name, **options)
        if options or not self.has_queue(name):
            self.port.declare_queue(settings)
        return self._opened(name)

    def open_queue(self, name: str) -> Queue:
        """One that exists. Raises UnknownQueue."""
        check_queue_name("queue", name)
        self.port.queue_settings(name)
        return self._opened(name)

    def has_queue(self, name: str) -> bool:
        try:
            self.port.queue_settings(name)
        except UnknownQueue:
            return False
        return True

    def alter(self, name: str, **options: Any) -> Queue:
        """Change settings of a queue; with the capability `alter`."""
        self.require("alter")
        self.port.alter_queue(changed(self.port.queue_settings(name), options))
        return self._opened(name)

    def exchange(self, name: str, kind: ExchangeKind = "direct") -> Exchange:
        """Declare an exchange: "direct" (a key), "topic" (a pattern of keys) or "fanout" (everything)."""
        check_queue_name("exchange", name)
        check_kind(kind)
        self.port.declare_exchange(name, kind)
        return Exchange(self.port, name, kind)

    def open_exchange(self, name: str) -> Exchange:
        """One that exists. Raises UnknownExchange."""
        check_queue_name("exchange", name)
        return Exchange(self.port, name, self.port.exchange_kind(name))

    def names(self) -> list[str]:
        """All queues; with the capability `listing`."""
        self.require("listing")
        return self.port.queues()

    def exchanges(self) -> list[Exchange]:
        """All exchanges; with the capability `listing`."""
        self.require("listing")
        return [self.open_exchange(name) for name in self.port.exchanges()]

    def bindings(self) -> list[Binding]:
        """All bindings; with the capability `listing`."""
        self.require("listing")
        return self.port.bindings()

    def _opened(self, name: str) -> Queue:
        with self._mutex:
            if name not in self._queues:
                self._queues[name] = Queue(name, lambda: self)
            return self._queues[name]

    def close(self) -> None:
        with ExitStack() as rest:
            rest.callback(self.port.close)
            for queue in self._queues.values():
                rest.callback(queue.close)
            self.replies.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
