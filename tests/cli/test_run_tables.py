"""`penstock run` of tables that go elsewhere: without Spark, and what it says of a place that is down."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from tests.cli.command import Command
from tests.servers import free_port

from penstock.app.app import App

APP = """
import penstock as ps

app = ps.App("shop")
users = app.table("users", "id BIGINT, name STRING", key="id", to={to!r})
"""


@pytest.fixture(autouse=True)
def no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    def started(self: App) -> None:
        raise AssertionError("Spark was started")

    monkeypatch.setattr(App, "start_spark", started)


def write(folder: Path, *to: str) -> Path:
    path = folder / "shop.py"
    path.write_text(APP.format(to=list(to)))
    return path


def test_tables_alone_are_followed_without_spark(cli: Command, tmp_path: Path) -> None:
    file = write(tmp_path, f"sqlite:///{tmp_path}/users.db")
    assert cli("run", file, "--once").exit_code == 0
    cli("produce", "users", input='{"id": 1, "name": "Ann"}\n')
    assert cli("run", file, "--once").exit_code == 0
    with closing(sqlite3.connect(tmp_path / "users.db")) as db:
        assert db.execute("SELECT id, name FROM users").fetchall() == [(1, "Ann")]


def test_a_place_that_is_down_is_told_at_the_end(cli: Command, tmp_path: Path) -> None:
    hook = f"http://127.0.0.1:{free_port()}/"
    file = write(tmp_path, hook)
    cli("run", file, "--once")
    cli("produce", "users", input='{"id": 1, "name": "Ann"}\n')
    result = cli("run", file, "--once", "--json")
    assert result.exit_code == 4
    summary = json.loads(result.stdout.splitlines()[-1])
    assert (summary["kind"], summary["outcome"]) == ("summary", "failed")
    (follower,) = summary["followers"]
    assert (follower["view"], follower["behind"]) == (f"users to {hook}", 1)
    assert "does not answer" in follower["last_error"]
    assert "does not answer" in cli("run", file, "--once").stdout
