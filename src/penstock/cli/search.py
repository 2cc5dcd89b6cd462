"""`penstock search`: the rows of a search index that match a query best. Needs no Spark."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli import engine, output, words
from penstock.cli.session import AsJson, Home, Session
from penstock.cli.view import cell
from penstock.errors import BadOption, NotSupported

if TYPE_CHECKING:
    from penstock.follow.search import Hit

_ROWS_SHOWN = 10


def search(
    ctx: typer.Context,
    place: Annotated[
        str,
        typer.Argument(metavar="APP", help="Where the app is, or the folder of its indexes."),
    ],
    name: Annotated[str, typer.Argument(metavar="NAME", help="The view, stream or table.")],
    query: Annotated[
        str, typer.Argument(metavar="QUERY", help='Words, "phrases", prefix*, fuzzy~1, title:word, price:>5.')
    ],
    limit: Annotated[
        int, typer.Option("--limit", metavar="N", min=1, max=10_000, help="At most so many rows.")
    ] = _ROWS_SHOWN,
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """Search the rows that go to a search index with to=ps.to.search(...); the best come first."""
    session = Session.of(ctx, home, as_json)
    folder = Path(place) if Path(place).is_dir() else _folder(session, place, name)
    hits = _found(folder, name, query, limit)
    if session.json:
        rows = [{"score": round(hit.score, 4), "row": hit.row} for hit in hits]
        output.emit({"name": name, "query": query, "rows": rows})
        return
    if not hits:
        output.note("no row matches")
        return
    columns = list(dict.fromkeys(column for hit in hits for column in hit.row))
    output.show(output.table(["score#", *columns], [_cells(hit, columns) for hit in hits]))
    if len(hits) == limit:
        output.note(f"the best {words.count(limit, 'row')}; --limit N for more")


def _found(folder: Path, name: str, query: str, limit: int) -> list[Hit]:
    try:
        from penstock.follow.search import search as look
    except ImportError as error:
        raise NotSupported(
            "searching needs the package tantivy, which is not installed.",
            hint='install it with: pip install "penstock[search]"',
        ) from error
    return look(folder, name, query, limit=limit)[0]


def _folder(session: Session, app: str, name: str) -> Path:
    """Where the app says that its index is."""
    from penstock.follow.target import SearchTarget

    with engine.loaded(session, app) as found:
        targets = found.app.followed.get(name, ())
    for target in targets:
        if isinstance(target, SearchTarget):
            return target.path
    raise BadOption(f'"{name}" goes to no search index.', hint="declare it with to=ps.to.search(path)")


def _cells(hit: Hit, columns: list[str]) -> list[str]:
    return [f"{hit.score:.2f}", *(cell(hit.row.get(column)) for column in columns)]
