"""`ps.latest`, `ps.deduplicate`, `ps.in_order`: stateful steps that are no aggregation.

All three go by rows: a row is late when its event time is at or before the watermark it met.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from penstock.clock import duration_ms
from penstock.errors import BadDefinition
from penstock.flow import build as builds
from penstock.flow.aggregate import late_rows, time_of, with_system
from penstock.flow.aggregates import ARRIVAL
from penstock.flow.build import Late, Operator
from penstock.schema import did_you_mean

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def latest(stream: DataFrame, *, by: str | Sequence[str]) -> DataFrame:
    """The newest row of each key, by event time and then by arrival: `ps.latest(profiles, by="user_id")`."""
    from pyspark.sql import functions as F

    stream = builds.frame(stream)
    build, keys, time = builds.current(), _columns(stream, by), time_of(stream)
    operator = Operator("latest", windowed=False)
    build.add(operator)
    late_rows(build, operator, stream, None)
    rest = [name for name in stream.columns if name not in keys]
    if not rest:
        raise BadDefinition("there is nothing beside the key.", hint="keep the columns that change")
    newest = F.max_by(F.struct(*rest), F.struct(time, *ARRIVAL)).alias("_newest")
    whole = with_system(stream).groupBy(*keys).agg(newest)
    return whole.select(*keys, *(F.col(f"_newest.`{name}`") for name in rest)).select(*stream.columns)


def deduplicate(
    stream: DataFrame, *, id: str | Sequence[str], within: str | float, late: Late = "divert"
) -> DataFrame:
    """Without repeats: of rows with the same `id` at most `within` apart, the one that arrived first.

    A row comes out at once. What is remembered of it is forgotten when the watermark is `within` past it.
    """
    from penstock.flow import deduplicate as once

    within_us = duration_ms(within) * 1_000
    stream = builds.frame(stream)
    keys, time = _columns(stream, id), time_of(stream)
    operator = Operator("deduplicate", late=late, span_us=within_us, windowed=False, output="append")
    rows = _in_time(stream, operator)
    if builds.current().mode == "stream":
        kept = once.deduplicate(rows, id=keys, time=time, within_us=within_us)
    else:
        kept = once.deduplicate_batch(rows, id=keys, time=time, within_us=within_us)
    return builds.timed(kept.select(*stream.columns), time)


def in_order(stream: DataFrame, *, by: str | Sequence[str] = (), late: Late = "divert") -> DataFrame:
    """Rows in the order of their event times, each once the watermark has passed it.

    The order holds among rows with the same `by`; without it, among all of them.
    """
    from penstock.flow import in_order as ordered

    stream = builds.frame(stream)
    build, keys, time = builds.current(), _columns(stream, by), time_of(stream)
    operator = Operator("in_order", late=late, windowed=False, output="append", final_by=time)
    rows = _in_time(stream, operator)
    if build.mode == "stream":
        kept = ordered.in_order(rows, time=time, by=keys)
    else:
        closed_us = build.closed_us if build.closed_us is not None else 0
        kept = ordered.in_order_batch(rows, time=time, watermark_us=closed_us)
    return builds.timed(kept.select(*stream.columns), time)


def _in_time(stream: DataFrame, operator: Operator) -> DataFrame:
    """The rows that are not late; the others are told to the build."""
    from pyspark.sql import functions as F

    if operator.late not in ("divert", "drop"):
        raise BadDefinition(f"late={operator.late!r}.", hint='single rows take late="divert" or late="drop"')
    build, time = builds.current(), time_of(stream)
    build.add(operator)
    rows = with_system(stream)
    late_rows(build, operator, rows, F.col(f"`{time}`") <= F.col("_watermark"))
    return rows.filter(F.col(f"`{time}`") > F.col("_watermark"))


def _columns(stream: DataFrame, names: str | Sequence[str]) -> list[str]:
    found = [names] if isinstance(names, str) else list(names)
    for name in found:
        if name not in stream.columns:
            raise BadDefinition(f'there is no column "{name}".', hint=did_you_mean(name, stream.columns))
    return found
