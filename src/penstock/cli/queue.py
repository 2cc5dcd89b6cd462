"""`penstock queue`: declare, look at, change and remove queues; other verbs are in `queue_*.py`."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli import output, queue_bridge, queue_dead, queue_messages, queue_routes, queue_work, words
from penstock.cli.queue_place import Name, QueueHome, queues_of
from penstock.cli.session import AsJson, Session, Yes

if TYPE_CHECKING:
    from penstock.queue.queue import Queue
    from penstock.queue.queues import Queues

app = typer.Typer(
    help="Hand out work and forget it: queues here or on RabbitMQ.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


class Overflow(StrEnum):
    reject = "reject"
    block = "block"
    drop_oldest = "drop_oldest"


MaxAttempts = Annotated[
    str | None,
    typer.Option(
        "--max-attempts", metavar="N", help="Deliveries before it is a dead letter; none for no end."
    ),
]
MaxPriority = Annotated[
    int | None,
    typer.Option("--max-priority", metavar="N", help="Priorities from 0 to this count, at most 9."),
]
MaxLength = Annotated[
    str | None, typer.Option("--max-length", metavar="N", help="At most so many wait; none for no limit.")
]
WhenFull = Annotated[
    Overflow | None, typer.Option("--overflow", help="What happens to a message when the queue is full.")
]
Ttl = Annotated[
    str | None, typer.Option("--ttl", metavar="TIME", help="How long a message may wait; none for ever.")
]
MaxBytes = Annotated[
    str | None, typer.Option("--max-message-bytes", metavar="SIZE", help="Refuse larger bodies (16 MiB).")
]
DeadLetters = Annotated[
    bool | None,
    typer.Option("--dead-letters/--no-dead-letters", help="Whether what is given up is kept to look at."),
]
OneActive = Annotated[
    bool | None,
    typer.Option(
        "--single-active-consumer/--competing-consumers", help="One consumer gets everything, in order."
    ),
]


@app.command()
def create(
    ctx: typer.Context,
    name: Name,
    max_attempts: MaxAttempts = None,
    max_priority: MaxPriority = None,
    max_length: MaxLength = None,
    overflow: WhenFull = None,
    ttl: Ttl = None,
    max_message_bytes: MaxBytes = None,
    dead_letters: DeadLetters = None,
    single_active_consumer: OneActive = None,
    home: QueueHome = None,
    as_json: AsJson = False,
) -> None:
    """Declare a queue. One that is the same already is left as it is; a different one is an error."""
    session = Session.of(ctx, home, as_json)
    options = _options(
        max_attempts, max_priority, max_length, overflow, ttl, max_message_bytes, dead_letters,
        single_active_consumer,
    )  # fmt: skip
    with queues_of(session, create=True) as queues:
        existed = queues.has_queue(name)
        queue = queues.queue(name, **options)
        if session.json:
            output.emit({"created": not existed, **_as_object(queue)})
            return
    output.show(f"[green]{'there is' if existed else 'created'}[/] {output.escape(name)}")


@app.command("list")
def list_(ctx: typer.Context, home: QueueHome = None, as_json: AsJson = False) -> None:
    """List queues with what waits in them, and exchanges."""
    from dataclasses import asdict

    session = Session.of(ctx, home, as_json)
    with queues_of(session, if_any=True) as queues:
        stats = [queues.open_queue(name).stats() for name in queues.names()] if queues else []
        exchanges = queues.exchanges() if queues else []
        bindings = queues.bindings() if queues else []
    if session.json:
        output.emit({
            "queues": [asdict(one) for one in stats],
            "exchanges": [{"exchange": one.name, "kind": one.kind} for one in exchanges],
            "bindings": [asdict(one) for one in bindings],
        })  # fmt: skip
        return
    if not stats and not exchanges:
        output.note("no queues")
        return
    rows = [
        [
            output.escape(s.queue),
            *map(_number, (s.ready, s.unacked, s.delayed)),
            _dead(s.dead),
            _number(s.consumers),
        ]
        for s in stats
    ]
    output.show(output.table(("queue", "ready#", "unacked#", "delayed#", "dead#", "consumers#"), rows))
    if exchanges:
        routes = [
            (output.escape(e.name), e.kind, output.escape(_routes(e.name, bindings))) for e in exchanges
        ]
        output.show("", output.table(("exchange", "kind", "to"), routes))


def _number(value: int | None) -> str:
    return words.NONE if value is None else words.count(value)


def _dead(count: int) -> str:
    return f"[red]{words.count(count)}[/]" if count else "0"


def _routes(exchange: str, bindings: list[Any]) -> str:
    own = [binding for binding in bindings if binding.exchange == exchange]
    return ", ".join(f"{b.queue} ({b.pattern})" if b.pattern else b.queue for b in own) or "nobody"


@app.command()
def show(ctx: typer.Context, name: Name, home: QueueHome = None, as_json: AsJson = False) -> None:
    """Show how a queue is declared, and what is in it."""
    session = Session.of(ctx, home, as_json)
    with queues_of(session) as queues:
        queue = queues.open_queue(name)
        found, bound = _as_object(queue), _bound_to(queues, name)
    if session.json:
        output.emit({**found, "bindings": bound})
        return
    settings = [(key.replace("_", " "), _said(value)) for key, value in found["settings"].items()]
    counts = [(key, _said(value)) for key, value in found["messages"].items()]
    output.show(f"[bold]{output.escape(name)}[/]", output.facts(counts), "", output.facts(settings))
    if bound:
        rows = [(output.escape(one["exchange"]), output.escape(one["pattern"])) for one in bound]
        output.show("", output.table(("from exchange", "pattern"), rows))


def _bound_to(queues: Queues, name: str) -> list[dict[str, str]]:
    if "listing" not in queues.capabilities:
        return []
    return [{"exchange": b.exchange, "pattern": b.pattern} for b in queues.bindings() if b.queue == name]


def _as_object(queue: Queue) -> dict[str, Any]:
    from dataclasses import asdict

    settings, stats = asdict(queue.settings), asdict(queue.stats())
    del settings["name"], stats["queue"]
    return {"queue": queue.name, "settings": settings, "messages": stats}


def _said(value: object) -> str:
    if value is None:
        return words.NONE
    if isinstance(value, bool):
        return "yes" if value else "no"
    return words.count(value) if isinstance(value, int) else output.escape(str(value))


@app.command()
def alter(
    ctx: typer.Context,
    name: Name,
    max_attempts: MaxAttempts = None,
    max_priority: MaxPriority = None,
    max_length: MaxLength = None,
    overflow: WhenFull = None,
    ttl: Ttl = None,
    max_message_bytes: MaxBytes = None,
    dead_letters: DeadLetters = None,
    single_active_consumer: OneActive = None,
    home: QueueHome = None,
    as_json: AsJson = False,
) -> None:
    """Change how a queue is declared; queues here only. What waits in it stays."""
    session = Session.of(ctx, home, as_json)
    options = _options(
        max_attempts, max_priority, max_length, overflow, ttl, max_message_bytes, dead_letters,
        single_active_consumer,
    )  # fmt: skip
    with queues_of(session) as queues:
        queue = queues.alter(name, **options)
        if session.json:
            output.emit(_as_object(queue))
            return
    output.show(f"[green]changed[/] {output.escape(name)}")


@app.command()
def purge(
    ctx: typer.Context,
    name: Name,
    dead: Annotated[bool, typer.Option("--dead", help="The dead letters instead of what waits.")] = False,
    yes: Yes = False,
    home: QueueHome = None,
    as_json: AsJson = False,
) -> None:
    """Remove what waits in a queue, or its dead letters. Delivered messages stay."""
    session = Session.of(ctx, home, as_json)
    what = f'the dead letters of "{name}"' if dead else f'what waits in "{name}"'
    with queues_of(session) as queues:
        queue = queues.open_queue(name)
        session.confirm(f"remove {what}?", yes=yes, refusal=f"{what} would be removed.")
        removed = queue.purge_dead() if dead else queue.purge()
    if session.json:
        output.emit({"queue": name, "removed": removed})
    else:
        output.show(f"[green]removed[/] {words.count(removed, 'message')}")


@app.command()
def delete(
    ctx: typer.Context, name: Name, yes: Yes = False, home: QueueHome = None, as_json: AsJson = False
) -> None:
    """Remove a queue with its messages, dead letters and bindings."""
    session = Session.of(ctx, home, as_json)
    with queues_of(session) as queues:
        queue = queues.open_queue(name)
        session.confirm(f'delete queue "{name}"?', yes=yes, refusal=f'queue "{name}" would be deleted.')
        queue.delete()
    if session.json:
        output.emit({"queue": name, "deleted": True})
    else:
        output.show(f"[green]deleted[/] {output.escape(name)}")


def _options(
    max_attempts: str | None,
    max_priority: int | None,
    max_length: str | None,
    overflow: Overflow | None,
    ttl: str | None,
    max_message_bytes: str | None,
    dead_letters: bool | None,
    single_active_consumer: bool | None,
) -> dict[str, Any]:
    """What was said, in the words of `queues.queue`."""
    given: dict[str, Any] = {
        "max_attempts": _limit(max_attempts),
        "max_priority": max_priority,
        "max_length": _limit(max_length),
        "overflow": overflow and overflow.value,
        "ttl": ttl,
        "max_message_bytes": max_message_bytes and words.parse_size(max_message_bytes),
        "dead_letters": dead_letters,
        "single_active_consumer": single_active_consumer,
    }
    said = {name: value for name, value in given.items() if value is not None}
    return {name: None if value == "none" else value for name, value in said.items()}


def _limit(text: str | None) -> int | str | None:
    if text is None or text == "none":
        return text
    return words.parse_count(text)


app.command("publish")(queue_messages.publish)
app.command("get")(queue_messages.get)
app.command("work")(queue_work.work)
app.command("dead")(queue_dead.dead)
app.command("redrive")(queue_dead.redrive)
app.command("exchange")(queue_routes.exchange)
app.command("bind")(queue_routes.bind)
app.command("bridge")(queue_bridge.bridge)
