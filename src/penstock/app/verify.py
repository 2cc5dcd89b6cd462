"""verify: is a live view what its definition makes of the log?

The comparison is at one recorded position. The definition is built once more as a batch job over exactly
the batches that were stored, each row with the watermark it met then, so that the pairs that were late stay
left out. The result must equal the changelog up to that position, and the store must equal the changelog up
to its own offset. Doubles may differ by 1e-9 of their size: sums of doubles depend on the order of
addition.
"""

from __future__ import annotations

import contextlib
import math
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

from penstock.app import proofs, reading
from penstock.app.graph import Graph
from penstock.errors import Contended
from penstock.flow import history
from penstock.flow.aggregates import ARRIVAL
from penstock.flow.build import Build
from penstock.flow.commit import Position
from penstock.flow.definition import Analysed
from penstock.flow.output import BATCHES
from penstock.follow import changes

if TYPE_CHECKING:
    from penstock.app.app import App

_RELATIVE = 1e-9
_SHOWN_MAX = 20

Verdict = Literal["equal", "different", "not verifiable"]


@dataclass(frozen=True, slots=True)
class Difference:
    """One row that is not the same."""

    where: Literal["only live", "only recomputed", "differs"]
    live: dict[str, Any] | None
    recomputed: dict[str, Any] | None


@dataclass(slots=True)
class Verified:
    """What came out for one definition."""

    name: str
    verdict: Verdict
    reason: str = ""
    rows: int = 0
    batch: int | None = None
    left_out: int = 0
    differences: list[Difference] = field(default_factory=list)
    differing: int = 0


