"""Views and tables: which there are, and their rows."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.app import reading
from penstock.app.app import App
from penstock.app.feed import columns_of
from penstock.app.table import AppTable
from penstock.errors import BadOption, UnknownView
from penstock.flow import history
from penstock.flow.output import BATCHES
from penstock.follow.cells import column_of
from penstock.gateway import cursor, filter
from penstock.gateway.facts.topics import Column
from penstock.log.json_rows import from_json, to_json
from penstock.log.port import Position
from penstock.log.topic import Topic
from penstock.schema import RecordSchema, ddl_of, did_you_mean


@dataclass(frozen=True, slots=True)
class ViewFacts:
    """A view or derived stream. What is not known before it has run is empty or None."""

    name: str
    kind: str  # "view" or "stream"
    description: str  # the docstring of its definition
    key: tuple[str, ...]
    columns: tuple[Column, ...]
    reads: tuple[str, ...]  # topics, as of its last batch
    batch: int | None
    batch_us: int | None
    watermark_us: int | None
    behind: int | None  # records of its changelog that its copy for readers lacks


@dataclass(frozen=True, slots=True)
class TableFacts:
    name: str
    key: tuple[str, ...]
    columns: tuple[Column, ...]
    event_time: str | None
    partitions: int


@dataclass(frozen=True, slots=True)
class Rows:
    """`more`: there are further ones, from `next` on. `truncated`: too many to look through; narrow it."""

    name: str
    rows: tuple[Any, ...]
    as_of: str | None
    next: int | None
    more: bool
    truncated: bool = False


@dataclass(frozen=True, slots=True)
class RowWish:
    """Which rows. `key`: columns and their values, as JSON has them; `skip`: so many are left out first."""

    key: Mapping[str, Any] | None = None
    where: str | None = None
    as_of: datetime | None = None
    limit: int = 100
    skip: int = 0


def all_of(app: App) -> tuple[ViewFacts, ...]:
    return tuple(one_of(app, name) for name in app.definitions)


def one_of(app: App, name: str) -> ViewFacts:
    """Raises UnknownView."""
    definition = app.definition(name)
    doc = (definition.function.__doc__ or "").strip()
    last = history.last(app.log, f"{name}{BATCHES}")
    if name not in app.log.topics():
        return ViewFacts(name, definition.kind, doc, definition.key, (), (), None, None, None, None)
    settings = app.log.port.settings(name)
    is_view = definition.kind == "view"
    columns = reading.spec(app, name).columns if is_view else settings.schema.arrow
    return ViewFacts(
        name, definition.kind, doc, settings.key, _columns(columns),
        tuple(last.batch.end.ends) if last else (),
        last.number if last else None, last.at_us if last else None, last.watermark_us if last else None,
        _behind(app, name) if is_view else None,
    )  # fmt: skip


def tables_of(app: App) -> tuple[TableFacts, ...]:
    """Every table that the app declares, and those that captures fill."""
    names = [name for name, topic in app.topics.items() if isinstance(topic, AppTable)]
    for name in app.log.topics():
        if name.partition(".")[0] in app.captures and app.log.port.settings(name).compacted:
            names.append(name)
    return tuple(table_of(app, name) for name in sorted(set(names)))


def table_of(app: App, name: str) -> TableFacts:
    settings = _table(app, name).settings
    return TableFacts(
        name, settings.key, _columns(settings.schema.arrow), settings.event_time, settings.partitions
    )


def rows_of(app: App, name: str, wish: RowWish, *, scanned_max: int, size_bytes_max: int) -> Rows:
    """Rows of a view, in the order of its key. Raises UnknownView, BadQuery, BadOption."""
    if app.definition(name).kind != "view":
        raise BadOption(
            f'"{name}" is a stream, not a view.', hint=f"read its records: /topics/{name}/records"
        )
    spec = reading.spec(app, name)
    wanted = _values(name, spec.columns, wish.key)
    most = scanned_max + 1 if wish.where else wish.skip + wish.limit + 1
    found = app.read(name, where=wanted, as_of=wish.as_of, limit=most).table
    return _page(name, found, wish, scanned_max, size_bytes_max)


def table_rows_of(app: App, name: str, wish: RowWish, *, scanned_max: int, size_bytes_max: int) -> Rows:
    """Rows of a table, in the order of its key. Reads all of it."""
    table = _table(app, name)
    found = (table.current() if wish.as_of is None else table.as_of(wish.as_of)).table
    wanted = _values(name, table.settings.schema.arrow, wish.key)
    found = _equal(found, wanted)
    key = [(column, "ascending") for column in table.settings.key]
    return _page(name, found.sort_by(key).slice(0, scanned_max + 1), wish, scanned_max, size_bytes_max)


def wait_for(app: App, name: str, after: Position) -> bool:
    """Whether a view shows a position now."""
    from penstock.errors import ViewBehind

    try:
        app.read(name, after=after, timeout=0, limit=0)
    except ViewBehind:
        return False
    return True


def position_of(text: str) -> Position:
    """What an append called `after`: `topic@0:15`."""
    topic, at, places = text.rpartition("@")
    if not at:
        raise BadOption(f"after={text[:80]!r} is no position.", hint="give what an append called `after`")
    return Position(topic, cursor.read(places))


def feed_columns(app: App, name: str) -> pa.Schema:
    """What can be asked for of a view or table. Raises UnknownView."""
    return columns_of(app, name)


def _page(name: str, found: pa.Table, wish: RowWish, scanned_max: int, size_bytes_max: int) -> Rows:
    truncated = found.num_rows > scanned_max
    where = filter.where(wish.where, found.schema)
    if where is not None:
        batch = found.slice(0, scanned_max).combine_chunks()
        rows = batch.to_batches()[0] if batch.num_rows else None
        found = batch.take(np.flatnonzero(where.holds(rows))) if rows is not None else batch
    shown = found.slice(wish.skip, wish.limit)
    while shown.num_rows > 1 and shown.nbytes > size_bytes_max:
        shown = shown.slice(0, shown.num_rows // 2)
    end = wish.skip + shown.num_rows
    more = found.num_rows > end
    return Rows(
        name, tuple(to_json(row) for row in shown.to_pylist()),
        str(to_json(wish.as_of)) if wish.as_of else None, end if more else None, more, truncated,
    )  # fmt: skip


def _equal(found: pa.Table, wanted: Mapping[str, object]) -> pa.Table:
    import pyarrow.compute as pc

    for name, value in wanted.items():
        column = found.column(name)
        same = pc.is_null(column) if value is None else pc.equal(column, pa.scalar(value, column.type))
        found = found.filter(pc.fill_null(same, False))
    return found


def _values(of: str, columns: pa.Schema, key: Mapping[str, Any] | None) -> dict[str, object]:
    """Values out of JSON, as these columns have them."""
    found: dict[str, object] = {}
    for name, value in (key or {}).items():
        if name not in columns.names:
            raise BadOption(f'"{of}" has no column "{name}".', hint=did_you_mean(name, columns.names))
        field = columns.field(name)
        if pa.types.is_nested(field.type):
            raise BadOption(
                f'column "{name}" is {ddl_of(field.type)} and cannot be asked for.', hint="leave it"
            )
        typed = from_json(RecordSchema.of(pa.schema([field.with_nullable(True)])), {name: value})[name]
        try:
            column_of(typed, field.type)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise BadOption(f'column "{name}": {value!r} is no {ddl_of(field.type)}.') from error
        found[name] = typed
    return found


def _table(app: App, name: str) -> AppTable:
    declared = app.topics.get(name)
    if isinstance(declared, AppTable):
        return declared
    capture, _, table = name.partition(".")
    if capture in app.captures and name in app.log.topics():
        captured = app.captures[capture].table(table)
        if captured.settings.compacted:
            return captured
    tables = [known for known, topic in app.topics.items() if isinstance(topic, AppTable)]
    raise UnknownView(name, known=tables)


def _columns(schema: pa.Schema) -> tuple[Column, ...]:
    return tuple(Column(field.name, ddl_of(field.type), field.nullable) for field in schema)


def _behind(app: App, name: str) -> int:
    progress = app.store.progress(name)
    topic: Topic = app.log.topic(name)
    return max(0, topic.bounds()[0][1] - (progress.next_offset if progress else 0))


def now_us() -> int:
    return time.time_ns() // 1_000
