"""`penstock forget`: a subject's key is destroyed, and what can still be read of them is told."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli import engine, failure, output, progress, words
from penstock.cli.engine import AppFile
from penstock.cli.session import AsJson, Home, Session, Yes

if TYPE_CHECKING:
    from penstock.app.erasing import Erasure


def forget(
    ctx: typer.Context,
    app: AppFile,
    subject: Annotated[str, typer.Argument(metavar="SUBJECT", help="Who, as the subject column names them.")],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Destroy nothing; tell what there is, and what is in clear.")
    ] = False,
    search: Annotated[
        bool, typer.Option("--search/--no-search", help="Search all files for what was written on in clear.")
    ] = True,
    look_for: Annotated[
        list[str] | None,
        typer.Option("--look-for", metavar="TEXT", help="Search for this too; needed once the key is gone."),
    ] = None,
    yes: Yes = False,
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """Destroy the key of a subject: nothing personal of them can be read any more.

    That cannot be undone. The exit code is 1 if something of them is left in clear, and the places are told;
    or if nobody has looked, or not everywhere.
    """
    session = Session.of(ctx, home, as_json)
    with engine.loaded(session, app) as found:
        if not dry_run:
            session.confirm(
                f'forget "{subject}" for good?', yes=yes, refusal=f'"{subject}" would be forgotten for good.'
            )
        with progress.watched("looking into every file", total=None, hidden=session.json or not search):
            done = found.app.forget(subject, dry_run=dry_run, search=search, look_for=look_for or ())
    if session.json:
        output.emit({"dry_run": dry_run, "complete": done.complete, **asdict(done)})
    else:
        _show(done, dry_run=dry_run)
    wrong = done.clear or done.unread or done.more
    if wrong if dry_run else not done.complete:
        raise typer.Exit(failure.NO)


def _show(done: Erasure, *, dry_run: bool) -> None:
    who = output.escape(done.subject)
    if dry_run and not done.again:
        output.show(f'"{who}" is known; nothing was destroyed')
    else:
        output.show(f'[green]forgotten[/] "{who}"{", before now" if done.again else ""}')
    if done.values is not None:
        where = output.escape(", ".join(done.places)) or "nowhere"
        more = "more than " if done.more else ""
        output.show(f"{more}{words.count(done.values, 'personal value')} sealed, of: {where}")
    _show_found(done)
    if done.more:
        output.show("[yellow]not looked for[/]: the values beyond those")
    for path in done.copies:
        output.show(f"[red]a copy of the key[/], which still opens everything: {output.escape(path)}")
    for path in done.unread:
        output.show(f"[yellow]not looked into[/]: {output.escape(path)}")
    for path in done.unpurged:
        output.show(f"[yellow]in use, and not rid of deleted rows[/]: {output.escape(path)}; do it again")
    for each in done.left:
        output.note(f"out of reach: {each}")


def _show_found(done: Erasure) -> None:
    if done.clear:
        rows = [
            (output.escape(each.path), output.escape(each.inside), words.count(each.values))
            for each in done.clear
        ]
        output.show("[red]in clear[/], written there by somebody who could read them:")
        output.show(output.table(("file~", "as", "values#"), rows))
    elif done.searched is not None:
        output.show(f"{words.count(done.searched, 'value')} looked for, none found in clear")
    else:
        output.show("[yellow]nobody has looked[/] for what was written on in clear")
        if done.again:
            output.note("the key is gone, so only you can say what to look for: --look-for TEXT")
