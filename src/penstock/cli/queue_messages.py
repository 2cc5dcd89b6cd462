"""`penstock queue publish` and `get`: messages in and out."""

from __future__ import annotations

import json
import os
import sys
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO

import typer

from penstock.cli import failure, output, words
from penstock.cli.interrupt import Interrupt
from penstock.cli.queue_place import Name, QueueHome, queues_of
from penstock.cli.session import AsJson, Session
from penstock.errors import BadOption

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.queue.consumer import QueueConsumer
    from penstock.queue.delivery import Delivery
    from penstock.queue.queue import Queue
    from penstock.queue.queues import Queues

_BATCH = 500
_LINE_BYTES_MAX = 16 << 20


class Then(StrEnum):
    ack = "ack"
    nack = "nack"
    reject = "reject"


def publish(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The queue; with --exchange, the exchange.")],
    text: Annotated[
        str | None,
        typer.Argument(metavar="TEXT", help="The body of one message; - for stdin.", show_default="stdin"),
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--file", metavar="FILE", help="A message a line; - for stdin.")
    ] = None,
    body: Annotated[
        str | None, typer.Option("--body", metavar="TEXT", help="The same as TEXT, whatever it begins with.")
    ] = None,
    exchange: Annotated[bool, typer.Option("--exchange", help="NAME is an exchange.")] = False,
    key: Annotated[str, typer.Option("--key", metavar="KEY", help="The routing key.")] = "",
    header: Annotated[
        list[str] | None, typer.Option("--header", metavar="NAME=VALUE", help="May be repeated.")
    ] = None,
    id: Annotated[
        str | None, typer.Option("--id", metavar="ID", help="The id of the one message of TEXT.")
    ] = None,
    priority: Annotated[int, typer.Option("--priority", metavar="N", help="The highest goes first.")] = 0,
    delay: Annotated[str, typer.Option("--delay", metavar="TIME", help="Keep it back so long.")] = "0 s",
    ttl: Annotated[
        str | None, typer.Option("--ttl", metavar="TIME", help="It may wait so long, then it is given up.")
    ] = None,
    home: QueueHome = None,
    as_json: AsJson = False,
) -> None:
    """Publish one message, or every line of a file or of stdin. What was counted is on the disk."""
    session = Session.of(ctx, home, as_json)
    if sum(each is not None for each in (text, file, body)) > 1:
        raise BadOption("TEXT, --file and --body do not go together.", hint="give one of them")
    if text != "-":
        body = text if body is None else body
    if id is not None and body is None:
        raise BadOption("--id names one message.", hint="give its body with TEXT")
    headers = _headers(header or [])
    about = {"key": key, "headers": headers, "priority": priority, "id": id, "delay": delay, "ttl": ttl}
    with queues_of(session) as queues:
        target: Any = queues.open_exchange(name) if exchange else queues.open_queue(name)
        room = _BATCH if exchange else min(_BATCH, target.settings.max_length or _BATCH)
        chunks = _chunks(file, room) if body is None else iter([[_argument(body)]])
        published, last = _publish_all(target, chunks, about)
    if text and text != "-" and Path(text).is_file():
        output.note(f"that was the text itself; for the lines of the file: --file {text}")
    if session.json:
        output.emit({"published": published, "last_id": last})
    else:
        output.show(f"[green]published[/] {words.count(published, 'message')}")


def _publish_all(target: Any, chunks: Any, about: dict[str, Any]) -> tuple[int, str | None]:
    from penstock.queue.message import message

    published, last = 0, None
    interrupt = Interrupt()
    with interrupt.watching():
        try:
            for chunk in chunks:
                with interrupt.held():
                    ids = target.publish_many([message(body, **about) for body in chunk])
                    published, last = published + len(ids), ids[-1]
        except BaseException:
            if published:
                output.note(f"before that, {words.count(published, 'message')} were published")
            raise
    return published, last


def _argument(text: str) -> str | bytes:
    """What was typed, also where that is no text."""
    given = os.fsencode(text)
    try:
        return given.decode()
    except UnicodeDecodeError:
        return given


def _opened(file: Path | None) -> BinaryIO:
    if file is None or str(file) == "-":
        if sys.stdin.isatty():
            output.note("reading lines from the terminal; end with Ctrl-D")
        return sys.stdin.buffer
    try:
        return file.open("rb")
    except OSError as error:
        raise BadOption(
            f"{file} cannot be read ({error.strerror}).", hint="name a file with a message a line"
        ) from None


