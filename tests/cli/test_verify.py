"""`penstock verify` and `penstock rebuild`: verdicts, exit codes, and the swap."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from pyspark.sql import SparkSession
from tests.cli import shop
from tests.cli.command import Command
from tests.cli.conftest import Shop


def test_what_is_right_is_equal_and_exits_with_0(ran: Shop, spark: SparkSession) -> None:
    found = ran.cli.json("verify", ran.file)
    assert found["ok"]
    assert {one["name"]: one["verdict"] for one in found["results"]} == {
        "per_minute": "equal", "starts": "equal", "nothing": "equal",
    }  # fmt: skip
    assert found["results"][0]["left_out"] == 1


def test_a_difference_exits_with_1_and_shows_the_rows(changed: Shop, spark: SparkSession) -> None:
    with sqlite3.connect(changed.cli.home / "views" / "shop.db") as store:
        store.execute("UPDATE per_minute__rows SET views = 7 WHERE views = 1")
    result = changed.cli("verify", changed.file, "per_minute")
    assert result.exit_code == 1
    assert "different" in result.stdout
    assert '"views": 7' in result.stdout
    assert '"views": 1' in result.stdout


def test_what_cannot_be_verified_is_no_pass(cli: Command, tmp_path: Path, spark: SparkSession) -> None:
    found = cli.json("verify", shop.write(tmp_path / "app"), "per_minute", code=1)
    assert not found["ok"]
    assert found["results"][0]["verdict"] == "not verifiable"
    assert "run it first" in found["results"][0]["reason"]


def test_a_rebuild_with_late_rows_is_shown_first_and_then_swapped_in(
    changed: Shop, spark: SparkSession
) -> None:
    again = ("rebuild", changed.file, "per_minute", "--include-late")
    (looked,) = changed.cli.json(*again, "--dry-run")["results"]
    assert (looked["swapped"], looked["difference"]["differing"]) == (False, 1)
    assert len(changed.cli.json("view", changed.file, "per_minute")["rows"]) == 3

    refused = changed.cli(*again)
    assert (refused.exit_code, "say --yes" in refused.stderr) == (2, True)

    done = changed.cli.json("rebuild", changed.file, "--include-late", "--yes")["results"]
    assert [(each["view"], each["swapped"]) for each in done] == [("per_minute", True), ("nothing", True)]
    pages = [row["page"] for row in changed.cli.json("view", changed.file, "per_minute")["rows"]]
    assert sorted(pages) == ["/", "/", "/", "/late"]
