"""The queues that an app declares: opened, and created, when one of them is first used."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from penstock.errors import BadDefinition, BadOption
from penstock.queue.opening import is_amqp, open_queues
from penstock.queue.queue import Queue
from penstock.queue.settings import QueueSettings, queue_settings

if TYPE_CHECKING:
    from penstock.app.app import App
    from penstock.queue.queues import Queues


class DeclaredQueues:
    """Thread-safe. In tests, which have the app elsewhere, the queues are in the folder of the test."""

    def __init__(self, app: App, address: str | None) -> None:
        if address is not None and not is_amqp(address):
            raise BadOption(
                "the queues of an app are under its home or on a RabbitMQ.", hint='queues="amqp://host"'
            )
        self._app, self._address = app, address
        self._declared: dict[str, QueueSettings] = {}
        self._said: dict[str, str] = {}
        self._opened: tuple[str, Queues] | None = None
        self._mutex = threading.RLock()

    def declare(self, name: str, options: Mapping[str, Any], *, doc: str = "") -> Queue:
        if name in self._declared:
            raise BadDefinition(
                f'queue "{name}" is declared twice in app "{self._app.name}".', hint="rename one of them"
            )
        settings = self._declared[name] = queue_settings(name, **options)
        self._said[name] = doc
        with self._mutex:
            if self._opened is not None:
                self._opened[1].port.declare_queue(settings)
        return Queue(name, self.opened)

    def said_of(self, name: str) -> str:
        """The sentence it was declared with, if any."""
        return self._said.get(name, "")

    @property
    def is_on_server(self) -> bool:
        return self._address is not None and not self._app.is_elsewhere

    def opened(self) -> Queues:
        """With every declared queue in it."""
        with self._mutex:
            wanted = self._address if self._address and self.is_on_server else str(self._app.home)
            if self._opened is not None and self._opened[0] != wanted:
                self.close()
            if self._opened is None:
                queues = open_queues(wanted)
                try:
                    for settings in self._declared.values():
                        queues.port.declare_queue(settings)
                except BaseException:
                    queues.close()
                    raise
                self._opened = wanted, queues
            return self._opened[1]

    def close(self) -> None:
        with self._mutex:
            opened, self._opened = self._opened, None
        if opened is not None:
            opened[1].close()
