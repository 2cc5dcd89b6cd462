"""`ps.join_within` and its like: events related to each other and to changing facts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, get_args

from penstock.clock import duration_ms
from penstock.errors import BadDefinition
from penstock.flow import build as builds
from penstock.flow.aggregate import time_of
from penstock.flow.build import Late, Operator
from penstock.flow.inputs import alike, in_time
from penstock.flow.join_within import JOINED_AT, How, JoinWithin, Side
from penstock.flow.ordering import PLACE
from penstock.schema import did_you_mean

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def join_within(
    left: DataFrame,
    right: DataFrame,
    *,
    on: str | Sequence[str],
    after: str | float,
    before: str | float = 0,
    how: How = "inner",
    late: Late = "divert",
    suffix: str = "_right",
) -> DataFrame:
    """Pairs of events with equal `on`, the right one at most `after` later and `before` earlier.

    `how`: "left", "right" or "full" also give the events that met nobody, each once, when the watermark has
    passed its range. Columns: `on`, the left's, the right's (with `suffix` where the name is taken) and
    `joined_at`: the time of the later event, or the end of the range of one that is alone.
    """

    from penstock.flow.buckets import Input, arrow_schema, together_in_buckets
    from penstock.flow.join_within import join_batch

    left, right = builds.frame(left), builds.frame(right)
    keys = [on] if isinstance(on, str) else list(on)
    after_us, before_us = duration_ms(after) * 1_000, duration_ms(before) * 1_000
    _check(left, right, keys, how)
    operator = Operator(
        "join_within", inputs=2, late=late, span_us=max(after_us, before_us), windowed=False,
        output="append", again_by=JOINED_AT, means=repr((keys, after_us, before_us, how, suffix)),
    )  # fmt: skip
    build = builds.current()
    times = time_of(left), time_of(right)
    ours, theirs = in_time(build, operator, [left, right])
    ours, theirs = alike(ours, theirs, {name: name for name in keys}, "the right stream")
    others = [_own(side, without=keys) for side in (left, right)]
    names = _names(keys, *others, suffix=suffix)
    sides = [
        Side(
            tuple(keys), time, tuple(columns), tuple(named), range_us, outer=how in (side, "full"),
            schema=arrow_schema(rows, [*keys, *columns, time, *PLACE]),
        )
        for rows, side, time, columns, named, range_us in (
            (ours, "left", times[0], others[0], names[0], after_us),
            (theirs, "right", times[1], others[1], names[1], before_us),
        )
    ]  # fmt: skip
    join = JoinWithin(*sides)
    if build.mode == "stream":
        inputs = [Input(rows, keys, side.rows) for rows, side in zip((ours, theirs), sides, strict=True)]
        found = together_in_buckets(inputs, step=join.step, output=join.output)
    else:
        found = join_batch(ours, theirs, join, closed_us=build.closed_us)
    return builds.timed(found, JOINED_AT)


def _check(left: DataFrame, right: DataFrame, keys: Sequence[str], how: str) -> None:
    if how not in get_args(How):
        raise BadDefinition(f"how={how!r}.", hint="choose one of " + ", ".join(get_args(How)))
    if not keys:
        raise BadDefinition("what must be equal?", hint='say on="user_id"')
    for side, df in (("left", left), ("right", right)):
        for name in keys:
            if name not in df.columns:
                raise BadDefinition(
                    f'there is no column "{name}" in the {side} stream.',
                    hint=did_you_mean(name, df.columns) or "rename one of them: withColumnRenamed(...)",
                )


def _own(stream: DataFrame, *, without: Sequence[str]) -> list[str]:
    return [name for name in stream.columns if name not in without and not name.startswith("_")]


def _names(
    keys: Sequence[str], left: Sequence[str], right: Sequence[str], *, suffix: str
) -> tuple[list[str], list[str]]:
    """Under which names the columns come out."""
    taken = {*keys, *left}
    found = [f"{name}{suffix}" if name in taken else name for name in right]
    every = [*keys, *left, *found, JOINED_AT]
    twice = {name for name in every if every.count(name) > 1}
    if twice:
        raise BadDefinition(
            f'a column "{min(twice)}" would be there twice.',
            hint="rename one of them: withColumnRenamed(...)",
        )
    return list(left), found
