"""`penstock consume`: records of a topic, one per line."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from penstock import places
from penstock.cli import output, words
from penstock.cli.interrupt import Interrupt
from penstock.cli.session import AsJson, Home, Session
from penstock.errors import BadOption

if TYPE_CHECKING:
    from penstock.log.event import Event
    from penstock.log.log import Log
    from penstock.log.topic import Topic

_AS_JSON_HAS_IT = ("int8", "int16", "int32", "int64", "string", "bool")

Writer = Callable[["Event"], str]


class OnLost(StrEnum):
    error = "error"
    earliest = "earliest"
    latest = "latest"


def consume(
    ctx: typer.Context,
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="What to read.")],
    group: Annotated[
        str | None,
        typer.Option("--group", metavar="GROUP", help="Read as a member of this group, which remembers."),
    ] = None,
    start: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="WHERE",
            help=places.HELP,
            show_default="earliest; a group goes on from its commits",
        ),
    ] = None,
    partition: Annotated[int | None, typer.Option("--partition", metavar="N", help="Only this one.")] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Wait for more instead of stopping.")
    ] = False,
    count: Annotated[
        int | None, typer.Option("--max", metavar="N", min=1, help="Stop after so many.")
    ] = None,
    on_lost: Annotated[
        OnLost,
        typer.Option("--on-lost", help="What to do when retention removed records before they were read."),
    ] = OnLost.error,
    values: Annotated[
        bool, typer.Option("--values", help="Print only the value, without its place.")
    ] = False,
    reveal: Annotated[
        bool, typer.Option("--reveal", help="Print what is personal in clear, where there is a key for it.")
    ] = False,
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """Print records, one JSON object per line.

    Without a group: in the order they were appended. With a group: every record once per group, as long as
    nobody crashes; progress is committed after a record is printed.
    """
    session = Session.of(ctx, home, as_json)
    if group is not None and partition is not None:
        raise BadOption(
            "--partition and --group do not go together.", hint="a group divides partitions by itself"
        )
    place = places.parse_place(start or "earliest", now=datetime.now(UTC))
    with session.log() as log:
        write = _writer(log, topic, session, values=values)
        found = log.topic(topic).revealed() if reveal else log.topic(topic)
        try:
            if group is not None:
                _as_member(log, found, group, place, write, follow=follow, count=count, on_lost=on_lost)
            else:
                _plainly(
                    found, place, write, partition=partition, follow=follow, count=count, on_lost=on_lost
                )
        except KeyboardInterrupt:
            if not follow:
                raise


def _as_member(
    log: Log,
    topic: Topic,
    group: str,
    place: places.Place,
    write: Writer,
    *,
    follow: bool,
    count: int | None,
    on_lost: OnLost,
) -> None:
    if place != "earliest" and log.port.committed(group, topic.name):
        output.note(f'group "{group}" goes on from its commits, not --from; to move it: penstock group reset')
    printed: dict[int, int] = {}
    interrupt = Interrupt()
    member = topic.consume(group=group, start=place, on_lost=on_lost.value, follow=follow)
    with interrupt.watching(), member as consumer:
        # What is printed is processed, no more and no less, wherever an interrupt comes.
        consumer.track_outside(lambda: consumer.mark_done(printed))
        for number, event in enumerate(consumer, start=1):
            with interrupt.held():
                sys.stdout.write(write(event))
                sys.stdout.flush()
                printed[event.partition] = event.offset + 1
            if number == count:
                break
    if consumer.missed:
        output.note(f"retention had removed {words.count(consumer.missed, 'record')} before they were read")


def _plainly(
    topic: Topic,
    place: places.Place,
    write: Writer,
    *,
    partition: int | None,
    follow: bool,
    count: int | None,
    on_lost: OnLost,
) -> None:
    from penstock.cli.tail import Tail

    tail = Tail(topic, place, partition=partition, on_lost=on_lost.value)
    left = sys.maxsize if count is None else count
    interrupt = Interrupt()

    def rest() -> None:
        sys.stdout.flush()
        interrupt.check()

    with interrupt.watching():
        for event in tail.read(follow=follow, before_waiting=rest):
            sys.stdout.write(write(event))
            left -= 1
            if not left:
                break
    sys.stdout.flush()
    if tail.missed:
        output.note(f"retention had removed {words.count(tail.missed, 'record')} before they were read")


def _writer(log: Log, topic: str, session: Session, *, values: bool) -> Writer:
    """How a record becomes a line."""
    import json

    from penstock.log.json_rows import to_json

    settings = log.topic(topic).settings
    encode = json.JSONEncoder(ensure_ascii=False).encode
    # Most columns are what JSON has itself; going through the others only makes this twice as fast.
    translated = [field.name for field in settings.schema.arrow if str(field.type) not in _AS_JSON_HAS_IT]

    def value_of(event: Event) -> str:
        if event.deleted:
            return encode(to_json({name: event[name] for name in settings.key}))
        value = dict(event.value)
        for name in translated:
            value[name] = to_json(value[name])
        return encode(value)

    def as_json(event: Event) -> str:
        deleted = f', "deleted": {str(event.deleted).lower()}' if settings.compacted else ""
        place = f'"partition": {event.partition}, "offset": {event.offset}'
        appended = f'"timestamp": "{words.iso(event.time_us)}"'
        return f'{{{place}, {appended}{deleted}, "value": {value_of(event)}}}\n'

    if values:
        return lambda event: "" if event.deleted else value_of(event) + "\n"
    if session.json or not sys.stdout.isatty():
        return as_json
    return _readable(value_of)


def _readable(value_of: Writer) -> Writer:
    """For eyes: time, place, value."""
    dim, cyan, red, plain = "\x1b[2m", "\x1b[36m", "\x1b[31m", "\x1b[0m"
    if "NO_COLOR" in os.environ:
        dim = cyan = red = plain = ""

    def line(event: Event) -> str:
        at = datetime.fromtimestamp(event.time_us / 1e6).strftime("%H:%M:%S.%f")[:-3]
        mark = f"{red}deleted{plain} " if event.deleted else ""
        return f"{dim}{at}{plain} {cyan}{event.partition}:{event.offset}{plain} {mark}{value_of(event)}\n"

    return line
