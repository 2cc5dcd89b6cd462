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
    if drop_late:
        _check_comparable(build)
    build.add(operator)
    found = [with_system(stream) for stream in streams]
    if build.mode == "odd":
        operator.late_rows = _late(build, operator, found, drop_late=drop_late)
    return [rows.filter(_at(rows) > _watermark()) for rows in found] if drop_late else found


def _check_comparable(build: Build) -> None:
    """Events are compared by their times, and an append time is none of theirs."""
    scan = build.scan(build.topics)
    for topic in build.topics:
        if topic not in build.tables and scan.is_timeless(build.log, topic):
            raise BadDefinition(
                f'topic "{topic}" has no event time, and another one here has.',
                hint="declare it with event_time=, so that their times can be compared",
            )


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


def alike(
    left: DataFrame, right: DataFrame, pairs: Mapping[str, str], right_name: str
) -> tuple[DataFrame, DataFrame]:
    """Both with the columns that must be equal in one type: equal values must meet, INT or BIGINT."""
    from pyspark.sql import functions as F

    for ours, theirs in pairs.items():
        kinds = [df.schema[name].dataType.simpleString() for df, name in ((left, ours), (right, theirs))]
        common = common_type(*kinds)
        if common is None:
            raise BadDefinition(
                f'"{ours}" is {kinds[0].upper()}, and "{theirs}" of {right_name} is {kinds[1].upper()}.',
                hint=f'bring them to one type, as .withColumn("{ours}", F.col("{ours}").cast(...))',
            )
        left = left.withColumn(ours, F.col(f"`{ours}`").cast(common))
        right = right.withColumn(theirs, F.col(f"`{theirs}`").cast(common))
    return left, right


def check_once(names: Sequence[str]) -> None:
    """Raises BadDefinition where two columns would have one name."""
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise BadDefinition(
            f'a column "{min(twice)}" would be there twice.',
            hint="rename one of them: withColumnRenamed(...)",
        )


def _at(rows: DataFrame) -> Column:
    from pyspark.sql import functions as F

    return F.col(f"`{time_of(rows)}`")


def _watermark() -> Column:
    from pyspark.sql import functions as F

    return F.col("_watermark")
