"""Latencies in buckets that can be added up: each a tenth wider than the one before."""

from __future__ import annotations

import math
from collections import Counter

_PER_DOUBLING = 8


def bucket_of(latency_us: float) -> int:
    return round(math.log2(max(latency_us, 1)) * _PER_DOUBLING)


def percentile_ms(buckets: Counter[int], percent: float) -> float | None:
    """None when nothing was measured."""
    wanted = buckets.total() * percent / 100
    seen = 0
    for bucket in sorted(buckets):
        seen += buckets[bucket]
        if seen >= wanted:
            return float(2 ** (bucket / _PER_DOUBLING) / 1e3)
    return None
