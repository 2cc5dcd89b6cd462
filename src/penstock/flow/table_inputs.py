"""Tables as operators read them: their versions, their keys, and what must be alike in both."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from penstock.errors import BadDefinition, UnknownTopic
from penstock.flow import build as builds
from penstock.flow.versions import DELETED, FROM, SYSTEM
from penstock.log.versions import BEGINNING_US
from penstock.schema import did_you_mean

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class Table(Protocol):
    """What `app.table` gives, or a view."""

    name: str


@dataclass(frozen=True, slots=True)
class Described:
    """What operators must know of a table."""

    name: str
    key: tuple[str, ...]
    columns: tuple[str, ...]  # its own, the key among them
    event_time: str | None
    is_view: bool


def described(table: Table) -> Described:
    """What is known of a table's topic, or of a view's. Raises BadDefinition for what is no table."""
    build, name = builds.current(), getattr(table, "name", None)
    if isinstance(name, str):
        if build.before_reading is not None:
            build.before_reading(name)
        with contextlib.suppress(UnknownTopic):
            settings = build.log.port.settings(name)
            own = tuple(column for column in settings.schema.names if not column.startswith("_"))
            is_view = {"_op", "_batch"} <= set(settings.schema.names)
            if settings.compacted or is_view:
                return Described(name, settings.key, own, settings.event_time, is_view)
    raise BadDefinition(
        f'"{name or table}" is no table.', hint='declare one: app.table("users", "id BIGINT, …", key="id")'
    )


def versioned(table: Described) -> DataFrame:
    """A table's versions: its columns and those of `SYSTEM`, `_from` as it holds in a stream."""
    from pyspark.sql import functions as F

    rows = builds.table_of(table.name)
    if table.is_view:  # its changelog also tells of batches that changed nothing
        rows = rows.filter(F.col("_op") != "w").withColumn(DELETED, F.col("_op") == "d")
    appended, met = F.unix_micros("_timestamp"), F.unix_micros("_watermark")
    begins = appended
    if table.event_time is not None and builds.current().clock == "event":
        otherwise = F.when(F.col(DELETED), appended).otherwise(F.lit(BEGINNING_US))
        begins = F.coalesce(F.unix_micros(F.col(f"`{table.event_time}`")), otherwise)
    begins = F.when(begins <= met, met + 1).otherwise(begins)
    own = [F.col(f"`{name}`").alias(name, metadata={}) for name in table.columns if name in rows.columns]
    system = [F.col(name) for name in SYSTEM.names if name != FROM]
    return rows.select(*own, begins.alias(FROM), *system)


def key_pairs(
    columns: Sequence[str], table: Described, on: str | Sequence[str] | Mapping[str, str]
) -> dict[str, str]:
    """Which of these columns hold the table's key, in the order of the key."""
    if not isinstance(on, Mapping):
        names = [on] if isinstance(on, str) else list(on)
        only = table.key[0] if len(names) == len(table.key) == 1 else None
        on = {name: only or name for name in names}
    for ours, theirs in on.items():
        if ours not in columns:
            raise BadDefinition(
                f'there is no column "{ours}" to find rows of "{table.name}" by.',
                hint=did_you_mean(ours, columns),
            )
        if theirs not in table.key:
            raise BadDefinition(
                f'"{theirs}" is not in the key of table "{table.name}".',
                hint=did_you_mean(theirs, table.key) or f"its key is {', '.join(table.key)}",
            )
    missing = [name for name in table.key if name not in on.values()]
    if missing or len(on) > len(table.key):
        raise BadDefinition(
            f'the key of table "{table.name}" is {", ".join(table.key)}.',
            hint='say for each part which column holds it: on={"user_id": "id", …}',
        )
    return dict(sorted(on.items(), key=lambda pair: table.key.index(pair[1])))


def joined_on(left: Described, right: Described, on: str | Mapping[str, str]) -> dict[str, str]:
    """The columns of two tables that must be equal: the right one's key, or others that both have."""
    if isinstance(on, str) and (on not in right.columns or (on,) == right.key):
        return key_pairs(left.columns, right, on)
    wanted = {on: on} if isinstance(on, str) else dict(on)
    if set(wanted.values()) == set(right.key):
        return key_pairs(left.columns, right, wanted)
    for name, table in [(ours, left) for ours in wanted] + [(theirs, right) for theirs in wanted.values()]:
        if name not in table.columns:
            raise BadDefinition(
                f'there is no column "{name}" in table "{table.name}".',
                hint=did_you_mean(name, table.columns),
            )
    return wanted