def _chunks(file: Path | None, at_once: int) -> Iterator[list[bytes]]:
    from penstock.cli.lines import LineReader

    stream = _opened(file)
    reader = LineReader(stream, line_bytes_max=_LINE_BYTES_MAX)
    try:
        while lines := reader.take(at_once):
            if None in lines:
                raise BadOption(
                    f"a line before line {reader.taken + 1} is longer than {words.size(_LINE_BYTES_MAX)}.",
                    hint="store the large part elsewhere and send a reference",
                )
            if full := [line for line in lines if line]:
                yield full
    finally:
        if stream is not sys.stdin.buffer:
            stream.close()


def _headers(given: list[str]) -> dict[str, str]:
    pairs = [one.partition("=") for one in given]
    if any(not sign for _, sign, _ in pairs):
        raise BadOption("a header is NAME=VALUE.", hint="--header colour=red")
    return {name: value for name, _, value in pairs}


def get(
    ctx: typer.Context,
    name: Name,
    count: Annotated[int, typer.Option("--max", metavar="N", min=1, help="At most so many.")] = 1,
    wait: Annotated[
        str, typer.Option("--wait", metavar="TIME", help="How long the next one may take.")
    ] = "0 s",
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on, waiting for more, until Ctrl-C.")
    ] = False,
    then: Annotated[
        Then, typer.Option("--then", help="What becomes of each: gone, again, or a dead letter.")
    ] = Then.ack,
    delay: Annotated[
        str, typer.Option("--delay", metavar="TIME", help="With --then nack: not before this.")
    ] = "0 s",
    reason: Annotated[
        str, typer.Option("--reason", metavar="TEXT", help="With --then nack or reject: why.")
    ] = "",
    home: QueueHome = None,
    as_json: AsJson = False,
) -> None:
    """Take messages, print them, and then settle them: by default with an ack, so that they are gone.

    A message belongs to the process that took it: one that ends before it has settled gives it back. Exit
    code 1 when no message came.
    """
    session = Session.of(ctx, home, as_json)
    if follow and then is Then.nack:
        raise BadOption("--follow with --then nack would print the same for ever.", hint="say --max N")
    with queues_of(session) as queues:
        taken = _take_all(
            session,
            queues,
            name,
            count=None if follow else count,
            wait=wait,
            then=then,
            delay=delay,
            reason=reason,
        )
    if not taken and not follow:
        if not session.json:
            output.note("no message came")
        raise typer.Exit(failure.NO)


def _take_all(
    session: Session,
    queues: Queues,
    name: str,
    *,
    count: int | None,
    wait: str,
    then: Then,
    delay: str,
    reason: str,
) -> int:
    taken, put_back = 0, list[Any]()  # at the end: before, they would come again at once
    interrupt = Interrupt()
    with interrupt.watching(), _taker(queues.open_queue(name)) as consumer:
        try:
            while count is None or taken < count:
                delivery = consumer.get(timeout="1 second" if count is None else wait)
                if delivery is None and count is None:
                    continue
                if delivery is None:
                    break
                with interrupt.held():
                    print(_line(session, delivery), flush=True)
                    taken += 1
                    if then is Then.ack:
                        delivery.ack()
                    elif then is Then.reject:
                        delivery.reject(reason)
                    else:
                        put_back.append(delivery)
        except KeyboardInterrupt:
            if count is not None:
                raise
        for delivery in put_back:
            delivery.nack(reason, delay=delay)
    return taken


@contextmanager
def _taker(queue: Queue) -> Iterator[Queue | QueueConsumer]:
    """Asks for each message: a RabbitMQ sends a consumer no more than it may hold, and it may hold many."""
    if not queue.settings.single_active_consumer:
        yield queue
        return
    with queue.consume(prefetch=1) as consumer:
        yield consumer


def _line(session: Session, delivery: Delivery) -> str:
    if session.json:
        return json.dumps(as_object(delivery), ensure_ascii=False)
    return delivery.body.decode(errors="backslashreplace")


def as_object(delivery: Delivery) -> dict[str, Any]:
    from penstock.log.json_rows import to_json

    return {
        "id": delivery.id,
        "body": to_json(delivery.body),
        "key": delivery.key,
        "headers": dict(delivery.headers),
        "priority": delivery.priority,
        "attempts": delivery.attempts,
        "redelivered": delivery.redelivered,
        "published": words.iso(delivery.published_us),
    }
