"""`ps.enrich` and its like: events and tables, tables and tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Literal, get_args

from penstock.clock import duration_ms
from penstock.errors import BadDefinition, BadOption
from penstock.flow import build as builds
from penstock.flow.aggregate import late_pair, late_rows, time_of, with_system
from penstock.flow.build import Late, Operator
from penstock.flow.enrich import ENRICHED_AT, VERSION, Enrich
from penstock.flow.inputs import alike, check_once, in_time
from penstock.flow.join_rows import JoinRows
from penstock.flow.join_tables import How, JoinTables, Moves
from penstock.flow.lookup import Lookup, rows_by
from penstock.flow.output import DIVERTED
from penstock.flow.table_changes import Newest, TableChanges
from penstock.flow.table_inputs import (
    Described,
    Table,
    described,
    joined_on,
    key_pairs,
    versioned,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType

AsOf = Literal["event time", "latest"]
_WAIT = "wait "
_FOUND = "_found"


def enrich(
    events: DataFrame,
    table: Table | None = None,
    *,
    on: str | Mapping[str, str],
    lookup: Lookup | None = None,
    as_of: AsOf | None = None,
    missing: str = "null",
    late: Late = "divert",
    suffix: str | None = None,
) -> DataFrame:
    """Each event with the row of `table` that was valid at the event's own time.

    `on`: the event's column that holds the table's key, or a mapping of such columns to the key's. An event
    comes out once the watermark has reached its time. `missing="wait 30 seconds"`: where there is no row
    then, the first one that becomes valid within that event time counts. `missing="divert"`: such an event
    goes to `<name>.late`, and nothing may follow in the same definition. Columns: the event's, the table's
    (with `suffix` where the name is taken), `version_partition` and `version_offset`: which record of the
    table that was, NULL for none; with a wait also `enriched_at`, the time at which that was certain.

    `as_of="latest"` takes the newest version known when the batch runs, at once. A replay may give others,
    and verify cannot tell.

    `lookup=ps.lookup(…)` in place of a table asks a database when the batch runs: the row that is there now.
    It keeps no state and asks for no event time; what it gave cannot be recomputed, and verify says so.
    """
    if (table is None) == (lookup is None):
        raise BadDefinition(
            "an event is enriched from one place.", hint="give a table, or lookup=ps.lookup(…)"
        )
    events = builds.frame(events)
    if lookup is not None and not isinstance(lookup, Lookup):
        raise BadDefinition(f"lookup={lookup!r}.", hint='say lookup=ps.lookup(url, table, "…", key="id")')
    if lookup is not None:
        return _looked_up(events, lookup, on, as_of, missing, suffix)
    assert table is not None
    return _versioned(events, table, on, as_of or "event time", missing, late, suffix)


def _versioned(
    events: DataFrame, table: Table, on: str | Mapping[str, str], as_of: AsOf, missing: str, late: Late,
    suffix: str | None,
) -> DataFrame:  # fmt: skip

    from penstock.flow.enrich import enrich_batch

    build = builds.current()
    known = described(table)
    pairs = key_pairs(events.columns, known, on)
    wait_us = _wait_us(missing, as_of)
    operator = Operator(
        "enrich", inputs=2, late=late, span_us=wait_us, windowed=False, output="append",
        means=repr((known.name, pairs, as_of, missing, suffix)),
    )  # fmt: skip
    versions = versioned(known)
    time = time_of(events)
    rows, operator.final_by = _events(events, operator, as_of, ENRICHED_AT if wait_us else time)
    rows, versions = alike(rows, versions, pairs, f'table "{known.name}"')
    kernel = _kernel(events, rows, versions, known, pairs, time, as_of, wait_us, suffix)
    if missing == "divert":
        kernel = replace(kernel, diverts=f"no row in {known.name}")
    if build.mode == "stream":
        found = _enriched(rows, versions, kernel)
    elif kernel.time is None:  # never compared: it only has the columns
        found = enrich_batch(rows, versions, replace(kernel, time=time), closed_us=build.closed_us)
    else:
        found = enrich_batch(rows, versions, kernel, closed_us=build.closed_us)
    found = builds.timed(found, ENRICHED_AT if wait_us else time)
    if kernel.diverts:
        operator.whole = found
    return found


def _looked_up(
    events: DataFrame, lookup: Lookup, on: str | Mapping[str, str], as_of: AsOf | None, missing: str,
    suffix: str | None,
) -> DataFrame:  # fmt: skip
    """Events with what a database says of them while the batch runs."""
    from pyspark.sql import functions as F

    if as_of == "event time":
        raise BadDefinition("a database tells what is there now.", hint="leave as_of= out")
    if missing not in ("null", "divert"):
        raise BadDefinition(f"missing={missing!r}.", hint='a lookup takes "null" or "divert"')
    build = builds.current()
    known = Described(lookup.table, lookup.key, lookup.schema.names, None, is_view=False)
    pairs = key_pairs(events.columns, known, on)
    operator = Operator(
        "enrich", stateful=False, windowed=False, output="append",
        means=repr((lookup.table, lookup.schema.ddl, pairs, missing, suffix)),
        not_verifiable=f'it looks into "{lookup.table}", which may have changed since',
    )  # fmt: skip
    build.add(operator)
    own = [name for name in events.columns if not name.startswith("_")]
    names = _named(lookup.columns, own, lookup.table.rpartition(".")[2], suffix)
    check_once([*own, *names])
    declared = build.session.createDataFrame([], lookup.schema.ddl)
    keyed, _ = alike(events, declared, pairs, f'"{lookup.table}"')
    rows = events if missing == "null" else with_system(events)
    kinds = [keyed.schema[ours].dataType for ours in pairs]
    keys = [F.col(f"`{ours}`").cast(kind) for ours, kind in zip(pairs, kinds, strict=True)]
    found = rows.withColumn(_FOUND, rows_by(lookup, keys))
    columns = [F.col(f"`{name}`") for name in events.columns]
    columns += [
        F.col(f"{_FOUND}.`{one}`").alias(name) for one, name in zip(lookup.columns, names, strict=True)
    ]
    if missing == "null":
        return found.select(*columns)
    late_rows(build, operator, events.filter(F.lit(False)), None)  # these come with the result
    said = F.struct(*late_pair(found, f"no row in {lookup.table}"))
    said = said.cast(_nullable(found.select(said.alias("said")).schema["said"].dataType))
    diverted = F.when(F.col(_FOUND).isNull(), said).alias(DIVERTED)
    operator.whole = found.select(*columns, diverted)
    return operator.whole


def _nullable(kind: DataType) -> DataType:
    """A struct's type where any part may be NULL: Arrow has no others in a struct that is NULL itself."""
    from pyspark.sql.types import StructField, StructType

    if not isinstance(kind, StructType):
        return kind
    return StructType([StructField(each.name, _nullable(each.dataType)) for each in kind])


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
    events: DataFrame, rows: DataFrame, versions: DataFrame, table: Described,
    pairs: Mapping[str, str], time: str, as_of: AsOf, wait_us: int, suffix: str | None,
) -> Enrich:  # fmt: skip
    from penstock.flow.buckets import arrow_schema

    own = [name for name in events.columns if not name.startswith("_")]
    columns = [n for n in table.columns if n not in table.key and n in versions.columns]
    names = _named(columns, own, table.name, suffix)
    every = [*own, *names, *VERSION.names, *([ENRICHED_AT] if wait_us else [])]
    check_once(every)
    return Enrich(
        tuple(pairs), tuple(pairs.values()), time if as_of == "event time" else None, tuple(columns),
        tuple(names), wait_us, diverts=None, events=arrow_schema(rows, own),
        table=arrow_schema(versions, [*pairs.values(), *columns]),
    )  # fmt: skip


