"""Which keys a table of the log has, told from its records alone."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from penstock.log.topic import Topic

_AT_ONCE = 500_000  # records that are folded together
_LAST = "__last"


def newest(topic: Topic) -> pa.Table:
    """Of each key, where its newest record is (`_offset`), and whether that deletes it (`_deleted`)."""
    key = list(topic.settings.key)
    state: pa.Table | None = None
    pending: list[pa.Table] = []
    for batch in topic.read(partition=0):
        pending.append(_stamped(pa.Table.from_batches([batch]), key))
        if sum(map(len, pending)) >= _AT_ONCE:
            state, pending = _folded(state, pending, key), []
    if pending or state is None:
        empty = _stamped(topic.settings.read_schema.empty_table(), key)
        state = _folded(state, pending or [empty], key)
    last = state[_LAST]
    return pa.table(
        [*(state[name] for name in key), pc.shift_right(last, 1), pc.equal(pc.bit_wise_and(last, 1), 1)],
        names=[*key, "_offset", "_deleted"],
    )


def keys(topic: Topic, *, before: int | None = None) -> pa.Table:
    """The keys of the rows there are; only those with no record at or past the offset `before`."""
    if before is not None and _is_empty(topic, before):  # a first snapshot need not be read again
        return topic.settings.schema.arrow.empty_table().select(list(topic.settings.key))
    found = newest(topic)
    wanted = pc.invert(found["_deleted"])
    if before is not None:
        wanted = pc.and_(wanted, pc.less(found["_offset"], before))
    return found.filter(wanted).select(list(topic.settings.key))


def _is_empty(topic: Topic, before: int) -> bool:
    return all(not batch.num_rows for batch in topic.read(partition=0, end=before))


def _stamped(records: pa.Table, key: list[str]) -> pa.Table:
    """Offset and mark in one number, so that the largest is the newest."""
    last = pc.add(pc.multiply(records["_offset"].cast(pa.int64()), 2), records["_deleted"].cast(pa.int64()))
    return records.select(key).append_column(_LAST, last)


def _folded(state: pa.Table | None, pending: list[pa.Table], key: list[str]) -> pa.Table:
    rows = pa.concat_tables([*([] if state is None else [state]), *pending])
    folded = rows.group_by(key, use_threads=False).aggregate([(_LAST, "max")])
    return folded.rename_columns([name.removesuffix("_max") if name == f"{_LAST}_max" else name
                                  for name in folded.column_names])  # fmt: skip
