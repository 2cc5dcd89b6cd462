"""`penstock verify`: is a view what its definition makes of the log?"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli import engine, failure, output, progress, words
from penstock.cli.engine import AppFile
from penstock.cli.session import AsJson, Home, Session

if TYPE_CHECKING:
    from penstock.app.verify import Difference, Verified

_MARKS = {
    "equal": "[green]equal[/]",
    "different": "[red]different[/]",
    "not verifiable": "[yellow]not verifiable[/]",
}


def verify(
    ctx: typer.Context,
    app: AppFile,
    view: Annotated[str | None, typer.Argument(metavar="VIEW", help="Only this one.")] = None,
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """Recompute views from the log and compare.

    Streams, too. The exit code is 0 only if all are equal. What cannot be verified is no pass: it
    has exit code 1 as well, and the reason is told.
    """
    from penstock.app import verify as verifying

    session = Session.of(ctx, home, as_json)
    results: list[Verified] = []
    with engine.analysed(session, app, checked=(view,) if view else ()) as graph:
        for name in [view] if view else list(graph.analysed):
            with progress.watched(f"recomputing {name}", total=None, hidden=session.json):
                results.append(verifying.verify(graph.app, graph, name))
    if session.json:
        output.emit({"ok": all(one.verdict == "equal" for one in results), "results": as_objects(results)})
    else:
        _show(results)
    if any(one.verdict != "equal" for one in results):
        raise typer.Exit(failure.NO)


def _show(results: list[Verified]) -> None:
    rows = [
        (
            output.escape(one.name),
            _MARKS[one.verdict],
            words.count(one.rows),
            words.count(one.left_out),
            words.NONE if one.batch is None else words.count(one.batch),
            output.escape(one.reason),
        )
        for one in results
    ]
    output.show(output.table(("name", "verdict", "rows#", "left out#", "at batch#", "reason"), rows))
    for one in results:
        show_differences(one)


def show_differences(found: Verified) -> None:
    """The rows that are not the same, as far as they were kept."""
    if not found.differing:
        return
    output.show("", f"{output.escape(found.name)}: {words.count(found.differing, 'row')} not the same")
    for difference in found.differences:
        for sign, row in _lines(difference):
            output.show(f"  {sign} {output.escape(row)}")
    if found.differing > len(found.differences):
        output.show(f"  … and {words.count(found.differing - len(found.differences))} more")


def _lines(difference: Difference) -> list[tuple[str, str]]:
    import json

    from penstock.log.json_rows import to_json

    pairs = (("[red]live      [/]", difference.live), ("[green]recomputed[/]", difference.recomputed))
    return [(sign, json.dumps(to_json(row), ensure_ascii=False)) for sign, row in pairs if row is not None]


def as_objects(results: list[Verified]) -> list[Any]:
    from penstock.log.json_rows import to_json

    return [to_json(asdict(one)) for one in results]
