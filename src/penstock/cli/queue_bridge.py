"""`penstock queue bridge`: from a queue into a topic, or from a topic into a queue."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Annotated

import typer

from penstock import places
from penstock.cli import output, words
from penstock.cli.queue_place import Name, queues_of
from penstock.cli.session import AsJson, Home, Session
from penstock.errors import BadOption

if TYPE_CHECKING:
    from penstock.queue.bridge import Bridge


def bridge(
    ctx: typer.Context,
    name: Name,
    to_topic: Annotated[
        str | None, typer.Option("--to-topic", metavar="TOPIC", help="Move messages into this topic.")
    ] = None,
    from_topic: Annotated[
        str | None, typer.Option("--from-topic", metavar="TOPIC", help="Move records of this topic here.")
    ] = None,
    start: Annotated[
        str,
        typer.Option(
            "--from", metavar="WHERE", help=f"Where a first run of --from-topic begins: {places.HELP}"
        ),
    ] = "earliest",
    id: Annotated[
        str | None, typer.Option("--id", metavar="ID", help="Its name; a second one of that name takes over.")
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="What there is now, then stop.")] = False,
    queues_at: Annotated[
        str | None,
        typer.Option("--queues", metavar="WHERE", help="Where the queues are, if not beside the log."),
    ] = None,
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """Move messages of a queue into a topic, or records of a topic into a queue, until Ctrl-C.

    With queues here exactly once, through crashes; with RabbitMQ at least once. A body is a JSON object of
    the topic's columns; a message that does not fit becomes a dead letter.
    """
    from datetime import UTC, datetime

    session = Session.of(ctx, home, as_json)
    if (to_topic is None) == (from_topic is None):
        raise BadOption("a bridge has one direction.", hint="say --to-topic TOPIC or --from-topic TOPIC")
    beside = Session(home=queues_at or session.home, json=session.json)
    place = places.parse_place(start, now=datetime.now(UTC))
    with session.log() as log, queues_of(beside) as queues:
        from penstock.queue.bridge import bridge as opened

        queue, topic = queues.open_queue(name), log.topic(to_topic or from_topic or "")
        ends = (queue, topic) if to_topic else (topic, queue)
        with opened(*ends, id=id, start=place) as found:
            _run(found, once=once)
            moved, exact = found.moved, found.exactly_once
    if session.json:
        output.emit({"queue": name, "topic": topic.name, "moved": moved, "exactly_once": exact})
    else:
        promise = "exactly once" if exact else "at least once"
        output.show(f"[green]moved[/] {words.count(moved, 'message')}, {promise}")


def _run(bridge: Bridge, *, once: bool) -> None:
    """An interrupt lets the batch under way come to its end."""
    interrupted = False

    def on_interrupt(*_: object) -> None:
        nonlocal interrupted
        interrupted = True
        bridge.stop()

    before = signal.signal(signal.SIGINT, on_interrupt)
    try:
        bridge.run(once=once)
    finally:
        signal.signal(signal.SIGINT, before)
    if interrupted and once:
        raise KeyboardInterrupt
