"""A view as a chart: the first number of its rows over its windows, a line for each of a few keys."""

from __future__ import annotations

from typing import Any

from penstock.gateway.pages import words
from penstock.gateway.pages.rowtable import is_number
from penstock.gateway.pages.tail import Tail
from penstock.log.port import to_us

_LINES_MAX = 5
_POINTS_MAX = 240


def chart_of(tail: Tail) -> dict[str, Any] | None:
    """Times in seconds, and values by key; None where there is nothing to draw."""
    if not tail.spec.windowed:
        return None
    keys = [name for name in tail.spec.key if name not in ("window_start", "window_end")]
    value = next(
        (f.name for f in tail.spec.columns if f.name not in tail.spec.key and is_number(f.type)), None
    )
    if value is None:
        return None
    lines: dict[str, dict[int, float]] = {}
    for row in tail.rows:
        start, number = row.values.get("window_start"), row.values[value]
        if start is None or number is None:
            continue
        label = " · ".join(words.cell(row.values[name]) for name in keys) or value
        lines.setdefault(label, {})[to_us(start) // 1_000_000] = float(number)
    shown = sorted(sorted(lines), key=lambda label: -len(lines[label]))[:_LINES_MAX]
    times = sorted({time for label in shown for time in lines[label]})[-_POINTS_MAX:]
    if len(times) < 2:  # one point is no line, and has no scale
        return None
    return {
        "value": value,
        "times": times,
        "lines": [
            {"label": label, "values": [lines[label].get(time) for time in times]} for label in sorted(shown)
        ],
    }
