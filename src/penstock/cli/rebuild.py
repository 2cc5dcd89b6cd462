"""`penstock rebuild`: a view computed anew from the log, put in place of the one that serves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli import engine, output, progress, words
from penstock.cli.engine import AppFile
from penstock.cli.session import AsJson, Home, Session, Yes
from penstock.cli.verify import as_objects, show_differences

if TYPE_CHECKING:
    from penstock.app.rebuild import Rebuilt


def rebuild(
    ctx: typer.Context,
    app: AppFile,
    view: Annotated[str, typer.Argument(metavar="VIEW", help="Which one.")],
    include_late: Annotated[
        bool, typer.Option("--include-late", help="Count the rows that were late, too.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would change, and leave it.")] = False,
    yes: Yes = False,
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """Build a view anew, and swap it in.

    It is built beside the old one, and what differs is shown first. Needed after its definition was
    changed. `penstock run` must not be running meanwhile.
    """
    from penstock.app import rebuild as rebuilding

    session = Session.of(ctx, home, as_json)
    with engine.analysed(session, app, checked=(view,)) as graph:
        with progress.watched(f"rebuilding {view}", total=None, hidden=session.json):
            plan = rebuilding.prepare(graph.app, graph, view, include_late=include_late)
        swapped = False
        try:
            if not session.json:
                _show(plan, view)
            if not dry_run:
                session.confirm(
                    f'Put the new version of "{view}" in its place?',
                    yes=yes,
                    refusal=f'the new version of "{view}" was not put in its place.',
                )
                plan.swap()
                swapped = True
        finally:
            if not swapped:
                plan.discard()
        if swapped:
            _bring_up(plan, view)
    if session.json:
        (difference,) = as_objects([plan.difference])
        output.emit({"view": view, "swapped": swapped, "difference": difference})
    else:
        output.show("the new version serves" if swapped else "nothing was changed")


def _show(plan: Rebuilt, view: str) -> None:
    found = plan.difference
    if not found.differing:
        output.show(f'"{output.escape(view)}" comes out the same: {words.count(plan.new.num_rows, "row")}')
    show_differences(found)


def _bring_up(plan: Rebuilt, view: str) -> None:
    from penstock.app import reading

    reading.catch_up(plan.app, reading.spec(plan.app, view))
