"""Getting started: help, version, completion, and how long that takes."""

from __future__ import annotations

import resource
import subprocess
import sys

import pytest
from tests.cli.command import Command, environment

import penstock

QUEUE_VERBS = (
    "create", "list", "show", "alter", "purge", "delete", "publish", "get", "work", "dead", "redrive",
    "exchange", "bind", "bridge",
)  # fmt: skip
COMMANDS = [
    ["topic"],
    *(["topic", verb] for verb in ("create", "list", "show", "alter", "delete", "compact", "archive")),
    ["produce"],
    ["consume"],
    ["group"],
    *(["group", verb] for verb in ("list", "show", "reset")),
    ["queue"],
    *(["queue", verb] for verb in QUEUE_VERBS),
    ["capture"],
    *(["capture", verb] for verb in ("run", "status", "resnapshot", "drop", "export")),
    ["sourcing"],
    *(["sourcing", verb] for verb in ("show", "list", "state", "audit", "publish")),
    *(
        [flow]
        for flow in (
            "follow",
            "run",
            "view",
            "subscribe",
            "search",
            "late",
            "verify",
            "rebuild",
            "explain",
            "forget",
        )
    ),
    ["top"],
    ["serve"],
    ["token"],
    *(["token", verb] for verb in ("create", "list", "revoke")),
    ["kafka"],
    *(["kafka", verb] for verb in ("up", "status", "down")),
    ["copy"],
    ["doctor"],
    ["bench"],
    ["demo"],
]


def _python(code: str) -> str:
    found = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env=environment(),
        check=True,
        timeout=60,
    )
    return found.stdout


def test_help_is_fast(cli: Command) -> None:
    """The aim is 300 ms, of which this counts what the processor works, at twice the aim for slow ones."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert cli.run("--help").returncode == 0
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 0.6


def test_help_imports_nothing_heavy() -> None:
    code = f"""
import sys
from penstock.cli.main import app
for command in {[[], *COMMANDS]!r}:
    try:
        app([*command, "--help"])
    except SystemExit as ended:
        assert ended.code == 0
heavy = {{"pyarrow", "numpy", "rich", "penstock.log", "xxhash", "sqlite3"}} & set(sys.modules)
assert not heavy, heavy
"""
    assert _python(code).count("Usage: ") == 1 + len(COMMANDS)


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_can_answer_in_json_and_takes_a_home(cli: Command, command: list[str]) -> None:
    shown = cli(*command, "--help").stdout
    nouns = ("topic", "group", "queue", "capture", "sourcing", "token", "kafka")
    if len(command) == 2 or command[0] not in nouns:
        assert "--json" in shown
        assert "--home DIR" in shown or command == ["copy"]


def test_help_lists_the_exit_codes(cli: Command) -> None:
    shown = cli("--help").stdout
    assert all(f"\n    {code} " in shown for code in (0, 1, 2, 3, 4, 130))


def test_version(cli: Command) -> None:
    assert cli("--version").stdout == f"penstock {penstock.__version__}\n"


def test_completion_knows_the_commands(cli: Command) -> None:
    result = cli("--show-completion")
    assert result.exit_code == 0 or "shell" in result.output.lower()


def test_importing_penstock_imports_nothing_heavy() -> None:
    heavy = "{'pyarrow', 'numpy', 'typer', 'rich', 'penstock.log'}"
    assert _python(f"import penstock, sys; print({heavy} & set(sys.modules))") == "set()\n"


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'open_logs'"):
        penstock.open_logs  # noqa: B018


def test_every_error_class_is_public() -> None:
    from penstock import errors

    public = {
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and value.__module__.startswith(errors.__name__)
    }
    assert public <= set(penstock.__all__)
