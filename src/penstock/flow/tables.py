"""`ps.enrich` and its like: events and tables, tables and tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal, Protocol, get_args

from penstock.clock import duration_ms
from penstock.errors import BadDefinition, BadOption, UnknownTopic
from penstock.flow import build as builds
from penstock.flow.aggregate import late_rows, time_of, with_system
from penstock.flow.build import Late, Operator
from penstock.flow.enrich import ENRICHED_AT, VERSION, Enrich
from penstock.flow.inputs import in_time
from penstock.flow.versions import DELETED, FROM, SYSTEM
from penstock.log.settings import TopicSettings
from penstock.log.versions import BEGINNING_US
from penstock.schema import did_you_mean

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

AsOf = Literal["event time", "latest"]
_WAIT = "wait "
_WHOLE = ("tinyint", "smallint", "int", "bigint")


class Table(Protocol):
    """What `app.table` gives."""

    name: str


def enrich(
    events: DataFrame,
    table: Table,
    *,
    on: str | Mapping[str, str],
    as_of: AsOf = "event time",
    missing: str = "null",
    late: Late = "divert",
    suffix: str | None = None,
) -> DataFrame:
    """Each event with the row of `table` that was valid at the event's own time.

    `on`: the event's column that holds the table's key, or a mapping of such columns to the key's. An event
    comes out once the watermark has reached its time. `missing="wait 30 seconds"`: where there is no row
    then, the first one that becomes valid within that event time counts. Columns: the event's, the table's
    (with `suffix` where the name is taken), `version_partition` and `version_offset`: which record of the
    table that was, NULL for none; with a wait also `enriched_at`, the time at which that was certain.

    `as_of="latest"` takes the newest version known when the batch runs, at once. A replay may give others,
    and verify cannot tell.
    """
    from pyspark.sql import functions as F

    from penstock.flow.enrich import enrich_batch

    build = builds.current()
    settings = settings_of(table)
    pairs = _pairs(events, settings, on)
    wait_us = _wait_us(missing, as_of)
    operator = Operator(
        "enrich", inputs=2, late=late, span_us=wait_us, windowed=False, output="append",
        means=repr((settings.name, pairs, as_of, missing, suffix)),
    )  # fmt: skip
    versions = versioned(table)
    time = time_of(events)
    rows, operator.final_by = _events(events, operator, as_of, ENRICHED_AT if wait_us else time)
    rows, versions = _alike(rows, versions, pairs, settings.name)
    kernel = _kernel(events, rows, versions, settings, pairs, time, as_of, wait_us, suffix)
    if build.mode == "stream":
        found = _enriched(rows, versions, kernel)
    elif kernel.time is None:  # never compared: it only has the columns
        found = enrich_batch(rows, versions, _at(kernel, time), closed_us=build.closed_us)
    else:
        found = enrich_batch(rows, versions, kernel, closed_us=build.closed_us)
    column = ENRICHED_AT if wait_us else time
    return found.withColumn(column, F.col(f"`{column}`").alias(column, metadata={builds.TIME_MARK: True}))


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


def _events(
    events: DataFrame, operator: Operator, as_of: AsOf, final_by: str
) -> tuple[DataFrame, str | None]:
    """The events that count, and the column by which they come out."""
    build = builds.current()
    if as_of == "event time":
        (rows,) = in_time(build, operator, [events])
        return rows, final_by
    operator.not_verifiable = "it joins with what was newest when it ran"
    build.add(operator)
    late_rows(build, operator, events, None)
    return with_system(events), None


def _kernel(
    events: DataFrame, rows: DataFrame, versions: DataFrame, settings: TopicSettings,
    pairs: Mapping[str, str], time: str, as_of: AsOf, wait_us: int, suffix: str | None,
) -> Enrich:  # fmt: skip
    from penstock.flow.buckets import arrow_schema

    own = [name for name in events.columns if not name.startswith("_")]
    columns = [n for n in settings.schema.names if n not in settings.key and n in versions.columns]
    ending = f"_{settings.name}" if suffix is None else suffix
    names = [f"{name}{ending}" if name in own else name for name in columns]
    every = [*own, *names, *VERSION.names, *([ENRICHED_AT] if wait_us else [])]
    check_once(every)
    return Enrich(
        tuple(pairs), tuple(pairs.values()), time if as_of == "event time" else None, tuple(columns),
        tuple(names), wait_us, drops=False, events=arrow_schema(rows, own),
        table=arrow_schema(versions, [*pairs.values(), *columns]),
    )  # fmt: skip


def _enriched(rows: DataFrame, versions: DataFrame, kernel: Enrich) -> DataFrame:
    from penstock.flow.buckets import Input
    from penstock.flow.paged_buckets import Paged, in_paged_buckets

    inputs = [Input(rows, kernel.on, kernel.events), Input(versions, kernel.key, kernel.versions)]
    pages = [Paged(kernel.versions, kernel.key)]
    return in_paged_buckets(inputs, step=kernel.step, pages=pages, output=kernel.output)


def _at(kernel: Enrich, time: str) -> Enrich:
    from dataclasses import replace

    return replace(kernel, time=time)


def _pairs(events: DataFrame, settings: TopicSettings, on: str | Mapping[str, str]) -> dict[str, str]:
    """The event's columns that hold the table's key, in the order of the key."""
    if isinstance(on, str):
        on = {on: on if on in settings.key or len(settings.key) > 1 else settings.key[0]}
    for ours, theirs in on.items():
        if ours not in events.columns:
            raise BadDefinition(
                f'there is no column "{ours}" in the stream.', hint=did_you_mean(ours, events.columns)
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


def _wait_us(missing: str, as_of: str) -> int:
    if as_of not in get_args(AsOf):
        raise BadDefinition(f"as_of={as_of!r}.", hint="choose one of " + ", ".join(get_args(AsOf)))
    if missing == "null":
        return 0
    if not isinstance(missing, str) or not missing.startswith(_WAIT):
        raise BadDefinition(f"missing={missing!r}.", hint='say "null" or "wait 30 seconds"')
    try:
        wait_us = duration_ms(missing.removeprefix(_WAIT)) * 1_000
    except BadOption as error:
        raise BadDefinition(f"missing={missing!r}.", hint='say how long, as "wait 30 seconds"') from error
    if as_of == "latest":
        raise BadDefinition("what is newest now is not waited for.", hint='say as_of="event time"')
    return wait_us


def _alike(
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
