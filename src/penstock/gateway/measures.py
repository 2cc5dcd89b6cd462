"""What the gateway counts about itself."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


@dataclass(slots=True)
class Durations:
    """How many took at most so long, for each of `SECONDS` and beyond."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(SECONDS) + 1))
    sum_s: float = 0.0

    def add(self, seconds: float) -> None:
        self.counts[bisect_left(SECONDS, seconds)] += 1
        self.sum_s += seconds


@dataclass(slots=True)
class Measures:
    """Since the server began. Used on the event loop alone. Routes, not paths: their number is bounded."""

    requests: Counter[tuple[str, str, int]] = field(default_factory=Counter)
    durations: dict[tuple[str, str], Durations] = field(default_factory=dict)
    appended: int = 0  # records
    duplicates: int = 0  # appends whose key had been there
    sent: int = 0  # events to subscribers
    dropped: int = 0  # subscribers that were too slow

    def answered(self, method: str, route: str, status: int, seconds: float) -> None:
        self.requests[method, route, status] += 1
        self.durations.setdefault((method, route), Durations()).add(seconds)
