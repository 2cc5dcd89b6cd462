"""A message as it is published: bytes with a few words about them."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import isfinite
from typing import Any

from penstock.clock import duration_ms
from penstock.errors import BadOption, BadRecord

HeaderValue = str | int | float | bool
PRIORITY_MAX = 9
_WORD_BYTES_MAX = 255  # AMQP's short strings
_HEADERS_MAX = 100
_DELAY_MS_MAX = 366 * 86_400_000
JSON = "application/json"
TEXT = "text/plain"


@dataclass(frozen=True, slots=True)
class Message:
    """What is published. `ps.message(...)` and `queue.publish(...)` make one from anything.

    `key` is the routing key of exchanges. `id` names the message through every delivery. A
    `delay_ms` keeps it back, a `ttl_ms` ends it: both count from the moment it is published.
    """

    body: bytes
    key: str = ""
    headers: Mapping[str, HeaderValue] = field(default_factory=dict)
    priority: int = 0
    id: str = ""
    content_type: str = ""
    correlation_id: str = ""
    reply_to: str = ""
    delay_ms: int = 0
    ttl_ms: int | None = None

    def json(self) -> Any:
        """The body as JSON. Raises BadRecord when it is none."""
        return parsed(self.body, self.id)

    @property
    def text(self) -> str:
        return self.body.decode()


def message(
    body: object,
    *,
    key: str = "",
    headers: Mapping[str, HeaderValue] | None = None,
    priority: int = 0,
    id: str | None = None,
    delay: str | float = 0,
    ttl: str | float | None = None,
    correlation_id: str = "",
    reply_to: str = "",
) -> Message:
    """A message from bytes, from text, or from anything that JSON can say.

    >>> message({"id": 7}).body
    b'{"id":7}'
    >>> message("hello", key="greeting").text
    'hello'
    """
    if isinstance(body, Message):
        return checked(body)
    content, content_type = _encoded(body)
    return checked(
        Message(
            content, key, dict(headers or {}), priority, id or "", content_type, correlation_id, reply_to,
            duration_ms(delay), None if ttl is None else duration_ms(ttl),
        )
    )  # fmt: skip


def checked(message: Message) -> Message:
    """The message with an id. Raises BadOption for what no backend takes."""
    words = {"key": message.key, "id": message.id, "correlation_id": message.correlation_id,
             "reply_to": message.reply_to, "content_type": message.content_type}  # fmt: skip
    for name, word in words.items():
        if _size_of(word) > _WORD_BYTES_MAX:
            raise BadOption(f"{name} has more than {_WORD_BYTES_MAX} bytes.", hint="put it into the body")
    if not 0 <= message.priority <= PRIORITY_MAX:
        raise BadOption(f"priority={message.priority}.", hint=f"0 to {PRIORITY_MAX}; the highest goes first")
    if not 0 <= message.delay_ms <= _DELAY_MS_MAX:
        raise BadOption(f"a delay of {message.delay_ms} ms.", hint="from 0 to 366 days")
    if message.ttl_ms is not None and message.ttl_ms <= message.delay_ms:
        raise BadOption(
            f"a ttl of {message.ttl_ms} ms ends a message that waits {message.delay_ms} ms before it begins.",
            hint="both count from publishing: choose a ttl that is longer than the delay",
        )
    if message.headers:
        check_headers(message.headers)
    return message if message.id else replace(message, id=uuid.uuid4().hex)


def check_headers(headers: Mapping[str, HeaderValue]) -> None:
    if len(headers) > _HEADERS_MAX:
        raise BadOption(
            f"{len(headers)} headers.", hint=f"at most {_HEADERS_MAX}; put the rest into the body"
        )
    for name, value in headers.items():
        if not 0 < _size_of(str(name)) <= _WORD_BYTES_MAX:
            raise BadOption(
                f"{name!r} is no name of a header.", hint=f"use 1 to {_WORD_BYTES_MAX} bytes of text"
            )
        if name.startswith("x-") or name.startswith("penstock-"):
            raise BadOption(
                f"header {name!r}: names that begin with x- or penstock- are the broker's.", hint="rename it"
            )
        is_large = isinstance(value, int) and not -(2**63) <= value < 2**63
        if is_large or (isinstance(value, float) and not isfinite(value)):
            raise BadOption(f"header {name!r} is {value}.", hint="a number of 64 bits, or a text")
        if not isinstance(value, str | int | float | bool):
            raise BadOption(
                f"header {name!r} is a {type(value).__name__}.", hint="text, a number or a truth value"
            )
        if isinstance(value, str):
            _size_of(value)


def _size_of(text: str) -> int:
    """Its bytes. Raises BadOption for half a character, which JSON can say and no backend can store."""
    try:
        return len(text.encode())
    except UnicodeEncodeError as error:
        raise BadOption(f"{text[:80]!r} is no text: {error.reason}.", hint="send whole characters") from None


def parsed(body: bytes, id: str) -> Any:
    try:
        return json.loads(body)
    except ValueError as error:
        raise BadRecord(
            f"message {id} is no JSON: {error}.", hint="read .body, or reject it as a dead letter"
        ) from error


def _encoded(body: object) -> tuple[bytes, str]:
    if isinstance(body, bytes | bytearray | memoryview):
        return bytes(body), ""
    try:
        if isinstance(body, str):
            return body.encode(), TEXT
        return json.dumps(body, separators=(",", ":"), allow_nan=False).encode(), JSON
    except (TypeError, ValueError, RecursionError) as error:
        raise BadRecord(
            f"this body cannot be said in JSON: {error}.", hint="pass bytes, text, or plain lists and dicts"
        ) from error
