"""`penstock follow`: keep a replica of a database in sync."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli import failure, output, words
from penstock.cli.capture import tell_left_out
from penstock.cli.interrupt import Interrupt
from penstock.cli.session import AsJson, Home, Session

if TYPE_CHECKING:
    from penstock.app.replica import Replica

_LINE_S = 3.0
_LOOK_S = 0.1


def follow(
    ctx: typer.Context,
    source: Annotated[
        str, typer.Argument(metavar="SOURCE", help="postgresql://…, mysql://…, sqlite:///path or a path.")
    ],
    into: Annotated[
        str, typer.Option("--into", metavar="URL", help="postgresql://…, sqlite:///…, redis://…, delta:///…")
    ],
    name: Annotated[
        str | None,
        typer.Option("--name", metavar="NAME", help="The capture's name.", show_default="the database's"),
    ] = None,
    table: Annotated[
        list[str] | None,
        typer.Option(
            "--table", metavar="TABLE", help="Only this table; may be repeated.", show_default="all"
        ),
    ] = None,
    once: Annotated[
        bool, typer.Option("--once", help="Stop when everything that is there now is also there.")
    ] = False,
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """Keep a copy of a database's tables in sync.

    Tables are created there, types mapped, and every insert, update and delete is applied, in the order of
    the commits. Both sides may be away for a while. It runs until Ctrl-C; the next run goes on from there.
    """
    from penstock.app.replica import Replica, replica_target
    from penstock.capture import Capture, source_at

    session = Session.of(ctx, home, as_json)
    target, database = replica_target(into), source_at(source, tables=table)
    chosen = name or re.sub(r"[^a-zA-Z0-9_-]", "_", database.place)
    with session.log(create=True) as log:
        replica = Replica(log, session.folder, Capture(log, chosen, database.open(chosen)), target)
        try:
            tell_left_out(replica.capture)
            replica.start(once=once)
            with Interrupt().watching():  # also where Ctrl-C was ignored when we were started
                _watch(replica, session)
            if once:
                replica.finish()
        except KeyboardInterrupt:
            if once:
                raise typer.Exit(failure.INTERRUPTED) from None
        finally:
            replica.stop()
        _tell(replica, session)
        replica.raise_failure()


def _watch(replica: Replica, session: Session) -> None:
    due, told = time.monotonic() + _LINE_S, None
    while not replica.is_over:
        time.sleep(_LOOK_S)
        replica.look()
        if time.monotonic() >= due:
            due, now = time.monotonic() + _LINE_S, replica.status()
            if now != told:
                told = now
                _tell(replica, session)


def _tell(replica: Replica, session: Session) -> None:
    found = replica.status()
    if session.json:
        output.emit(found)
        return
    output.note(_line(found))
    for table, error in found["errors"].items():
        output.note(f"{table}: {error}")


def _line(found: dict[str, Any]) -> str:
    behind = sum(found["behind"].values())
    where = f"{words.count(behind, 'change')} behind" if behind else "up to date"
    tables = words.count(len(found["tables"]), "table")
    error = f"; {found['last_error']}" if found["last_error"] else ""
    return f"{found['capture']}: {words.count(found['changes'], 'change')} of {tables}, {where}{error}"
