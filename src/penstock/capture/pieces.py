"""Rows of a cursor in pieces of bounded number and size: a row may be large, and so may a few thousand."""

from __future__ import annotations

import marshal
from collections.abc import Iterator
from typing import Any

BYTES_MAX = 32 << 20  # what they become takes several times that
_AT_ONCE_MAX = 128


def pieces(cursor: Any, rows_max: int, *, bytes_max: int = BYTES_MAX) -> Iterator[list[tuple[Any, ...]]]:
    """At most `rows_max` at a time, and fewer where they are large."""
    held: list[tuple[Any, ...]] = []
    size_bytes, at_once = 0, 1
    while some := cursor.fetchmany(min(at_once, rows_max - len(held))):
        some_bytes = len(marshal.dumps(some))  # far quicker than to ask each value
        held += some
        size_bytes += some_bytes
        at_once = min(2 * at_once, _AT_ONCE_MAX) if some_bytes < bytes_max // 8 else 1
        if len(held) >= rows_max or size_bytes >= bytes_max:
            yield held
            held, size_bytes = [], 0
    if held:
        yield held
