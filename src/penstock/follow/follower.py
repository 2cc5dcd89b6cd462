"""A topic into a sink, record after record, through any failure of either.

The sink's offsets are the only memory: whatever fails, the follower asks the sink how far it is and
reads on from there. So a change is in a store once or not yet.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from penstock.errors import BadOption, Contended, PenstockError, RecordsLost, StorageError
from penstock.follow.feed import Kind, as_changes, limits
from penstock.follow.gaps import UNDER_WAY_US, Gaps, clock_of, may_hide_deletes
from penstock.follow.store import Progress, Sink
from penstock.follow.table import TableSpec, spec_of
from penstock.log.settings import TopicSettings
from penstock.log.topic import Topic

_CHUNK_BYTES = 32 << 20
_WAIT_S = 0.5  # how long run() may take to see that it should stop
_PAUSE_S = 0.05
_PAUSE_S_MAX = 5.0
_LOOK_S = 5.0
_TRIES = 5
_NO_CHANGELOG = ""
_NOTHING_MISSED_US = 2**63 - 1
_Bounds = dict[int, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class _Place:
    changelog_id: str
    progress: Progress


class _DeletesGoneError(Exception):
    """It has been away for longer than they are kept: its copy may have rows that are gone."""


class Follower:
    """One copy of one topic. `step` or `run` belong to one thread; the rest may be asked by others."""

    def __init__(
        self,
        topic: Topic,
        sink: Sink,
        spec: TableSpec,
        *,
        kind: Kind = "view",
        chunk_records: int | None = None,
        look_s: float = _LOOK_S,
    ) -> None:
        """`look_s`: how often an idle one looks whether its copy is still there."""
        if kind == "view" and topic.settings.partitions != 1:
            raise BadOption(
                f'topic "{topic.name}" has {topic.settings.partitions} partitions.',
                hint="a changelog has one, since its order matters",
            )
        self._topic, self._sink, self._spec, self._kind = topic, sink, spec, kind
        self._chunk_records = chunk_records or sink.chunk_records
        self._look_s, self._looked = look_s, time.monotonic()
        self._place: _Place | None = None  # None: ask the sink
        self._starts: dict[int, int] = {}  # of partitions, until something of them is applied
        self._known: Progress | None = None  # what was true last, also while the sink is away
        # By partition, an offset, and since when deletes behind it may have been appended and have gone.
        self._missed: dict[int, tuple[int, int]] = {}
        self._clock = clock_of(topic.port)
        self.last_error: str | None = None  # what keeps it from going on, None when nothing does
        self.retries = 0  # since it last went on

    def step(self, *, timeout_s: float) -> int:
        """Apply what there is, after waiting for it up to `timeout_s`; returns how many records.

        Raises RecordsLost when retention took records that the copy does not have, and what the sink
        raises. It may be called again after any error.
        """
        try:
            if self._place is None:
                self._note_starts()
            place, now_us, bounds = self._current(), self._clock.now_us(), self._topic.bounds()
            done = self._done(place.progress, bounds)
            if not _news(done, bounds) and not self._topic.wait(done, timeout_s):
                self._missed = {number: (end, now_us - UNDER_WAY_US) for number, end in done.items()}
                self._look_after(place)
                return 0
            return self._apply(place)
        except _DeletesGoneError:
            self._begin_anew()
            return self.step(timeout_s=timeout_s)
        except BaseException:
            self._place = None
            raise

    def lag(self) -> int:
        """Records that the log has and the copy does not; an upper bound where offsets have gaps."""
        progress = self._known or self._asked()
        bounds = self._topic.bounds()
        return sum(max(0, end - max(progress.at(n), start)) for n, (start, end) in bounds.items())

    def _asked(self) -> Progress:
        try:
            return self._sink.progress(self._spec.name) or Progress(0)
        except PenstockError:  # which a step will meet and tell
            return Progress(0)

    def run(self, stop: threading.Event) -> None:
        """Follow until `stop` is set. A sink that is down is tried again and again, with pauses.

        Raises only what another try cannot mend: records lost to retention, a newer follower, a
        value that the store cannot hold, a damaged log. `last_error` has it as well.
        """
        while not stop.is_set():
            if self._try(stop, timeout_s=_WAIT_S):
                stop.wait(self._sink.gather_s)

    def finish(self, stop: threading.Event) -> None:
        """Apply all that is there now. Raises what still holds it up after several tries."""
        while not stop.is_set():
            before = self._known
            applied = self._try(stop, timeout_s=0, tries=_TRIES)
            if not applied and not self.retries and self._known == before:
                return

    def _try(self, stop: threading.Event, *, timeout_s: float, tries: int | None = None) -> int:
        """A step, or a pause after one that failed and may be tried again."""
        try:
            applied = self.step(timeout_s=timeout_s)
        except (StorageError, Contended) as error:
            self.last_error = str(error)
            self.retries += 1
            if tries is not None and self.retries >= tries:
                raise
            stop.wait(_pause_s(self.retries, error))
            return 0
        except PenstockError as error:
            self.last_error = str(error)
            raise
        self.last_error, self.retries = None, 0
        return applied

    def _current(self) -> _Place:
        """Where to go on; at the beginning when another topic has taken the changelog's name."""
        settings = self._topic.settings
        changelog_id = settings.id
        self._grow(settings)
        if self._place is None or self._place.changelog_id != changelog_id:
            self._be_at(_Place(changelog_id, self._sink.prepare(self._spec, changelog_id)))
            self._looked = time.monotonic()
        assert self._place is not None
        return self._place

    def _grow(self, settings: TopicSettings) -> None:
        """A captured table gets columns while it is followed: its copy is made anew with them."""
        now = spec_of(settings.schema.arrow, settings.key, name=self._spec.name)
        if self._kind == "table" and now != self._spec:
            self._spec, self._place = now, None

    def _be_at(self, place: _Place) -> None:
        self._place, self._known = place, place.progress

    def _look_after(self, place: _Place) -> None:
        """A copy that was emptied while nothing happened would stay empty."""
        if time.monotonic() - self._looked < self._look_s:
            return
        self._looked = time.monotonic()
        progress = self._sink.progress(self._spec.name)
        if progress is None or progress.offsets != place.progress.offsets:
            self._place = None

    def _done(self, progress: Progress, bounds: _Bounds) -> dict[int, int]:
        """How far it is in each partition."""
        return {n: self._begun(n, progress.at(n), start, end) for n, (start, end) in bounds.items()}

    def _note_starts(self) -> None:
        """Before anything is asked of the sink: what retention takes while that is away is lost."""
        for number, (start, _) in self._topic.bounds().items():
            self._starts.setdefault(number, start)

    def _begun(self, partition: int, done: int, start: int, end: int) -> int:
        if done:
            self._starts.pop(partition, None)
        was_late = self._kind == "table" or start <= self._starts.get(partition, start)
        if done >= start or (self._kind != "view" and done == 0 and was_late):
            return max(done, start)  # whoever comes later has the records that there still are
        error = RecordsLost(self._topic.name, partition, done, start=start, end=end)
        rebuild = "rebuild the view, and raise the retention of its changelog"
        error.hint = rebuild if self._kind == "view" else "raise the retention of that topic"
        raise error

    def _apply(self, place: _Place) -> int:
        now_us = self._clock.now_us()
        bounds = self._topic.bounds()
        done = self._done(place.progress, bounds)
        ends = {number: end for number, (_, end) in bounds.items()}
        applied = 0
        for number, end in limits(self._topic.settings, done, ends).items():
            if end > done[number]:
                place, records = self._apply_partition(place, number, done[number], end, now_us)
                applied += records
                if place.progress.at(number) == bounds[number][1]:
                    self._missed[number] = end, now_us - UNDER_WAY_US
        return applied

    def _apply_partition(
        self, place: _Place, partition: int, start: int, end: int, now_us: int
    ) -> tuple[_Place, int]:
        applied = 0
        gaps = self._gaps(place.progress.at(partition), partition)
        for chunk, next_offset in self._chunks(partition, start, end):
            if self._topic.settings.id != place.changelog_id:
                break  # these may be records of another topic: the next step begins anew
            if gaps is not None:
                self._check_deletes(gaps, chunk, next_offset, is_last=next_offset == end)
            changes = as_changes(self._spec, chunk, self._kind) if self._sink.keyed else chunk
            from_offset = place.progress.at(partition)
            self._sink.apply(
                self._spec, changes, from_offset=from_offset, next_offset=next_offset, partition=partition
            )
            place = _Place(place.changelog_id, place.progress.moved(partition, next_offset))
            self._be_at(place)
            if gaps is not None:
                # Should it be cut off here, what goes from now on may hide a delete, in a first copy too.
                self._missed[partition] = next_offset, min(gaps.since_us, now_us)
            applied += chunk.num_rows
        return place, applied

    # ---- deletes that have gone --------------------------------------------------------------------

    def _gaps(self, done: int, partition: int) -> Gaps | None:
        """None where no delete goes, or nothing is kept that it would have to take out."""
        if not (self._sink.keyed and self._topic.settings.compacted):
            return None
        if not done:  # what has gone by now, the copy never had
            return Gaps(0, _NOTHING_MISSED_US)
        offset, since_us = self._missed.get(partition, (0, 0))
        return Gaps(done, since_us if offset == done else self._appended_us(partition, done))

    def _appended_us(self, partition: int, end: int) -> int:
        """When the last record before `end` was appended, of those that there are."""
        earliest, _ = self._topic.bounds()[partition]
        start, width = end, 1
        while start > earliest:
            start, width = max(earliest, end - width), width * 64
            found: int = 0
            for batch in self._topic.read(partition=partition, start=start, end=end):
                found = batch.column("_timestamp").cast(pa.int64())[-1].as_py()
            if found:
                return found
        return 0

    def _check_deletes(self, gaps: Gaps, chunk: pa.Table, next_offset: int, *, is_last: bool) -> None:
        found = gaps.since(chunk)
        if found is None and is_last:
            found = gaps.since_last(next_offset)
        if may_hide_deletes(found, self._topic.settings, now_us=self._clock.now_us()):
            raise _DeletesGoneError

    def _begin_anew(self) -> None:
        """As a copy of nothing first: it stays that, and is not taken for whole, if we die here."""
        self._place = None
        self._sink.prepare(self._spec, _NO_CHANGELOG)

    def _chunks(self, partition: int, start: int, end: int) -> Iterator[tuple[pa.Table, int]]:
        """Records of bounded number and size, each chunk with the offset after it.

        The last one ends at `end` even if no record lies before it: offsets may have gaps.
        """
        held: list[pa.RecordBatch] = []
        for batch in self._topic.read(partition=partition, start=start, end=end):
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


def _news(done: dict[int, int], bounds: _Bounds) -> bool:
    return any(end > done[number] for number, (_, end) in bounds.items())


def _pause_s(retries: int, error: PenstockError) -> float:
    """Growing, and never the same for two: they would come back together."""
    asked = getattr(error, "retry_after_s", None)
    if asked is not None:
        return float(asked)
    pause_s: float = min(_PAUSE_S * 2.0 ** min(retries - 1, 16), _PAUSE_S_MAX)
    return random.uniform(0.5, 1.0) * pause_s


def _first(batch: pa.RecordBatch) -> int:
    return int(batch.column("_offset")[0].as_py())
