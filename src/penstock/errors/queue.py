"""What can go wrong with queues, their messages and deliveries."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

from penstock.errors.roots import BadInput, Contended


class UnknownQueue(BadInput):
    def __init__(self, queue: str, *, known: Iterable[str] = ()) -> None:
        self.queue = queue
        close = difflib.get_close_matches(queue, list(known), n=1)
        self.did_you_mean = close[0] if close else None
        hint = (
            f'did you mean "{self.did_you_mean}"?' if close else f'declare it first: queues.queue("{queue}")'
        )
        super().__init__(f'there is no queue "{queue}".', hint=hint)


class UnknownExchange(BadInput):
    def __init__(self, exchange: str, *, known: Iterable[str] = ()) -> None:
        self.exchange = exchange
        close = difflib.get_close_matches(exchange, list(known), n=1)
        self.did_you_mean = close[0] if close else None
        hint = (
            f'did you mean "{self.did_you_mean}"?'
            if close
            else f'declare it first: queues.exchange("{exchange}", kind)'
        )
        super().__init__(f'there is no exchange "{exchange}".', hint=hint)


class QueueDiffers(BadInput):
    """What is declared exists already, and is not the same."""

    def __init__(
        self, kind: str, name: str, differing: Iterable[str] = (), *, alterable: bool = False
    ) -> None:
        self.kind, self.name, self.differing = kind, name, tuple(differing)
        which = f" ({', '.join(self.differing)})" if self.differing else ""
        change = f'change it with queues.alter("{name}", ...), or ' if alterable else ""
        super().__init__(
            f'{kind} "{name}" exists with other settings{which}.',
            hint=f"{change}declare it as it is, take another name, or delete it first",
        )


class MessageTooLarge(BadInput):
    def __init__(self, queue: str, *, size_bytes: int, size_bytes_max: int) -> None:
        self.queue, self.size_bytes, self.size_bytes_max = queue, size_bytes, size_bytes_max
        super().__init__(
            f'a message of {size_bytes:,} bytes; queue "{queue}" takes at most {size_bytes_max:,}.',
            hint="store the large part elsewhere and send a reference, or raise max_message_bytes",
        )


class Unroutable(BadInput):
    def __init__(self, exchange: str, key: str) -> None:
        self.exchange, self.key = exchange, key
        super().__init__(
            f'no queue is bound to exchange "{exchange}" for the key {key!r}; nobody would get the message.',
            hint="bind a queue first, or say mandatory=False if nobody needs to get it",
        )


class UnknownDelivery(BadInput):
    def __init__(self, queue: str, message_id: str, outcome: str) -> None:
        self.queue, self.message_id, self.outcome = queue, message_id, outcome
        super().__init__(
            f'this delivery of message {message_id} from queue "{queue}" was settled before: {outcome}.',
            hint="settle each delivery once: ack, nack or reject",
        )


class QueueFull(Contended):
    """`count`: how many messages wanted to wait in it. `stored`: the ids of those that do all the same."""

    def __init__(
        self,
        queue: str,
        *,
        length_max: int | None = None,
        waited_s: float = 0.0,
        count: int = 1,
        stored: Sequence[str] = (),
    ) -> None:
        self.queue, self.length_max, self.waited_s, self.count = queue, length_max, waited_s, count
        self.stored = tuple(stored)
        if length_max is not None and count > length_max and not stored:
            super().__init__(
                f'queue "{queue}" takes at most {length_max:,} messages, and these are {count:,}; '
                "nothing was stored in it.",
                hint="publish fewer at once, or raise max_length",
            )
            return
        holds = f"its limit of {length_max:,} messages" if length_max is not None else "as many as it may"
        waited = f", also after {waited_s:g} s" if waited_s else ""
        what = f"{len(stored):,} of {count:,} messages were" if stored else "nothing was"
        super().__init__(
            f'queue "{queue}" holds {holds}{waited}; {what} stored in it.',
            hint='try again later, add consumers, raise max_length, or choose overflow="drop_oldest"',
        )


class DeliveryExpired(Contended):
    def __init__(self, queue: str, message_ids: Iterable[str], reason: str) -> None:
        self.queue, self.message_ids, self.reason = queue, tuple(message_ids), reason
        listed = ", ".join(self.message_ids[:5]) + (", ..." if len(self.message_ids) > 5 else "")
        super().__init__(
            f'message {listed} of queue "{queue}" is no longer yours: {reason}.',
            hint="it is delivered again; take a longer lease, or extend() it while you work",
        )


class NoReply(Contended):
    def __init__(self, queue: str, message_id: str, *, waited_s: float) -> None:
        self.queue, self.message_id, self.waited_s = queue, message_id, waited_s
        super().__init__(
            f'nobody answered request {message_id} in queue "{queue}" within {waited_s:g} s.',
            hint="is a consumer running? It may have been handled all the same: make it safe to ask again",
        )
