"""`penstock doctor`: is this machine fit for Penstock, and is the log in order?"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Annotated, Literal

import typer

from penstock.cli import failure, output
from penstock.cli.session import AsJson, Home, Session

State = Literal["ok", "missing", "warning", "problem"]
_MARKS = {
    "ok": "[green]ok[/]",
    "missing": "[dim]missing[/]",
    "warning": "[yellow]warning[/]",
    "problem": "[red]problem[/]",
}


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at. `required`: Penstock does not work without it."""

    area: str
    name: str
    state: State
    told: str
    todo: str = ""
    required: bool = False

    @property
    def wrong(self) -> bool:
        return self.state == "problem" or (self.state == "missing" and self.required)


def doctor(
    ctx: typer.Context,
    deep: Annotated[bool, typer.Option("--deep", help="Read and check every stored record.")] = False,
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """Check this machine and the log; exit code 1 if something required is wrong."""
    from penstock.cli import log_checks, machine_checks, spark_checks

    session = Session.of(ctx, home, as_json)
    folder = session.folder
    findings: list[Finding] = []
    findings += machine_checks.software()
    findings += spark_checks.spark(os.environ)
    findings += machine_checks.storage(folder)
    findings += log_checks.log(folder, deep=deep)
    wrong = [finding for finding in findings if finding.wrong]
    if session.json:
        output.emit({"ok": not wrong, "home": str(folder), "findings": [asdict(one) for one in findings]})
    else:
        _show(findings, wrong)
    if wrong:
        raise typer.Exit(failure.NO)


def _show(findings: list[Finding], wrong: list[Finding]) -> None:
    for area in dict.fromkeys(finding.area for finding in findings):
        output.show(
            f"[bold]{area}[/]",
            output.table(("", "", ""), _rows(one for one in findings if one.area == area)),
            "",
        )
    verdict = f"[red]{len(wrong)} to put right[/]" if wrong else "[green]everything required is in order[/]"
    output.show(verdict)


def _rows(findings: Iterable[Finding]) -> list[tuple[str, str, str]]:
    rows = []
    for one in findings:
        told = output.escape(one.told)
        if one.todo and one.state != "ok":
            told += f"\n[cyan]→[/] {output.escape(one.todo)}"
        rows.append((f"  {_MARKS[one.state]}", output.escape(one.name), told))
    return rows
