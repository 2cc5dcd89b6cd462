"""What a query writes: the records of a changelog, of late pairs and of the batch history.

A changelog record is a row of the view and four columns of ours: `_op` ("u" upsert, "d" delete, "w" progress
without a change), `_batch` (grows), `_revision` (how many late rows corrected a window that was final) and
`_closed` (windows that end by then are final).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import BadDefinition, SeveralRowsPerKey
from penstock.flow.aggregate import REVISION
from penstock.flow.build import HIDDEN
from penstock.flow.offset import NEVER_US
from penstock.flow.ordering import groups
from penstock.schema import RecordSchema, did_you_mean

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from penstock.log.log import Log
from penstock.log.newest import last_record

LATE = ".late"
BATCHES = ".batches"
DIVERTED = "_diverted"
"""In a result, a late pair that an operator has put in place of a row."""
HISTORY = RecordSchema.of(
    "query STRING NOT NULL, version INT NOT NULL, number BIGINT NOT NULL, batch STRING NOT NULL, "
    "rows BIGINT NOT NULL, changes BIGINT NOT NULL, late BIGINT NOT NULL, watermark TIMESTAMP, "
    "planned TIMESTAMP, took_ms BIGINT NOT NULL"
)
_TIMESTAMP = pa.timestamp("us", tz="UTC")
_PARTS = {"window": ("window_start", "window_end"), "event": ("event_partition", "event_offset")}
_OWN = [
    pa.field("_op", pa.string(), nullable=False),
    pa.field("_batch", pa.int64(), nullable=False),
    pa.field("_revision", pa.int32(), nullable=False),
    pa.field("_closed", _TIMESTAMP),
]


@dataclass(frozen=True, slots=True)
class Output:
    """A view or a derived stream: its topic, and what identifies a row."""

    name: str
    kind: Literal["view", "stream"]
    key: tuple[str, ...]
    columns: pa.Schema
    final_by: str | None = None  # rows come out once the watermark has passed this column
    again_by: str | None = None  # rows up to the watermark by this column have come out

    def check(self) -> None:
        """Raises BadSchema for a type that cannot be stored."""
        RecordSchema.of(self.columns)

    @property
    def schema(self) -> RecordSchema:
        return RecordSchema.of(pa.schema([*self.columns, *(_OWN if self.kind == "view" else [])]))


def flat(df: DataFrame, *, also: Sequence[str] = ()) -> DataFrame:
    """`window` as two columns, which stores and people can sort by; of the system's columns only `also`."""
    from pyspark.sql import functions as F

    columns = []
    for name in df.columns:
        if name in HIDDEN and name not in also:
            continue
        if name == "window" and dict(df.dtypes)[name].startswith("struct<start"):
            columns += [F.col(f"window.{side}").alias(f"window_{side}") for side in ("start", "end")]
        else:
            columns.append(F.col(f"`{name}`"))
    return df.select(*columns)


def flat_key(key: Sequence[str], columns: Sequence[str]) -> tuple[str, ...]:
    """Key columns under the names they have after `flat`; raises for one that is not there."""
    flattened = [part for name in key for part in ((name,) if name in columns else _PARTS.get(name, (name,)))]
    for name in flattened:
        if name not in columns:
            raise BadDefinition(
                f'there is no key column "{name}" in the result, which has {", ".join(columns)}.',
                hint=did_you_mean(name, columns) or "choose the key from these columns",
            )
    return tuple(flattened)


def own_columns(columns: pa.Schema) -> pa.Schema:
    """The user's columns of a result, all nullable: a delete or a note of progress fills none."""
    own = [field.with_nullable(True) for field in columns if field.name not in (REVISION, "_op", DIVERTED)]
    for field in own:
        if field.name.startswith("_"):
            raise BadDefinition(
                f'the result has a column "{field.name}": names that begin with _ are ours.',
                hint="rename it with .alias(...)",
            )
    return pa.schema(own)


