"""Records that an operator can make nothing of, such as a saved search that cannot be read.

They have the same home as late rows, `<name>.late`, with the reason.
"""

from __future__ import annotations

import pyarrow as pa

from penstock.flow.build import Aside
from penstock.flow.offset import Offset
from penstock.flow.plan import begin_of
from penstock.log.log import Log


def left_out(log: Log, aside: Aside, batch: Offset, columns: pa.Schema) -> pa.Table:
    """Those of a batch, in the form of late rows."""
    records = _records(log, aside.topic, batch)
    if not len(records):
        return columns.empty_table()
    reasons = {
        (bad["_partition"], bad["_offset"]): bad["reason"] for bad in aside.reasons(records).to_pylist()
    }
    row = columns.field("row").type
    found = []
    for record in records.to_pylist() if reasons else []:
        place = record["_partition"], record["_offset"]
        if place in reasons:
            own = {name: record.get(name) for name in (row.field(i).name for i in range(row.num_fields))}
            found.append(
                {
                    "row": own, "reason": reasons[place], "topic": aside.topic,
                    "partition": place[0], "offset": place[1],
                }
            )  # fmt: skip
    return pa.Table.from_pylist(found, schema=columns)


def _records(log: Log, topic: str, batch: Offset) -> pa.Table:
    found = [
        piece
        for partition, end in enumerate(batch.end.ends[topic])
        if (begin := begin_of(batch.start, topic, partition)) < end
        for piece in log.port.read(
            topic, partition, max(begin, log.port.bounds(topic, partition)[0]), until=end
        )
    ]
    return pa.Table.from_batches(found, schema=log.port.settings(topic).read_schema)
