"""Which records of a compacted topic are still worth keeping: the latest of every key.

Offsets stay as they are. A delete is kept for a while, so that every follower sees it,
and then goes too, never together with what it hides: who reads on while files are replaced would
have that, and miss the delete. Only keys are held in memory (33 bytes each, up to a bound): when there
are more, the oldest segments are compacted among themselves and the rest another time.

Where a topic has a history, it is a table: the latest record of a key is the one with the highest event
time, and what was appended, or became valid, within that time stays, with all that it has replaced only
since. A version that is announced for later replaces nothing yet.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.log import keys, versions
from penstock.log.manifest import SegmentEntry
from penstock.log.partition import Partition
from penstock.log.settings import TopicSettings

_KEYS_MAX = 4_000_000
_DIRTY_SHARE_MIN = 0.5

Latest = npt.NDArray[np.void]
_KEY = np.dtype([("high", "<u8"), ("low", "<u8"), ("version_us", "<i8"), ("offset", "<i8"), ("alone", "?")])


def is_worthwhile(entries: tuple[SegmentEntry, ...]) -> bool:
    """Enough has come since the last time that rewriting costs less than it gains."""
    total = sum(entry.size_bytes for entry in entries)
    dirty = sum(entry.size_bytes for entry in entries if not entry.compacted_to)
    return dirty > total * _DIRTY_SHARE_MIN


@dataclass(frozen=True, slots=True)
class Plan:
    """Which segments are compacted into one, and which of their records stay."""

    partition: Partition
    settings: TopicSettings
    covered: tuple[SegmentEntry, ...]
    offsets: npt.NDArray[np.int64]  # of the latest record of each key, sorted
    alone: npt.NDArray[np.int64]  # those that replace nothing that is still there
    deletes_before_us: int
    settled_before_us: int | None = None  # of a table: only what was appended and valid by then replaces

    def kept(self) -> Iterator[pa.RecordBatch]:
        for entry in self.covered:
            for batch in _read(self.partition, self.settings, entry):
                yield batch.filter(pa.array(self._keeps(batch)))

    def _keeps(self, batch: pa.RecordBatch) -> npt.NDArray[np.bool_]:
        offsets = batch.column("_offset").to_numpy()
        keeps: npt.NDArray[np.bool_] = np.isin(offsets, self.offsets, assume_unique=True)
        deleted = batch.column("_deleted").to_numpy(zero_copy_only=False)
        appended = batch.column("_timestamp").cast(pa.int64()).to_numpy()
        outdated = deleted & (appended < self.deletes_before_us)
        if outdated.any():
            keeps &= ~(outdated & np.isin(offsets, self.alone, assume_unique=True))
        if self.settled_before_us is not None:
            keeps |= ~_settled(batch, self.settings, self.settled_before_us)
        return keeps


def plan(
    partition: Partition, settings: TopicSettings, entries: tuple[SegmentEntry, ...], *, now_us: int
) -> Plan:
    latest = np.empty(0, dtype=_KEY)
    settled_us = None if settings.history_ms is None else now_us - settings.history_ms * 1_000
    covered: list[SegmentEntry] = []
    for entry in entries:
        if covered and len(latest) + entry.rows > _KEYS_MAX:
            break
        # Sorted once for a segment, and not for each of its batches, of which there may be thousands.
        newer = [_keyed(batch, settings, settled_us) for batch in _read(partition, settings, entry)]
        latest = _merged([latest, *newer])
        covered.append(entry)
    offsets, alone = np.sort(latest["offset"]), np.sort(latest["offset"][latest["alone"]])
    # While there is something older, in an archive, a delete must stay: it may be what hides it.
    oldest = not entries or entries[0].base == partition.manifest().start
    deletes_before_us = now_us - settings.tombstone_ms * 1_000 if oldest else 0
    return Plan(partition, settings, tuple(covered), offsets, alone, deletes_before_us, settled_us)


def _keyed(batch: pa.RecordBatch, settings: TopicSettings, settled_us: int | None) -> Latest:
    if settled_us is not None:
        batch = batch.filter(pa.array(_settled(batch, settings, settled_us)))
    digests = keys.key_digests(batch, settings.key)
    keyed = np.empty(batch.num_rows, dtype=_KEY)
    keyed["high"], keyed["low"] = digests[:, 0], digests[:, 1]
    keyed["version_us"] = _versions(batch, settings)
    keyed["offset"] = batch.column("_offset").to_numpy()
    keyed["alone"] = True
    return keyed


def _settled(batch: pa.RecordBatch, settings: TopicSettings, settled_us: int) -> npt.NDArray[np.bool_]:
    """Which versions have been there, and valid, for so long that what they replaced may go."""
    appended = batch.column("_timestamp").cast(pa.int64()).to_numpy()
    found: npt.NDArray[np.bool_] = (appended < settled_us) & (versions.starts(batch, settings) < settled_us)
    return found


def _versions(batch: pa.RecordBatch, settings: TopicSettings) -> npt.NDArray[np.int64]:
    """What decides before the offset: the event time, in a table that has one."""
    if settings.history_ms is None or settings.event_time is None:
        return np.zeros(batch.num_rows, np.int64)
    return versions.starts(batch, settings)


def _merged(pieces: list[Latest]) -> Latest:
    """The last record of every key of all of them, and whether it is the only one."""
    both = np.concatenate(pieces)
    both = both[np.lexsort([both[name] for name in ("offset", "version_us", "low", "high")])]
    last = np.ones(len(both), dtype=bool)
    last[:-1] = (both["high"][1:] != both["high"][:-1]) | (both["low"][1:] != both["low"][:-1])
    both["alone"][1:] &= last[:-1]
    return both[last]


def _read(partition: Partition, settings: TopicSettings, entry: SegmentEntry) -> Iterator[pa.RecordBatch]:
    from penstock.log.maintenance import read  # maintenance decides, this computes

    return read(partition, settings, entry)
