"""Values that a source does not repeat, since they are as they were: filled in from the log.

PostgreSQL leaves large values out of an update that did not touch them. A null in their place would be a
silent loss: the newest record of the row has them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.capture import alive
from penstock.capture.source import Table
from penstock.errors import Damaged
from penstock.log.topic import Topic

Key = tuple[Any, ...]


class Memory:
    """Where the newest record of each row is, for the tables that need it: kept only once one does."""

    def __init__(self) -> None:
        self._offsets: dict[str, dict[Key, int]] = {}
        self._ends: dict[str, int] = {}

    def filled(
        self,
        topic: Topic,
        pending: Sequence[pa.Table],
        rows: pa.RecordBatch,
        table: Table,
        unchanged: Mapping[str, Sequence[int]],
    ) -> pa.RecordBatch:
        """The changes with what they leave out. `pending`: records that will be stored before them."""
        self._bring_up(topic, table.key)
        after = rows.column("after")
        columns = {column.name: pc.struct_field(after, column.name).to_pylist() for column in table.columns}
        before = rows.column("before").to_pylist()
        wanted = {number for numbers in unchanged.values() for number in numbers}
        recent: dict[Key, dict[str, Any]] = {}
        for piece in pending:
            for record in piece.to_pylist():
                recent[tuple(record[name] for name in table.key)] = record
        for number in range(rows.num_rows):
            key = tuple(columns[name][number] for name in table.key)
            if number in wanted:
                old = tuple((before[number] or {}).get(name) for name in table.key)
                known = self._known(topic, recent, key if None in old else old)
                for name, numbers in unchanged.items():
                    if number in numbers:
                        columns[name][number] = known[name]
            recent[key] = {name: values[number] for name, values in columns.items()}
        arrays = [pa.array(columns[column.name], column.type) for column in table.columns]
        fields = [column.with_nullable(True) for column in table.columns]
        filled = pa.StructArray.from_arrays(arrays, fields=fields, mask=after.is_null())
        return rows.set_column(rows.schema.names.index("after"), rows.schema.field("after"), filled)

    def _known(self, topic: Topic, recent: Mapping[Key, dict[str, Any]], key: Key) -> Mapping[str, Any]:
        if key in recent:
            return recent[key]
        offset = self._offsets[topic.name].get(key)
        if offset is not None:
            for row in topic.rows(partition=0, start=offset, end=offset + 1):
                return row
        raise Damaged(
            topic.name, 0, "-", first=offset or 0, last=None,
            reason=f"a change of the row {key} does not repeat all of it, and the log has no such row",
            hint="take a new snapshot with: penstock capture resnapshot",
        )  # fmt: skip

    def _bring_up(self, topic: Topic, key: Sequence[str]) -> None:
        offsets = self._offsets.get(topic.name)
        if offsets is None:
            found = alive.newest(topic)
            offsets = dict(
                zip(
                    zip(*(found[name].to_pylist() for name in key), strict=True),
                    found["_offset"].to_pylist(),
                    strict=True,
                )
            )
            self._offsets[topic.name], self._ends[topic.name] = offsets, topic.bounds()[0][1]
            return
        start, end = self._ends[topic.name], topic.bounds()[0][1]
        for batch in topic.read(partition=0, start=start, end=end) if end > start else ():
            keys = zip(*(batch.column(name).to_pylist() for name in key), strict=True)
            offsets.update(zip(keys, batch.column("_offset").to_pylist(), strict=True))
        self._ends[topic.name] = end
