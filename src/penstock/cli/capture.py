"""`penstock capture`: follow databases, see how far that is, and end it."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli import engine, failure, output, words
from penstock.cli.interrupt import Interrupt
from penstock.cli.session import AsJson, Home, Session, Yes
from penstock.errors import BadInput, PenstockError

if TYPE_CHECKING:
    from penstock.capture.engine import Capture

app = typer.Typer(
    help="Follow databases: their rows and changes become topics.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

_LINE_S = 3.0
_LOOK_S = 0.05

Target = Annotated[
    str,
    typer.Argument(
        metavar="SOURCE",
        help="An app with captures (shop.py), or postgresql://…, mysql://…, sqlite:///path, a path.",
    ),
]
Name = Annotated[
    str | None,
    typer.Option("--name", metavar="NAME", help="The capture's name.", show_default="the database's, or all"),
]
Tables = Annotated[
    list[str] | None,
    typer.Option("--table", metavar="TABLE", help="Only this table; may be repeated.", show_default="all"),
]


@app.command()
def run(
    ctx: typer.Context,
    source: Target,
    name: Name = None,
    table: Tables = None,
    once: Annotated[
        bool, typer.Option("--once", help="Stop when everything that is there now is stored.")
    ] = False,
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """Follow a database.

    First the rows that are there, then every change, in the order of the commits. It runs until Ctrl-C;
    nothing is lost, and the next run goes on from there. With --json: one status object per line.
    """
    from penstock.capture.running import Running

    session = Session.of(ctx, home, as_json)
    with _captures(session, source, name, table) as captures:
        for capture in captures:
            tell_left_out(capture)
        running = Running(captures)
        running.start(once=once)
        try:
            with Interrupt().watching():  # also where Ctrl-C was ignored when we were started
                _watch(running, session)
        except KeyboardInterrupt:
            if once:
                raise typer.Exit(failure.INTERRUPTED) from None
        finally:
            running.stop()
            for capture in captures:
                if capture.name not in running.failed:  # which is told as an error
                    _tell(capture, session)
        running.raise_failure()


@app.command()
def status(
    ctx: typer.Context, source: Target, name: Name = None, home: Home = None, as_json: AsJson = False
) -> None:
    """Show how far captures are, and what the databases keep for them."""
    session = Session.of(ctx, home, as_json)
    with _captures(session, source, name, None) as captures:
        found = [_status(capture) for capture in captures]
    if session.json:
        output.emit({"captures": found})
        return
    columns = ("capture", "phase", "changes#", "tables#", "source")
    output.show(output.table(columns, [_cells(each) for each in found]))


@app.command()
def resnapshot(
    ctx: typer.Context,
    source: Target,
    tables: Annotated[
        list[str] | None, typer.Argument(metavar="[TABLE]...", help="Which ones.", show_default="all")
    ] = None,
    name: Name = None,
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """Read tables again whole.

    Whoever runs the capture does it, now or at its next start. Rows that are gone from the database are
    deleted, those that are there are told again; nobody has to wait meanwhile.
    """
    session = Session.of(ctx, home, as_json)
    with _captures(session, source, name, None) as captures:
        for capture in captures:
            capture.request_snapshot(tables or ["*"])
        names = [capture.name for capture in captures]
    if session.json:
        output.emit({"captures": names, "tables": tables or ["*"]})
    else:
        output.note(f"asked for a snapshot of {', '.join(tables or ['all tables'])} in {', '.join(names)}")


@app.command()
def drop(
    ctx: typer.Context,
    source: Target,
    name: Name = None,
    yes: Yes = False,
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """Remove what capture made in a database: triggers, or the slot and the publication.

    The topics stay. A capture that is run again afterwards begins with a new snapshot.
    """
    session = Session.of(ctx, home, as_json)
    with _captures(session, source, name, None) as captures:
        for capture in captures:
            session.confirm(
                f"End capture {capture.name} of {capture.source.address}?",
                yes=yes,
                refusal=f'capture "{capture.name}" was not ended.',
            )
            capture.drop()
        names = [capture.name for capture in captures]
    if session.json:
        output.emit({"dropped": names})
    else:
        output.note(f"nothing of {', '.join(names)} is left in the database")


@app.command()
def export(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(metavar="CAPTURE", help="The capture's name.")],
    table: Annotated[str, typer.Argument(metavar="TABLE", help="As the database calls it.")],
    form: Annotated[str, typer.Option("--format", help="How: debezium.")] = "debezium",
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """Print the changes of a table as other programs read them, one JSON object per line.

    {"key", "value"}, as Debezium writes them to Kafka; a value of null follows a delete.
    """
    from penstock.capture.debezium_json import Origin, exported
    from penstock.capture.topics import topic_names
    from penstock.schema import did_you_mean

    if form != "debezium":
        raise BadInput(f'there is no format "{form}".', hint=did_you_mean(form, ["debezium"]))
    rows, changes = topic_names(name, table)
    schema, _, last = table.rpartition(".")
    origin = Origin("penstock", name, name, last, schema or None)
    with Session.of(ctx, home, as_json).log() as log:  # JSON lines in any case
        for line in exported(log.topic(changes).rows(), log.topic(rows).settings.key, source=origin):
            print(line)


def tell_left_out(capture: Capture) -> None:
    if left_out := capture.left_out():
        output.note(
            f"{capture.name}: left out, since they have no key or no WAL: {', '.join(sorted(left_out))}"
        )


@contextmanager
def _captures(
    session: Session, text: str, name: str | None, tables: list[str] | None
) -> Iterator[list[Capture]]:
    """Those of an app, or the one of an address."""
    from penstock.schema import did_you_mean

    if _is_app(text):
        with engine.loaded(session, text) as found:
            known = found.app.captures
            if name is not None and name not in known:
                raise BadInput(
                    f'the app has no capture "{name}".', hint=did_you_mean(name, known or ["none"])
                )
            if not known:
                hint = 'declare one with app.capture("shop", "sqlite:///shop.db")'
                raise BadInput("the app declares no capture.", hint=hint)
            if tables:
                hint = "leave out --table; tables= in the source of its app.capture(...) names them"
                raise BadInput("an app says itself which tables it wants.", hint=hint)
            with _closed([each.open() for at, each in known.items() if name in (None, at)]) as captures:
                yield captures
        return
    from penstock.capture import Capture, source_at

    declared = source_at(text, tables=tables)
    chosen = name or re.sub(r"[^a-zA-Z0-9_-]", "_", declared.place)
    with session.log(create=True) as log, _closed([Capture(log, chosen, declared.open(chosen))]) as captures:
        yield captures


@contextmanager
def _closed(captures: list[Capture]) -> Iterator[list[Capture]]:
    try:
        yield captures
    finally:
        for capture in captures:
            capture.close()


def _is_app(text: str) -> bool:
    return "://" not in text and (text.endswith(".py") or bool(re.fullmatch(r".*\.py|[\w./-]+:\w+", text)))


def _watch(running: Any, session: Session) -> None:
    told: dict[str, tuple[Any, ...]] = {}
    due = time.monotonic() + _LINE_S
    while not running.is_over:
        time.sleep(_LOOK_S)
        if time.monotonic() < due:
            continue
        due = time.monotonic() + _LINE_S
        for capture in running.all:
            now = (capture.progress().changes, capture.snapshot, capture.last_error)
            if told.get(capture.name) != now:
                told[capture.name] = now
                _tell(capture, session)


def _tell(capture: Capture, session: Session) -> None:
    try:
        found = capture.status()
    except PenstockError as error:
        found = {"capture": capture.name, "last_error": str(error)}
    if session.json:
        output.emit(found)
        return
    if found["last_error"]:
        output.note(f"{capture.name}: {found['last_error']}")
        return
    reading = f", reading {capture.snapshot[0]}: {capture.snapshot[1]:,} rows" if capture.snapshot else ""
    tables = words.count(len(found["tables"]), "table")
    output.note(f"{capture.name}: {words.count(found['changes'], 'change')} of {tables} stored{reading}")


def _status(capture: Capture) -> dict[str, Any]:
    found = dict(capture.status())
    try:
        found["source"] = {
            "address": capture.source.address,
            **capture.source.status(found["position"] or None),
        }
    except PenstockError as error:
        found["source"] = {"address": capture.source.address, "error": str(error)}
    return found


def _cells(found: dict[str, Any]) -> tuple[str, ...]:
    told = ", ".join(f"{name} {value}" for name, value in found["source"].items())
    return (
        output.escape(found["capture"]), found["phase"], words.count(found["changes"]),
        str(len(found["tables"])), output.escape(told),
    )  # fmt: skip
