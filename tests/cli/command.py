"""The command line as tests use it: in this process where that is enough, else in one of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from typer.testing import CliRunner, Result

from penstock.cli.main import app

SOURCES = Path(__file__).parents[2] / "src"


@dataclass(frozen=True)
class Command:
    """`penstock --home …`."""

    home: Path

    def __call__(self, *args: object, input: str | bytes | None = None) -> Result:
        """Run it here. Fails on anything but a planned exit."""
        return CliRunner().invoke(app, self._arguments(args), input=input, catch_exceptions=False)

    def json(self, *args: object, input: str | bytes | None = None, code: int = 0) -> Any:
        """The one JSON value it answers with."""
        result = self(*args, "--json", input=input)
        assert result.exit_code == code, result.output
        return json.loads(result.stdout)

    def lines(self, *args: object) -> list[Any]:
        """The JSON lines it answers with."""
        result = self(*args, "--json")
        assert result.exit_code == 0, result.output
        return [json.loads(line) for line in result.stdout.splitlines()]

    def run(
        self, *args: object, input: str | None = None, timeout_s: float = 60
    ) -> subprocess.CompletedProcess[str]:
        """Run it in a process of its own."""
        return subprocess.run(
            self._command(args), input=input, capture_output=True, text=True,
            timeout=timeout_s, env=environment(), check=False,
        )  # fmt: skip

    @contextmanager
    def start(self, *args: object) -> Iterator[subprocess.Popen[str]]:
        """The same, running while the test goes on; ended at the latest with it."""
        process = subprocess.Popen(
            self._command(args), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True, env=environment(),
        )  # fmt: skip
        try:
            yield process
        finally:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout, process.stderr):
                with suppress(BrokenPipeError):  # what was not yet written goes nowhere
                    if pipe:
                        pipe.close()

    def shell(self, script: str) -> subprocess.CompletedProcess[str]:
        """A bash script in which `penstock` is the command."""
        words = " ".join(f"'{word}'" for word in self._command(()))
        return subprocess.run(
            ["bash", "-c", f'set -o pipefail; penstock() {{ {words} "$@"; }}; {script}'],
            capture_output=True, text=True, timeout=60, env=environment(), check=False,
        )  # fmt: skip

    def _command(self, args: tuple[object, ...]) -> list[str]:
        return [sys.executable, "-m", "penstock", *self._arguments(args)]

    def _arguments(self, args: tuple[object, ...]) -> list[str]:
        return ["--home", str(self.home), *map(str, args)]


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(SOURCES), "PYTHONWARNINGS": "default"}


def error_of(result: Result | subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """The error object of a command that failed with --json."""
    found = json.loads(result.stderr.splitlines()[-1])["error"]
    assert isinstance(found, dict)
    return found
