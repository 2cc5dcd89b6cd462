"""`penstock subscribe`: rows and changes of tables and views, one per line."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest
from tests.cli import shop
from tests.cli.command import Command, error_of
from tests.cli.conftest import Shop
from tests.follow.backends import SYSTEM_DDL, upsert
from tests.waiting import wait_until

import penstock as ps

APP = """
import penstock as ps

app = ps.App("shop")
users = app.table("users", "id BIGINT, name STRING, since TIMESTAMP", key="id")
clicks = app.topic("clicks", "page STRING")


@app.view(key="page")
def per_page():
    return clicks.stream()
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return shop.write(tmp_path / "app", APP)


@pytest.fixture
def users(cli: Command, file: Path) -> ps.Topic:
    assert cli("subscribe", file, "users", "--for", 0).exit_code == 0  # declares the table
    with ps.open_log(cli.home) as log:
        found = log.topic("users")
        found.append([{"id": 1, "name": "Ann", "since": shop.START}, {"id": 2, "name": None, "since": None}])
        return found


def test_rows_then_changes_since_a_position(cli: Command, file: Path, users: ps.Topic) -> None:
    row, other, current = cli.lines("subscribe", file, "users", "--for", 0)
    ann = {"id": 1, "name": "Ann", "since": "2026-11-01T10:00:00Z"}
    assert row == {"op": "insert", "key": {"id": 1}, "row": ann, "before": None, "position": None}
    assert (other["key"], current["op"]) == ({"id": 2}, "current")
    with ps.open_log(cli.home) as log:
        log.topic("users").delete({"id": 1})
    gone, again = cli.lines("subscribe", file, "users", "--for", 0, "--after", current["position"])
    assert (gone["op"], gone["row"], gone["before"]) == ("delete", {"id": 1}, ann)
    assert again["op"] == "current"


def test_rows_and_columns_can_be_chosen(cli: Command, file: Path, users: ps.Topic) -> None:
    def rows(*options: object) -> list[Any]:
        return [line["row"] for line in cli.lines("subscribe", file, "users", "--for", 0, *options)[:-1]]

    assert rows("--where", "name=null", "--columns", "id") == [{"id": 2}]
    assert rows("--where", "since=2026-11-01T10:00:00", "--columns", "name, id") == [{"name": "Ann", "id": 1}]


def test_it_works_for_views(cli: Command, file: Path) -> None:
    with ps.open_log(cli.home) as log:
        topic = log.create_topic("per_page", f"page STRING, views BIGINT, {SYSTEM_DDL}", key="page")
        topic.append(upsert(page="/", views=3))
    lines = cli.lines("subscribe", file, "per_page", "--for", 0)
    assert [(line["op"], line.get("row")) for line in lines] == [
        ("insert", {"page": "/", "views": 3}),
        ("current", None),
    ]


def test_a_view_that_spark_made_has_the_same_rows(ran: Shop) -> None:
    rows = ran.cli.json("view", ran.file, "per_minute")["rows"]
    *told, current = ran.cli.lines("subscribe", ran.file, "per_minute", "--for", 0)
    assert current["op"] == "current"
    assert sorted((line["row"] for line in told), key=lambda row: row["window_start"]) == [
        {name: value for name, value in row.items() if name != "final"} for row in rows
    ]


@pytest.mark.parametrize("options", [(), ("--for", "inf")], ids=" ".join)
def test_following_ends_with_ctrl_c(
    cli: Command, file: Path, users: ps.Topic, options: tuple[str, ...]
) -> None:
    with cli.start("subscribe", file, "users", "--json", *options) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert [json.loads(process.stdout.readline())["op"] for _ in range(3)] == [
            "insert",
            "insert",
            "current",
        ]
        with ps.open_log(cli.home) as log:
            log.topic("users").append({"id": 2, "name": "Bob", "since": None})
        told = json.loads(process.stdout.readline())
        assert (told["op"], told["row"]["name"], told["before"]["name"]) == ("update", "Bob", None)
        process.send_signal(signal.SIGINT)
        wait_until(lambda: process.poll() is not None, what="the end of subscribe")
        assert (process.returncode, process.stderr.read()) == (0, "")


def test_it_ends_by_itself(cli: Command, file: Path, users: ps.Topic) -> None:
    assert [line["op"] for line in cli.lines("subscribe", file, "users", "--for", 0.1)][-1] == "current"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["usrs"], 'did you mean "users"?'),
        (["clicks"], "penstock consume clicks"),
        (["per_page"], "has not run yet"),
        (["users", "--where", "nam=x"], 'did you mean "name"?'),
        (["users", "--where", "id=x"], "BIGINT"),
        (["users", "--columns", "id,nam"], 'did you mean "name"?'),
        (["users", "--after", "x"], "no position of a feed"),
    ],
    ids=" ".join,
)
def test_what_cannot_be_subscribed_to_is_refused(
    cli: Command, file: Path, options: list[str], said: str
) -> None:
    result = cli("subscribe", file, *options)
    assert result.exit_code == 2
    assert said in result.stderr


def test_a_position_that_is_lost_says_what_to_do(cli: Command, file: Path, users: ps.Topic) -> None:
    position = cli.lines("subscribe", file, "users", "--for", 0)[-1]["position"]
    with ps.open_log(cli.home) as log:
        log.delete_topic("users")
    result = cli("subscribe", file, "users", "--after", position, "--json")
    assert (result.exit_code, error_of(result)["type"]) == (2, "PositionLost")
    assert "subscribe anew" in result.stderr
