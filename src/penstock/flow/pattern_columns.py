"""What Spark itself can do of a pattern: leave out rows before they cost anything. Needs a session."""

from __future__ import annotations

from functools import reduce
from operator import or_

from pyspark.sql import Column

from penstock.flow.aggregate_columns import named
from penstock.flow.expression_forms import spark_column
from penstock.flow.pattern_plan import Pattern


def can_matter(pattern: Pattern, input: int) -> Column | None:
    """Which rows of an input fit some step; None: all can matter.

    The kernel asks the same again, so this is never needed for the result.
    """
    takers = [each for each in pattern.takers if each.input == input]
    alone = [each.alone for each in takers if each.alone is not None]
    if pattern.strict or len(alone) < len(takers):
        return None
    return reduce(or_, [spark_column(each, lambda ref: named(ref.column)) for each in alone])