def _named(columns: Sequence[str], taken: Sequence[str], table: str, suffix: str | None) -> list[str]:
    """The names under which a table's columns stand beside others."""
    ending = f"_{table}" if suffix is None else suffix
    return [f"{name}{ending}" if name in taken else name for name in columns]


def _enriched(rows: DataFrame, versions: DataFrame, kernel: Enrich) -> DataFrame:
    from penstock.flow.buckets import Input
    from penstock.flow.paged_buckets import Paged, in_paged_buckets

    inputs = [Input(rows, kernel.on, kernel.rows), Input(versions, kernel.key, kernel.versions)]
    pages = [Paged(kernel.versions, kernel.key)]
    return in_paged_buckets(inputs, step=kernel.step, pages=pages, output=kernel.output)


def _wait_us(missing: str, as_of: str) -> int:
    if as_of not in get_args(AsOf):
        raise BadDefinition(f"as_of={as_of!r}.", hint="choose one of " + ", ".join(get_args(AsOf)))
    if missing in ("null", "divert"):
        return 0
    if not missing.startswith(_WAIT):
        raise BadDefinition(f"missing={missing!r}.", hint='say "null", "divert" or "wait 30 seconds"')
    try:
        wait_us = duration_ms(missing.removeprefix(_WAIT)) * 1_000
    except BadOption as error:
        raise BadDefinition(f"missing={missing!r}.", hint='say how long, as "wait 30 seconds"') from error
    if as_of == "latest":
        raise BadDefinition("what is newest now is not waited for.", hint='say as_of="event time"')
    return wait_us


