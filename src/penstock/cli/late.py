"""`penstock late`: what a view has left out, and why. Needs no Spark."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from penstock.cli import engine, output, words
from penstock.cli.engine import AppFile
from penstock.cli.session import AsJson, Home, Session


def late(
    ctx: typer.Context,
    app: AppFile,
    view: Annotated[str, typer.Argument(metavar="VIEW", help="The view or stream.")],
    limit: Annotated[int, typer.Option("--limit", metavar="N", min=1, help="The newest so many.")] = 20,
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """Print what came too late for a view.

    With the window and the watermark that excluded it. One row can be late for one window and count
    in another: each line is such a pair.
    """
    from penstock.app import reading
    from penstock.errors import UnknownView
    from penstock.flow.output import BATCHES

    session = Session.of(ctx, home, as_json)
    with engine.loaded(session, app) as found:
        definition = found.app.definition(view)
        if f"{definition.name}{BATCHES}" not in found.app.log.topics():
            raise UnknownView(view, defined=True)
        table = reading.late(found.app, view).table
        pairs = table.slice(max(0, table.num_rows - limit)).to_pylist()
    if session.json:
        output.emit({"view": view, "late": table.num_rows, "pairs": [_object(pair) for pair in pairs]})
        return
    if pairs:
        columns = ("row~", "window", "watermark", "reason", "place")
        output.show(output.table(columns, [_cells(pair) for pair in pairs]))
    shown = f", the newest {len(pairs)} of them here" if len(pairs) < table.num_rows else ""
    output.note(f"{words.count(table.num_rows, 'pair')} left out{shown}")


def _object(pair: dict[str, Any]) -> Any:
    from penstock.log.json_rows import to_json

    return to_json({name: value for name, value in pair.items() if not name.startswith("_")})


def _cells(pair: dict[str, Any]) -> tuple[str, ...]:
    plain = _object(pair)
    window = f"{plain['window_start']} to {plain['window_end']}" if plain["window_start"] else words.NONE
    row = json.dumps(plain["row"], ensure_ascii=False) if plain["row"] is not None else "(dropped)"
    place = f"{plain['topic']}[{plain['partition']}] {plain['offset']}"
    watermark = plain["watermark"] or words.NONE
    return tuple(output.escape(text) for text in (row, window, watermark, plain["reason"], place))
