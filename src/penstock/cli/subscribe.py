"""`penstock subscribe`: the rows of a table or view, then every change. Needs no Spark."""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli import engine, output
from penstock.cli.engine import AppFile
from penstock.cli.session import AsJson, Home, Session
from penstock.cli.view import Where, cell

if TYPE_CHECKING:
    from penstock.app.app import App
    from penstock.app.feed import Change, Feed

_MARKS = {
    "insert": "[green]+[/]", "update": "[yellow]~[/]", "delete": "[red]-[/]", "current": "[cyan]current[/]",
}  # fmt: skip


def subscribe(
    ctx: typer.Context,
    app: AppFile,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The table or view.")],
    where: Where = None,
    columns: Annotated[
        str | None, typer.Option("--columns", metavar="A,B", help="Only these columns.", show_default="all")
    ] = None,
    after: Annotated[
        str | None,
        typer.Option("--after", metavar="POSITION", help="Only what changed since, as printed with --json."),
    ] = None,
    seconds: Annotated[
        float | None,
        typer.Option(
            "--for", metavar="SECONDS", min=0, help="Stop by itself, with 0 at the end; else with Ctrl-C."
        ),
    ] = None,
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """Print the rows of a table or view, then a line for each change.

    As rows begin and cease to match, they are inserted and deleted. "current" says that all rows there were
    at the start are printed. Who was away goes on with --after the last position.
    """
    session = Session.of(ctx, home, as_json)
    with engine.loaded(session, app) as found:
        try:
            feed = _feed(found.app, name, where or [], columns, after, seconds)
            _print(feed, seconds, plain=session.json or not sys.stdout.isatty())
        except KeyboardInterrupt:
            sys.stdout.flush()


def _feed(
    app: App, name: str, where: list[str], columns: str | None, after: str | None, seconds: float | None
) -> Feed:
    from penstock.app import feed as feeds
    from penstock.app.conditions import conditions

    wanted = conditions(name, feeds.columns_of(app, name), where, before="--where ")
    chosen = None if columns is None else [column.strip() for column in columns.split(",")]
    return app.subscribe(name, where=wanted or None, columns=chosen, after=after, follow=seconds != 0)


def _print(feed: Feed, seconds: float | None, *, plain: bool) -> None:
    timer = threading.Timer(min(seconds or 0, threading.TIMEOUT_MAX), feed.close)
    timer.daemon = True
    if seconds:
        timer.start()
    try:
        for change in feed:
            _line(change, plain=plain)
            sys.stdout.flush()
    finally:
        timer.cancel()


def _line(change: Change, *, plain: bool) -> None:
    from penstock.log.json_rows import to_json

    if plain:
        told = {"key": change.key, "row": change.row, "before": change.before}
        shown = {} if change.op == "current" else {name: to_json(value) for name, value in told.items()}
        output.emit({"op": change.op, **shown, "position": change.position})
        return
    cells = "  ".join(f"[dim]{output.escape(name)}[/] {cell(value)}" for name, value in change.row.items())
    output.show(f"{_MARKS[change.op]} {cells}".rstrip())