def verify(app: App, graph: Graph, name: str) -> Verified:
    """Recompute a definition from the log and compare; what came out is kept, see `proofs`."""
    found = _verified(app, graph, name)
    proofs.record(app, found, now_us=time.time_ns() // 1_000)
    return found


def _verified(app: App, graph: Graph, name: str) -> Verified:
    analysed = graph.analysed[name]
    position = graph.query_of(name).stored
    if position is None:
        return Verified(name, "not verifiable", "it has not stored anything yet: run it first")
    if unfit := _unfit(analysed):
        return Verified(name, "not verifiable", unfit, batch=position.number)
    past = history.batches(app.log, f"{name}{BATCHES}", number_max=position.number)
    if gone := history.gone(app.log, past):
        return Verified(name, "not verifiable", gone, batch=position.number)
    live = live_rows(app, analysed, position.number)
    if live is None:
        return Verified(name, "not verifiable", "retention has removed a part of it", batch=position.number)
    again = recomputed(app, graph, analysed, position)
    found = compare(name, live, again, _keys(analysed), approximate=_approximate(analysed))
    found.batch, found.left_out = position.number, len(reading.late(app, name))
    if found.verdict == "different" and (gone := history.compacted(app.log, past)):
        return Verified(name, "not verifiable", gone, batch=position.number)
    if found.verdict == "equal" and analysed.output.kind == "view":
        _compare_store(app, analysed, found)
    return found


def _unfit(analysed: Analysed) -> str:
    reasons = [operator.not_verifiable for operator in analysed.operators if operator.not_verifiable]
    if reasons:
        return reasons[0]
    if analysed.definition.realtime:
        return "real-time mode writes at least once; without latency= it would be exactly once"
    if analysed.sparks_own:
        return "it uses Spark's own grouping, which drops late rows without telling which; use ps.aggregate"
    return ""


def live_rows(app: App, analysed: Analysed, number: int) -> pa.Table | None:
    """What the changelog, or the derived topic, holds up to a batch; None if a part of it is gone."""
    topic = app.log.topic(analysed.output.name)
    if any(start > 0 for start, _ in topic.bounds().values()):
        return None
    if analysed.output.kind == "stream":
        table = pa.Table.from_batches(topic.read(), schema=topic.settings.read_schema)
        return _written_by(app, analysed, number, table).select(analysed.output.columns.names)
    batches = (batch.filter(pc.less_equal(batch.column("_batch"), number)) for batch in topic.read())
    return changes.fold(batches, analysed.output.key, columns=analysed.output.columns)


def _written_by(app: App, analysed: Analysed, number: int, table: pa.Table) -> pa.Table:
    """The rows of a stream up to a batch, while it may be running: the batches say how many each wrote."""
    noted = history.records(app.log, f"{analysed.output.name}{BATCHES}")
    rows = sum(record["changes"] for record in noted if record["number"] <= number)
    # Batches are appended one after another, so the rows of the first ones are those with the lowest times.
    return table.sort_by([("_timestamp", "ascending"), ("_offset", "ascending")]).slice(0, rows)


def recomputed(app: App, graph: Graph, analysed: Analysed, position: Position) -> pa.Table:
    """The definition over the recorded batches, as one batch job."""
    further = {"history": f"{analysed.output.name}{BATCHES}", "number_max": str(position.number)}
    build = Build(graph.session, app.log, app.address, mode="batch", further=further)
    build.closed_us = position.evicted_ms * 1_000
    # A join by column names loses where a row came from; only a view that keeps the last one must know.
    keeps_last = not analysed.stateful and analysed.output.kind == "view"
    table = analysed.build(build, arrival=keeps_last).toArrow()
    if analysed.output.final_by is not None:
        due = table.column(analysed.output.final_by).cast(pa.int64())
        table = table.filter(pc.less_equal(due, build.closed_us))
    if keeps_last:
        table = _last_of_each_key(_in_arrival_order(table), analysed.output.key)
    return table


def _in_arrival_order(table: pa.Table) -> pa.Table:
    order = [(name, "ascending") for name in ARRIVAL]
    return table.sort_by(order).drop_columns(list(ARRIVAL))


def _last_of_each_key(table: pa.Table, key: tuple[str, ...]) -> pa.Table:
    """An unaggregated view keeps what came last."""
    numbered = table.append_column("_row", pa.array(range(table.num_rows), pa.int64()))
    last = numbered.group_by(list(key)).aggregate([("_row", "max")]).column("_row_max")
    return table.take(last)


def _keys(analysed: Analysed) -> tuple[str, ...]:
    return analysed.output.key if analysed.output.kind == "view" else ()


def _approximate(analysed: Analysed) -> dict[str, float]:
    return {name: error for operator in analysed.operators for name, error in operator.approximate.items()}


def _compare_store(app: App, analysed: Analysed, found: Verified) -> None:
    """The copy that people read must be the changelog up to where it says it is."""
    spec = reading.spec(app, analysed.output.name)
    with contextlib.suppress(Contended):  # the follower of a running app is at it
        reading.catch_up(app, spec)
    stored, progress = app.store.rows(spec)
    topic = app.log.topic(spec.name)
    folded = changes.fold(topic.read(partition=0, end=progress.next_offset), spec.key, columns=spec.columns)
    copy = compare(found.name, stored.select(spec.columns.names), folded, spec.key)
    if copy.verdict == "different":
        found.verdict, found.reason = "different", "the store is not what its changelog says"
        found.differences, found.differing = copy.differences, copy.differing


def compare(
    name: str,
    live: pa.Table,
    again: pa.Table,
    key: tuple[str, ...],
    *,
    approximate: dict[str, float] | None = None,
) -> Verified:
    """Rows by key where there is one, else as a multiset.

    Approximate columns that are further apart than their stated error prove nothing: an error in ranks says
    little about values, and sketches depend on the order of merging.
    """
    columns = [column for column in live.column_names if column != "_revision"]
    ours, theirs = live.select(columns), again.select(columns)
    if not key:
        # Numbers that may differ a little cannot tell rows apart; in their order they can be paired.
        exact = [f.name for f in ours.schema if not pa.types.is_floating(f.type)]
        order = [(f.name, "ascending") for f in ours.schema if pa.types.is_floating(f.type)]
        ours, theirs = (table.sort_by(order) if order else table for table in (ours, theirs))
        key = tuple(exact)
    ours, theirs = (_by_key(table.to_pylist(), key) for table in (ours, theirs))
    found = Verified(name, "equal", rows=live.num_rows)
    apart: set[str] = set()
    for identity in [*ours, *(other for other in theirs if other not in ours)]:
        pairs = _paired(ours.get(identity, []), theirs.get(identity, []))
        for mine, other in pairs:
            differing = _differing(mine, other, approximate or {}) if mine and other else None
            if differing is None or differing - (approximate or {}).keys():
                _note(found, mine, other)
            else:
                apart |= differing
    if found.differing:
        found.verdict = "different"
    elif apart:
        names = ", ".join(f'"{column}"' for column in sorted(apart))
        found.verdict = "not verifiable"
        found.reason = f"approximate {names} lies further off than its stated error; all else is equal"
    return found


def _note(found: Verified, mine: dict[str, Any] | None, other: dict[str, Any] | None) -> None:
    found.differing += 1
    if len(found.differences) < _SHOWN_MAX:
        where: Any = "only recomputed" if mine is None else "only live" if other is None else "differs"
        found.differences.append(Difference(where, mine, other))


def _by_key(rows: list[dict[str, Any]], key: tuple[str, ...]) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        found.setdefault(repr([row[column] for column in key]), []).append(row)
    return found


def _paired(ours: list[Any], theirs: list[Any]) -> list[tuple[Any, Any]]:
    longest = max(len(ours), len(theirs))
    return list(
        zip(ours + [None] * (longest - len(ours)), theirs + [None] * (longest - len(theirs)), strict=True)
    )


def _differing(mine: dict[str, Any], other: dict[str, Any], approximate: dict[str, float]) -> set[str]:
    return {name for name in mine if not _equal(mine[name], other[name], approximate.get(name, _RELATIVE))}


def _equal(one: Any, other: Any, relative: float) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=relative, abs_tol=1e-12) or (
            math.isnan(one) and math.isnan(other)
        )
    if relative != _RELATIVE and isinstance(one, int) and isinstance(other, int):
        return math.isclose(one, other, rel_tol=relative)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(_equal(a, b, relative) for a, b in zip(one, other, strict=True))
    return bool(one == other)
