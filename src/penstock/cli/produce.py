"""`penstock produce`: JSON lines, or plain text, into a topic."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO

import typer

from penstock.cli import failure, output, progress, words
from penstock.cli.session import AsJson, Home, Session
from penstock.errors import BadOption

if TYPE_CHECKING:
    from penstock.cli.load import Load

_WORTH_A_RATE = 1_000


def produce(
    ctx: typer.Context,
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Where to.")],
    file: Annotated[
        Path | None, typer.Argument(metavar="FILE", help="JSON lines; stdin if left out.")
    ] = None,
    partition: Annotated[
        int | None, typer.Option("--partition", metavar="N", help="All into this one.")
    ] = None,
    text: Annotated[
        bool, typer.Option("--text", help="Each line is the value of a record, as it is.")
    ] = False,
    delete: Annotated[
        bool, typer.Option("--delete", help="Each line is a key to delete (compacted topics).")
    ] = False,
    skip_bad: Annotated[
        bool,
        typer.Option("--skip-bad", help="Report bad lines on stderr as JSON and go on; exit code 1 if any."),
    ] = False,
    id_: Annotated[
        str | None,
        typer.Option(
            "--id", metavar="ID", help="Exactly once: a later run with this id goes on where this one ended."
        ),
    ] = None,
    from_line: Annotated[
        int, typer.Option("--from-line", metavar="N", min=1, help="Begin with this line.")
    ] = 1,
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """Append JSON lines to a topic.

    Binary columns take text or {"base64": "…"}; times are ISO 8601.
    """
    session = Session.of(ctx, home, as_json)
    if id_ is not None and (partition is not None or delete or from_line != 1):
        raise BadOption(
            "--id goes with neither --partition, --delete nor --from-line.",
            hint="an id remembers the line itself and places records by their key",
        )
    if delete and (skip_bad or text or partition is not None):
        raise BadOption(
            "--delete goes with neither --skip-bad, --text nor --partition.",
            hint="a key decides its partition",
        )
    from penstock.cli.load import Load

    with session.log() as log, _input(file) as stream:
        load = Load(
            log, topic, stream, text=text, delete=delete, skip_bad=skip_bad, partition=partition, id=id_
        )
        _run_and_tell(session, load, file, from_line)
    if load.bad:
        raise typer.Exit(failure.NO)


def _run_and_tell(session: Session, load: Load, file: Path | None, from_line: int) -> None:
    """However the run ends, but for a bad line, a program is told what was stored."""
    began = time.monotonic()
    try:
        _run(load, file, from_line, began=began)
    except KeyboardInterrupt:
        if session.json:  # people were told by a remark
            with suppress(BrokenPipeError):  # Ctrl-C may have ended the reader of our pipe too
                _summarize(session, load, time.monotonic() - began)
        raise
    _summarize(session, load, time.monotonic() - began)


def _run(load: Load, file: Path | None, from_line: int, *, began: float) -> None:
    from penstock.cli.interrupt import Interrupt

    interrupt = Interrupt()
    typing = file is None and sys.stdin.isatty()
    if typing:
        output.note("reading lines from the terminal; end with Ctrl-D")
    total = file.stat().st_size if file and file.is_file() else None
    with progress.watched(load.topic.name, total=total, hidden=typing) as shown, interrupt.watching():
        load.say = shown.say
        try:
            load.skip_to(from_line)
            while load.next_chunk(holding=interrupt.held):
                told = progress.told(load.stored, time.monotonic() - began, load.reader.bytes_read)
                shown.update(done=load.reader.bytes_read, told=told)
        except KeyboardInterrupt:
            shown.say(f"interrupted: {words.count(load.stored, 'record')} stored; {load.how_to_go_on()}")
            raise


@contextmanager
def _input(file: Path | None) -> Iterator[BinaryIO]:
    if file is None or str(file) == "-":
        yield sys.stdin.buffer
        return
    try:
        opened = file.open("rb")
    except OSError as error:
        raise BadOption(
            f"{file} cannot be read ({error.strerror}).", hint="name a file with JSON lines"
        ) from None
    with opened:
        yield opened


def _summarize(session: Session, load: Load, seconds: float) -> None:
    ranges = sorted(load.ranges.items())
    if session.json:
        output.emit(
            {
                "topic": load.topic.name,
                "records": load.stored,
                "lines": load.done,
                "bad_lines": load.bad,
                "skipped_lines": load.skipped,
                "partitions": [{"partition": n, "first": first, "end": end} for n, (first, end) in ranges],
                "seconds": round(seconds, 3),
                "records_per_second": round(load.stored / max(seconds, 1e-6)),
            }
        )
        return
    verb = "deleted" if load.delete else "stored"
    for line in _told(load, verb, seconds):
        output.show(line)
    if ranges:
        output.show(output.table(("partition#", "offsets"), [_range_row(*one) for one in ranges]))


def _told(load: Load, verb: str, seconds: float) -> Iterator[Any]:
    if load.skipped:
        why = f"stored by an earlier run with --id {load.id}" if load.id else "before --from-line"
        yield f"[dim]skipped {words.count(load.skipped, 'line')} {output.escape(why)}[/]"
    noun = "key" if load.delete else "record"
    pace = f", {words.rate(load.stored, seconds)}" if load.stored >= _WORTH_A_RATE else ""
    yield (
        f"[green]{verb}[/] {words.count(load.stored, noun)} in {output.escape(load.topic.name)} "
        f"[dim]in {words.span(seconds)}{pace}[/]"
    )
    if load.bad:
        yield f"[red]left out {words.count(load.bad, 'bad line')}[/]"


def _range_row(number: int, offsets: tuple[int, int]) -> tuple[str, str]:
    first, end = offsets
    return str(number), f"{first:,}" if end == first + 1 else f"{first:,} to {end - 1:,}"
