"""The same matches from all events at once, the plain way: what `penstock verify` holds the stream against.

For every event that fits the first step, its partial match is followed through all later events on its own,
as if there were no other. What comes of each is then put in the order in which it was known, and the policy
after a match leaves out what it leaves out. Nothing here is shared with the kernel but the expressions, and
those are read row by row.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.flow.expression_forms import Scalar, plain, scalar
from penstock.flow.expression_types import OWN, Bound, Ref
from penstock.flow.pattern_plan import Pattern, Taker

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_INPUT = "input"


@dataclass(frozen=True, slots=True)
class Happened:
    """An event of one key; `place` is its number in their order."""

    place: int
    input: int
    time_us: int
    values: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a partial match ended, and when that was known."""

    taken: list[list[Happened]]
    known_us: int
    known_at: int | None  # the place of the event that told it; None: the limit did
    timed_out: bool = False

    @property
    def order(self) -> tuple[int, bool, int, int]:
        """At one time, events tell before the limit does."""
        told_by_limit = self.known_at is None
        return self.known_us, told_by_limit, self.known_at or 0, self.taken[0][0].place


def matches(pattern: Pattern, inputs: Sequence[pa.Table], watermark_us: int) -> pa.Table:
    """All rows known by that watermark, of all keys; `inputs[i]` has the columns `pattern.inputs[i].rows`."""
    by_key: dict[tuple[Any, ...], list[tuple[tuple[int, ...], dict[str, Any]]]] = {}
    for number, rows in enumerate(inputs):
        for values in _dicts(rows):
            time_us = values[pattern.inputs[number].time]
            order = time_us, values["_timestamp"], number, values["_partition"], values["_offset"]
            key = tuple(map(_as_key, (values[name] for name in pattern.by)))
            if time_us <= watermark_us:
                by_key.setdefault(key, []).append((order, values))
    found: list[dict[str, Any]] = []
    for pairs in by_key.values():
        pairs.sort(key=lambda pair: pair[0])
        events = [Happened(place, order[2], order[0], values) for place, (order, values) in enumerate(pairs)]
        found += [_row(each, pattern) for each in _chosen(_outcomes(events, watermark_us, pattern), pattern)]
    return _table(found, pattern.output)


def batch(pattern: Pattern, streams: Sequence[DataFrame], watermark_us: int) -> DataFrame:
    """The same from batch DataFrames, key by key; `streams[i]` is input i without its late rows."""
    from pyspark.sql import functions as F
    from pyspark.sql.pandas.types import from_arrow_schema

    from penstock.flow.aggregate_columns import named

    parts = []
    for number, df in enumerate(streams):
        rows = F.struct(*map(named, pattern.inputs[number].rows.names))
        columns = [named(name).alias(f"k{place}") for place, name in enumerate(pattern.by)]
        parts.append(df.select(F.lit(number).alias(_INPUT), *columns, rows.alias(f"i{number}")))
    whole = parts[0]
    for part in parts[1:]:
        whole = whole.unionByName(part, allowMissingColumns=True)

    def of_key(rows: pa.Table) -> pa.Table:
        return matches(pattern, _apart(rows, pattern), watermark_us)

    keys = [f"k{place}" for place in range(len(pattern.by))]
    return whole.groupBy(*keys).applyInArrow(of_key, from_arrow_schema(pattern.output))


def _apart(rows: pa.Table, pattern: Pattern) -> list[pa.Table]:
    found = []
    for number, each in enumerate(pattern.inputs):
        own = rows.filter(pc.equal(rows[_INPUT], number))[f"i{number}"].combine_chunks()
        columns = [own.field(name) for name in each.rows.names]
        found.append(pa.table(columns, names=each.rows.names).cast(each.rows))
    return found


def _dicts(rows: pa.Table) -> list[dict[str, Any]]:
    columns = [plain(column) for column in rows.columns]
    return [dict(zip(rows.column_names, each, strict=True)) for each in zip(*columns, strict=True)]


def _as_key(value: Any) -> Any:
    """NaN is a key like any other, and -0.0 is 0.0."""
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else value + 0.0
    return value


def _outcomes(events: list[Happened], watermark_us: int, pattern: Pattern) -> list[Outcome]:
    begins = [place for place, event in enumerate(events) if _fits(pattern.steps[0].takers, event, [], 0)]
    found = [_followed(events, place, watermark_us, pattern) for place in begins]
    return [each for each in found if each is not None]


def _followed(events: list[Happened], begin: int, watermark_us: int, pattern: Pattern) -> Outcome | None:
    """What becomes of the partial match that the event at `begin` begins; None: nothing, or not yet."""
    taken, limit_us = [[events[begin]]], events[begin].time_us + pattern.within_us
    for event in islice(events, begin + 1, None):
        if event.time_us > limit_us or _is_full(taken, pattern):
            break
        takes = _step_that_takes(event, taken, pattern)
        if takes == len(taken):
            taken.append([event])
        elif takes is not None:
            taken[takes].append(event)
        elif _is_forbidden(event, taken, pattern):
            return None
        elif _is_broken(taken, pattern):
            return Outcome(taken, event.time_us, event.place) if _is_whole(taken, pattern) else None
    if _is_full(taken, pattern):
        return Outcome(taken, taken[-1][-1].time_us, taken[-1][-1].place)
    if limit_us > watermark_us:
        return None
    return Outcome(taken, limit_us, None, timed_out=not _is_whole(taken, pattern))


