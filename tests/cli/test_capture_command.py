"""`penstock capture`: as a person uses it."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from tests.cli.command import Command

APP = """
import penstock as ps

app = ps.App("shop")
database = app.capture("shopdb", {path!r})
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made = tmp_path / "shop.db"
    with closing(sqlite3.connect(made)) as db, db:
        db.execute("CREATE TABLE users (id INTEGER PRIMARY KEY, name TEXT)")
        db.execute("INSERT INTO users VALUES (1, 'Ann'), (2, 'Bob')")
    return made


def test_a_database_by_its_address(cli: Command, path: Path) -> None:
    done = cli("capture", "run", f"sqlite:///{path}", "--once")
    assert done.exit_code == 0
    assert "shop: 2 changes of 1 table stored" in done.stderr
    assert [row["value"]["name"] for row in cli.lines("consume", "shop.users")] == ["Ann", "Bob"]
    found = cli.json("capture", "status", path)["captures"]
    assert [(each["capture"], each["phase"], each["changes"]) for each in found] == [("shop", "following", 2)]
    assert found[0]["source"]["waiting"] == 0
    assert "following" in cli("capture", "status", path).stdout


def test_the_captures_of_an_app(cli: Command, path: Path, tmp_path: Path) -> None:
    file = tmp_path / "shop_app.py"
    file.write_text(APP.format(path=str(path)))
    assert cli.json("capture", "run", file, "--once")["changes"] == 2
    assert cli("capture", "resnapshot", file, "users").exit_code == 0
    assert cli.json("capture", "run", file, "--once")["changes"] == 4
    assert cli("capture", "drop", file, "--yes").exit_code == 0
    with closing(sqlite3.connect(path)) as db, db:
        assert db.execute("SELECT count(*) FROM sqlite_schema").fetchone() == (1,)
        db.execute("DELETE FROM users WHERE id = 1")
    assert cli("capture", "run", file, "--once").exit_code == 0
    (status,) = cli.json("capture", "status", file)["captures"]
    assert (status["phase"], status["changes"]) == ("following", 6)  # one read again, and one that is gone


def test_ctrl_c_ends_it_well(cli: Command, path: Path) -> None:
    with cli.start("capture", "run", path, "--json") as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["changes"] == 2
        process.send_signal(2)
        assert process.wait(30) == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "nothing.db"], "there is no database"),
        (["run", "oracle://x/y"], 'nothing can be captured from addresses like "oracle://"'),
        (["run", "{path}", "--table", "user"], 'did you mean "users"?'),
        (["drop", "{path}"], "say --yes if you mean it"),
        (["resnapshot", "{path}", "user"], 'capture "shop" has no table "user"'),
        (["status", "missing.py"], "there is no file missing.py"),
    ],
)
def test_bad_input(cli: Command, path: Path, arguments: list[str], message: str) -> None:
    done = cli("capture", *(each.format(path=path) for each in arguments))
    assert done.exit_code == 2
    assert done.stderr.count(message) == 1


def test_a_database_of_more_tables_than_files_that_may_be_open_at_first(cli: Command, path: Path) -> None:
    with closing(sqlite3.connect(path)) as db, db:
        for number in range(40):
            db.execute(f"CREATE TABLE t{number} (id INTEGER PRIMARY KEY)")
            db.execute(f"INSERT INTO t{number} VALUES (1)")
    done = cli.shell(f"ulimit -Sn 100; penstock capture run '{path}' --once")
    assert "42 changes of 41 tables stored" in done.stderr
