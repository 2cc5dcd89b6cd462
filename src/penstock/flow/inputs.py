"""Several streams that meet in one operator: what is late in each of them, and one form for all late rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from typing import TYPE_CHECKING

from penstock.errors import BadDefinition
from penstock.flow.aggregate import late_rows, time_of, with_system
from penstock.flow.build import Build, Operator

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


def in_time(
    build: Build, operator: Operator, streams: Sequence[DataFrame], *, drop_late: bool = True
) -> list[DataFrame]:
    """Each stream without its late rows, with the columns in sight that say where a row came from.

    A row is late when its event time is at or before the watermark that it met. The build is told of them.
    Without `drop_late`, only rows without a usable time are left out.
    """
    if operator.late not in ("divert", "drop"):
        raise BadDefinition(f"late={operator.late!r}.", hint='single rows take late="divert" or late="drop"')
    build.add(operator)
    found = [with_system(stream) for stream in streams]
    if build.mode == "odd":
        operator.late_rows = _late(build, operator, found, drop_late=drop_late)
    return [rows.filter(_at(rows) > _watermark()) for rows in found] if drop_late else found


def _late(build: Build, operator: Operator, streams: Sequence[DataFrame], *, drop_late: bool) -> DataFrame:
    """The late rows of all: in a row, the columns of the other streams are NULL."""
    from pyspark.sql import functions as F

    types = _types(streams)
    found = []
    for rows in streams:
        # An event that is read twice, as in a self-join, is late once.
        others = [
            F.lit(None).cast(kind).alias(name) for name, kind in types.items() if name not in rows.columns
        ]
        same = [
            F.col(f"`{name}`").cast(kind).alias(name) for name, kind in types.items() if name in rows.columns
        ]
        system = [name for name in rows.columns if name.startswith("_")]
        time = time_of(rows)
        late_rows(
            build, operator, rows.select(*same, *others, *system, F.col(f"`{time}`").alias("_late_by")),
            F.col("_late_by") <= _watermark() if drop_late else None,
        )  # fmt: skip
        assert operator.late_rows is not None
        found.append(operator.late_rows)
    united = reduce(lambda one, other: one.unionByName(other), found)
    return united.dropDuplicates(["topic", "partition", "offset"])


def _types(streams: Sequence[DataFrame]) -> Mapping[str, str]:
    """Every column by a type that takes what all streams have under its name."""
    found: dict[str, str] = {}
    for rows in streams:
        for field in rows.schema.fields:
            if not field.name.startswith("_"):
                kind = field.dataType.simpleString()
                found[field.name] = common_type(kind, found.get(field.name, kind)) or "string"
    return found


_WHOLE = ("tinyint", "smallint", "int", "bigint")


def common_type(one: str, other: str) -> str | None:
    """The type in which equal values of both are equal, None if there is none."""
    if one == other:
        return one
    return max(one, other, key=_WHOLE.index) if one in _WHOLE and other in _WHOLE else None


def _at(rows: DataFrame) -> Column:
    from pyspark.sql import functions as F

    return F.col(f"`{time_of(rows)}`")


def _watermark() -> Column:
    from pyspark.sql import functions as F

    return F.col("_watermark")
