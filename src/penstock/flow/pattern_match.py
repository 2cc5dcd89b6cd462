"""The kernel of patterns: from what was kept, new rows and the watermark to matches. `pattern` has the rules.

State is three Arrow tables:

- the events that the watermark has not reached, as `pattern_events` has them;
- the events that partial matches took, in the same columns, those of a key in their order;
- the partial matches, those of a key in the order in which they began: key, limit, whether an event was
  skipped since the last one taken, and the row numbers in the second table of what each step took.

Only keys with an event whose turn it is, or a limit that has passed, become Python objects; all others stay
columns. That is what makes a million keys with a partial match each bearable.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from operator import itemgetter
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.flow import ordering
from penstock.flow.pattern_events import Values, events_of, in_order, key_names, schema
from penstock.flow.pattern_plan import Pattern
from penstock.flow.pattern_rows import rows_of
from penstock.flow.pattern_walk import Run, Walk
from penstock.flow.stepped import SteppedTables

State = tuple[pa.Table, ...]
_TAKEN = pa.list_(pa.list_(pa.int64()))


def states(pattern: Pattern) -> tuple[pa.Schema, ...]:
    """The schemas of the tables that are kept."""
    events = schema(pattern)
    keys = [events.field(name) for name in key_names(pattern)]
    rest = [pa.field("limit_us", pa.int64()), pa.field("gap", pa.bool_()), pa.field("taken", _TAKEN)]
    return events, events, pa.schema([*keys, *rest])


def step(state: State | None, new: State, watermark_us: int, *, pattern: Pattern) -> SteppedTables:
    """`new[i]` are rows of input i, in the columns `pattern.inputs[i].rows`, none of them late.

    A state that is None is empty. The output has the schema `pattern.output`; rows of one key come in the
    order in which they were known, and of several at once in the order in which they began.
    """
    waiting, held, runs = state or tuple(each.empty_table() for each in states(pattern))
    pending = pa.concat_tables([waiting, events_of(new, pattern)])
    times = np.asarray(pending["time_us"])
    reached = times <= watermark_us
    later = pending.filter(pa.array(~reached))
    output, held, runs = _advanced(held, runs, pending.filter(pa.array(reached)), watermark_us, pattern)
    wakes = [int(times[~reached].min())] if len(later) else []
    wakes += [int(np.asarray(runs["limit_us"]).min())] if len(runs) else []
    return SteppedTables((later, held, runs), output, min(wakes, default=None))


def _advanced(
    held: pa.Table, runs: pa.Table, ready: pa.Table, watermark_us: int, pattern: Pattern
) -> tuple[pa.Table, pa.Table, pa.Table]:
    """Output, held events and partial matches once the events in `ready` have had their turn."""
    keys = key_names(pattern)
    codes = ordering.groups(pa.concat_tables([runs.select(keys), ready.select(keys)]), keys)
    run_codes, codes = codes[: len(runs)], codes[len(runs) :]
    order = in_order(ready, codes)
    ready, codes = ready.take(pa.array(order)), codes[order]
    concerned = _concerned(run_codes, codes, np.asarray(runs["limit_us"]) <= watermark_us)
    events = pa.concat_tables([held, ready]).combine_chunks()
    walk = Walk(pattern, Values(events))
    begun = _begun(runs.filter(pa.array(concerned)), run_codes[concerned])
    asked = _asked(codes, np.asarray(ready["fits"]), begun, walk.begins)
    rows = _rows(ready, codes, asked, first_row=len(held))
    alive = _walked(walk, begun, rows, watermark_us)
    output = rows_of(walk.matches, events, pattern)
    after = pa.concat_tables([runs.filter(pa.array(~concerned)), _table(alive, events, pattern)])
    return output, *_without_gaps(events, after)


def _concerned(run_codes: ordering.Ints, codes: ordering.Ints, due: Any) -> Any:
    """Which partial matches are of a key that something happens to."""
    happens = np.zeros(max(run_codes.max(initial=-1), codes.max(initial=-1)) + 1, dtype=bool)
    happens[codes] = True
    happens[run_codes[due]] = True
    return happens[run_codes]


def _begun(runs: pa.Table, codes: ordering.Ints) -> dict[int, list[Run]]:
    """Partial matches by the code of their key; they are kept in the order in which they began."""
    columns = (runs["taken"].to_pylist(), runs["limit_us"].to_pylist(), runs["gap"].to_pylist())
    found: dict[int, list[Run]] = {}
    for code, taken, limit_us, gap in zip(codes.tolist(), *columns, strict=True):
        found.setdefault(code, []).append(Run(taken, limit_us, gap=gap))
    return found


def _asked(codes: ordering.Ints, fits: ordering.Ints, begun: dict[int, list[Run]], begins: int) -> Any:
    """Which events have a partial match to be shown to, or may begin one."""
    begin = (fits & begins) != 0
    so_far = np.cumsum(begin)
    of_key = np.searchsorted(codes, codes)  # where the events of the same key begin
    begun_here = so_far - so_far[of_key] + begin[of_key]
    return (begun_here > 0) | np.isin(codes, np.fromiter(begun, np.int64, len(begun)))


def _rows(ready: pa.Table, codes: ordering.Ints, asked: Any, *, first_row: int) -> Iterable[tuple[int, ...]]:
    """Code of the key, row number, what it fits, and time of the events that are asked for."""
    rows = np.arange(first_row, first_row + len(ready))
    columns = codes, rows, np.asarray(ready["fits"]), np.asarray(ready["time_us"])
    return zip(*(each[asked].tolist() for each in columns), strict=True)


def _walked(
    walk: Walk, begun: dict[int, list[Run]], rows: Iterable[tuple[int, ...]], watermark_us: int
) -> list[Run]:
    """The partial matches that go on."""
    alive: list[Run] = []
    for code, of_key in groupby(rows, key=itemgetter(0)):
        walk.runs = begun.pop(code, [])
        for _, row, fit, time_us in of_key:
            walk.event(row, fit, time_us)
        walk.expire(watermark_us)
        alive += walk.runs
    for left in begun.values():  # only a limit of theirs has passed
        walk.runs = left
        walk.expire(watermark_us)
        alive += walk.runs
    return alive


def _table(alive: list[Run], events: pa.Table, pattern: Pattern) -> pa.Table:
    begins = pa.array([run.taken[0][0] for run in alive], pa.int64())
    columns = [events[name].take(begins) for name in key_names(pattern)]
    columns.append(pa.array([run.limit_us for run in alive], pa.int64()))
    columns.append(pa.array([run.gap for run in alive], pa.bool_()))
    columns.append(pa.array([run.taken for run in alive], _TAKEN))
    return pa.Table.from_arrays(columns, schema=states(pattern)[2])


def _without_gaps(events: pa.Table, runs: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Only the events that some partial match took, and the row numbers made to fit."""
    outer = runs["taken"].combine_chunks()
    inner = outer.flatten()
    rows = np.asarray(inner.flatten())
    used, numbers = np.unique(rows, return_inverse=True)
    lists = pa.ListArray.from_arrays(_offsets(inner), pa.array(numbers.astype(np.int64)))
    taken = pa.ListArray.from_arrays(_offsets(outer), lists).cast(_TAKEN)
    place = runs.schema.get_field_index("taken")
    return events.take(pa.array(used)), runs.set_column(place, runs.schema.field(place), taken)


def _offsets(lists: Any) -> Any:
    sizes = np.asarray(lists.value_lengths())
    return pa.array(np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32))