def _waits_for(taken: list[list[Happened]], pattern: Pattern) -> list[int]:
    """The steps that may take the next event, the one that is asked first in front."""
    present, many = len(taken) - 1, len(taken[-1])
    step = pattern.steps[present]
    onward = [present + 1] if many >= step.least and present + 1 < len(pattern.steps) else []
    return onward + ([present] if step.most is None or many < step.most else [])


def _step_that_takes(event: Happened, taken: list[list[Happened]], pattern: Pattern) -> int | None:
    follows_directly = event.place == taken[-1][-1].place + 1
    for number in _waits_for(taken, pattern):
        step = pattern.steps[number]
        if (follows_directly or not step.strict) and _fits(step.takers, event, taken, number):
            return number
    return None


def _is_whole(taken: list[list[Happened]], pattern: Pattern) -> bool:
    """Whether it is a match, if nothing more happens."""
    return len(taken) == len(pattern.steps) and len(taken[-1]) >= pattern.steps[-1].least


def _is_full(taken: list[list[Happened]], pattern: Pattern) -> bool:
    """Whether it is a match whatever else happens."""
    return _is_whole(taken, pattern) and not _waits_for(taken, pattern) and not pattern.steps[-1].absences


def _is_forbidden(event: Happened, taken: list[list[Happened]], pattern: Pattern) -> bool:
    step = pattern.steps[len(taken) - 1]
    return len(taken[-1]) >= step.least and _fits(step.absences, event, taken, OWN)


def _is_broken(taken: list[list[Happened]], pattern: Pattern) -> bool:
    """Whether skipping an event leaves nothing to wait for."""
    if _is_whole(taken, pattern) and pattern.steps[-1].absences:
        return False
    return all(pattern.steps[number].strict for number in _waits_for(taken, pattern))


def _chosen(outcomes: list[Outcome], pattern: Pattern) -> list[Outcome]:
    """What the policy after a match leaves."""
    found: list[Outcome] = []
    begin = 0  # where a match may begin
    for each in sorted(outcomes, key=lambda outcome: outcome.order):
        if each.taken[0][0].place < begin:
            continue
        if each.timed_out:
            found += [each] if pattern.timed_out else []
            continue
        found.append(each)
        begin = max(begin, _begin_after(each, pattern))
    return found


def _begin_after(match: Outcome, pattern: Pattern) -> int:
    kind, step = pattern.after.kind, pattern.after.step
    if kind == "no_skip":
        return 0
    if kind == "skip_to_next":
        return match.taken[0][0].place + 1
    if kind == "skip_past_last":
        return match.taken[-1][-1].place + 1
    return match.taken[step][0 if kind == "skip_to_first" else -1].place


def _fits(takers: Sequence[Taker], event: Happened, taken: list[list[Happened]], own: int) -> bool:
    """Whether one of the takers of step `own` takes the event, after what was taken before."""
    for taker in takers:
        conditions = [each for each in (taker.alone, taker.together) if each is not None]
        if taker.input == event.input and all(_holds(each, own)(event, taken) is True for each in conditions):
            return True
    return False


@lru_cache(maxsize=1_024)
def _holds(condition: Bound, own: int) -> Scalar:
    """A condition of step `own` as if the event had been taken; an absence is no step, and OWN."""

    def leaf(ref: Ref) -> Scalar:
        if ref.pick == "previous":
            return lambda _, taken: taken[-1][-1].values[ref.column] if taken else None
        if ref.step == OWN:
            return lambda event, _: event.values[ref.column]
        own_step = ref.step == own
        return lambda event, taken: _picked(ref, _of_step(taken, ref) + ([event] if own_step else []))

    return scalar(condition, leaf)


def _of_step(taken: list[list[Happened]], ref: Ref) -> list[Happened]:
    return taken[ref.step] if ref.step < len(taken) else []


def _picked(ref: Ref, events: list[Happened]) -> Any:
    if ref.pick == "count":
        return len(events)
    if ref.pick == "collect":
        values = [each.values[ref.column] for each in events]
        return [each for each in values if each is not None]
    if not events:
        return None
    return events[-1 if ref.pick == "last" else 0].values[ref.column]


def _row(outcome: Outcome, pattern: Pattern) -> dict[str, Any]:
    def leaf(ref: Ref) -> Scalar:
        if ref.pick == "matched_at":
            return lambda: outcome.known_us
        return lambda: _picked(ref, _of_step(outcome.taken, ref))

    row = {name: outcome.taken[0][0].values[name] for name in pattern.by}
    row |= {name: scalar(value, leaf)() for name, value in pattern.emitted}
    return row | ({pattern.timed_out: outcome.timed_out} if pattern.timed_out else {})


def _table(rows: list[dict[str, Any]], schema: pa.Schema) -> pa.Table:
    columns = [_column([row[field.name] for row in rows], field.type) for field in schema]
    return pa.Table.from_arrays(columns, schema=schema)


def _column(values: list[Any], type: pa.DataType) -> Any:
    """An Arrow column of plain values."""
    if pa.types.is_list(type) and pa.types.is_temporal(type.value_type):
        return pa.array(values, pa.list_(_storage(type.value_type))).cast(type)
    return pa.array(values, _storage(type)).cast(type)


def _storage(type: pa.DataType) -> pa.DataType:
    if pa.types.is_date(type):
        return pa.int32()
    return pa.int64() if pa.types.is_timestamp(type) or pa.types.is_duration(type) else type
