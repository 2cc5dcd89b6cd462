"""`penstock view`: the rows of a view, now, as of a past time, or as they change. Needs no Spark."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock import places
from penstock.cli import engine, output, words
from penstock.cli.engine import AppFile
from penstock.cli.session import AsJson, Home, Session
from penstock.errors import BadOption

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.app.app import App
    from penstock.follow.table import TableSpec

_ROWS_SHOWN = 100
_LOOK_AGAIN_S = 0.5

Where = Annotated[
    list[str] | None,
    typer.Option("--where", metavar="COL=VALUE", help="Only rows with this value; null for none."),
]


def view(
    ctx: typer.Context,
    app: AppFile,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The view.")],
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Then print changes as they come.")] = False,
    as_of: Annotated[
        str | None,
        typer.Option("--as-of", metavar="TIME", help='As it was: 2026-01-31T12:00Z, "10 minutes ago".'),
    ] = None,
    where: Where = None,
    limit: Annotated[
        int | None,
        typer.Option(
            "--limit", metavar="N", min=1, help="At most so many rows.", show_default="100; all with --json"
        ),
    ] = None,
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """Print the rows of a view.

    With --follow: the rows as they are, then one line for each change, until Ctrl-C.
    """
    from penstock.app.conditions import conditions

    session = Session.of(ctx, home, as_json)
    if follow and as_of is not None:
        raise BadOption("--follow and --as-of do not go together.", hint="choose one")
    moment = _moment(as_of) if as_of is not None else None
    with engine.loaded(session, app) as found:
        spec = _spec(found.app, name)
        wanted = conditions(name, spec.columns, where or [], before="--where ")
        if follow:
            try:
                _follow(found.app, spec, wanted, session, limit=limit)
            except KeyboardInterrupt:
                sys.stdout.flush()
            return
        if limit is None and not session.json:
            limit = _ROWS_SHOWN
        rows = found.app.read(name, where=wanted, as_of=moment, limit=limit and limit + 1)
        _print(session, name, rows.table, moment, limit=limit)
        _tell_behind(found.app, name, moment)


def _moment(text: str) -> datetime:
    place = places.parse_place(text, now=datetime.now(UTC))
    if not isinstance(place, datetime):
        raise BadOption(f"{text!r} is no time.", hint='write 2026-01-31T12:00Z, -5m or "10 minutes ago"')
    return place


def _spec(app: App, name: str) -> TableSpec:
    from penstock.app import reading

    if app.definition(name).kind == "stream":
        raise BadOption(
            f'"{name}" is a stream, not a view.', hint=f"read its records with: penstock consume {name}"
        )
    return reading.spec(app, name)


def _print(
    session: Session, name: str, table: pa.Table, moment: datetime | None, *, limit: int | None
) -> None:
    from penstock.log.json_rows import to_json

    rows = table.slice(0, limit).to_pylist() if limit is not None else table.to_pylist()
    more = limit is not None and table.num_rows > limit
    if session.json:
        as_of = moment.isoformat() if moment else None
        output.emit({"view": name, "as_of": as_of, "rows": [to_json(row) for row in rows], "more": more})
        return
    output.show(
        output.table(headings(table.schema), ([cell(value) for value in row.values()] for row in rows))
    )
    if more:
        output.note(f"the first {words.count(limit or 0, 'row')}; --limit N for more")


def headings(schema: pa.Schema) -> list[str]:
    """Column names, with the mark that puts numbers on the right."""
    import pyarrow as pa

    def is_number(kind: Any) -> bool:
        return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))

    return [f"{field.name}#" if is_number(field.type) else field.name for field in schema]


def cell(value: object) -> str:
    from penstock.log.json_rows import to_json

    plain = to_json(value)
    if plain is None:
        return words.NONE
    text = plain if isinstance(plain, str) else json.dumps(plain, ensure_ascii=False)
    return output.escape(text)


def _tell_behind(app: App, name: str, moment: datetime | None) -> None:
    """A copy that nobody keeps up to date is old."""
    if moment is not None:
        return
    progress = app.store.progress(name)
    behind = app.log.port.bounds(name, 0)[1] - (progress.next_offset if progress else 0)
    if behind > 0:
        output.note(
            f"this copy is {words.count(behind, 'record')} behind its changelog; `penstock run` brings it up"
        )


# ---- following --------------------------------------------------------------------------------


def _follow(
    app: App, spec: TableSpec, wanted: Mapping[str, object], session: Session, *, limit: int | None
) -> None:
    from penstock.app import reading

    if app.store.progress(spec.name) is None:
        reading.catch_up(app, spec)
    rows, progress = app.store.rows(spec, where=wanted, limit=limit)
    plain = session.json or not sys.stdout.isatty()
    for row in rows.to_pylist():
        _line("row", _tidy(row), plain=plain)
    closed_us = progress.closed_us
    for change in _changes(app, spec.name, progress.next_offset):
        own = {column: change[column] for column in spec.columns.names}
        if change["_closed_us"] is not None and (closed_us is None or change["_closed_us"] > closed_us):
            closed_us = change["_closed_us"]
            if spec.windowed:
                _line("closed", {"until": words.iso(closed_us)}, plain=plain)
        if change["_op"] == "d":
            keys = {column: own[column] for column in spec.key}
            if all(own[column] == value for column, value in wanted.items() if column in keys):
                _line("delete", keys, plain=plain)
        elif change["_op"] == "u" and all(own[column] == value for column, value in wanted.items()):
            _line("upsert", _tidy({**own, "_revision": change["_revision"]}), plain=plain)


def _changes(app: App, name: str, start: int) -> Iterator[dict[str, Any]]:
    """Changelog records from `start` on, for ever."""
    import pyarrow as pa

    topic = app.log.topic(name)
    while True:
        sys.stdout.flush()
        end = topic.bounds()[0][1]
        if end <= start and not topic.wait({0: start}, _LOOK_AGAIN_S):
            continue
        end = topic.bounds()[0][1]
        for batch in topic.read(partition=0, start=start, end=end):
            closed = batch.column("_closed").cast(pa.int64()).to_pylist()
            for row, closed_us in zip(batch.to_pylist(), closed, strict=True):
                yield {**row, "_closed_us": closed_us}
        start = end


def _tidy(row: dict[str, Any]) -> dict[str, Any]:
    """`revision` is news only where there was one."""
    revision = row.pop("_revision", 0)
    return {**row, "revision": revision} if revision else row


def _line(operation: str, row: dict[str, Any], *, plain: bool) -> None:
    from penstock.log.json_rows import to_json

    if plain:
        output.emit({"op": operation, "row": to_json(row)})
        return
    told = "  ".join(f"[dim]{output.escape(name)}[/] {cell(value)}" for name, value in row.items())
    mark = {"row": " ", "upsert": "[green]+[/]", "delete": "[red]-[/]", "closed": "[cyan]closed[/]"}[
        operation
    ]
    output.show(f"{mark} {told}")
