"""Reading views: now, as of a past time, after one's own writes. Needs no Spark."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.erasure import columns
from penstock.errors import BadOption, UnknownView, ViewBehind
from penstock.flow import history
from penstock.flow.commit import position_of, producer_of
from penstock.flow.output import BATCHES, LATE
from penstock.follow import changes
from penstock.follow.follower import Follower
from penstock.follow.store import Progress, shown
from penstock.follow.table import TableSpec, spec_of
from penstock.log.port import Position
from penstock.schema import did_you_mean
from penstock.sourcing.entry import Receipt

if TYPE_CHECKING:
    import pandas as pd

    from penstock.app.app import App

_POLL_S = 0.02


class Rows(Sequence[dict[str, Any]]):
    """Rows of a view: a sequence of dicts, and whole as a table."""

    def __init__(self, table: pa.Table) -> None:
        self.table = table

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return self.table.take(pa.array(range(*index.indices(len(self))), pa.int64())).to_pylist()
        return self.table.slice(range(len(self))[index], 1).to_pylist()[0]

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.table.to_pylist())

    def __repr__(self) -> str:
        return f"<{len(self)} rows: {', '.join(self.table.column_names)}>"

    def to_arrow(self) -> pa.Table:
        return self.table

    def to_pandas(self) -> pd.DataFrame:
        return self.table.to_pandas()


def spec(app: App, view: str) -> TableSpec:
    """The table a view is, from its changelog alone."""
    if view not in app.log.topics():
        known = [name for name, found in app.definitions.items() if found.kind == "view"]
        raise UnknownView(view, known=known, defined=view in known)
    settings = app.log.port.settings(view)
    return spec_of(settings.schema.arrow, settings.key, name=view)


def read(
    app: App,
    view: str,
    *,
    where: Mapping[str, object] | None,
    after: Position | Receipt | None,
    timeout_s: float,
    as_of: datetime | None,
    limit: int | None,
) -> Rows:
    table = spec(app, view)
    if as_of is not None:
        if after is not None:
            raise BadOption("as_of and after contradict each other.", hint="choose one of them")
        if not isinstance(as_of, datetime):
            raise BadOption(f"as_of={as_of!r} is no time.", hint="give a datetime")
        return Rows(_filtered(_as_of(app, table, as_of), table, where, limit))
    if after is not None:
        _wait_for(app, table, after, timeout_s)
    elif app.store.progress(view) is None:
        catch_up(app, table)
    found, _ = app.store.rows(table, where=where, limit=limit)
    return Rows(_without_zero_revisions(found))


def revealed(app: App, rows: Rows, names: Sequence[str]) -> Rows:
    """With what is sealed in these columns in clear; null where the subject was forgotten."""
    if not names:
        return rows
    return Rows(columns.reveal_named(rows.table, names, app.log.port.keys, forgotten=None))


def catch_up(app: App, table: TableSpec) -> Follower:
    """Bring the store to the end of the changelog as it is now."""
    follower = Follower(app.log.topic(table.name), app.store, table)
    while follower.step(timeout_s=0):
        pass
    return follower


def late(app: App, view: str, *, newest: int | None = None) -> Rows:
    """The pairs that a view has left out; with `newest`, no more than so many are read."""
    name = f"{view}{LATE}"
    if name not in app.log.topics():
        return Rows(pa.table({}))
    start, end = _late_bounds(app, view)
    if newest is not None:
        start = max(start, end - newest)
    batches = app.log.port.read(name, 0, start, until=end)
    return Rows(pa.Table.from_batches(batches, schema=app.log.port.settings(name).read_schema))


def late_count(app: App, names: Sequence[str]) -> int:
    """How many pairs these definitions have left out."""
    positions = (position_of(app.log, producer_of(app.name, name)) for name in names)
    return sum(position.late for position in positions if position)


def late_since(app: App, name: str, time_us: int) -> int:
    """How many of those were stored at that time or after it; none is read for that."""
    if not late_count(app, [name]):
        return 0
    start, end = _late_bounds(app, name)
    return end - max(start, app.log.port.offset_at(f"{name}{LATE}", 0, time_us))


def _late_bounds(app: App, view: str) -> tuple[int, int]:
    """Without what an earlier version left out, before the view was rebuilt."""
    start, end = app.log.port.bounds(f"{view}{LATE}", 0)
    position = position_of(app.log, producer_of(app.name, view))
    return max(start, position.late_from if position else 0), end


def _wait_for(app: App, table: TableSpec, asked: Position | Receipt, timeout_s: float) -> None:
    """Until a batch that read past `asked` is in the store."""
    deadline = time.monotonic() + timeout_s
    after = asked if isinstance(asked, Position) else _published(app, table.name, asked, timeout_s)
    wanted: int | None = None
    while True:
        if wanted is None:
            wanted = _batch_past(app, table.name, after)
        progress = app.store.progress(table.name)
        if wanted is not None and progress and progress.batch is not None and progress.batch >= wanted:
            return
        if time.monotonic() >= deadline:
            raise ViewBehind(table.name, after.topic, read=wanted is not None)
        time.sleep(_POLL_S)


def _published(app: App, view: str, receipt: Receipt, timeout_s: float) -> Position:
    """Where the events of a command are, once somebody has published them."""
    if receipt.topic not in app.sourced:
        known = ", ".join(app.sourced) or "none"
        raise BadOption(f'the app has no aggregates "{receipt.topic}".', hint=f"it has {known}")
    found = app.sourced[receipt.topic].position_of(receipt, timeout_s=timeout_s)
    if found is None:
        raise ViewBehind(view, receipt.topic, read=False, published=False)
    return found


def _batch_past(app: App, view: str, after: Position) -> int | None:
    """The number of a batch by which `after` had been read, None while there is none."""
    found = history.last(app.log, f"{view}{BATCHES}")
    if found is None:
        return None
    number, batch = found.number, found.batch
    if after.topic not in batch.end.ends:
        raise BadOption(
            f'view "{view}" does not read topic "{after.topic}" itself.',
            hint="wait for a position in " + ", ".join(batch.end.ends),
        )
    ends = batch.end.ends[after.topic]
    return number if all(p < len(ends) and ends[p] >= end for p, end in after.ends.items()) else None


def _as_of(app: App, table: TableSpec, moment: datetime) -> pa.Table:
    aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    topic = app.log.topic(table.name)
    end = topic.offset_of(0, aware)
    batches = list(topic.read(partition=0, end=end))
    records = pa.Table.from_batches(batches, schema=topic.settings.read_schema)
    folded = changes.fold(batches, table.key, columns=table.columns)
    closed = pc.max(records.column("_closed").cast(pa.int64())).as_py() if records.num_rows else None
    return shown(table, folded.select(table.values.names).cast(table.values), Progress(end, None, closed))


def _filtered(
    rows: pa.Table, table: TableSpec, where: Mapping[str, object] | None, limit: int | None
) -> pa.Table:
    for name, value in (where or {}).items():
        if name not in rows.column_names:
            raise BadOption(f'there is no column "{name}".', hint=did_you_mean(name, rows.column_names))
        column = rows.column(name)
        wanted = pa.scalar(value, column.type)
        rows = rows.filter(pc.is_null(column) if value is None else pc.equal(column, wanted))
    rows = rows.sort_by([(name, "ascending") for name in table.key]) if table.key else rows
    return _without_zero_revisions(rows if limit is None else rows.slice(0, limit))


def _without_zero_revisions(rows: pa.Table) -> pa.Table:
    """`revision` is news only where windows can be corrected."""
    column = rows.column_names.index("_revision")
    if not pc.any(pc.greater(rows.column(column), 0)).as_py():
        return rows.drop_columns(["_revision"])
    return rows.rename_columns(["revision" if name == "_revision" else name for name in rows.column_names])
