"""Windows on a timeline: where each is drawn."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

from penstock.gateway.pages.rowtable import _window
from penstock.gateway.pages.tail import Row
from penstock.gateway.pages.windows import Timeline, timeline

BEGAN = datetime(2026, 11, 1, 10, 0, tzinfo=UTC)


def _drawn(*, size_s: int, every_s: int, count: int) -> Timeline:
    rows = []
    for number in range(count):
        start = BEGAN + timedelta(seconds=number * every_s)
        values = {
            "page": "/",
            "window_start": start,
            "window_end": start + timedelta(seconds=size_s),
            "n": 123,
        }
        rows.append(Row(values, 0, final=True, revision=0))
    spec: Any = SimpleNamespace(
        windowed=True, key=("page", "window_start", "window_end"), columns=SimpleNamespace(names=[*values])
    )
    tail: Any = SimpleNamespace(rows=tuple(reversed(rows)), closed_us=None, spec=spec)
    found = timeline(tail, (), event_time=None)
    assert found is not None
    return found


def test_windows_side_by_side_are_as_long_as_they_are() -> None:
    found = _drawn(size_s=5, every_s=5, count=4)
    assert not found.overlapping
    assert {round(cell.width) for cell in found.cells} == {213}


def test_windows_that_overlap_are_drawn_side_by_side_and_legible() -> None:
    found = _drawn(size_s=20, every_s=5, count=40)
    assert found.overlapping
    cells = sorted(found.cells, key=lambda cell: cell.x)
    assert all(one.x + one.width <= other.x for one, other in pairwise(cells))
    assert {cell.text for cell in cells} == {"123"}
    assert cells[-1].said.startswith("10:03:15 to 10:03:35")


def test_days_are_told_apart() -> None:
    found = _drawn(size_s=86_400, every_s=86_400, count=3)
    assert [tick.text for tick in found.ticks if tick.text != "12:00"] == ["11-02", "11-03", "11-04"]
    assert found.cells[0].said.startswith("2026-11-03 10:00:00 to 2026-11-04 10:00:00")
    values = {"window_start": BEGAN, "window_end": BEGAN + timedelta(days=1)}
    assert _window(values, "2026-11-01") == "10:00:00 \u2013 2026-11-02 10:00:00"
    assert _window(values, "2026-11-09") == "2026-11-01 10:00:00 \u2013 2026-11-02 10:00:00"
