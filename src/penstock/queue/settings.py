"""What queues and exchanges are declared with."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal, get_args

from penstock.clock import duration_ms
from penstock.errors import BadOption
from penstock.log.settings import check_name
from penstock.queue.message import PRIORITY_MAX

Overflow = Literal["drop_oldest", "reject", "block"]
ExchangeKind = Literal["direct", "topic", "fanout"]
ATTEMPTS_MAX = 1_000
_NAME_MAX = 200  # a backend adds an ending of its own
_RESERVED = (".dead", ".later", ".settings")


@dataclass(frozen=True, slots=True)
class QueueSettings:
    """Everything a queue is declared with. Times in milliseconds, None for no limit."""

    name: str
    max_attempts: int | None = 5  # deliveries before a message becomes a dead letter
    max_priority: int = 0  # a higher one counts as this; 0: priorities are not looked at
    max_length: int | None = None  # messages that wait; delayed and delivered ones do not count
    overflow: Overflow = "reject"
    ttl_ms: int | None = None
    max_message_bytes: int = 16 << 20
    dead_letters: bool = True
    single_active_consumer: bool = False

    def to_json(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> QueueSettings:
        return cls(**json.loads(text))

    def differing(self, other: QueueSettings) -> list[str]:
        """The names of the settings in which two declarations differ."""
        return [each.name for each in fields(self) if getattr(self, each.name) != getattr(other, each.name)]


@dataclass(frozen=True, slots=True)
class Binding:
    """Messages whose key fits `pattern` go from `exchange` to `queue`."""

    exchange: str
    queue: str
    pattern: str = ""


def queue_settings(name: str, **options: Any) -> QueueSettings:
    """Checked settings; durations as people write them. Raises BadName and BadOption."""
    check_queue_name("queue", name)
    return changed(QueueSettings(name), options)


def changed(settings: QueueSettings, options: Mapping[str, Any]) -> QueueSettings:
    """`settings` with some options replaced. Raises BadOption."""
    known = [each.name for each in fields(settings) if each.name not in ("name", "ttl_ms")] + ["ttl"]
    for option in options:
        if option not in known:
            close = difflib.get_close_matches(option, known, n=1)
            raise BadOption(
                f"a queue has no option {option}.",
                hint=f"did you mean {close[0]}?" if close else f"it has {', '.join(sorted(known))}",
            )
    given = dict(options)
    if "ttl" in given:
        ttl = given.pop("ttl")
        given["ttl_ms"] = None if ttl is None else duration_ms(ttl)
    return _checked(replace(settings, **given))


def check_queue_name(kind: str, name: object) -> None:
    check_name(kind, name)
    assert isinstance(name, str)
    if len(name) > _NAME_MAX or name.startswith("amq."):
        raise BadOption(
            f"{name!r} cannot be the name of a {kind}.", hint=f"at most {_NAME_MAX} characters, not amq.*"
        )
    if kind == "queue" and name.endswith(_RESERVED):
        raise BadOption(
            f'"{name}": names that end in {" or ".join(_RESERVED)} are kept for the queue before the dot.',
            hint="rename it",
        )


def check_kind(kind: str) -> None:
    if kind not in get_args(ExchangeKind):
        raise BadOption(f"kind={kind!r}.", hint=f"choose one of {', '.join(get_args(ExchangeKind))}")


def _checked(settings: QueueSettings) -> QueueSettings:
    limits: dict[str, tuple[object, int, int]] = {
        "max_attempts": (settings.max_attempts, 1, ATTEMPTS_MAX),
        "max_priority": (settings.max_priority, 0, PRIORITY_MAX),
        "max_length": (settings.max_length, 1, 1 << 31),
        "ttl": (settings.ttl_ms, 1, 1 << 40),
        "max_message_bytes": (settings.max_message_bytes, 1, 128 << 20),
    }
    for name, (value, least, most) in limits.items():
        if value is not None and (not isinstance(value, int) or not least <= value <= most):
            raise BadOption(f"{name}={value!r}.", hint=f"a number from {least:,} to {most:,}")
    for name in ("dead_letters", "single_active_consumer"):
        given: object = getattr(settings, name)
        if not isinstance(given, bool):
            raise BadOption(f"{name}={given!r}.", hint="True or False")
    if settings.overflow not in get_args(Overflow):
        raise BadOption(
            f"overflow={settings.overflow!r}.", hint=f"choose one of {', '.join(get_args(Overflow))}"
        )
    return settings
