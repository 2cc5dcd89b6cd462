"""`penstock view`: rows now, then, and as they change."""

from __future__ import annotations

import json
import signal
from datetime import UTC, datetime
from pathlib import Path

import pytest
from tests.cli import shop
from tests.cli.command import Command, error_of
from tests.cli.conftest import Shop
from tests.waiting import wait_until


def test_rows_are_shown_as_a_table_with_what_is_final(ran: Shop) -> None:
    shown = ran.cli("view", ran.file, "per_minute").stdout.splitlines()
    assert shown[0].split() == ["page", "window_start", "window_end", "views", "final"]
    assert [line.split()[-2:] for line in shown[1:]] == [["2", "true"], ["2", "true"], ["1", "false"]]


def test_rows_can_be_chosen_by_value_and_number(ran: Shop) -> None:
    def pages(*options: object) -> list[str]:
        return [row["window_start"] for row in ran.cli.json("view", ran.file, "per_minute", *options)["rows"]]

    assert pages("--where", "views=1") == ["2026-11-01T10:02:00Z"]
    assert pages("--where", "window_start=2026-11-01T10:01:00", "--where", "page=/") == [
        "2026-11-01T10:01:00Z"
    ]
    assert pages("--where", "page=null") == []
    assert pages("--limit", 1) == ["2026-11-01T10:00:00Z"]
    assert ran.cli.json("view", ran.file, "per_minute", "--limit", 1)["more"]


def test_as_of_a_time_shows_what_was_there_then(ran: Shop) -> None:
    now = datetime.now(UTC).isoformat()
    assert len(ran.cli.json("view", ran.file, "per_minute", "--as-of", now)["rows"]) == 3
    assert ran.cli.json("view", ran.file, "per_minute", "--as-of", "30 days ago")["rows"] == []


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["per_minut"], 'did you mean "per_minute"?'),
        (["starts"], "penstock consume starts"),
        (["per_minute", "--where", "pag=/"], 'did you mean "page"?'),
        (["per_minute", "--where", "page"], "--where column=value"),
        (["per_minute", "--where", "views=many"], "BIGINT"),
        (["per_minute", "--as-of", "latest"], "is no time"),
        (["per_minute", "--as-of", "-5m", "--follow"], "do not go together"),
    ],
    ids=" ".join,
)
def test_what_cannot_be_shown_is_refused(ran: Shop, options: list[str], said: str) -> None:
    result = ran.cli("view", ran.file, *options)
    assert result.exit_code == 2
    assert said in result.stderr


def test_a_view_that_has_not_run_says_so(cli: Command, tmp_path: Path) -> None:
    result = cli("view", shop.write(tmp_path / "app"), "per_minute", "--json")
    assert (result.exit_code, error_of(result)["type"]) == (2, "UnknownView")
    assert "has not run yet" in result.stderr


def test_following_prints_rows_then_changes_and_ends_with_ctrl_c(changed: Shop) -> None:
    with changed.cli.start("view", changed.file, "per_minute", "--follow", "--json") as process:
        assert process.stdout is not None
        lines = [json.loads(process.stdout.readline()) for _ in range(3)]
        assert [line["op"] for line in lines] == ["row"] * 3
        shop.append(changed.cli.home, ("/", 200))
        assert changed.cli("run", changed.file, "--once").exit_code == 0
        closed, upsert = (json.loads(process.stdout.readline()) for _ in range(2))
        assert (closed["op"], closed["row"]["until"]) == ("closed", "2026-11-01T10:03:15Z")
        assert (upsert["op"], upsert["row"]["window_start"]) == ("upsert", "2026-11-01T10:03:00Z")
        process.send_signal(signal.SIGINT)
        wait_until(lambda: process.poll() is not None, what="the end of view --follow")
        assert process.returncode == 0


def test_a_copy_that_is_behind_says_so(changed: Shop) -> None:
    import penstock as ps

    with ps.open_log(changed.cli.home) as log:
        log.topic("per_minute").append({"_op": "w", "_batch": 1, "_revision": 0})
    result = changed.cli("view", changed.file, "per_minute")
    assert "1 record behind" in result.stderr
