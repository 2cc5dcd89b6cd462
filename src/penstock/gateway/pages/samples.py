"""What was seen before, for rates and trends: a bounded number of looks, each a few numbers."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

KEPT = 180
_RATE_S = 5.0


@dataclass(slots=True)
class Series:
    """Numbers that grow or change, with the moments they were seen at. Of the thread that looks."""

    points: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=KEPT))

    def note(self, at_s: float, value: float) -> None:
        self.points.append((at_s, value))

    def rate(self, over_s: float = _RATE_S) -> float:
        """How fast it has grown lately."""
        if len(self.points) < 2:
            return 0.0
        last_s, last = self.points[-1]
        began_s, before = next((p for p in self.points if last_s - p[0] <= over_s), self.points[-2])
        if began_s == last_s:
            began_s, before = self.points[-2]
        return max(0.0, (last - before) / (last_s - began_s)) if last_s > began_s else 0.0

    def grown(self, over_s: float) -> float:
        """By how much it has grown within the last so many seconds, as far as was seen."""
        if not self.points:
            return 0.0
        last_s, last = self.points[-1]
        before = next(value for at_s, value in self.points if last_s - at_s <= over_s)
        return max(0.0, last - before)

    def values(self) -> tuple[float, ...]:
        return tuple(value for _, value in self.points)

    def rates(self) -> tuple[float, ...]:
        """The growth between looks, smoothed over three."""
        pairs = list(self.points)
        steps = [
            max(0.0, (b[1] - a[1]) / (b[0] - a[0])) if b[0] > a[0] else 0.0
            for a, b in itertools.pairwise(pairs)
        ]
        return tuple(
            sum(steps[max(0, i - 2) : i + 1]) / len(steps[max(0, i - 2) : i + 1]) for i in range(len(steps))
        )


@dataclass(slots=True)
class Samples:
    """A series for each name. Names that are gone are forgotten."""

    series: dict[str, Series] = field(default_factory=dict)

    def note(self, at_s: float, values: Mapping[str, float]) -> None:
        for name in [name for name in self.series if name not in values]:
            del self.series[name]
        for name, value in values.items():
            self.series.setdefault(name, Series()).note(at_s, value)

    def of(self, name: str) -> Series:
        return self.series.get(name) or Series()


def together(series: Iterable[tuple[float, ...]]) -> tuple[float, ...]:
    """Sums of series that end at the same moment.

    >>> together([(1.0, 2.0, 3.0), (10.0,)])
    (1.0, 2.0, 13.0)
    """
    found = list(series)
    longest = max((len(one) for one in found), default=0)
    padded = [(0.0,) * (longest - len(one)) + one for one in found]
    return tuple(sum(column) for column in zip(*padded, strict=True))
