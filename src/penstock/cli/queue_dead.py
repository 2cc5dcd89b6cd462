"""`penstock queue dead` and `redrive`: what was given up, and another try."""

from __future__ import annotations

import json
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli import output, words
from penstock.cli.queue_place import Name, QueueHome, queues_of
from penstock.cli.session import AsJson, Session
from penstock.errors import BadOption, BadRecord

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.queue.delivery import DeadLetter


class Cause(StrEnum):
    rejected = "rejected"
    attempts = "attempts"
    expired = "expired"
    dropped = "dropped"


ByCause = Annotated[Cause | None, typer.Option("--cause", help="Only those given up for this.")]
ById = Annotated[
    list[str] | None, typer.Option("--id", metavar="ID", help="Only this message; may be repeated.")
]
Containing = Annotated[
    str | None, typer.Option("--containing", metavar="TEXT", help="Only those with this in their body.")
]


def dead(
    ctx: typer.Context,
    name: Name,
    cause: ByCause = None,
    id: ById = None,
    containing: Containing = None,
    count: Annotated[
        int, typer.Option("--max", metavar="N", min=1, help="Look at the oldest so many.")
    ] = 100,
    home: QueueHome = None,
    as_json: AsJson = False,
) -> None:
    """List the dead letters of a queue: what they are, why they were given up, what was tried."""
    session = Session.of(ctx, home, as_json)
    wanted = _wanted(cause, id, containing)
    with queues_of(session) as queues:
        letters = [letter for letter in queues.open_queue(name).dead_letters(count) if wanted(letter)]
    if session.json:
        output.emit({"queue": name, "dead_letters": [_as_object(letter) for letter in letters]})
        return
    if not letters:
        output.note("no dead letters")
        return
    rows = [
        (
            output.escape(letter.id), letter.cause, str(letter.attempts), output.escape(letter.reason),
            output.escape(letter.message.body.decode(errors="backslashreplace")),
        )
        for letter in letters
    ]  # fmt: skip
    output.show(output.table(("id", "cause", "attempts#", "reason", "body~"), rows))


def redrive(
    ctx: typer.Context,
    name: Name,
    cause: ByCause = None,
    id: ById = None,
    containing: Containing = None,
    count: Annotated[int | None, typer.Option("--max", metavar="N", min=1, help="At most so many.")] = None,
    to: Annotated[
        str | None, typer.Option("--to", metavar="QUEUE", help="Another queue than its own.")
    ] = None,
    body: Annotated[
        str | None, typer.Option("--body", metavar="TEXT", help="A new body for all of them.")
    ] = None,
    change: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=JSON", help="Change a member of a JSON body; may be repeated."),
    ] = None,
    home: QueueHome = None,
    as_json: AsJson = False,
) -> None:
    """Publish dead letters anew, with no attempts behind them: all, some, or with another body."""
    session = Session.of(ctx, home, as_json)
    edit, wanted = _edit(body, change or []), _wanted(cause, id, containing)
    with queues_of(session) as queues:
        target = queues.open_queue(to) if to else None
        redriven = queues.open_queue(name).redrive(wanted, edit=edit, to=target, limit=count)
    if session.json:
        output.emit({"queue": name, "to": to or name, "redriven": redriven})
    else:
        output.show(f"[green]redriven[/] {words.count(redriven, 'message')}")


def _wanted(
    cause: Cause | None, ids: list[str] | None, containing: str | None
) -> Callable[[DeadLetter], bool]:
    def wanted(letter: DeadLetter) -> bool:
        return (
            (cause is None or letter.cause == cause.value)
            and (not ids or letter.id in ids)
            and (containing is None or containing.encode() in letter.message.body)
        )

    return wanted


def _edit(body: str | None, changes: list[str]) -> Callable[[DeadLetter], object] | None:
    if body is not None and changes:
        raise BadOption("--body and --set do not go together.", hint="give one of them")
    if body is not None:
        return lambda _: body
    if not changes:
        return None
    members = dict(_member(one) for one in changes)
    return lambda letter: _changed(letter, members)


def _changed(letter: DeadLetter, members: dict[str, Any]) -> object:
    try:
        value = letter.json()
    except BadRecord:
        value = None
    if not isinstance(value, dict):
        raise BadOption(
            f"the body of message {letter.id} is no JSON object.",
            hint="give a new one with --body, or choose others with --cause, --id or --containing",
        )
    return {**value, **members}


def _member(text: str) -> tuple[str, Any]:
    name, sign, value = text.partition("=")
    if not sign:
        raise BadOption(f"--set {text!r}.", hint="write NAME=JSON, like --set retries=3")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value  # text that nobody wants to quote twice


def _as_object(letter: DeadLetter) -> dict[str, Any]:
    from penstock.log.json_rows import to_json

    return {
        "id": letter.id,
        "body": to_json(letter.message.body),
        "key": letter.message.key,
        "headers": dict(letter.message.headers),
        "cause": letter.cause,
        "reason": letter.reason,
        "attempts": letter.attempts,
        "at": to_json(letter.at),
        "history": [
            {"attempt": one.number, "outcome": one.outcome, "reason": one.reason, "at": to_json(one.at)}
            for one in letter.history
        ],
    }
