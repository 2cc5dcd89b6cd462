"""Messages as RabbitMQ carries them: what AMQP has no place for is in headers that begin with `penstock-`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import pika

from penstock.queue.delivery import Attempt, Cause, DeadLetter
from penstock.queue.message import HeaderValue, Message

KEY = "penstock-key"
ATTEMPTS = "penstock-attempts"  # deliveries before the broker began to count
HISTORY = "penstock-history"
_FLOATS = "penstock-floats"  # headers that pika cannot send: JSON
EXPIRES = "penstock-expires-us"  # of one that was delayed: the broker forgets its ttl on the way
_CAUSE = "penstock-cause"
_REASON = "penstock-reason"
_AT = "penstock-at-us"
_COUNT = "x-delivery-count"
_PERSISTENT = 2
_CAUSES: dict[str, Cause] = {
    "rejected": "rejected", "expired": "expired", "maxlen": "dropped", "delivery_limit": "attempts",
}  # fmt: skip


def properties_of(message: Message, extra: Mapping[str, HeaderValue] | None = None) -> pika.BasicProperties:
    """`extra`: headers of ours. A delayed message expires by a header, see EXPIRES."""
    headers: dict[str, HeaderValue] = {}
    headers |= {name: value for name, value in message.headers.items() if not isinstance(value, float)}
    if len(headers) < len(message.headers):
        floats = {name: value for name, value in message.headers.items() if name not in headers}
        headers[_FLOATS] = json.dumps(floats)
    headers |= {**({KEY: message.key} if message.key else {}), **(extra or {})}
    expires = message.ttl_ms is not None and not message.delay_ms
    return pika.BasicProperties(
        content_type=message.content_type or None,
        headers=headers or None,
        delivery_mode=_PERSISTENT,
        priority=message.priority or None,
        correlation_id=message.correlation_id or None,
        reply_to=message.reply_to or None,
        expiration=str(message.ttl_ms) if expires else None,
        message_id=message.id,
    )


def message_of(properties: pika.BasicProperties, body: bytes) -> Message:
    headers: Mapping[str, Any] = properties.headers or {}
    return Message(
        body,
        key=str(headers.get(KEY, "")),
        headers=_own_headers(headers),
        priority=properties.priority or 0,
        id=properties.message_id or "",
        content_type=properties.content_type or "",
        correlation_id=properties.correlation_id or "",
        reply_to=properties.reply_to or "",
    )


def _own_headers(headers: Mapping[str, Any]) -> dict[str, HeaderValue]:
    """Those of the program, without the broker's and ours."""
    own = {name: value for name, value in headers.items() if not name.startswith(("x-", "penstock-"))}
    return {**own, **json.loads(headers.get(_FLOATS, "{}"))}


def attempts_before(properties: pika.BasicProperties) -> int:
    """How often it was delivered before, as far as anybody has counted."""
    headers: Mapping[str, Any] = properties.headers or {}
    return int(headers.get(ATTEMPTS, 0)) + int(headers.get(_COUNT, 0))


def is_expired(properties: pika.BasicProperties, now_us: int) -> bool:
    expires_us = (properties.headers or {}).get(EXPIRES)
    return expires_us is not None and int(expires_us) <= now_us


def history_of(properties: pika.BasicProperties) -> list[list[Any]]:
    """The attempts that we could note: number, outcome, reason, microseconds."""
    text = (properties.headers or {}).get(HISTORY)
    found: list[list[Any]] = json.loads(text) if text else []
    return found


def tried(
    properties: pika.BasicProperties, number: int, outcome: str, reason: str, now_us: int
) -> dict[str, HeaderValue]:
    """Headers of a message that is published again after an attempt."""
    history = [*history_of(properties), [number, outcome, reason, now_us]][-100:]
    kept = {name: value for name in (EXPIRES,) if (value := (properties.headers or {}).get(name)) is not None}
    return {ATTEMPTS: number, HISTORY: json.dumps(history), **kept}


def buried(cause: Cause, reason: str, now_us: int) -> dict[str, HeaderValue]:
    """Headers of a dead letter that we publish ourselves."""
    return {_CAUSE: cause, _REASON: reason, _AT: now_us}


def letter_of(queue: str, properties: pika.BasicProperties, body: bytes) -> DeadLetter:
    headers: Mapping[str, Any] = properties.headers or {}
    noted = history_of(properties)
    history = tuple(Attempt(number, outcome, why, _moment(us)) for number, outcome, why, us in noted)
    cause, reason, at = _we_say(headers) if _CAUSE in headers else _broker_says(headers)
    attempts = int(headers.get(ATTEMPTS, 0)) or attempts_before(properties)
    return DeadLetter(queue, message_of(properties, body), cause, reason, attempts, at, history)


def _we_say(headers: Mapping[str, Any]) -> tuple[Cause, str, datetime | None]:
    return headers[_CAUSE], str(headers.get(_REASON, "")), _moment(int(headers[_AT]))


def _broker_says(headers: Mapping[str, Any]) -> tuple[Cause, str, datetime | None]:
    deaths = headers.get("x-death") or []
    if not deaths:
        return "rejected", "the broker does not say why", None
    said, at = str(deaths[0].get("reason")), deaths[0].get("time")
    moment = at.replace(tzinfo=UTC) if isinstance(at, datetime) else None
    return _CAUSES.get(said, "rejected"), f"the broker says: {said}", moment


def _moment(us: int) -> datetime:
    return datetime.fromtimestamp(us / 1_000_000, UTC)
