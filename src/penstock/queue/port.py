"""The queue port: what every backend keeps; see `penstock.queue` for the promises in words.

`penstock.testing.QueueContract` is its definition in tests.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from penstock.queue.delivery import DeadLetter, Delivery
from penstock.queue.message import Message
from penstock.queue.settings import Binding, ExchangeKind, QueueSettings

Acks = Literal["each", "together"]
Wanted = Callable[[DeadLetter], bool]
Edit = Callable[[DeadLetter], Message]


@dataclass(frozen=True, slots=True)
class QueueStats:
    """How many messages there are. None where the backend cannot tell."""

    queue: str
    ready: int
    dead: int
    unacked: int | None = None
    delayed: int | None = None
    consumers: int | None = None


@dataclass(frozen=True, slots=True)
class ConsumerOptions:
    """`prefetch`: how many messages are held ready here; None fetches no more than was asked for.

    `acks="together"` lets acks wait a few milliseconds for each other.
    """

    prefetch: int | None
    lease_ms: int
    acks: Acks = "each"


class ConsumerPort(Protocol):
    """One consumer. Thread-safe."""

    @property
    def port(self) -> QueuePort: ...

    def receive(self, limit: int, timeout_s: float) -> list[Delivery]:
        """Up to `limit` messages, without waiting for more than the first; none when time is up.

        Never one that is delayed, or that was settled and not requeued; nor one that is expired, but for
        what a RabbitMQ had sent ahead by then. Several threads may ask.
        """

    def ack(self, deliveries: Sequence[Delivery]) -> None:
        """Remove them. Raises DeliveryExpired if some were lost; the others are removed."""

    def nack(self, deliveries: Sequence[Delivery], *, reason: str, delay_ms: int) -> None:
        """Back into the queue, or to the dead letters after the last attempt. Raises as `ack`."""

    def reject(self, deliveries: Sequence[Delivery], *, reason: str) -> None:
        """To the dead letters, or away where the queue keeps none. Raises as `ack`."""

    def extend(self, deliveries: Sequence[Delivery]) -> None:
        """Begin their leases anew. Raises as `ack`."""

    def flush(self) -> None:
        """Acks that wait for others are done on return."""

    def close(self) -> None:
        """Flush; what is not settled goes back to the queue."""


class QueuePort(Protocol):
    """A broker. Thread-safe."""

    capabilities: frozenset[str]

    def declare_queue(self, settings: QueueSettings) -> None:
        """Create it. One that is the same already is fine; raises QueueDiffers for another."""

    def declare_reply_queue(self, name: str) -> None:
        """A queue that goes with this port when it is closed or its process dies."""

    def alter_queue(self, settings: QueueSettings) -> None:
        """With the capability `alter`. Raises UnknownQueue."""

    def queue_settings(self, name: str) -> QueueSettings:
        """Raises UnknownQueue. Without `listing` only what was declared through this port is exact."""

    def delete_queue(self, name: str) -> None:
        """With all its messages, dead letters and bindings. Raises UnknownQueue."""

    def queues(self) -> list[str]:
        """With the capability `listing`."""

    def declare_exchange(self, name: str, kind: ExchangeKind) -> None:
        """Raises QueueDiffers when there is one of another kind."""

    def exchange_kind(self, name: str) -> ExchangeKind:
        """Raises UnknownExchange. Without `listing`, for what was declared through this port."""

    def delete_exchange(self, name: str) -> None:
        """Raises UnknownExchange."""

    def exchanges(self) -> list[str]:
        """With the capability `listing`."""

    def bind(self, binding: Binding) -> None:
        """Once, however often it is asked for. Raises UnknownQueue, UnknownExchange, BadPattern."""

    def unbind(self, binding: Binding) -> None: ...

    def bindings(self) -> list[Binding]:
        """With the capability `listing`."""

    def publish(self, queue: str, messages: Sequence[Message], *, timeout_s: float) -> None:
        """Durable on return. `timeout_s` bounds the wait of `overflow="block"`.

        Raises UnknownQueue, QueueFull, MessageTooLarge; Unreachable when they may be stored or not.
        """

    def publish_to_exchange(
        self, exchange: str, messages: Sequence[Message], *, mandatory: bool, timeout_s: float
    ) -> None:
        """As `publish`, to every bound queue. `mandatory`: raises Unroutable where there is none."""

    def reply(self, queue: str, message: Message) -> bool:
        """Publish to a reply queue; False, or lost without a word, when nobody waits there any more."""

    def consumer(self, queue: str, options: ConsumerOptions) -> ConsumerPort:
        """Raises UnknownQueue."""

    def stats(self, queue: str) -> QueueStats: ...

    def purge(self, queue: str) -> int:
        """Remove what is ready (and delayed, where the backend can); how many they were."""

    def dead_letters(self, queue: str, limit: int) -> list[DeadLetter]:
        """The oldest first; they stay where they are."""

    def redrive(self, queue: str, *, to: str, wanted: Wanted, edit: Edit, limit: int | None) -> int:
        """Publish dead letters anew, edited, with no attempts, and remove them. How many they were."""

    def purge_dead(self, queue: str, wanted: Wanted) -> int:
        """Remove dead letters for good; how many they were."""

    def close(self) -> None:
        """Consumers are closed too."""
