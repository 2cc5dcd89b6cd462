"""A view's changelog into a store, record after record, through any failure of either.

The store's offset is the only memory: whatever fails, the follower asks the store how far it is and
reads on from there. So a change is in the store once or not yet.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from penstock.errors import BadOption, Contended, PenstockError, RecordsLost, StorageError
from penstock.follow.store import Store
from penstock.follow.table import TableSpec
from penstock.log.topic import Topic

CHUNK_RECORDS = 50_000  # in one transaction of the store
_CHUNK_BYTES = 32 << 20
_WAIT_S = 0.5  # how long run() may take to see that it should stop
_PAUSE_S = 0.05
_PAUSE_S_MAX = 5.0


@dataclass(frozen=True, slots=True)
class _Place:
    changelog_id: str
    next_offset: int


class Follower:
    """One copy of one view. `step` or `run` belong to one thread; the rest may be asked by others."""

    def __init__(
        self, topic: Topic, store: Store, spec: TableSpec, *, chunk_records: int = CHUNK_RECORDS
    ) -> None:
        if topic.settings.partitions != 1:
            raise BadOption(
                f'topic "{topic.name}" has {topic.settings.partitions} partitions.',
                hint="a changelog has one, since its order matters",
            )
        self._topic, self._store, self._spec = topic, store, spec
        self._chunk_records = chunk_records
        self._place: _Place | None = None  # None: ask the store
        self.last_error: str | None = None  # what keeps it from going on, None when nothing does
        self.retries = 0  # since it last went on

    def step(self, *, timeout_s: float) -> int:
        """Apply what there is, after waiting for it up to `timeout_s`; returns how many records.

        Raises RecordsLost when retention took records that the copy does not have, and what the store
        raises. It may be called again after any error.
        """
        try:
            place = self._current()
            if self._end(place) <= place.next_offset and not self._topic.wait(
                {0: place.next_offset}, timeout_s
            ):
                return 0
            return self._apply(place, self._end(place))
        except BaseException:
            self._place = None
            raise

    def lag(self) -> int:
        """Records that the log has and the copy does not; an upper bound where offsets have gaps."""
        place = self._place
        if place:
            done = place.next_offset
        else:
            stored = self._store.progress(self._spec.name)
            done = stored.next_offset if stored else 0
        start, end = self._topic.bounds()[0]
        return max(0, end - max(done, start))

    def run(self, stop: threading.Event) -> None:
        """Follow until `stop` is set. A store that is down is tried again and again, with pauses.

        Raises only what another try cannot mend: records lost to retention, a newer follower, a
        value that the store cannot hold, a damaged log. `last_error` has it as well.
        """
        pause_s = _PAUSE_S
        while not stop.is_set():
            try:
                self.step(timeout_s=_WAIT_S)
            except (StorageError, Contended) as error:
                self.last_error = str(error)
                self.retries += 1
                stop.wait(pause_s)
                pause_s = min(pause_s * 2, _PAUSE_S_MAX)
            except PenstockError as error:
                self.last_error = str(error)
                raise
            else:
                pause_s, self.last_error, self.retries = _PAUSE_S, None, 0

    def _current(self) -> _Place:
        """Where to go on; at the beginning when another topic has taken the changelog's name."""
        changelog_id = self._topic.settings.id
        if self._place is None or self._place.changelog_id != changelog_id:
            progress = self._store.prepare(self._spec, changelog_id)
            self._place = _Place(changelog_id, progress.next_offset)
        return self._place

    def _end(self, place: _Place) -> int:
        start, end = self._topic.bounds()[0]
        if place.next_offset < start:
            error = RecordsLost(self._topic.name, 0, place.next_offset, start=start, end=end)
            error.hint = "rebuild the view, and raise the retention of its changelog"
            raise error
        return end

    def _apply(self, place: _Place, end: int) -> int:
        applied = 0
        for chunk, next_offset in self._chunks(place.next_offset, end):
            if self._topic.settings.id != place.changelog_id:
                break  # these may be records of another topic: the next step begins anew
            self._store.apply(self._spec, chunk, from_offset=place.next_offset, next_offset=next_offset)
            self._place = place = _Place(place.changelog_id, next_offset)
            applied += chunk.num_rows
        return applied

    def _chunks(self, start: int, end: int) -> Iterator[tuple[pa.Table, int]]:
        """Records of bounded number and size, each chunk with the offset after it.

        The last one ends at `end` even if no record lies before it: offsets may have gaps.
        """
        held: list[pa.RecordBatch] = []
        for batch in self._topic.read(partition=0, start=start, end=end):
            for piece in self._pieces(batch):
                if held and self._is_full(held, piece):
                    yield pa.Table.from_batches(held), _first(piece)
                    held = []
                held.append(piece)
        schema = self._topic.settings.read_schema
        yield (pa.Table.from_batches(held) if held else schema.empty_table()), end

    def _is_full(self, held: list[pa.RecordBatch], more: pa.RecordBatch) -> bool:
        together = [*held, more]
        too_many = sum(piece.num_rows for piece in together) > self._chunk_records
        return too_many or bool(sum(piece.nbytes for piece in together) > _CHUNK_BYTES)

    def _pieces(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        rows = min(self._chunk_records, max(1, batch.num_rows * _CHUNK_BYTES // max(1, batch.nbytes)))
        for start in range(0, batch.num_rows, rows):
            yield batch.slice(start, rows)


def _first(batch: pa.RecordBatch) -> int:
    return int(batch.column("_offset")[0].as_py())
