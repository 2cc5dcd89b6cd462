"""Clocks, passed in so that tests can own time; durations; the three-timestamp correction."""

from __future__ import annotations

import math
import re
import time
from dataclasses import dataclass
from typing import Protocol

from penstock.errors import BadOption

_UNITS_MS = {
    "millisecond": 1,
    "ms": 1,
    "second": 1_000,
    "s": 1_000,
    "minute": 60_000,
    "m": 60_000,
    "hour": 3_600_000,
    "h": 3_600_000,
    "day": 86_400_000,
    "d": 86_400_000,
    "week": 604_800_000,
    "w": 604_800_000,
}
_DURATION = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]+)\s*", re.IGNORECASE)


class Clock(Protocol):
    """Two clocks: wall time labels records, monotonic time measures waits and leases."""

    def now_us(self) -> int:
        """Microseconds since 1970 UTC; may jump."""

    def monotonic(self) -> float:
        """Seconds; never goes back; the same for all processes of one boot."""


class SystemClock:
    def now_us(self) -> int:
        return time.time_ns() // 1_000

    def monotonic(self) -> float:
        return time.monotonic()


class ManualClock:
    """A clock that moves only when told to."""

    def __init__(self, now_us: int = 1_700_000_000_000_000) -> None:
        self._now_us = now_us
        self._monotonic = 1_000.0

    def now_us(self) -> int:
        return self._now_us

    def monotonic(self) -> float:
        return self._monotonic

    def advance(self, seconds: float) -> None:
        self._now_us += round(seconds * 1_000_000)
        self._monotonic += seconds


def duration_ms(text: str | float) -> int:
    """Milliseconds of `"5 seconds"`, `"1.5 h"`, `"250 ms"`; a bare number means seconds.

    >>> duration_ms("5 seconds"), duration_ms("2 days"), duration_ms(0.25)
    (5000, 172800000, 250)
    """
    if isinstance(text, int | float) and math.isfinite(text):
        return int(text * 1_000)
    match = _DURATION.fullmatch(str(text))
    unit = match and (match[2].lower() if match[2].lower() in _UNITS_MS else match[2].lower().rstrip("s"))
    if not match or unit not in _UNITS_MS:
        raise BadOption(f"{text!r} is no duration.", hint='write "5 seconds", "10 minutes" or "7 days"')
    return int(float(match[1]) * _UNITS_MS[unit])


@dataclass(frozen=True, slots=True)
class CorrectedTime:
    """Which columns say when an event occurred and was sent, by the device's clock, and received, by ours."""

    occurred: str
    sent: str
    received: str | None = None  # None: the append time
    offline_ms: int = 30 * 86_400_000


def corrected_time(
    occurred: str, sent: str, received: str | None = None, *, offline_max: str | float = "30 days"
) -> CorrectedTime:
    """Event time from a device whose clock may be wrong: `occurred + (received - sent)`.

    Both device timestamps are wrong by the same amount, which `received - sent` tells. An event that was sent
    before it occurred, or more than `offline_max` after it, comes from an absurd clock: it is diverted.

    >>> corrected_time("occurred_at", "sent_at").occurred
    'occurred_at'
    """
    return CorrectedTime(occurred, sent, received, offline_ms=duration_ms(offline_max))
