"""Which keys a binding takes: words between dots, `*` for one word, `#` for any number of them."""

from __future__ import annotations

from functools import lru_cache

from penstock.errors import BadPattern
from penstock.queue.settings import ExchangeKind

_BYTES_MAX = 255


def check_pattern(kind: ExchangeKind, pattern: str) -> None:
    """Raises BadPattern."""
    if len(pattern.encode()) > _BYTES_MAX:
        raise BadPattern(pattern, f"it has more than {_BYTES_MAX} bytes")
    if kind == "fanout" and pattern:
        raise BadPattern(pattern, "a fan-out exchange gives every message to every queue, whatever its key")
    if kind == "topic":
        for word in pattern.split("."):
            if len(word) > 1 and ("*" in word or "#" in word):
                raise BadPattern(pattern, f"* and # stand for whole words, and not inside {word!r}")


def matches(kind: ExchangeKind, pattern: str, key: str) -> bool:
    """Whether a message with that key goes through that binding.

    >>> matches("topic", "orders.*.paid", "orders.eu.paid"), matches("topic", "orders.#", "orders")
    (True, True)
    """
    if kind == "fanout":
        return True
    if kind == "direct":
        return pattern == key
    return _fits(_words(pattern), _words(key))


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split(".")) if text else ()


@lru_cache(maxsize=4_096)
def _fits(pattern: tuple[str, ...], key: tuple[str, ...]) -> bool:
    # Which prefixes of the pattern can stand for the words so far: linear in each word, whatever the pattern.
    reached = _past_hashes({0}, pattern)
    for word in key:
        steps = {at for at in reached if at < len(pattern) and pattern[at] == "#"}
        steps |= {at + 1 for at in reached if at < len(pattern) and pattern[at] in ("*", word)}
        reached = _past_hashes(steps, pattern)
    return len(pattern) in reached


def _past_hashes(reached: set[int], pattern: tuple[str, ...]) -> set[int]:
    found = set(reached)
    for at in sorted(reached):
        beyond = at
        while beyond < len(pattern) and pattern[beyond] == "#":
            beyond += 1
            found.add(beyond)
    return found
