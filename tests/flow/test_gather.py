"""Events that are added up before Spark sees them: the same groups, the same windows, the same results."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.flow import aggregates as ag
from penstock.flow.gather import Gather, gather_for
from penstock.flow.windows import Hopping, Tumbling

TIME = pa.timestamp("us", "UTC")
SOURCE = pa.schema(
    [
        ("k", pa.string()),
        ("x", pa.int64()),
        ("y", pa.float64()),
        ("at", TIME),
        ("_watermark", TIME),
        ("_heartbeat", pa.bool_()),
    ]
)
AGGREGATES = {
    "n": ag.count(),
    "of_x": ag.count("x"),
    "total": ag.sum("x"),
    "mean": ag.mean("x"),
    "least": ag.min("y"),
    "most": ag.max("y"),
    "newest": ag.max("at"),
}
Event = dict[str, Any]
Groups = dict[Any, list[Event]]

events = st.lists(
    st.fixed_dictionaries(
        {
            "k": st.sampled_from(["a", "b", None]),
            "x": st.none() | st.integers(-9, 9) | st.sampled_from([2**62, -(2**62)]),
            "y": st.none() | st.floats(-5, 5, width=16) | st.just(math.nan),
            "at": st.integers(-50, 50),
            "_watermark": st.integers(-60, 40),
        }
    ),
    max_size=30,
)
windows = st.sampled_from([None, Tumbling(10), Hopping(12, 4), Hopping(10, 4), Hopping(6, 9)])


def made(events: list[Event], gather: Gather) -> list[Event]:
    reads = gather.reads(SOURCE)
    columns = [
        pa.array([event[f.name] for event in events], pa.int64() if f.type == TIME else f.type).cast(f.type)
        for f in reads
    ]
    table = pa.Table.from_arrays(columns, schema=reads)
    rows = gather.rows(SOURCE)
    found = pa.Table.from_batches(gather.gathered(table.to_batches(max_chunksize=7), rows), rows)
    plain = [f.with_type(pa.int64()) if f.type == TIME else f for f in rows]
    events_made: list[Event] = found.cast(pa.schema(plain)).to_pylist()
    return events_made


def grouped(rows: Iterable[Event], window: Tumbling | Hopping | None) -> Groups:
    """By key and window, those pairs alone that are in time."""
    found: Groups = defaultdict(list)
    for row in rows:
        if window is None:
            found[row["k"]].append(row)
            continue
        hop = window.hop_us if isinstance(window, Hopping) else window.size_us
        start = row["at"] // hop * hop
        while start + window.size_us > row["at"]:
            if start + window.size_us > row["_watermark"]:
                found[row["k"], start].append(row)
            start -= hop
    return found


def least_and_most(values: list[float]) -> list[float | None]:
    """As Spark orders doubles: NaN is larger than any other."""
    ordered = sorted(values, key=lambda value: (math.isnan(value), value))
    return [ordered[0], ordered[-1]] if ordered else [None, None]


def directly(rows: list[Event]) -> list[Any]:
    xs = [row["x"] for row in rows if row["x"] is not None]
    ys = [row["y"] for row in rows if row["y"] is not None]
    newest = max(row["at"] for row in rows)
    return [len(rows), len(xs), sum(xs) if xs else None, *least_and_most(ys), newest]


def from_parts(rows: list[Event]) -> list[Any]:
    sums = [row["_sum_x"] for row in rows if row["_sum_x"] is not None]
    smallest = [row["_min_y"] for row in rows if row["_min_y"] is not None]
    largest = [row["_max_y"] for row in rows if row["_max_y"] is not None]
    counted = [sum(row[name] for row in rows) for name in ("_count", "_count_x")]
    assert math.isclose(
        math.fsum(row["_total_x"] or 0.0 for row in rows), sum(sums), rel_tol=1e-9, abs_tol=2**12
    )
    newest = max(row["_max_at"] for row in rows)
    most = least_and_most(largest)[1]
    return [*counted, sum(sums) if sums else None, least_and_most(smallest)[0], most, newest]


@settings(max_examples=300, deadline=None)
@given(events, windows)
def test_what_was_gathered_gives_the_same_groups(
    events: list[Event], window: Tumbling | Hopping | None
) -> None:
    gather = gather_for(SOURCE, ["k"], "at", window, AGGREGATES)
    assert gather is not None
    rows = made(events, Gather.from_json(gather.to_json()))
    assert not any(row["_heartbeat"] for row in rows)
    assert max((row["at"] for row in rows), default=None) == max((e["at"] for e in events), default=None)
    wanted, got = grouped(events, window), grouped(rows, window)
    assert {key: repr(from_parts(found)) for key, found in got.items()} == {
        key: repr(directly(found)) for key, found in wanted.items()
    }


def test_many_events_become_few_rows() -> None:
    gather = gather_for(SOURCE, ["k"], "at", Tumbling(10), {"n": ag.count()})
    assert gather is not None
    many = [{"k": "ab"[n % 2], "at": n % 20, "_watermark": -1} for n in range(1_000)]
    rows = made(many, gather)
    assert sorted((row["k"], row["at"] // 10, row["_count"]) for row in rows) == [
        ("a", 0, 250), ("a", 1, 250), ("b", 0, 250), ("b", 1, 250),
    ]  # fmt: skip


def test_what_needs_each_event_is_not_gathered() -> None:
    for aggregate in (ag.last("x"), ag.percentile("y", 0.5), ag.collect("x"), ag.approx_distinct("x")):
        assert gather_for(SOURCE, ["k"], "at", Tumbling(10), {"n": ag.count(), "it": aggregate}) is None
    assert gather_for(SOURCE, ["y"], "at", None, {"n": ag.count()}) is None, "NaN and -0.0 as keys"
    assert gather_for(SOURCE, ["k"], "at", None, {"n": ag.rate("1 second")}) is None
