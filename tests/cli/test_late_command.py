"""`penstock late`: what was left out, and why."""

from __future__ import annotations

from pathlib import Path

from tests.cli import shop
from tests.cli.command import Command
from tests.cli.conftest import Shop


def test_a_late_pair_is_told_with_its_window_watermark_and_place(ran: Shop) -> None:
    found = ran.cli.json("late", ran.file, "per_minute")
    (pair,) = found["pairs"]
    assert (found["late"], pair["reason"], pair["row"]["page"]) == (1, "late", "/late")
    assert (pair["window_start"], pair["watermark"]) == ("2026-11-01T10:00:00Z", "2026-11-01T10:02:05Z")
    assert (pair["topic"], pair["partition"], pair["offset"]) == ("views", 0, 5)


def test_people_see_a_line_for_each_pair(ran: Shop) -> None:
    result = ran.cli("late", ran.file, "per_minute")
    assert "/late" in result.stdout
    assert "views[0] 5" in result.stdout
    assert "1 pair left out" in result.stderr


def test_a_definition_that_leaves_nothing_out_has_no_pairs(ran: Shop) -> None:
    assert ran.cli.json("late", ran.file, "starts") == {"view": "starts", "late": 0, "pairs": []}


def test_a_view_that_has_not_run_says_so(cli: Command, tmp_path: Path) -> None:
    file = shop.write(tmp_path / "app")
    assert "has not run yet" in cli("late", file, "per_minute").stderr
    assert cli("late", file, "per_minutes").exit_code == 2
