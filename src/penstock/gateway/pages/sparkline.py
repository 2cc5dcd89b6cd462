"""A trend as the points of a line, 200 wide and 34 high."""

from __future__ import annotations

from collections.abc import Sequence

_WIDTH, _HEIGHT, _EDGE = 200.0, 34.0, 1.8
_POINTS_MAX = 60


def sparkline(values: Sequence[float]) -> str:
    """Points for an SVG polyline, empty for fewer than two; 0 is the bottom.

    >>> sparkline([1, 0]), sparkline([3])
    ('0,1.8 200,32.2', '')
    """
    if len(values) < 2:
        return ""
    thinned = _thinned(values)
    top = max(*thinned, 1e-9)
    step = _WIDTH / (len(thinned) - 1)
    room = _HEIGHT - 2 * _EDGE
    return " ".join(
        f"{_short(at * step)},{_short(_HEIGHT - _EDGE - value / top * room)}"
        for at, value in enumerate(thinned)
    )


def _thinned(values: Sequence[float]) -> list[float]:
    """Not more points than can be told apart: the highest of each stretch."""
    size = -(-len(values) // _POINTS_MAX)
    return [max(values[at : at + size]) for at in range(0, len(values), size)]


def _short(number: float) -> str:
    return f"{number:.1f}".removesuffix(".0")
