"""Columns that a DataFrame carries without showing them.

Lateness is decided per row, far above the source: an operator needs `_watermark`, `_partition` and
`_offset` of a row even if the user selected three columns in between. Spark has such columns (`_metadata`
of files): an attribute in a plan's hidden output is found by name and carried through the projections
below. A projection may name its own hidden output, which is what `hide` makes it do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame


def hide(df: DataFrame, names: Sequence[str]) -> DataFrame:
    """`df` without these columns in sight; `df.select("x", "_offset")` still finds them."""
    from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame

    session: Any = df.sparkSession
    jvm = session._jvm
    shown: Any = df.select(*(name for name in df.columns if name not in names))
    plan = shown._jdf.queryExecution().analyzed()
    output = plan.child().output()
    attributes = [output.apply(i) for i in range(output.size()) if output.apply(i).name() in names]
    tag = _object(jvm, "org.apache.spark.sql.catalyst.plans.logical.Project$").hiddenOutputTag()
    plan.setTagValue(tag, jvm.org.apache.spark.api.python.PythonUtils.toSeq(attributes))
    rows = _object(jvm, "org.apache.spark.sql.classic.Dataset$").ofRows(session._jsparkSession, plan)
    return ClassicDataFrame(rows, session)


def carries(df: DataFrame, name: str) -> bool:
    """Whether a hidden column is still to be had there: a union or an aggregate ends it."""
    try:
        df.select(name)
    except AnalysisException:
        return False
    return True


def _object(jvm: Any, name: str) -> Any:
    return getattr(getattr(jvm, name), "MODULE$")