def changes(output: Output, table: pa.Table, *, number: int, closed_us: int) -> pa.Table:
    """The changelog records of one batch. At least one, so that followers hear of every batch."""
    if "_op" in table.column_names:
        table = _consolidated(output, table)
    else:
        _check_one_row_per_key(output, table)
    rows = table.num_rows
    closed = pa.array([None if closed_us == NEVER_US else closed_us], pa.int64()).cast(_TIMESTAMP)
    if not rows:
        note = {"_op": ["w"], "_batch": [number], "_revision": [0], "_closed": closed}
        empty = {field.name: pa.nulls(1, field.type) for field in output.columns}
        return pa.table({**empty, **note}, schema=output.schema.arrow)
    revisions = (
        table.column(REVISION)
        if REVISION in table.column_names
        else pa.repeat(pa.scalar(0, pa.int32()), rows)
    )
    ops = table.column("_op") if "_op" in table.column_names else pa.repeat(pa.scalar("u"), rows)
    own = [table.column(field.name).cast(field.type) for field in output.columns]
    marks = [ops, pa.repeat(pa.scalar(number), rows), revisions, pa.repeat(closed[0], rows)]
    return pa.table([*own, *marks], schema=output.schema.arrow)


def _consolidated(output: Output, table: pa.Table) -> pa.Table:
    """One change for each key: what leaves one place for another is there; retractions come first."""
    deleted = pc.equal(table["_op"], "d")
    upserts, deletes = table.filter(pc.invert(deleted)), table.filter(deleted)
    _check_one_row_per_key(output, upserts)
    if not deletes.num_rows:
        return upserts
    keys = list(output.key)
    both = pa.concat_tables([deletes.select(keys), upserts.select(keys)])
    codes = groups(both, keys)
    gone, there = codes[: deletes.num_rows], codes[deletes.num_rows :]
    _, first = np.unique(gone, return_index=True)
    once = np.isin(np.arange(len(gone)), first) & ~np.isin(gone, there)
    return pa.concat_tables([deletes.filter(pa.array(once)), upserts])


def _check_one_row_per_key(output: Output, table: pa.Table) -> None:
    keys = table.select(list(output.key))
    if keys.num_rows != keys.group_by(list(output.key)).aggregate([]).num_rows:
        raise SeveralRowsPerKey(output.name, output.key)


def closed_us(log: Log, view: str) -> int:
    """How far a view's changelog says that windows are final."""
    newest = last_record(log.port, view, 0)
    found: int | None = newest.column("_closed").cast(pa.int64())[0].as_py() if newest else None
    return NEVER_US if found is None else found


def diverted(table: pa.Table) -> tuple[pa.Table, pa.Table | None]:
    """The rows of a result, and the late pairs that an operator has put among them."""
    if DIVERTED not in table.column_names:
        return table, None
    said = table[DIVERTED].combine_chunks()
    late = pa.Table.from_batches([pa.RecordBatch.from_struct_array(said.drop_null())])
    return table.filter(said.is_null()).drop_columns([DIVERTED]), late


def late_schema(columns: pa.Schema) -> RecordSchema:
    return RecordSchema.of(pa.schema([field.with_nullable(True) for field in columns]))


def late_records(table: pa.Table, *, policy: str) -> pa.Table:
    """Late pairs as they are stored: a dropped row leaves only its place."""
    if policy != "drop":
        return table
    row = table.schema.get_field_index("row")
    return table.set_column(
        row, table.schema.field(row), pa.nulls(table.num_rows, table.schema.field(row).type)
    )


def not_before(output: Output, table: pa.Table, evicted_ms: int) -> pa.Table:
    """Without rows that came out before: after a replay Spark closes all windows again."""
    column = output.final_by or output.again_by
    if column is None or not table.num_rows:
        return table
    due_us = table.column(column).cast(pa.int64())
    return table.filter(pc.greater(due_us, evicted_ms * 1_000))
