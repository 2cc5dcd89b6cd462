"""A second, naive account of what a flow must give: dicts and loops over the records of a log.

It shares no code with the product. Times are microseconds since 1970. A record meets a watermark: the highest
usable event time appended strictly before it (in its batch) or read before its batch, in steps of 0.1 s, less
the lateness; declared watermarks and idleness move it further. (A record that is read later than another
counts as appended no earlier, whatever the machine's clock said.) None stands for "no watermark yet".
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

STEP = 100_000

Key = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Record:
    """One record where it lies in the log; `at` is its event time, None where it has none."""

    partition: int
    offset: int
    appended: int
    at: int | None
    key: Key
    x: int | None = None
    id: str = ""

    @property
    def place(self) -> tuple[int, int]:
        return self.partition, self.offset

    @property
    def arrival(self) -> tuple[int, int, int]:
        return self.appended, self.partition, self.offset

    @property
    def in_time(self) -> tuple[int, int, int, int]:
        assert self.at is not None
        return self.at, *self.arrival


@dataclass(frozen=True, slots=True)
class Declared:
    """A producer's word that nothing at or before `until` will come."""

    appended: int
    until: int


@dataclass(frozen=True, slots=True)
class Cut:
    """Where a batch ended: offsets by partition, declarations read, and the clock if it was only a tick."""

    ends: tuple[int, ...]
    declared: int = 0
    tick: int | None = None


@dataclass(frozen=True, slots=True)
class Late:
    """A pair that was left out; no window where the whole row was."""

    place: tuple[int, int]
    window: tuple[int, int] | None
    watermark: int | None
    reason: str


