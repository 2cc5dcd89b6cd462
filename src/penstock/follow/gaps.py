"""What compaction has taken from a table's topic while somebody was not looking: deletes, above all.

A delete goes for good once it is older than the topic keeps it. Who has read only what came before it has a
row that is gone, and hears no more of it: so that has to be found by the offsets that are missing.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.clock import Clock, SystemClock
from penstock.log.embedded import EmbeddedLog
from penstock.log.port import LogPort
from penstock.log.settings import TopicSettings

UNDER_WAY_US = 60_000_000  # a record is stamped before it is seen: by the sync, and by another clock


class Gaps:
    """Finds offsets that are missing from a partition, and since when they may be."""

    def __init__(self, next_offset: int, since_us: int) -> None:
        """`since_us`: what is missing from there on was appended no earlier."""
        self._next, self.since_us = next_offset, since_us

    def since(self, records: pa.RecordBatch | pa.Table) -> int | None:
        """No record missing before or between these is older than that; None where none is missing."""
        offsets: npt.NDArray[np.int64] = records.column("_offset").to_numpy()
        if not len(offsets):
            return None
        times: npt.NDArray[np.int64] = records.column("_timestamp").cast(pa.int64()).to_numpy()
        gaps = np.flatnonzero(np.diff(offsets, prepend=self._next - 1) != 1)
        earlier = np.maximum(np.append(self.since_us, times[:-1]), self.since_us)
        self._next, self.since_us = int(offsets[-1]) + 1, max(int(times[-1]), self.since_us)
        return int(earlier[gaps[0]]) if gaps.size else None

    def since_last(self, end: int) -> int | None:
        return self.since_us if self._next != end else None


def may_hide_deletes(gap_us: int | None, settings: TopicSettings, *, now_us: int) -> bool:
    """Whether a delete may have gone where offsets are missing, of records no older than that."""
    if gap_us is None or not settings.compacted:
        return False
    return gap_us < now_us - max(settings.tombstone_ms, settings.history_ms or 0) * 1_000


def clock_of(port: LogPort) -> Clock:
    """By which compaction goes."""
    return port.clock if isinstance(port, EmbeddedLog) else SystemClock()
