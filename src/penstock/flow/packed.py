"""Tables as Arrow IPC bytes, the form in which state is kept and rows travel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa


def to_bytes(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table.combine_chunks())
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]


def from_bytes(packed: Any) -> pa.Table:
    return pa.ipc.open_stream(packed).read_all()


def fitted(columns: Sequence[Any], schema: pa.Schema) -> pa.Table:
    """A table of this schema, of columns that can be cast to it."""
    fitting = [column.cast(field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.Table.from_arrays(fitting, schema=schema)