@dataclass(slots=True)
class Model:
    """What is known of a topic, and how a query cut it."""

    records: Sequence[Record]
    cuts: Sequence[Cut]
    lateness: int
    ahead: int = 3_600_000_000
    declared: Sequence[Declared] = ()
    met: dict[tuple[int, int], int | None] = field(default_factory=dict)
    batch_of: dict[tuple[int, int], int] = field(default_factory=dict)
    clock: int | None = None  # at the end

    def __post_init__(self) -> None:
        begin, known, newest = tuple(0 for _ in self.cuts[0].ends), 0, 0
        for number, cut in enumerate(self.cuts):
            rows = [r for r in self.records if begin[r.partition] <= r.offset < cut.ends[r.partition]]
            said = self.declared[known : cut.declared]
            for record in rows:
                self.batch_of[record.place] = number
                moment = max(record.appended, newest)
                before = [r.at for r in rows if max(r.appended, newest) < moment and self.usable(r)]
                before += [self._moves(d) for d in said if max(d.appended, newest) < moment]
                self.met[record.place] = self.watermark(_most([self.clock, *before]))
            news = [r.at for r in rows if self.usable(r)] + [self._moves(d) for d in said]
            self.clock = _most([self.clock, cut.tick, *news])
            begin, known = cut.ends, cut.declared
            newest = max([newest, *(r.appended for r in rows)])

    def usable(self, record: Record) -> bool:
        return record.at is not None and record.at <= record.appended + self.ahead

    def watermark(self, clock: int | None) -> int | None:
        return None if clock is None else clock // STEP * STEP - self.lateness

    def _moves(self, declared: Declared) -> int:
        """The event time that would have moved the watermark to what was declared, or a step past it."""
        return -(-(declared.until + self.lateness) // STEP) * STEP

    # ---- who is in time --------------------------------------------------------------------------

    def good(self) -> list[Record]:
        """Read, and with an event time that one can go by, in the order of arrival."""
        read = [r for r in self.records if r.place in self.met and self.usable(r)]
        return sorted(read, key=lambda r: r.arrival)

    def useless(self) -> list[Late]:
        return [
            Late(r.place, None, self.met[r.place], "no usable event time")
            for r in self.records
            if r.place in self.met and not self.usable(r)
        ]

    def behind(self, record: Record, moment: int, *, allowed: int = 0) -> bool:
        met = self.met[record.place]
        return met is not None and moment <= met - allowed

    def rows_in_time(self, *, correct: int = 0) -> tuple[list[Record], list[Late]]:
        """For all that goes by rows: sessions, sliding windows, deduplicate, in_order."""
        kept, late = [], self.useless()
        for record in self.good():
            assert record.at is not None
            if self.behind(record, record.at, allowed=correct):
                late.append(Late(record.place, None, self.met[record.place], "late"))
            else:
                kept.append(record)
        return kept, late

    def closed(self) -> int | None:
        """Windows that end by then are final."""
        return self.watermark(self.clock)

    def out(self, moment: int, *, delay: int = 0) -> bool:
        """Whether what waits for this moment has come out: a step later, in whole milliseconds."""
        return self.clock is not None and moment <= self.clock // 1_000 * 1_000 - self.lateness - STEP - delay


# ---- windows ---------------------------------------------------------------------------------------


def windows_of(at: int, size: int, hop: int) -> Iterator[tuple[int, int]]:
    start = at // hop * hop
    while start > at - size:
        yield start, start + size
        start -= hop


def windowed(
    model: Model, *, size: int, hop: int | None = None, correct: int = 0
) -> tuple[dict[Key, list[Record]], dict[Key, int], list[Late]]:
    """Rows of each (key, start, end), how many of them corrected it, and the pairs left out."""
    rows: dict[Key, list[Record]] = defaultdict(list)
    revisions: dict[Key, int] = defaultdict(int)
    late = model.useless()
    for record in model.good():
        assert record.at is not None
        for window in windows_of(record.at, size, hop or size):
            if model.behind(record, window[1], allowed=correct):
                late.append(Late(record.place, window, model.met[record.place], "late"))
                continue
            rows[*record.key, *window].append(record)
            revisions[*record.key, *window] += model.behind(record, window[1])
    return rows, revisions, late


def sessions(model: Model, *, gap: int, correct: int = 0) -> tuple[dict[Key, list[Record]], list[Late]]:
    """Events at most `gap` apart are one session; it ends `gap` after its last event."""
    kept, late = model.rows_in_time(correct=correct)
    by_key: dict[Key, list[Record]] = defaultdict(list)
    for record in kept:
        by_key[record.key].append(record)
    found: dict[Key, list[Record]] = {}
    for key, rows in by_key.items():
        run: list[Record] = []
        for record in sorted(rows, key=lambda r: r.in_time):
            if run and _at(record) - _at(run[-1]) > gap:
                found[*key, _at(run[0]), _at(run[-1]) + gap] = run
                run = []
            run.append(record)
        found[*key, _at(run[0]), _at(run[-1]) + gap] = run
    return found, late


def sliding(model: Model, *, size: int) -> tuple[dict[Key, list[Record]], list[Late]]:
    """For each event whose turn has come, by (key, time, place): the events of (time - size, time]."""
    kept, late = model.rows_in_time()
    found = {
        (*one.key, _at(one), *one.place): [
            other for other in kept if other.key == one.key and _at(one) - size < _at(other) <= _at(one)
        ]
        for one in kept
        if model.out(_at(one))
    }
    return found, late


# ---- no windows ------------------------------------------------------------------------------------


def grouped(model: Model) -> dict[Key, list[Record]]:
    """Without a window nothing is late."""
    found: dict[Key, list[Record]] = defaultdict(list)
    for record in model.good():
        found[record.key].append(record)
    return found


def latest(model: Model) -> dict[Key, Record]:
    return {key: max(rows, key=lambda r: r.in_time) for key, rows in grouped(model).items()}


def deduplicated(model: Model, *, within: int) -> tuple[list[Record], list[Late]]:
    """Batch after batch as records arrived: one is dropped that is at most `within` from a kept one."""
    kept, late = model.rows_in_time()
    found: dict[tuple[Key, str], list[Record]] = defaultdict(list)
    for record in sorted(kept, key=lambda r: (model.batch_of[r.place], r.arrival)):
        others = found[record.key, record.id]
        if all(abs(_at(record) - _at(other)) > within for other in others):
            others.append(record)
    return [record for rows in found.values() for record in rows], late


def in_order(model: Model) -> tuple[list[Record], list[Late]]:
    kept, late = model.rows_in_time()
    return sorted((r for r in kept if model.out(_at(r))), key=lambda r: r.in_time), late


# ---- values ----------------------------------------------------------------------------------------


def values(rows: Sequence[Record]) -> tuple[int, int | None, int | None]:
    """How many, the sum of x, and x of the newest."""
    known = [r.x for r in rows if r.x is not None]
    return len(rows), sum(known) if known else None, max(rows, key=lambda r: r.in_time).x


def _at(record: Record) -> int:
    assert record.at is not None
    return record.at


def _most(times: Sequence[int | None]) -> int | None:
    return max((time for time in times if time is not None), default=None)
