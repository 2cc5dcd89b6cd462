"""Live sessions: they grow, merge and close, and come out as changes.

A session is [first event, last event + gap). As in Spark's `session_window`, an event belongs to it that is
at most `gap` from one of its events (so touching sessions are one), and it is closed when the watermark has
reached its end.

Output: `by`, `window_start`, `window_end`, the aggregates, `_final`, `_revision` and `_op`. A session is
named by `by`, start and end: "u" is its present value; when it grew or merged, "d" takes back each window
that it replaces (the aggregates are null then), before the "u" of the same batch. `_final` is set once it
is closed. With `correct_us`, closed sessions are kept that much longer, and an event that belongs to one
changes it after all: the revision after the highest one it had comes out.

State: the events of those sessions, each with what was last said of its session.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.errors import BadOption
from penstock.flow import ordering
from penstock.flow.aggregates import ARRIVAL, Aggregate
from penstock.flow.buckets import BUCKETS, Stepped, arrow_schema, in_buckets

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Flags: TypeAlias = npt.NDArray[np.bool_]
_TIME = pa.timestamp("us", "UTC")
_START, _END, _WAS_FINAL, _REVISION = "__start_us", "__end_us", "__final", "__revision"
_NEVER = np.iinfo(np.int64).min  # the start of a session that was not said yet
_SAID = pa.schema(
    [(_START, pa.int64()), (_END, pa.int64()), (_WAS_FINAL, pa.bool_()), (_REVISION, pa.int64())]
)
_TAIL = [pa.field("_final", pa.bool_()), pa.field("_revision", pa.int64()), pa.field("_op", pa.string())]


def sessions(
    df: DataFrame,
    *,
    by: Sequence[str],
    time: str,
    gap_us: int,
    aggregates: Mapping[str, Aggregate],
    correct_us: int = 0,
    buckets: int = BUCKETS,
) -> DataFrame:
    """Rows must be later than the watermark less `correct_us`; what is later still is decided before."""
    found = Sessions.of(df, by=by, time=time, gap_us=gap_us, aggregates=aggregates, correct_us=correct_us)
    return in_buckets(df, by=by, rows=found.rows, step=found.step, output=found.output, buckets=buckets)


@dataclass(frozen=True, slots=True)
class _Spans:
    """Sessions as row ranges [lo, hi) of the sorted events, and what becomes of them."""

    lo: ordering.Ints
    hi: ordering.Ints
    start: ordering.Ints
    end: ordering.Ints
    final: Flags
    revision: ordering.Ints
    changed: Flags

    def spread(self, of_each: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """What is so of a session, for each of its events."""
        return np.repeat(of_each, self.hi - self.lo)


@dataclass(frozen=True, slots=True)
class Sessions:
    """One session aggregation; `step` is all it does."""

    by: tuple[str, ...]
    time: str
    gap_us: int
    correct_us: int
    aggregates: tuple[tuple[str, Aggregate], ...]
    rows: pa.Schema

    @classmethod
    def of(
        cls,
        df: DataFrame,
        *,
        by: Sequence[str],
        time: str,
        gap_us: int,
        aggregates: Mapping[str, Aggregate],
        correct_us: int = 0,
    ) -> Sessions:
        """Raises BadOption for columns that are not there or named twice, and for times below zero."""
        if gap_us < 1 or correct_us < 0:
            raise BadOption(
                "a gap is above zero, and a time to correct is not below.", hint='say "30 minutes"'
            )
        for aggregate in aggregates.values():
            aggregate.check(df.schema)
        wanted = [each.column for each in aggregates.values() if each.column is not None]
        rows = arrow_schema(df, [*by, time, *ARRIVAL, *wanted])
        found = cls(tuple(by), time, gap_us, correct_us, tuple(aggregates.items()), rows)
        if len(set(found.output.names)) < len(found.output.names):
            raise BadOption(
                f"a column would be there twice: {', '.join(found.output.names)}.",
                hint="name the aggregate otherwise",
            )
        return found

    @property
    def output(self) -> pa.Schema:
        results = [
            pa.field(name, each.result_type(self.rows.field(each.column).type if each.column else None))
            for name, each in self.aggregates
        ]
        windows = [pa.field("window_start", _TIME), pa.field("window_end", _TIME)]
        return pa.schema([*(self.rows.field(name) for name in self.by), *windows, *results, *_TAIL])

    def step(self, state: pa.Table | None, new: pa.Table, watermark_us: int) -> Stepped:
        rows = self._sorted(state, new)
        spans = self._spans(rows, watermark_us)
        output = pa.concat_tables([self._deletes(rows, spans), self._upserts(rows, spans)])
        forgotten = spans.final & (spans.end + self.correct_us <= watermark_us)
        said = [spans.spread(each) for each in (spans.start, spans.end, spans.final, spans.revision)]
        marked = rows.select(self.rows.names)
        for field, values in zip(_SAID, said, strict=True):
            marked = marked.append_column(field, pa.array(values, field.type))
        due = np.where(spans.final, spans.end + self.correct_us, spans.end)[~forgotten]
        return Stepped(
            state=marked.filter(pa.array(spans.spread(~forgotten))),
            output=output,
            wake_us=int(due.min()) if len(due) else None,
        )

    def _sorted(self, state: pa.Table | None, new: pa.Table) -> pa.Table:
        for field, value in zip(_SAID, (_NEVER, _NEVER, False, 0), strict=True):
            new = new.append_column(field, pa.array(np.full(len(new), value), field.type))
        rows = new if state is None else pa.concat_tables([state, new])
        order = ordering.by_group_and_time(rows, ordering.groups(rows, self.by), self.time)
        return rows.take(pa.array(order)).combine_chunks()

    def _spans(self, rows: pa.Table, watermark_us: int) -> _Spans:
        codes, times = ordering.groups(rows, self.by), ordering.micros(rows[self.time])
        apart = (np.diff(codes) != 0) | (np.diff(times) > self.gap_us)
        lo = np.concatenate([[0], np.flatnonzero(apart) + 1]).astype(np.int64)[: len(rows)]
        hi = np.append(lo[1:], len(rows)).astype(np.int64)[: len(lo)]
        start, end = times[lo], times[hi - 1] + self.gap_us
        was_start, was_end, was_final, revision = (rows[name].to_numpy() for name in _SAID.names)
        final = end <= watermark_us
        # All events of a session say the same of it, unless one of them is new or two sessions became one.
        same = (was_start == np.repeat(start, hi - lo)) & (was_end == np.repeat(end, hi - lo))
        grown = ~_all(same, lo)
        reopened = _any(was_final, lo) & grown
        return _Spans(
            lo, hi, start, end, final,
            revision=_most(revision, lo) + reopened,
            changed=grown | (final & ~_any(was_final, lo)),
        )  # fmt: skip

    def _upserts(self, rows: pa.Table, spans: _Spans) -> pa.Table:
        chosen = spans.changed
        lo, hi = spans.lo[chosen], spans.hi[chosen]
        columns = [rows[name].take(pa.array(lo)) for name in self.by]
        columns += [_times(spans.start[chosen]), _times(spans.end[chosen])]
        for _, each in self.aggregates:
            values = None if each.column is None else rows[each.column]
            columns.append(each.kernel(values, lo, hi, length_us=(spans.end - spans.start)[chosen]))
        columns += [pa.array(spans.final[chosen]), pa.array(spans.revision[chosen])]
        return pa.Table.from_arrays([*columns, pa.array(["u"] * len(lo), pa.string())], schema=self.output)

    def _deletes(self, rows: pa.Table, spans: _Spans) -> pa.Table:
        """The windows that were said and are no more: one row of each, its first event."""
        start, end = rows[_START].to_numpy(), rows[_END].to_numpy()
        gone = (start != spans.spread(spans.start)) | (end != spans.spread(spans.end))
        at = np.flatnonzero(gone & (start != _NEVER))
        session = spans.spread(np.arange(len(spans.lo)))[at]
        at = at[np.unique(np.stack([session, start[at]]), axis=1, return_index=True)[1]]
        columns = {name: rows[name].take(pa.array(at)) for name in self.by}
        columns |= {"window_start": _times(start[at]), "window_end": _times(end[at])}
        columns |= {
            "_final": pa.array(np.zeros(len(at), dtype=bool)),
            "_op": pa.array(["d"] * len(at), pa.string()),
        }
        columns |= {"_revision": rows[_REVISION].take(pa.array(at))}
        empty = {each.name: pa.nulls(len(at), each.type) for each in self.output}
        return pa.table({**empty, **columns}).select(self.output.names).cast(self.output)


def _times(micros: ordering.Ints) -> Any:
    return pa.array(micros, pa.int64()).cast(_TIME)


def _any(flags: Flags, lo: ordering.Ints) -> Flags:
    return np.logical_or.reduceat(flags, lo) if len(lo) else flags


def _all(flags: Flags, lo: ordering.Ints) -> Flags:
    return np.logical_and.reduceat(flags, lo) if len(lo) else flags


def _most(numbers: ordering.Ints, lo: ordering.Ints) -> ordering.Ints:
    return np.maximum.reduceat(numbers, lo) if len(lo) else numbers
