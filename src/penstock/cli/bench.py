"""`penstock bench`: measure on this machine, beside a peer where there is one."""

from __future__ import annotations

import difflib
import signal
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli import output
from penstock.cli.session import AsJson, Home, Session
from penstock.errors import BadInput

if TYPE_CHECKING:
    from penstock.bench.report import Report


class UnknownBench(BadInput):
    def __init__(self, name: str | None, known: list[str]) -> None:
        self.name, self.known = name, known
        close = difflib.get_close_matches(name or "", known, n=1)
        self.did_you_mean = close[0] if close else None
        listed = f"there are: {', '.join(known)}" if known else "there are none in this installation"
        what = f'there is no bench "{name}".' if name else "which bench?"
        super().__init__(what, hint=f'did you mean "{close[0]}"?' if close else listed)


def bench(
    ctx: typer.Context,
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME",
            help="Which bench: log, flow, latency, joins, patterns, capture, sourcing, queue or gateway.",
        ),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A few minutes at most, less exact.")] = False,
    against: Annotated[
        str | None, typer.Option("--against", metavar="PEER", help="log: beside a real Kafka (kafka).")
    ] = None,
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """Measure what this machine does with Penstock."""
    session = Session.of(ctx, home, as_json)
    known = benches()
    if name is None or name not in known:
        raise UnknownBench(name, known)
    if against is not None and (name, against) != ("log", "kafka"):
        raise BadInput(f"bench {name} knows no peer {against!r}.", hint="there is: bench log --against kafka")
    import importlib

    peer = {"against": against} if against else {}
    module = importlib.import_module(f"penstock.bench.{name}")
    # Asked to end it ends as with Ctrl-C: a server that it started must not stay.
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        report: Report = module.run(quick=quick, home=session.folder, **peer)
    finally:
        signal.signal(signal.SIGTERM, before)
    if session.json:
        output.emit(report.to_json())
    else:
        _show(report)


def _show(report: Report) -> None:
    from penstock.bench.report import COLUMNS

    colours = {"yes": "[green]yes[/]", "NO": "[red]NO[/]"}
    rows = [[colours.get(cell, output.escape(cell)) for cell in row] for row in report.rows()]
    output.show(
        output.table(COLUMNS, rows),
        "",
        output.facts((name, output.escape(str(value))) for name, value in report.machine.items()),
    )


def benches() -> list[str]:
    """Every module of penstock.bench with a `run`; read from their text, so that none is imported."""
    import importlib.util
    from pathlib import Path

    package = importlib.util.find_spec("penstock.bench")
    folders = list(package.submodule_search_locations or []) if package else []
    files = [file for folder in folders for file in Path(folder).glob("*.py")]
    return sorted(file.stem for file in files if "\ndef run(" in file.read_text())
