"""Values that a source does not repeat, since they are as they were: filled in from the log.

PostgreSQL leaves large values out of an update that did not touch them. A null in their place would be a
silent loss: the newest record of the row has them. A row that the log does not have yet, since its table is
still being read, is looked up in the source: its value of now is that of then, or a change of it follows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.capture import alive
from penstock.capture.source import Changes, Find, Key
from penstock.errors import Damaged
from penstock.log.topic import Topic

_Row = Mapping[str, Any]


class Memory:
    """Where the newest record of each row is, for the tables that need it: kept only once one does."""

    def __init__(self) -> None:
        self._offsets: dict[str, dict[Key, int]] = {}
        self._ends: dict[str, int] = {}

    def filled(self, topic: Topic, pending: Sequence[pa.Table], changes: Changes) -> pa.RecordBatch:
        """The changes with what they leave out. `pending`: records that will be stored before them.

        Left out are changes of rows that neither the log nor the source has: that they are gone is told next.
        """
        rows, table, unchanged = changes.rows, changes.table, changes.unchanged
        self._bring_up(topic, table.key)
        after = rows.column("after")
        columns = {column.name: pc.struct_field(after, column.name).to_pylist() for column in table.columns}
        before = rows.column("before").to_pylist()
        present = after.is_valid().to_pylist()
        wanted = {number for numbers in unchanged.values() for number in numbers}
        recent: dict[Key, _Row | None] = {}  # None: gone
        for piece in pending:
            for record in piece.to_pylist():
                recent[_key(record, table.key)] = None if record["_deleted"] else record
        find = _Found(
            topic, changes.find, [tuple(columns[n][at] for n in table.key) for at in sorted(wanted)]
        )
        keep = [True] * rows.num_rows
        for number in range(rows.num_rows):
            old = _key(before[number] or {}, table.key)
            key = tuple(columns[name][number] for name in table.key)
            if number in wanted:
                known = self._known(topic, recent, key if None in old else old)
                known = known or find.row(key)
                keep[number] = known is not None
                for name, numbers in unchanged.items():
                    if known is not None and number in numbers:
                        columns[name][number] = known.get(name)
            recent[old] = None
            if present[number] and keep[number]:
                recent[key] = {name: values[number] for name, values in columns.items()}
        arrays = [pa.array(columns[column.name], column.type) for column in table.columns]
        fields = [column.with_nullable(True) for column in table.columns]
        filled = pa.StructArray.from_arrays(arrays, fields=fields, mask=after.is_null())
        rows = rows.set_column(rows.schema.names.index("after"), rows.schema.field("after"), filled)
        return rows if all(keep) else rows.filter(pa.array(keep))

    def _known(self, topic: Topic, recent: Mapping[Key, _Row | None], key: Key) -> _Row | None:
        if key in recent:
            return recent[key]
        offset = self._offsets[topic.name].get(key)
        if offset is not None:
            for row in topic.rows(partition=0, start=offset, end=offset + 1):
                return row
        return None

    def _bring_up(self, topic: Topic, key: Sequence[str]) -> None:
        offsets = self._offsets.get(topic.name)
        if offsets is None:
            found = alive.newest(topic)
            found = found.filter(pc.invert(found["_deleted"]))
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
            for found, offset, deleted in zip(
                keys, batch.column("_offset").to_pylist(), batch.column("_deleted").to_pylist(), strict=True
            ):
                if deleted:
                    offsets.pop(found, None)
                else:
                    offsets[found] = offset
        self._ends[topic.name] = end


def _key(row: _Row, key: Sequence[str]) -> Key:
    return tuple(row.get(name) for name in key)


class _Found:
    """Rows of the source, looked up together when the first one is missing."""

    def __init__(self, topic: Topic, find: Find | None, keys: Sequence[Key]) -> None:
        self._topic, self._find, self._keys = topic, find, keys
        self._rows: Mapping[Key, _Row] | None = None

    def row(self, key: Key) -> _Row | None:
        if self._find is None:
            raise Damaged(
                self._topic.name, 0, "-", first=0, last=None,
                reason=f"a change of the row {key} does not repeat all of it, and the log has no such row",
                hint="take a new snapshot with: penstock capture resnapshot SOURCE",
            )  # fmt: skip
        if self._rows is None:
            self._rows = self._find(self._keys)
        return self._rows.get(key)