def changes(table: Table) -> DataFrame:
    """What each record of a table did: its key, `op`, and the row `before` and `after`."""
    from penstock.flow.buckets import Input
    from penstock.flow.paged_buckets import Paged, in_paged_buckets
    from penstock.flow.table_changes import changes_batch

    build, known = builds.current(), described(table)
    rows = versioned(known)
    newest = _newest(rows, known)
    check_once([*newest.key, "op", "before", "after"])
    build.add(Operator("changes", windowed=False, output="append", means=known.name))
    if build.mode != "stream":
        return changes_batch(rows, newest)
    kernel = TableChanges(newest)
    return in_paged_buckets(
        [Input(rows, newest.key, newest.versions)], step=kernel.step, output=kernel.output,
        pages=[Paged(newest.versions, newest.key)],
    )  # fmt: skip


def join_tables(
    left: Table,
    right: Table,
    *,
    on: str | Mapping[str, str],
    how: How = "inner",
    suffix: str | None = None,
) -> DataFrame:
    """The rows of two tables that belong together, kept current, for a view.

    `on`: the column of `left` that holds the key of `right`, or a mapping of such columns. Each row of `left`
    then meets one of `right`, and the view's key is left's; `how="left"` also keeps rows that refer to
    nobody. Where `on` is not the key of `right`, a row may meet many, and the view's key is both. Columns:
    those of `left`, then those of `right` without what is equal (with `suffix` where the name is taken).
    """
    from penstock.flow.join_rows import join_rows_batch
    from penstock.flow.join_tables import join_batch

    if how not in get_args(How):
        raise BadDefinition(f"how={how!r}.", hint="choose one of " + ", ".join(get_args(How)))
    build, ours, theirs = builds.current(), described(left), described(right)
    pairs = joined_on(ours, theirs, on)
    many = set(pairs.values()) != set(theirs.key)
    if many and how == "left":
        raise BadDefinition(
            f'"{", ".join(pairs.values())}" is not the key of table "{theirs.name}", and how="left".',
            hint='a row may meet many there: say how="inner"',
        )
    lefts, rights = alike(versioned(ours), versioned(theirs), pairs, f'table "{theirs.name}"')
    columns = [name for name in theirs.columns if name not in pairs.values() and name in rights.columns]
    names = _named(columns, ours.columns, theirs.name, suffix)
    check_once([*ours.columns, *names])
    build.add(
        Operator(
            "join_tables", inputs=2, windowed=False, output="changes",
            means=repr((ours.name, theirs.name, pairs, how, suffix)),
        )
    )  # fmt: skip
    sides = _newest(lefts, ours), _newest(rights, theirs)
    if many:
        rows = JoinRows(tuple(pairs), tuple(pairs.values()), *sides, tuple(columns), tuple(names))
        return (
            _paired(lefts, rights, rows) if build.mode == "stream" else join_rows_batch(lefts, rights, rows)
        )
    join = JoinTables(tuple(pairs), *sides, tuple(columns), tuple(names), how)
    return _joined(lefts, rights, join) if build.mode == "stream" else join_batch(lefts, rights, join)


def _moved(rows: DataFrame, moves: Moves) -> DataFrame:
    from penstock.flow.buckets import Input
    from penstock.flow.paged_buckets import Paged, in_paged_buckets

    newest = moves.newest
    return in_paged_buckets(
        [Input(rows, newest.key, newest.versions)], step=moves.step, output=moves.output,
        pages=[Paged(newest.versions, newest.key)],
    )  # fmt: skip


def _paired(lefts: DataFrame, rights: DataFrame, join: JoinRows) -> DataFrame:
    from penstock.flow.buckets import Input
    from penstock.flow.paged_buckets import Paged, in_paged_buckets

    ours, theirs = join.moves
    return in_paged_buckets(
        [
            Input(_moved(lefts, ours), join.on, ours.output),
            Input(_moved(rights, theirs), join.theirs, theirs.output),
        ],
        step=join.step, output=join.output,
        pages=[Paged(join.lefts, join.on), Paged(join.rights, join.theirs)],
    )  # fmt: skip


def _joined(lefts: DataFrame, rights: DataFrame, join: JoinTables) -> DataFrame:
    from penstock.flow.buckets import Input
    from penstock.flow.paged_buckets import Paged, in_paged_buckets

    moves = join.moves
    return in_paged_buckets(
        [
            Input(_moved(lefts, moves), join.on, moves.output),
            Input(rights, join.right.key, join.right.versions),
        ],
        step=join.step, output=join.output,
        pages=[Paged(join.lefts, join.on), Paged(join.right.versions, join.right.key)],
    )  # fmt: skip


def _newest(rows: DataFrame, table: Described) -> Newest:
    from penstock.flow.buckets import arrow_schema

    columns = [name for name in table.columns if name in rows.columns]
    return Newest(table.key, tuple(columns), arrow_schema(rows, columns))
