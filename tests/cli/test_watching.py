"""How a running app is shown: to people, in lines, to programs."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from penstock.app.status import FollowerStatus, QueryStatus, Status
from penstock.app.watermark import Held
from penstock.cli import output, watching

QUERY = QueryStatus(
    name="per_minute", definitions=("per_minute",), state="running", batch=7, rows=1_200, rows_per_s=240.4,
    batch_ms=140, watermark_us=1_793_527_325_000_000,
    held_back=Held("newer event", "waits for an event after 10:02:10Z", "views", 0), state_rows=3, late=1,
    lag_records=12, lag_s=0.25, restarts=0, rebuilt=0, last_error=None,
)  # fmt: skip
FAILING = replace(
    QUERY, name="failing", state="waits to start again", restarts=2, last_error="no such luck", batch_ms=None
)
STATUS = Status(
    1_793_527_330_000_000, 61.0, (QUERY, FAILING),
    (FollowerStatus("per_minute", 0, None), FollowerStatus("failing", 4, "the server is down")),
)  # fmt: skip


def test_a_line_tells_the_rate_the_watermark_and_what_holds_it() -> None:
    first, second, follower = watching.lines(STATUS)
    assert first == (
        "2026-11-01T10:02:10Z per_minute: 240 rows/s, batch 140 ms, 1,200 rows, 12 behind (250 ms), "
        "watermark 2026-11-01T10:02:05Z, 1 late, 3 state rows, waits for an event after 10:02:10Z"
    )
    assert second.endswith("waits to start again, 2 restarts: no such luck")
    assert follower.endswith("follower of failing: 4 records behind: the server is down")


def test_programs_get_times_in_iso_and_everything_else_as_it_is() -> None:
    plain = json.loads(json.dumps(watching.as_object(STATUS)))
    assert (plain["at"], plain["queries"][0]["watermark"]) == ("2026-11-01T10:02:10Z", "2026-11-01T10:02:05Z")
    assert plain["queries"][0]["held_back"]["topic"] == "views"
    assert plain["followers"][1] == {"view": "failing", "behind": 4, "last_error": "the server is down"}


def test_the_table_has_a_row_for_each_query_and_each_copy(capsys: pytest.CaptureFixture[str]) -> None:
    output.show(watching.table(STATUS))
    shown = capsys.readouterr().out.splitlines()
    assert shown[0].split()[:2] == ["query", "rows/s"]
    assert "waits for an event after 10:02:10Z" in shown[1]
    assert "failing (waits to start again)" in shown[2]
    assert any("per_minute" in line and "up to date" in line for line in shown)
    assert "failing: no such luck" in shown
