"""An exchange: one publication, several queues."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from penstock.clock import duration_ms
from penstock.queue.message import message, several
from penstock.queue.pattern import check_pattern
from penstock.queue.port import QueuePort
from penstock.queue.settings import Binding, ExchangeKind

if TYPE_CHECKING:
    from penstock.queue.queue import Queue

_ROOM_S = 30.0


class Exchange:
    """Thread-safe. A message goes to each queue that a binding names, once, and waits there by itself."""

    def __init__(self, port: QueuePort, name: str, kind: ExchangeKind) -> None:
        self._port, self.name, self.kind = port, name, kind

    def __repr__(self) -> str:
        return f"<Exchange {self.name} {self.kind}>"

    def bind(self, queue: str | Queue, pattern: str = "") -> None:
        """From now on messages whose key fits `pattern` also go to `queue`. Raises BadPattern."""
        check_pattern(self.kind, pattern)
        self._port.bind(Binding(self.name, queue if isinstance(queue, str) else queue.name, pattern))

    def unbind(self, queue: str | Queue, pattern: str = "") -> None:
        self._port.unbind(Binding(self.name, queue if isinstance(queue, str) else queue.name, pattern))

    def publish(
        self, body: object, *, mandatory: bool = True, timeout: str | float = _ROOM_S, **about: Any
    ) -> str:
        """Durable in every queue on return; gives the message's id. `about`: as of `queue.publish`.

        Raises Unroutable when no queue takes it; with `mandatory=False` it is then gone.
        """
        return self.publish_many([message(body, **about)], mandatory=mandatory, timeout=timeout)[0]

    def publish_many(
        self, bodies: Iterable[object], *, mandatory: bool = True, timeout: str | float = _ROOM_S
    ) -> list[str]:
        """Several at once, which costs little more than one."""
        messages = several(bodies)
        if messages:
            self._port.publish_to_exchange(
                self.name, messages, mandatory=mandatory, timeout_s=duration_ms(timeout) / 1_000
            )
        return [each.id for each in messages]

    def delete(self) -> None:
        """The queues and what is in them stay."""
        self._port.delete_exchange(self.name)
