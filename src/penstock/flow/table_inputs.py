"""Tables as operators read them: their versions, their keys, and what must be alike in both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from penstock.errors import BadDefinition, UnknownTopic
from penstock.flow import build as builds
from penstock.flow.versions import DELETED, FROM, SYSTEM
from penstock.log.settings import TopicSettings
from penstock.log.versions import BEGINNING_US
from penstock.schema import did_you_mean

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_WHOLE = ("tinyint", "smallint", "int", "bigint")


class Table(Protocol):
    """What `app.table` gives."""

    name: str


def settings_of(table: Table) -> TopicSettings:
    """What is known of a table's topic. Raises BadDefinition for what is no table."""
    name = getattr(table, "name", None)
    try:
        settings = builds.current().log.port.settings(str(name)) if name else None
    except UnknownTopic:
        settings = None
    if settings is None or not settings.compacted:
        raise BadDefinition(
            f"{name or table!r} is no table.",
            hint='declare one: app.table("users", "id BIGINT, …", key="id")',
        )
    return settings


def versioned(table: Table) -> DataFrame:
    """A table's versions: its columns and those of `SYSTEM`, `_from` as it holds in a stream."""
    from pyspark.sql import functions as F

    settings, rows = settings_of(table), builds.table_of(table.name)
    appended, met = F.unix_micros("_timestamp"), F.unix_micros("_watermark")
    time = settings.event_time if builds.current().clock == "event" else None
    begins = appended
    if time is not None:
        otherwise = F.when(F.col(DELETED), appended).otherwise(F.lit(BEGINNING_US))
        begins = F.coalesce(F.unix_micros(F.col(f"`{time}`")), otherwise)
    begins = F.when(begins <= met, met + 1).otherwise(begins)
    own = [
        F.col(f"`{name}`").alias(name, metadata={}) for name in settings.schema.names if name in rows.columns
    ]
    system = [F.col(name) for name in SYSTEM.names if name != FROM]
    return rows.select(*own, begins.alias(FROM), *system)


def key_pairs(columns: Sequence[str], settings: TopicSettings, on: str | Mapping[str, str]) -> dict[str, str]:
    """Which of these columns hold the table's key, in the order of the key."""
    if isinstance(on, str):
        on = {on: on if on in settings.key or len(settings.key) > 1 else settings.key[0]}
    for ours, theirs in on.items():
        if ours not in columns:
            raise BadDefinition(
                f'there is no column "{ours}" to find rows of "{settings.name}" by.',
                hint=did_you_mean(ours, columns),
            )
        if theirs not in settings.key:
            raise BadDefinition(
                f'"{theirs}" is not in the key of table "{settings.name}".',
                hint=did_you_mean(theirs, settings.key) or f"its key is {', '.join(settings.key)}",
            )
    missing = [name for name in settings.key if name not in on.values()]
    if missing or len(on) > len(settings.key):
        raise BadDefinition(
            f'the key of table "{settings.name}" is {", ".join(settings.key)}.',
            hint='say for each part which column holds it: on={"user_id": "id", …}',
        )
    return dict(sorted(on.items(), key=lambda pair: settings.key.index(pair[1])))


def alike(
    left: DataFrame, right: DataFrame, pairs: Mapping[str, str], table: str
) -> tuple[DataFrame, DataFrame]:
    """Both with their keys in one type: equal values must meet, INT or BIGINT."""
    from pyspark.sql import functions as F

    for ours, theirs in pairs.items():
        kinds = [df.schema[name].dataType.simpleString() for df, name in ((left, ours), (right, theirs))]
        if kinds[0] == kinds[1]:
            continue
        if not set(kinds) <= set(_WHOLE):
            raise BadDefinition(
                f'"{ours}" is {kinds[0].upper()}, and "{theirs}" of table "{table}" {kinds[1].upper()}.',
                hint=f'bring them to one type, as .withColumn("{ours}", F.col("{ours}").cast(...))',
            )
        wider = max(kinds, key=_WHOLE.index)
        left = left.withColumn(ours, F.col(f"`{ours}`").cast(wider))
        right = right.withColumn(theirs, F.col(f"`{theirs}`").cast(wider))
    return left, right


def check_once(names: Sequence[str]) -> None:
    """Raise BadDefinition where two columns would have one name."""
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise BadDefinition(
            f'a column "{min(twice)}" would be there twice.',
            hint="rename one of them: withColumnRenamed(...)",
        )
