"""Which columns of the source a definition needs: the others need not cross into Spark.

Spark prunes no columns of a Python source by itself. Its optimizer knows which ones a plan needs, though,
and a source may be opened with fewer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def needed_columns(df: DataFrame) -> frozenset[str]:
    """The names that the optimized plan reads from its sources, or returns."""
    session: Any = df.sparkSession
    frame: Any = df
    plan = session._jsparkSession.sessionState().optimizer().execute(frame._jdf.queryExecution().analyzed())
    return frozenset(_read(plan, top=True))


def _read(plan: Any, *, top: bool) -> set[str]:
    found = _names(plan.output()) if top else set()
    children = plan.children()
    if children.size() == 0:
        return found
    found |= _names(plan.references().toSeq())
    for number in range(children.size()):
        found |= _read(children.apply(number), top=False)
    return found


def _names(attributes: Any) -> set[str]:
    return {attributes.apply(number).name() for number in range(attributes.size())}
