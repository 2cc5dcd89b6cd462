"""What a look at a running query takes from Spark's reports, one by one and after a while."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from penstock.app.status import _news, _note, _Seen


def report(batch: int, *, dropped: int = 0, ran: bool = True, run: str = "one") -> dict[str, Any]:
    return {
        "batchId": batch,
        "runId": run,
        "durationMs": {"addBatch": 5} if ran else {"latestOffset": 1},
        "stateOperators": [{"numRowsDroppedByWatermark": dropped, "numRowsTotal": 7}],
        "numInputRows": 1 if ran else 0,
        "batchDuration": 100 + batch,
        "timestamp": "2026-11-18T10:00:00.000Z",
    }


def look(seen: _Seen, *reports: dict[str, Any]) -> None:
    running = SimpleNamespace(lastProgress=reports[-1], recentProgress=list(reports))
    supervised: Any = SimpleNamespace(query=SimpleNamespace(running=running))
    for progress in _news(supervised, seen):
        _note(seen, progress)


def test_every_batch_counts_once_however_often_one_looks() -> None:
    seen = _Seen(0)
    first, second, third = report(0, dropped=1), report(1, dropped=2), report(2, dropped=4)
    look(seen, first)
    look(seen, first)
    look(seen, first, second, third)
    assert (seen.dropped, seen.batch_ms, seen.state_rows) == (7, 102, 7)


def test_a_batch_that_was_waited_for_counts_too() -> None:
    seen = _Seen(0)
    first, waits, then = report(0), report(1, ran=False), report(1, dropped=3)
    look(seen, first)
    look(seen, first, waits)
    look(seen, first, waits, then)
    assert (seen.dropped, seen.batch_ms) == (3, 101)


def test_after_a_restart_the_numbers_begin_again() -> None:
    seen = _Seen(0)
    look(seen, report(0), report(1, dropped=1))
    look(seen, report(0, dropped=2, run="two"))
    assert seen.dropped == 3
