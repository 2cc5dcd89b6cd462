"""A message as it is published: bytes with a few words about them."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import isfinite
from typing import Any

from penstock.clock import duration_ms
from penstock.errors import BadOption, BadRecord

HeaderValue = str | int | float | bool
PRIORITY_MAX = 9
_PRIORITIES = range(PRIORITY_MAX + 1)
_WORD_BYTES_MAX = 255  # AMQP's short strings
_HEADERS_MAX = 100
_HEADER_BYTES_MAX = 32 << 10  # a RabbitMQ takes all headers in one frame of 128 KiB, ours among them
_DELAY_MS_MAX = 366 * 86_400_000
_TTL_MS_MAX = 1 << 40
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
        """The body as text. Raises BadRecord when it is none."""
        return as_text(self.body, self.id)


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
            content, key, dict(headers or {}), priority, id or _new_id(), content_type, correlation_id,
            reply_to, duration_ms(delay), None if ttl is None else duration_ms(ttl),
        )
    )  # fmt: skip


def several(bodies: Iterable[object]) -> list[Message]:
    """A message of each. Raises BadOption for a single one, whose letters are not meant."""
    if isinstance(bodies, str | bytes | bytearray | memoryview | Mapping | Message):
        raise BadOption(f"a {type(bodies).__name__} is one message.", hint="publish() it, or give a list")
    return [message(body) for body in bodies]


def checked(message: Message) -> Message:
    """The message with an id. Raises BadOption for what no backend takes."""
    for name, word in (
        ("key", message.key), ("id", message.id), ("correlation_id", message.correlation_id),
        ("reply_to", message.reply_to), ("content_type", message.content_type),
    ):  # fmt: skip
        if word != "" and _bytes_of(word, name) > _WORD_BYTES_MAX:
            raise BadOption(f"{name} has more than {_WORD_BYTES_MAX} bytes.", hint="put it into the body")
    body: object = message.body
    priority: object = message.priority
    if not isinstance(body, bytes):
        raise BadOption(
            f"the body of a Message is a {type(body).__name__}.", hint="give bytes; ps.message() makes them"
        )
    if not isinstance(priority, int) or priority not in _PRIORITIES:
        raise BadOption(f"priority={priority!r}.", hint=f"0 to {PRIORITY_MAX}; the highest goes first")
    check_delay(message.delay_ms)
    if message.ttl_ms is not None:
        _check_ttl(message.ttl_ms, message.delay_ms)
    if message.headers:
        check_headers(message.headers)
    return message if message.id else replace(message, id=_new_id())


def _new_id() -> str:
    return secrets.token_hex(16)


def check_delay(delay_ms: int) -> None:
    if not 0 <= delay_ms <= _DELAY_MS_MAX:
        raise BadOption(f"a delay of {delay_ms} ms.", hint="from 0 to 366 days")


def _check_ttl(ttl_ms: int, delay_ms: int) -> None:
    if ttl_ms <= delay_ms:
        raise BadOption(
            f"a ttl of {ttl_ms} ms ends a message that waits {delay_ms} ms before it begins.",
            hint="both count from publishing: choose a ttl that is longer than the delay",
        )
    if ttl_ms > _TTL_MS_MAX:
        raise BadOption(f"a ttl of {ttl_ms} ms.", hint="at most 34 years; leave it out for ever")


def check_headers(headers: Mapping[str, HeaderValue]) -> None:
    if len(headers) > _HEADERS_MAX:
        raise BadOption(
            f"{len(headers)} headers.", hint=f"at most {_HEADERS_MAX}; put the rest into the body"
        )
    for name, value in headers.items():
        if not 0 < _bytes_of(name, "the name of a header") <= _WORD_BYTES_MAX:
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
    size = sum(_bytes_of(f"{name}{value}", f"header {name!r}") for name, value in headers.items())
    if size > _HEADER_BYTES_MAX:
        hint = f"at most {_HEADER_BYTES_MAX:,}; put the rest into the body"
        raise BadOption(f"the headers have {size:,} bytes.", hint=hint)


def _bytes_of(word: object, name: str) -> int:
    """How many bytes a word has. Raises BadOption for what is none."""
    try:
        return len(word.encode())  # type: ignore[attr-defined]
    except (AttributeError, UnicodeEncodeError) as error:
        raise BadOption(f"{name} is no text: {word!r}.", hint="text that UTF-8 can say") from error


def parsed(body: bytes, id: str) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise BadRecord(
            f"message {id} is no JSON: {error}.", hint="read .body, or reject it as a dead letter"
        ) from error


def as_text(body: bytes, id: str) -> str:
    try:
        return body.decode()
    except UnicodeDecodeError as error:
        raise BadRecord(f"message {id} is no text: {error}.", hint="read .body, or reject it") from error


def _encoded(body: object) -> tuple[bytes, str]:
    if isinstance(body, bytes | bytearray | memoryview):
        return bytes(body), ""
    try:
        if isinstance(body, str):
            return body.encode(), TEXT
        return json.dumps(body, separators=(",", ":"), allow_nan=False).encode(), JSON
    except UnicodeEncodeError as error:
        raise BadRecord(f"this text cannot be said in UTF-8: {error}.", hint="pass bytes") from error
    except (TypeError, ValueError, RecursionError) as error:
        raise BadRecord(
            f"this body cannot be said in JSON: {error}.", hint="pass bytes, text, or plain lists and dicts"
        ) from error
