"""`penstock bench gateway`: that it measures what it names."""

from __future__ import annotations

from pathlib import Path

from penstock.bench import gateway
from penstock.bench.gateway import Sizes


def test_every_figure_is_measured_beside_the_python_api(home: Path) -> None:
    sizes = Sizes(singles=40, batches=4, batch_rows=100, streamed=200, spaced=5)
    steps: list[str] = []
    results = list(gateway._results(home / "log", sizes, steps.append))
    assert [(each.name, each.unit, each.peer is not None) for each in results] == [
        ("append, one record per request", "appends/s", True),
        ("append, one record per request, p99", "ms", False),
        ("append, JSON lines", "records/s", True),
        ("append, Arrow", "records/s", True),
        ("stream to 100 clients", "events/s", True),
        ("from append to all 100 clients, p99", "ms", False),
    ]
    assert all(each.value > 0 for each in results)
    assert len(steps) == 4
