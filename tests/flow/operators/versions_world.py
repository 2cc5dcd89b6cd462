"""Generated events and versions of a table's rows, cut into batches, for kernels that need no Spark."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from penstock.log.versions import BEGINNING_US

TIMESTAMP = pa.timestamp("us", "UTC")
EVENTS = pa.schema([("user", pa.int64()), ("n", pa.int64()), ("at", TIMESTAMP)])
TABLE = pa.schema([("id", pa.int64()), ("name", pa.string())])
SYSTEM = pa.schema(
    [
        ("_from", pa.int64()), ("_timestamp", TIMESTAMP), ("_partition", pa.int32()), ("_offset", pa.int64()),
        ("_deleted", pa.bool_()),
    ]
)  # fmt: skip
VERSIONS = pa.schema([*TABLE, *SYSTEM])

Row = dict[str, Any]


@dataclass(frozen=True)
class Given:
    """A batch: what is new in it, and how far time is."""

    events: list[Row]
    versions: list[Row]
    watermark: int


@st.composite
def worlds(draw: st.DrawFn, *, keys: int = 3, times: int = 25) -> list[Given]:
    """Events at or before the watermark are left out; such a version is valid from right after it."""
    found: list[Given] = []
    watermark = number = 0
    for _ in range(draw(st.integers(1, 6))):
        events, versions = [], []
        for _ in range(draw(st.integers(0, 6))):
            user, at = draw(st.none() | st.integers(0, keys)), draw(st.integers(1, times))
            if at > watermark:
                events.append({"user": user, "n": number, "at": at})
            number += 1
        for _ in range(draw(st.integers(0, 5))):
            at_ = draw(st.none() | st.integers(1, times))
            begin = BEGINNING_US if at_ is None and not watermark else max(at_ or 0, watermark + 1)
            deleted = draw(st.integers(0, 3)) == 0
            versions.append(
                {
                    "id": draw(st.integers(0, keys)), "name": None if deleted else f"v{number}",
                    "_from": begin, "_timestamp": number // 3, "_partition": 0, "_offset": number,
                    "_deleted": deleted,
                }
            )  # fmt: skip
            number += 1
        found.append(Given(events, versions, watermark))
        watermark += draw(st.integers(0, 8))
    return [*found, Given([], [], watermark)]


def table(rows: list[Row], schema: pa.Schema) -> pa.Table:
    return pa.Table.from_pylist(rows, schema=schema)


def version_at(versions: list[Row], key: Any, moment: int | None) -> Row | None:
    """The naive way; None where there is no row, or a delete."""
    valid = [v for v in versions if v["id"] == key and (moment is None or v["_from"] <= moment)]
    newest = max(valid, key=lambda v: (v["_from"], v["_offset"]), default=None)
    return None if newest is None or newest["_deleted"] else newest
