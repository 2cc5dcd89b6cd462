"""A message in a consumer's hands, and one that was given up."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal

from penstock.clock import duration_ms
from penstock.errors import BadOption, DeliveryExpired, UnknownDelivery
from penstock.queue.message import HeaderValue, Message, as_text, check_delay, message, parsed

if TYPE_CHECKING:
    from penstock.queue.port import ConsumerPort

Cause = Literal["rejected", "expired", "attempts", "dropped"]
Outcome = Literal["", "acked", "requeued", "rejected", "closed"]
_REASON_CHARACTERS_MAX = 1_000


@dataclass(slots=True, eq=False)
class Delivery:
    """One delivery of a message, to be settled once: `ack`, `nack` or `reject`.

    `attempts` counts the deliveries of this message, this one included. `redelivered` says that it was, or
    may have been, delivered before. `token` is what the backend knows this delivery by.
    """

    queue: str
    body: bytes
    key: str
    id: str
    priority: int
    attempts: int
    redelivered: bool
    headers: Mapping[str, HeaderValue]
    content_type: str
    correlation_id: str
    reply_to: str
    sequence: int | None
    published_us: int | None
    token: Any = field(repr=False)
    _consumer: ConsumerPort = field(repr=False)
    outcome: Outcome = ""

    def json(self) -> Any:
        """The body as JSON. Raises BadRecord when it is none."""
        return parsed(self.body, self.id)

    @property
    def text(self) -> str:
        """The body as text. Raises BadRecord when it is none."""
        return as_text(self.body, self.id)

    def ack(self) -> None:
        """Done: the message is gone. Raises DeliveryExpired when the lease ended before."""
        self.settle("acked")
        try:  # as `settling` does, without its cost: this is for every message
            self._consumer.ack([self])
        except DeliveryExpired:
            raise
        except BaseException:
            self.outcome = ""
            raise

    def nack(self, reason: str = "", *, delay: str | float = 0) -> None:
        """Not done: deliver it again, after `delay`; a dead letter if this was the last attempt."""
        delay_ms = duration_ms(delay)
        check_delay(delay_ms)
        with self.settling("requeued"):
            self._consumer.nack([self], reason=_storable(reason), delay_ms=delay_ms)

    def reject(self, reason: str = "") -> None:
        """Cannot be done: a dead letter, without further attempts."""
        with self.settling("rejected"):
            self._consumer.reject([self], reason=_storable(reason))

    def extend(self) -> None:
        """Begin the lease anew. Raises DeliveryExpired when it has ended."""
        self._check_open()
        self._consumer.extend([self])

    def reply(self, body: object) -> bool:
        """Answer a request, which is then to be acked. False when nobody waits for an answer any more."""
        if not self.reply_to:
            raise BadOption(
                f"message {self.id} asks for no reply.", hint="it was published, and not by queue.request"
            )
        answer = replace(message(body), correlation_id=self.correlation_id)
        return self._consumer.port.reply(self.reply_to, answer)

    @contextmanager
    def settling(self, outcome: Outcome) -> Iterator[None]:
        """Settle it, unless the backend could not: then it can be tried again while the lease lasts."""
        self.settle(outcome)
        try:
            yield
        except DeliveryExpired:
            raise
        except BaseException:
            self.outcome = ""
            raise

    def settle(self, outcome: Outcome) -> None:
        """Note what becomes of it. Raises UnknownDelivery for one that was settled before."""
        self._check_open()
        self.outcome = outcome

    def _check_open(self) -> None:
        if self.outcome:
            raise UnknownDelivery(self.queue, self.id, self.outcome)

    @property
    def message(self) -> Message:
        """The message again, to be published elsewhere."""
        return Message(
            self.body, self.key, self.headers, self.priority, self.id, self.content_type,
            self.correlation_id, self.reply_to,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Attempt:
    """How one delivery ended without an ack. `at` is None where the broker does not say."""

    number: int
    outcome: str
    reason: str = ""
    at: datetime | None = None


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message that was given up: what it was, why, and what was tried."""

    queue: str
    message: Message
    cause: Cause
    reason: str
    attempts: int
    at: datetime | None
    history: tuple[Attempt, ...] = ()

    @property
    def id(self) -> str:
        return self.message.id

    def json(self) -> Any:
        """The body as JSON. Raises BadRecord when it is none."""
        return self.message.json()


def _storable(reason: str) -> str:
    """Often what an error says, which may be long, or name a file that is no text."""
    return str(reason)[:_REASON_CHARACTERS_MAX].encode(errors="backslashreplace").decode()
