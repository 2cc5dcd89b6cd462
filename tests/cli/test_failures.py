"""How commands fail: two lines on stderr, an exit code, and with --json an object."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
from tests.cli.command import Command, error_of
from tests.waiting import wait_until
from typer.main import get_command
from typer.testing import CliRunner

import penstock as ps
from penstock import errors
from penstock.cli import failure
from penstock.cli.main import app

CODES: list[tuple[type[errors.PenstockError], int]] = [
    (errors.BadInput, 2),
    (errors.OffsetOutOfRange, 2),
    (errors.Contended, 3),
    (errors.Fenced, 3),
    (errors.StorageError, 4),
    (errors.NotAllowed, 4),
    (errors.Damaged, 4),
    (errors.SealBroken, 4),
    (errors.QueryFailed, 1),
    (errors.ChangesLost, 1),
    (errors.EventsLost, 1),
]


def _classes() -> list[type[errors.PenstockError]]:
    found = [value for value in vars(errors).values() if isinstance(value, type)]
    return [one for one in found if issubclass(one, errors.PenstockError) and one is not errors.PenstockError]


@pytest.mark.parametrize("error", _classes(), ids=lambda one: one.__name__)
def test_every_error_has_an_exit_code_of_its_kind(error: type[errors.PenstockError]) -> None:
    assert [failure.exit_code_of(error.__new__(error))] == [
        code for kind, code in CODES if issubclass(error, kind)
    ]


def test_what_took_too_long_is_not_blamed_on_a_path(capsys: pytest.CaptureFixture[str]) -> None:
    failure.report(TimeoutError("Debezium: 7 of 9 changes within 120 s"), as_json=False)
    assert "when this machine has less to do" in capsys.readouterr().err


def test_an_unknown_topic_is_bad_input_with_a_way_out(cli: Command) -> None:
    cli("topic", "create", "orders")
    result = cli("topic", "show", "oders")
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr == 'error: there is no topic "oders".\nhint: did you mean "orders"?\n'


def test_with_json_the_error_is_an_object_with_its_facts(cli: Command) -> None:
    cli("topic", "create", "orders")
    result = cli("topic", "show", "oders", "--json")
    assert result.stdout == ""
    assert error_of(result) == {
        "type": "UnknownTopic",
        "message": 'there is no topic "oders".',
        "hint": 'did you mean "orders"?',
        "topic": "oders",
        "did_you_mean": "orders",
    }


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["topc"], "Did you mean 'topic'"),
        (["topic", "creat", "x"], "Did you mean 'create'"),
        (["topic", "list", "--jsn"], "--json"),
        (["produce"], "TOPIC"),
        (["consume", "x", "--max", "0"], "--max"),
    ],
)
def test_wrong_usage_says_what_is_right(cli: Command, args: list[str], says: str) -> None:
    result = cli(*args)
    assert result.exit_code == 2
    assert says in result.stderr
    assert "hint: see: " in result.stderr


def test_wrong_usage_with_json_is_an_object_too(cli: Command) -> None:
    result = cli("topic", "list", "--bogus", "--json")
    assert result.exit_code == 2
    assert error_of(result)["type"] == "Usage"


def test_looking_at_a_log_never_creates_one(cli: Command, home: Path) -> None:
    assert cli("topic", "show", "x").exit_code == 2
    assert cli("consume", "x").exit_code == 2
    assert cli.json("topic", "list")["topics"] == []
    assert cli.json("group", "list")["groups"] == []
    assert cli.json("queue", "list")["queues"] == []
    assert cli("queue", "show", "x").exit_code == 2
    assert cli("doctor").exit_code == 0
    assert not home.exists()


def test_a_home_that_cannot_be_made_is_a_storage_error(cli: Command, home: Path) -> None:
    home.symlink_to(home.with_name("not-mounted") / "log")
    result = cli.run("topic", "create", "x", "--json")
    assert result.returncode == 4, result.stderr
    assert "Traceback" not in result.stderr
    assert error_of(result)["type"] == "StorageError"


EVERY_COMMAND = [
    ("topic", "create", "t"),
    ("topic", "list"),
    ("topic", "show", "t"),
    ("topic", "alter", "t", "--partitions", "2"),
    ("topic", "delete", "t", "--yes"),
    ("topic", "compact", "t"),
    ("topic", "archive", "t"),
    ("produce", "t"),
    ("consume", "t"),
    ("group", "list"),
    ("group", "show", "g"),
    ("group", "reset", "g", "--topic", "t", "--to", "latest", "--yes"),
    ("queue", "create", "q"),
    ("queue", "list"),
    ("queue", "show", "q"),
    ("queue", "alter", "q", "--max-attempts", "2"),
    ("queue", "purge", "q", "--yes"),
    ("queue", "delete", "q", "--yes"),
    ("queue", "publish", "q", "--body", "x"),
    ("queue", "get", "q"),
    ("queue", "work", "q", "true"),
    ("queue", "dead", "q"),
    ("queue", "redrive", "q"),
    ("queue", "exchange", "x"),
    ("queue", "bind", "x", "q"),
    ("queue", "bridge", "q", "--to-topic", "t"),
    ("capture", "run", "shop.db"),
    ("capture", "status", "shop.db"),
    ("capture", "resnapshot", "shop.db"),
    ("capture", "drop", "shop.db", "--yes"),
    ("capture", "export", "shop", "users"),
    ("sourcing", "show", "shop.py"),
    ("sourcing", "list", "shop.py"),
    ("sourcing", "state", "shop.py", "7"),
    ("sourcing", "audit", "shop.py", "7"),
    ("sourcing", "publish", "shop.py"),
    ("follow", "shop.db", "--into", "sqlite:///copy.db"),
    ("kafka", "up"),
    ("kafka", "status"),
    ("kafka", "down"),
    ("doctor",),
    ("bench", "log", "--quick"),
    ("demo", "--for", "1"),
    ("run", "shop.py"),
    ("view", "shop.py", "v"),
    ("subscribe", "shop.py", "v"),
    ("search", "shop.py", "v", "words"),
    ("late", "shop.py", "v"),
    ("verify", "shop.py"),
    ("rebuild", "shop.py", "v"),
    ("explain", "shop.py"),
    ("forget", "shop.py", "17", "--yes"),
    ("top", "--once"),
    ("serve",),
    ("token", "create", "ann"),
    ("token", "list"),
    ("token", "revoke", "ann"),
]

GROUPS = ("topic", "group", "queue", "capture", "sourcing", "token", "kafka")


@pytest.mark.parametrize("args", EVERY_COMMAND, ids=" ".join)
def test_a_home_that_is_a_file_is_refused(cli: Command, home: Path, args: tuple[str, ...]) -> None:
    home.write_text("a file, not a folder")
    result = cli(*args, "--json")
    assert (result.exit_code, result.stdout) == (2, "")
    error = error_of(result)
    assert (error["type"], error["home"]) == ("NotAFolder", str(home))
    assert error["message"] == f"{home} is a file, and a log is kept in a folder."
    assert "--home DIR" in error["hint"]
    assert home.read_text() == "a file, not a folder"


def test_every_command_is_asked_about_a_home_that_is_a_file() -> None:
    asked = {args[: 2 if args[0] in GROUPS else 1] for args in EVERY_COMMAND}
    assert _commands(get_command(app)) == asked | {("copy",)}  # which is told both places


def _commands(group: Any, path: tuple[str, ...] = ()) -> set[tuple[str, ...]]:
    inner = getattr(group, "commands", None)
    if inner is None:
        return {path}
    return {found for name, one in inner.items() for found in _commands(one, (*path, name))}


def test_a_home_below_a_file_is_refused_and_the_file_named(cli: Command, home: Path) -> None:
    home.write_text("a file, not a folder")
    result = Command(home / "log")("topic", "list")
    assert (result.exit_code, result.stdout) == (2, "")
    assert f"{home} is a file" in result.stderr


def test_a_variable_that_names_a_file_is_refused_unless_the_command_names_a_folder(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = home.with_name("file")
    file.write_text("a file, not a folder")
    monkeypatch.setenv("PENSTOCK_HOME", str(file))
    refused = CliRunner().invoke(app, ["topic", "list"])
    assert (refused.exit_code, "PENSTOCK_HOME" in refused.stderr) == (2, True)
    assert CliRunner().invoke(app, ["topic", "list", "--home", str(home)]).exit_code == 0


def test_damage_is_a_storage_error(cli: Command, home: Path) -> None:
    cli("topic", "create", "t", "--schema", "v STRING")
    cli("produce", "t", input='{"v": "some text that takes a few bytes"}\n')
    (segment,) = (home / "topics/t/0").glob("*.arrows")
    damaged = segment.read_bytes().replace(b"some text", b"some tixt")
    segment.write_bytes(damaged)
    result = cli("consume", "t", "--json")
    assert result.exit_code == 4
    assert error_of(result)["segment"] == segment.name


def test_a_group_that_is_running_is_contended(cli: Command, log: ps.Log) -> None:
    topic = log.create_topic("t", "v BIGINT")
    topic.append({"v": 1})
    with topic.consume(group="g") as consumer:
        next(consumer)
        result = cli("group", "reset", "g", "--topic", "t", "--to", "earliest", "--yes", "--json")
    assert result.exit_code == 3
    assert error_of(result)["type"] == "Contended"


def test_ctrl_c_ends_with_130_and_without_a_traceback(cli: Command) -> None:
    cli("topic", "create", "t", "--schema", "v BIGINT")
    with cli.start("produce", "t") as process:
        assert process.stdin and process.stderr
        process.stdin.write('{"v": 1}\n')
        process.stdin.flush()
        wait_until(
            lambda: cli.json("topic", "show", "t")["records"] == 1, what="the line to be stored", timeout_s=60
        )
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
        said = process.stderr.read()
    assert said == "interrupted: 1 record stored; go on with --from-line 2\n"


def test_a_reader_that_left_is_no_failure(cli: Command) -> None:
    cli("topic", "create", "t", "--schema", "v BIGINT")
    cli("produce", "t", input="".join(f'{{"v": {n}}}\n' for n in range(20_000)))
    result = cli.shell("penstock consume t | head -n 1")
    assert result.returncode == 0
    assert result.stderr == ""
    assert '"offset": 0' in result.stdout
