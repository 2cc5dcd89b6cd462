"""Batches to frames, and offset ranges to positions: what plain and atomic appends share."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import pyarrow as pa

from penstock.log.frame import Origin, PendingFrame, event_range
from penstock.log.port import Position
from penstock.log.settings import TopicSettings

_FRAME_BYTES = 4 << 20


def frames(
    wanted: TopicSettings, batches: Iterable[pa.RecordBatch], origin: Origin | None = None
) -> list[PendingFrame]:
    return [
        PendingFrame(piece, event_us=event_range(wanted.event_time, piece), origin=origin)
        for batch in batches
        for piece in _pieces(batch)
    ]


def _pieces(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Frames of a size that a reader can hold easily."""
    rows = max(1, batch.num_rows * _FRAME_BYTES // pa.ipc.get_record_batch_size(batch))
    for start in range(0, batch.num_rows, rows):
        yield batch.slice(start, rows)


def position_of(topic: str, ranges: Mapping[int, tuple[int, int]]) -> Position:
    return Position(
        topic,
        {n: end for n, (_, end) in ranges.items()},
        firsts={n: first for n, (first, _) in ranges.items()},
    )
