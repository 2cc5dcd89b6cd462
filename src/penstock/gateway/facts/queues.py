"""Queues: how many messages wait, and what was given up."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import orjson

from penstock.gateway.handed import Handed
from penstock.log.json_rows import to_json
from penstock.queue.delivery import DeadLetter
from penstock.queue.message import TEXT


@dataclass(frozen=True, slots=True)
class QueueFacts:
    """None where the backend cannot tell."""

    name: str
    ready: int
    dead: int
    unacked: int | None
    delayed: int | None
    consumers: int | None
    settings: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Letter:
    """A message that was given up, and why. `body` is JSON, text, or `{"base64": …}`."""

    id: str
    key: str
    body: Any
    headers: dict[str, Any]
    cause: str
    reason: str
    attempts: int
    at: str


def all_of(handed: Handed) -> tuple[QueueFacts, ...]:
    return tuple(one_of(handed, name) for name in sorted(handed.queues.names())) if handed.exist else ()


def one_of(handed: Handed, name: str) -> QueueFacts:
    """Raises UnknownQueue."""
    queue = handed.queues.open_queue(name)
    stats = queue.stats()
    return QueueFacts(
        name, stats.ready, stats.dead, stats.unacked, stats.delayed, stats.consumers,
        json.loads(queue.settings.to_json()),
    )  # fmt: skip


def dead_of(handed: Handed, name: str, *, limit: int) -> tuple[Letter, ...]:
    """The oldest first. Raises UnknownQueue."""
    return tuple(_letter(letter) for letter in handed.queues.open_queue(name).dead_letters(limit))


def body_of(body: bytes, content_type: str) -> Any:
    """As JSON has it; JSON as it is, so that no number or depth of it is beyond what can be written."""
    if content_type == "application/json":
        with suppress(ValueError, RecursionError):
            json.loads(body.decode(), parse_constant=_not_json)
            return orjson.Fragment(body)
    if content_type == TEXT:
        with suppress(UnicodeDecodeError):
            return body.decode()
    return to_json(body)


def _not_json(word: str) -> None:
    raise ValueError(f"{word} is no JSON")


def _letter(letter: DeadLetter) -> Letter:
    message = letter.message
    return Letter(
        message.id, message.key, body_of(message.body, message.content_type), dict(message.headers),
        letter.cause, letter.reason, letter.attempts, str(to_json(letter.at)),
    )  # fmt: skip
