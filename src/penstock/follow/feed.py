"""What a topic's records mean to whoever follows it.

A view's changelog says itself what happens to its rows. A table's record is a row, or a mark that its key is
deleted. A stream's record is a row of its key, if it has one. Keyed sinks get all three as a changelog.
"""

from __future__ import annotations

from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import BadOption
from penstock.follow.changes import DELETE, UPSERT
from penstock.follow.table import REVISION, WINDOW_END, TableSpec
from penstock.log.settings import TopicSettings

Kind = Literal["view", "table", "stream"]
_CLOSED = pa.timestamp("us", tz="UTC")


def as_changes(spec: TableSpec, records: pa.Table, kind: Kind) -> pa.Table:
    """Records of a topic as those of a changelog."""
    if kind == "view":
        return records
    rows = records.num_rows
    deleted = records["_deleted"] if kind == "table" else pa.array([False] * rows, pa.bool_())
    # A stream has only rows that are final.
    closed = records[WINDOW_END] if kind == "stream" and spec.windowed else pa.nulls(rows, _CLOSED)
    own = {name: records[name] for name in spec.columns.names}
    return pa.table(
        {
            **own,
            "_op": pc.if_else(deleted, DELETE, UPSERT),
            "_batch": pa.nulls(rows, pa.int64()),
            REVISION.name: pa.repeat(pa.scalar(0, REVISION.type), rows),
            "_closed": closed,
        }
    )


def check_keyed(name: str, kind: Kind, key: tuple[str, ...], event_time: str | None, target: str) -> None:
    """Raises BadOption where a copy by key would not be what the topic says."""
    if kind == "stream" and not key:
        raise BadOption(
            f'stream "{name}" has no key, and {target} holds rows by their key.',
            hint='say what identifies a row: key="id"',
        )
    if kind == "table" and event_time is not None:
        raise BadOption(
            f'table "{name}" has an event time, and {target} knows only the order of arrival.',
            hint="define a view with ps.latest over the table's records, and say to= there",
        )


def limits(settings: TopicSettings, done: dict[int, int], ends: dict[int, int]) -> dict[int, int]:
    """How far each partition may be read now, so that no key goes back.

    When partitions are added, keys move: what came before is applied first, in all partitions.
    """
    for added in settings.grown:
        before = dict(enumerate(added.ends))
        if any(done[number] < end for number, end in before.items()):
            return {number: min(end, before.get(number, done[number])) for number, end in ends.items()}
    return ends
