"""`penstock rebuild`: views computed anew from the log, put in place of those that serve."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli import engine, output, progress, words
from penstock.cli.engine import AppFile
from penstock.cli.session import AsJson, Home, Session, Yes
from penstock.cli.verify import as_objects, show_differences

if TYPE_CHECKING:
    from penstock.app.graph import Graph
    from penstock.app.rebuild import Rebuilt


def rebuild(
    ctx: typer.Context,
    app: AppFile,
    view: Annotated[str | None, typer.Argument(metavar="VIEW", help="Only this one.")] = None,
    include_late: Annotated[
        bool, typer.Option("--include-late", help="Count the rows that were late, too.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would change, and leave it.")] = False,
    yes: Yes = False,
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """Build views anew, and swap them in.

    Each is built beside the old one, and what differs is shown first. Needed after a definition was
    changed. `penstock run` must not be running meanwhile.
    """
    from penstock.app import rebuild as rebuilding

    session = Session.of(ctx, home, as_json)
    results: list[dict[str, Any]] = []
    with engine.analysed(session, app, checked=(view,) if view else ()) as graph:
        try:
            for name in [view] if view else _that_have_run(graph):
                with progress.watched(f"rebuilding {name}", total=None, hidden=session.json):
                    plan = rebuilding.prepare(graph.app, graph, name, include_late=include_late)
                swapped = _swapped(session, plan, name, dry_run=dry_run, yes=yes)
                (difference,) = as_objects([plan.difference])
                results.append({"view": name, "swapped": swapped, "difference": difference})
        finally:
            if session.json:  # also of those before one that failed: they are in place
                output.emit({"results": results})
    if not results and not session.json:
        output.note("no view of this app has run yet: there is nothing to rebuild")


def _that_have_run(graph: Graph) -> list[str]:
    views = [name for name, found in graph.analysed.items() if found.output.kind == "view"]
    return [name for name in views if graph.query_of(name).stored]


def _swapped(session: Session, plan: Rebuilt, view: str, *, dry_run: bool, yes: bool) -> bool:
    """Show what differs, ask, and put the new version in its place; else it is forgotten."""
    from penstock.app import reading

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
        reading.catch_up(plan.app, reading.spec(plan.app, view))
    if not session.json:
        output.show("the new version serves" if swapped else "nothing was changed")
    return swapped


def _show(plan: Rebuilt, view: str) -> None:
    found = plan.difference
    if not found.differing:
        output.show(f'"{output.escape(view)}" comes out the same: {words.count(plan.new.num_rows, "row")}')
    show_differences(found)
