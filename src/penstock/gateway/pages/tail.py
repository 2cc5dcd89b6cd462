"""The newest rows of a view, now or at a past moment, from the end of its changelog.

Bounded: so many records are looked at, however long the changelog is. Where that is all of it, the rows are
those that `app.read(view, as_of=moment)` gives.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.app import reading
from penstock.flow.output import LATE
from penstock.log.port import to_us

if TYPE_CHECKING:
    from penstock.app.app import App
    from penstock.follow.table import TableSpec

RECORDS_MAX = 20_000
_LATE_MAX = 5_000


@dataclass(frozen=True, slots=True)
class Row:
    """`before`: its values before late rows corrected it; `final` is None where there are no windows."""

    values: dict[str, Any]
    at_us: int
    final: bool | None
    revision: int
    before: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class LateRow:
    """A pair of row and window that was left out."""

    row: dict[str, Any] | None
    start_us: int | None
    end_us: int | None
    watermark_us: int | None
    reason: str
    topic: str
    partition: int
    offset: int
    at_us: int


@dataclass(frozen=True, slots=True)
class Tail:
    """Rows, the newest change first. `whole`: nothing older was left aside."""

    rows: tuple[Row, ...]
    closed_us: int | None
    whole: bool
    spec: TableSpec


def tail(app: App, view: str, *, moment: datetime | None) -> Tail:
    """Raises UnknownView."""
    spec = reading.spec(app, view)
    topic = app.log.topic(view)
    first, end = app.log.port.bounds(view, 0)
    if moment is not None:
        end = min(end, topic.offset_of(0, moment))
    start = max(first, end - RECORDS_MAX)
    records = pa.Table.from_batches(
        topic.read(partition=0, start=start, end=end), schema=topic.settings.read_schema
    )
    closed = pc.max(records.column("_closed").cast(pa.int64())).as_py() if records.num_rows else None
    changes = records.filter(pc.not_equal(records["_op"], "w"))
    newest = _last_of_each(changes, spec.key)
    corrected = newest.filter(pc.greater(newest["_revision"], 0))
    before = _before(changes, spec, corrected) if corrected.num_rows else {}
    shown = newest.filter(pc.equal(newest["_op"], "u")).sort_by([("_offset", "descending")])
    rows = tuple(_row(spec, plain, closed, before) for plain in shown.to_pylist())
    return Tail(rows, closed, start == first, spec)


def _last_of_each(changes: pa.Table, key: tuple[str, ...]) -> pa.Table:
    last = changes.group_by(list(key)).aggregate([("_offset", "max")])["_offset_max"]
    return changes.filter(pc.is_in(changes["_offset"], value_set=last.combine_chunks()))


def _before(changes: pa.Table, spec: TableSpec, corrected: pa.Table) -> dict[str, dict[str, Any]]:
    """What corrected rows were before anything corrected them."""
    first = changes.filter(pc.and_(pc.equal(changes["_revision"], 0), pc.equal(changes["_op"], "u")))
    wanted = {_key(spec, row) for row in corrected.to_pylist()}
    found = _last_of_each(first, spec.key).to_pylist()
    return {_key(spec, row): _own(spec, row) for row in found if _key(spec, row) in wanted}


def _key(spec: TableSpec, row: dict[str, Any]) -> str:
    return repr([row[name] for name in spec.key])


def _own(spec: TableSpec, row: dict[str, Any]) -> dict[str, Any]:
    return {name: row[name] for name in spec.columns.names}


def _row(
    spec: TableSpec, plain: dict[str, Any], closed_us: int | None, before: dict[str, dict[str, Any]]
) -> Row:
    final = None
    if spec.windowed:
        end = plain["window_end"]
        final = end is not None and closed_us is not None and to_us(end) <= closed_us
    return Row(
        _own(spec, plain),
        to_us(plain["_timestamp"]),
        final,
        plain["_revision"],
        before.get(_key(spec, plain)),
    )


def late_rows(
    app: App, view: str, *, moment: datetime | None = None, limit: int = _LATE_MAX
) -> list[LateRow]:
    """The newest pairs that a view left out, newest first."""
    name = f"{view}{LATE}"
    if name not in app.log.topics():
        return []
    topic = app.log.topic(name)
    first, end = app.log.port.bounds(name, 0)
    if moment is not None:
        end = min(end, topic.offset_of(0, moment))
    batches = topic.read(partition=0, start=max(first, end - limit), end=end)
    plain = pa.Table.from_batches(batches, schema=topic.settings.read_schema).to_pylist()
    return [_late(each) for each in reversed(plain)]


def _late(plain: dict[str, Any]) -> LateRow:
    def time(name: str) -> int | None:
        found = plain.get(name)
        return to_us(found) if isinstance(found, datetime) else None

    return LateRow(
        plain.get("row"), time("window_start"), time("window_end"), time("watermark"),
        str(plain.get("reason") or ""), str(plain.get("topic") or ""), int(plain.get("partition") or 0),
        int(plain.get("offset") or 0), to_us(plain["_timestamp"]),
    )  # fmt: skip
