"""`penstock sourcing`: an app's aggregates, what they were, who did what; publishing their events."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock import places
from penstock.cli import engine, failure, output, words
from penstock.cli.engine import AppFile
from penstock.cli.interrupt import Interrupt
from penstock.cli.session import AsJson, Home, Session
from penstock.errors import BadInput, BadOption

if TYPE_CHECKING:
    from penstock.app.aggregates import AppAggregates
    from penstock.sourcing.mapper import StoredEntry
    from penstock.sourcing.publisher import Publication

app = typer.Typer(
    help="Event-sourced aggregates: their states, their histories, their events.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

_LINE_S = 3.0
_LOOK_S = 0.05
_LISTED = 100

Id = Annotated[str, typer.Argument(metavar="ID", help="The aggregate.")]
Name = Annotated[
    str | None,
    typer.Option("--name", metavar="NAME", help="Which aggregates of the app.", show_default="the only ones"),
]
Reveal = Annotated[bool, typer.Option("--reveal", help="In clear, what is personal; else it is not shown.")]
Limit = Annotated[int | None, typer.Option("--limit", metavar="N", min=1, help="At most so many.")]


@app.command()
def show(
    ctx: typer.Context, app: AppFile, name: Name = None, home: Home = None, as_json: AsJson = False
) -> None:
    """Show what aggregates an app has, their events, and how far these are published."""
    session = Session.of(ctx, home, as_json)
    with _sourced(session, app, name) as found:
        told = [_declared(each) for each in found]
    if session.json:
        output.emit({"sourced": told})
        return
    for each in told:
        waiting = max(0, each["recorded"] - each["published"])
        events = ", ".join(
            f"{event['event']}" + (f" (version {event['version']})" if event["version"] > 1 else "")
            for event in each["events"]
        )
        pairs = (
            ("aggregates", f"{each['name']}: {words.count(each['aggregates'])} of {each['class']}"),
            ("events", events),
            ("store", each["store"]),
            ("published", f"all but {words.count(waiting)}" if waiting else "all"),
        )
        output.show(output.facts((label, output.escape(value)) for label, value in pairs))


@app.command("list")
def list_(
    ctx: typer.Context,
    app: AppFile,
    name: Name = None,
    limit: Limit = _LISTED,
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """List aggregates by their ids, with their versions."""
    session = Session.of(ctx, home, as_json)
    with _one(session, app, name) as aggregates:
        wanted = limit or _LISTED
        found = list(aggregates.list(limit=wanted + 1))
    rows, more = found[:wanted], len(found) > wanted
    if session.json:
        told = [{"id": each.id, "version": each.version} for each in rows]
        output.emit({"name": aggregates.name, "aggregates": told, "more": more})
        return
    shown = [(output.escape(each.id), words.count(each.version)) for each in rows]
    output.show(output.table((aggregates.name, "version#"), shown))
    if more:
        output.note(f"there are more than {wanted}: say --limit N")


@app.command()
def state(
    ctx: typer.Context,
    app: AppFile,
    id: Id,
    version: Annotated[
        int | None, typer.Option("--version", metavar="N", help="As it was after so many events.")
    ] = None,
    as_of: Annotated[
        str | None,
        typer.Option("--as-of", metavar="TIME", help='As it was: 2026-01-31T12:00Z, "10 minutes ago".'),
    ] = None,
    reveal: Reveal = False,
    name: Name = None,
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """Print the state of an aggregate: now, at a version, or as of a time.

    Without --reveal it is as if everybody were forgotten: what is personal in events is not in it.
    """
    session = Session.of(ctx, home, as_json)
    moment = _moment(as_of) if as_of is not None else None
    with _one(session, app, name) as aggregates:
        book = aggregates.book if reveal else aggregates.book.withheld()
        found = book.state(id, version=version, as_of=moment)
        data = aggregates.kinds.state.write(found)
    told = {"name": aggregates.name, "id": id, "version": found.version, "changed_at": _iso(found.changed_at)}
    if session.json:
        output.emit({**told, "revealed": reveal, "state": data})
        return
    pairs = [(label, str(value)) for label, value in {**told, **data}.items() if label != "name"]
    output.show(output.facts((label, output.escape(value)) for label, value in pairs))
    _note_withheld(aggregates, reveal=reveal)


@app.command()
def audit(
    ctx: typer.Context,
    app: AppFile,
    id: Id,
    reveal: Reveal = False,
    name: Name = None,
    limit: Limit = None,
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """Print who did what to an aggregate, and when: every event, with its version and its command.

    What is personal is shown as it is stored, sealed, unless --reveal is said.
    """
    session = Session.of(ctx, home, as_json)
    with _one(session, app, name) as aggregates:
        told = list(_entries(aggregates, id, limit=limit, reveal=reveal))
        sealed = () if reveal else aggregates.personal
    if session.json:
        output.emit({"name": aggregates.name, "id": id, "revealed": reveal, "entries": told})
        return
    rows = [
        (
            words.count(each["version"]), each["at"], output.escape(each["by"] or words.NONE),
            output.escape(each["event"]), output.escape(_fields(each["data"], sealed)),
            each["command_id"][:8],
        )
        for each in told
    ]  # fmt: skip
    output.show(output.table(("version#", "at", "by", "event", "data", "command"), rows))
    _note_withheld(aggregates, reveal=reveal)


@app.command()
def publish(
    ctx: typer.Context,
    app: AppFile,
    name: Name = None,
    once: Annotated[
        bool, typer.Option("--once", help="Stop when everything that is recorded now is published.")
    ] = False,
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """Publish the events of an app's aggregates, each once and in order.

    It runs until Ctrl-C, as `penstock run` does besides; whoever publishes them already, ends.
    With --json: one status object per line.
    """
    from penstock.capture.running import Running

    session = Session.of(ctx, home, as_json)
    with _sourced(session, app, name) as found:
        running = Running([each.publisher() for each in found])
        running.start(once=once)
        try:
            with Interrupt().watching():  # also where Ctrl-C was ignored when we were started
                _watch(running, session)
        except KeyboardInterrupt:
            if once:
                raise typer.Exit(failure.INTERRUPTED) from None
        finally:
            running.stop()
            for publisher in running.all:
                if publisher.name not in running.failed:  # which is told as an error
                    _tell(publisher.status(), session)
        running.raise_failure()


@contextmanager
def _sourced(session: Session, text: str, name: str | None) -> Iterator[list[AppAggregates[Any]]]:
    from penstock.schema import did_you_mean

    with engine.loaded(session, text) as found:
        known = found.app.sourced
        if not known:
            raise BadInput(
                "the app has no aggregates.", hint='declare them with app.aggregates("carts", Cart)'
            )
        if name is not None and name not in known:
            raise BadInput(f'the app has no aggregates "{name}".', hint=did_you_mean(name, known))
        yield [each for at, each in known.items() if name in (None, at)]


@contextmanager
def _one(session: Session, text: str, name: str | None) -> Iterator[AppAggregates[Any]]:
    with _sourced(session, text, name) as found:
        if len(found) > 1:
            known = ", ".join(each.name for each in found)
            raise BadInput("the app has several kinds of aggregates.", hint=f"say --name, one of {known}")
        yield found[0]


def _declared(aggregates: AppAggregates[Any]) -> dict[str, Any]:
    status = aggregates.publisher().status()
    return {
        "name": aggregates.name,
        "class": aggregates.kinds.aggregate.__name__,
        "store": aggregates.book.store.address,
        "aggregates": aggregates.book.store.count(),
        "recorded": status.recorded,
        "published": status.published,
        "events": [
            {"event": kind.name, "version": kind.version, "fields": kind.fields} for kind in aggregates.kinds
        ],
    }


def _entries(
    aggregates: AppAggregates[Any], id: str, *, limit: int | None, reveal: bool
) -> Iterator[dict[str, Any]]:
    if not reveal:
        yield from (_told(version, stored) for version, stored in aggregates.book.stored(id, limit=limit))
        return
    from penstock.sourcing.mapper import StoredEntry

    for entry in aggregates.history(id, limit=limit):
        kind = aggregates.kinds.by_type[type(entry.event)]
        data = kind.form.write(entry.event)
        yield _told(entry.version, StoredEntry(kind, data, entry.at.isoformat(), entry.by, entry.command_id))


def _told(version: int, entry: StoredEntry) -> dict[str, Any]:
    return {
        "version": version,
        "at": _iso(datetime.fromisoformat(entry.at)),
        "by": entry.by,
        "event": entry.kind.name,
        "event_version": entry.kind.version,
        "data": entry.data,
        "command_id": entry.command_id,
    }


def _fields(data: dict[str, Any], sealed: Collection[str]) -> str:
    shown = (
        (name, "(sealed)" if name in sealed and value is not None else value) for name, value in data.items()
    )
    return ", ".join(f"{name} {value}" for name, value in shown)


def _note_withheld(aggregates: AppAggregates[Any], *, reveal: bool) -> None:
    if aggregates.personal and not reveal:
        output.note(f"personal, and not shown without --reveal: {', '.join(aggregates.personal)}")


def _watch(running: Any, session: Session) -> None:
    told: dict[str, Publication] = {}
    due = time.monotonic() + _LINE_S
    while not running.is_over:
        time.sleep(_LOOK_S)
        if time.monotonic() < due:
            continue
        due = time.monotonic() + _LINE_S
        for publisher in running.all:
            now = publisher.status()
            if told.get(publisher.name) != now:
                told[publisher.name] = now
                _tell(now, session)


def _tell(found: Publication, session: Session) -> None:
    from dataclasses import asdict

    if session.json:
        output.emit(asdict(found))
        return
    waiting = max(0, found.recorded - found.published)
    done = f"published up to {words.count(found.published)}"
    more = f", {words.count(waiting)} to come" if waiting else ""
    output.note(f"{found.aggregates}: {found.last_error or done + more}")


def _moment(text: str) -> datetime:
    place = places.parse_place(text, now=datetime.now(UTC))
    if not isinstance(place, datetime):
        raise BadOption(f"{text!r} is no time.", hint='write 2026-01-31T12:00Z, -5m or "10 minutes ago"')
    return place


def _iso(moment: datetime | None) -> str | None:
    return None if moment is None else moment.astimezone(UTC).isoformat().replace("+00:00", "Z")
