"""Messages as RabbitMQ carries them: what AMQP has no place for is in headers that begin with `penstock-`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, TypeVar, get_args

import pika

from penstock.queue.delivery import Attempt, Cause, DeadLetter
from penstock.queue.message import HeaderValue, Message

T = TypeVar("T")
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
_HISTORY_BYTES_MAX = 32 << 10
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
    own = {
        name: value if isinstance(value, str | int | float | bool) else str(value)
        for name, value in headers.items()
        if not name.startswith(("x-", "penstock-"))
    }
    return {**own, **_parsed(headers, _FLOATS, dict)}


def _parsed(headers: Mapping[str, Any], name: str, kind: type[T]) -> T:
    """JSON of ours, or what is empty: another program may have put anything into a header."""
    try:
        found = json.loads(headers.get(name) or "null")
    except (ValueError, TypeError, RecursionError):
        found = None
    return found if isinstance(found, kind) else kind()


def _number(headers: Mapping[str, Any], name: str) -> int:
    value = headers.get(name)
    return value if isinstance(value, int) else 0


def attempts_before(properties: pika.BasicProperties) -> int:
    """How often it was delivered before, as far as anybody has counted."""
    headers: Mapping[str, Any] = properties.headers or {}
    return _number(headers, ATTEMPTS) + _number(headers, _COUNT)


def is_expired(properties: pika.BasicProperties, now_us: int) -> bool:
    expires_us = _number(properties.headers or {}, EXPIRES)
    return 0 < expires_us <= now_us


def history_of(properties: pika.BasicProperties) -> list[list[Any]]:
    """The attempts that we could note: number, outcome, reason, microseconds."""
    found = _parsed(properties.headers or {}, HISTORY, list)
    return [each for each in found if isinstance(each, list) and len(each) == 4 and isinstance(each[3], int)]


def tried(
    properties: pika.BasicProperties, number: int, outcome: str, reason: str, now_us: int
) -> dict[str, HeaderValue]:
    """Headers of a message that is published again after an attempt."""
    history = [*history_of(properties), [number, outcome, reason, now_us]][-100:]
    expires_us = _number(properties.headers or {}, EXPIRES)
    return {ATTEMPTS: number, HISTORY: _bounded(history), **({EXPIRES: expires_us} if expires_us else {})}


def _bounded(history: list[list[Any]]) -> str:
    """As JSON, without the oldest attempts if need be: all headers of a message have to fit into a frame."""
    said = json.dumps(history)
    while len(said) > _HISTORY_BYTES_MAX and len(history) > 1:
        history = history[len(history) // 4 + 1 :]
        said = json.dumps(history)
    return said


def buried(cause: Cause, reason: str, now_us: int) -> dict[str, HeaderValue]:
    """Headers of a dead letter that we publish ourselves."""
    return {_CAUSE: cause, _REASON: reason, _AT: now_us}


def letter_of(queue: str, properties: pika.BasicProperties, body: bytes) -> DeadLetter:
    headers: Mapping[str, Any] = properties.headers or {}
    noted = history_of(properties)
    history = tuple(Attempt(number, outcome, why, _moment(us)) for number, outcome, why, us in noted)
    cause, reason, at = _we_say(headers) if _CAUSE in headers else _broker_says(headers)
    attempts = _number(headers, ATTEMPTS) or attempts_before(properties)
    return DeadLetter(queue, message_of(properties, body), cause, reason, attempts, at, history)


def _we_say(headers: Mapping[str, Any]) -> tuple[Cause, str, datetime | None]:
    cause: Cause = headers[_CAUSE] if headers[_CAUSE] in get_args(Cause) else "rejected"
    return cause, str(headers.get(_REASON, "")), _moment(_number(headers, _AT))


def _broker_says(headers: Mapping[str, Any]) -> tuple[Cause, str, datetime | None]:
    deaths = headers.get("x-death")
    if not isinstance(deaths, list) or not deaths or not isinstance(deaths[0], dict):
        return "rejected", "the broker does not say why", None
    said, at = str(deaths[0].get("reason")), deaths[0].get("time")
    moment = at.replace(tzinfo=UTC) if isinstance(at, datetime) else None
    return _CAUSES.get(said, "rejected"), f"the broker says: {said}", moment


def _moment(us: int) -> datetime | None:
    try:
        return datetime.fromtimestamp(us / 1_000_000, UTC)
    except (ValueError, OverflowError, OSError):  # no number of ours
        return None
