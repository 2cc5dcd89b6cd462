"""A pattern as a DataFrame, in the definition that is being built."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from penstock.errors import BadDefinition
from penstock.flow import build as builds
from penstock.flow.aggregate import time_of
from penstock.flow.build import Operator
from penstock.flow.inputs import in_time
from penstock.flow.pattern import MATCHED_AT, Definition

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def matches(definition: Definition) -> DataFrame:
    """The rows of its matches, each when the watermark has passed `matched_at`, its event time."""

    from penstock.flow import pattern_match, pattern_reference
    from penstock.flow.buckets import Input, arrow_schema, together_in_buckets
    from penstock.flow.pattern_columns import can_matter

    build, streams = builds.current(), [builds.frame(each) for each in definition.streams]
    if len({builds.read_by(each) for each in streams}) < len(streams):
        raise BadDefinition(
            "one event could fill two steps: a topic is given in several forms.",
            hint="take one stream = topic.stream() for all its steps, and say which events count with where=",
        )
    operator = Operator(
        "pattern", inputs=len(definition.streams), late=definition.said.late, span_us=definition.within_us,
        windowed=False, output="append", final_by=MATCHED_AT,
    )  # fmt: skip
    times = [time_of(stream) for stream in streams]
    rows = in_time(build, operator, streams)
    pattern = definition.compiled([arrow_schema(each) for each in rows], times)
    operator.means = repr(pattern)
    if build.mode == "stream":
        inputs = []
        for number, each in enumerate(rows):
            matters = can_matter(pattern, number)
            fitting = each if matters is None else each.filter(matters)
            inputs.append(Input(fitting, pattern.by, pattern.inputs[number].rows))
        step = partial(pattern_match.step, pattern=pattern)
        found = together_in_buckets(inputs, step=step, output=pattern.output)
    else:
        found = pattern_reference.batch(pattern, rows, build.closed_us or 0)
    return builds.timed(found, MATCHED_AT)
