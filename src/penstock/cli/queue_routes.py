"""`penstock queue exchange` and `bind`: one publication, several queues."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from penstock.cli import output
from penstock.cli.queue_place import QueueHome, queues_of
from penstock.cli.session import AsJson, Session


class Kind(StrEnum):
    direct = "direct"
    topic = "topic"
    fanout = "fanout"


def exchange(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The exchange.")],
    kind: Annotated[
        Kind,
        typer.Option("--kind", help="By the key itself, by a pattern of it, or everything to everybody."),
    ] = Kind.direct,
    delete: Annotated[bool, typer.Option("--delete", help="Remove it; its queues stay.")] = False,
    home: QueueHome = None,
    as_json: AsJson = False,
) -> None:
    """Declare an exchange, which hands each message to every queue that is bound for its key."""
    session = Session.of(ctx, home, as_json)
    with queues_of(session, create=not delete) as queues:
        if delete:
            queues.port.delete_exchange(name)
        else:
            queues.exchange(name, kind.value)
    if session.json:
        output.emit({"exchange": name, **({"deleted": True} if delete else {"kind": kind.value})})
    else:
        output.show(f"[green]{'deleted' if delete else 'declared'}[/] {output.escape(name)}")


def bind(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(metavar="EXCHANGE", help="Where messages come from.")],
    queue: Annotated[str, typer.Argument(metavar="QUEUE", help="Where they go.")],
    pattern: Annotated[
        str,
        typer.Option(
            "--pattern", metavar="KEY", help="Which keys; of a topic exchange * is a word, # several."
        ),
    ] = "",
    remove: Annotated[bool, typer.Option("--remove", help="No longer.")] = False,
    home: QueueHome = None,
    as_json: AsJson = False,
) -> None:
    """Let messages of an exchange whose key fits go to a queue."""
    session = Session.of(ctx, home, as_json)
    with queues_of(session) as queues:
        found = queues.open_exchange(name)
        (found.unbind if remove else found.bind)(queue, pattern)
    if session.json:
        output.emit({"exchange": name, "queue": queue, "pattern": pattern, "bound": not remove})
    else:
        said = "no longer bound" if remove else "bound"
        output.show(f"[green]{said}[/] {output.escape(name)} to {output.escape(queue)}")
