"""Numbers, sizes and times the way people read them."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from datetime import UTC, datetime

from penstock.errors import BadOption

NONE = "-"
_SIZES = ("B", "KiB", "MiB", "GiB", "TiB")
_SPANS = ((86_400, "d"), (3_600, "h"), (60, "min"))


def count(number: int, noun: str = "") -> str:
    """`1,204 records`, `1 record`."""
    if not noun:
        return f"{number:,}"
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def size(size_bytes: float) -> str:
    amount, unit = float(size_bytes), 0
    while amount >= 1024 and unit < len(_SIZES) - 1:
        amount, unit = amount / 1024, unit + 1
    shown = f"{amount:.0f}" if amount >= 100 else f"{amount:.1f}".removesuffix(".0")
    return f"{shown} {_SIZES[unit]}"


def span(seconds: float) -> str:
    """`3 h 12 min`, `4.2 s`, `180 ms`."""
    if seconds < 1:
        return "0 s" if seconds <= 0 else f"{seconds * 1000:.0f} ms" if seconds >= 0.001 else "under 1 ms"
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 and seconds != int(seconds) else f"{seconds:.0f} s"
    for at, (length, unit) in enumerate(_SPANS):
        if seconds >= length:
            whole, rest = divmod(int(seconds), length)
            finer = _SPANS[at + 1] if at + 1 < len(_SPANS) else (1, "s")
            part = rest // finer[0]
            return f"{whole} {unit} {part} {finer[1]}" if part and whole < 10 else f"{whole} {unit}"
    raise AssertionError(seconds)


def rate(number: int, seconds: float) -> str:
    return f"{number / max(seconds, 1e-6):,.0f}/s"


def ago(time_us: int | None) -> str:
    """How long since, in one unit: `3 min ago`."""
    if not time_us:
        return NONE
    seconds = max(datetime.now(UTC).timestamp() - time_us / 1e6, 0.0)
    if seconds < 2:
        return "now"
    length, unit = next(((length, unit) for length, unit in _SPANS if seconds >= length), (1, "s"))
    return f"{int(seconds // length)} {unit} ago"


def time_of(time_us: int | None) -> str:
    """Local time to the second, as a person at this machine would say it."""
    if not time_us:
        return NONE
    return datetime.fromtimestamp(time_us / 1e6).astimezone().strftime("%Y-%m-%d %H:%M:%S")


@functools.lru_cache(maxsize=128)  # records of one append share their time
def iso(time_us: int | None) -> str | None:
    """UTC, for programs."""
    if not time_us:
        return None
    seconds, micros = divmod(time_us, 1_000_000)
    return datetime.fromtimestamp(seconds, UTC).replace(microsecond=micros).isoformat().replace("+00:00", "Z")


def listed(numbers: Iterable[int]) -> str:
    """`0 to 3, 7`."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and runs[-1][1] == number - 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(f"{a}" if a == b else f"{a} and {b}" if b == a + 1 else f"{a} to {b}" for a, b in runs)


def parse_count(text: str) -> int:
    """
    >>> parse_count("10,000")
    10000
    """
    digits = text.replace(",", "").replace("_", "").strip()
    if not digits.isdecimal():
        raise BadOption(f"{text!r} is no number.", hint="write it like 100, or none")
    return int(digits)


_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(I?)B?", re.IGNORECASE)


def parse_size(text: str) -> int:
    """Bytes of `1048576`, `64 MiB` or `10GB`.

    >>> parse_size("64 MiB"), parse_size("10GB"), parse_size("512")
    (67108864, 10000000000, 512)
    """
    match = _SIZE.fullmatch(text.strip())
    if not match:
        raise BadOption(f"{text!r} is no size.", hint='write it like 1048576, "64 MiB" or 10GB')
    power = " KMGT".index(match[2].upper() or " ")
    return int(float(match[1]) * (1024 if match[3] else 1000) ** power)
