"""What a step of a stateful operator over several inputs gives."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa


@dataclass(frozen=True, slots=True)
class SteppedTables:
    """What a step leaves behind."""

    state: tuple[pa.Table, ...]  # where all are empty, nothing is stored
    output: pa.Table
    wake_us: int | None = None  # call again when the watermark is there, rows or not; later than it is now
