"""Windows on a timeline: a lane for each key, late rows as marks, the watermark as a line.

All of it is laid out here in the units of a picture; the template only draws.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from penstock.gateway.pages import words
from penstock.gateway.pages.tail import LateRow, Row, Tail
from penstock.log.port import to_us

WIDTH, LEFT, TOP = 1090, 150, 34
_LANE, _CELL = 50, 32
_KEYS_MAX, _TICKS_MAX, _MARKS_MAX = 8, 11, 40
_SPAN_MAX = 10  # windows from left to right
_DAY_US = 86_400_000_000
_SUPERSCRIPTS = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")

State = Literal["final", "open", "revised"]


@dataclass(frozen=True, slots=True)
class Cell:
    """One window of one key."""

    x: float
    y: float
    width: float
    text: str
    state: State
    said: str  # in words, for a pointer and for who does not see


@dataclass(frozen=True, slots=True)
class Lane:
    label: str
    title: str
    y: float


@dataclass(frozen=True, slots=True)
class Tick:
    x: float
    text: str


@dataclass(frozen=True, slots=True)
class Mark:
    """A late row."""

    x: float
    y: float
    said: str


@dataclass(frozen=True, slots=True)
class Timeline:
    lanes: tuple[Lane, ...]
    cells: tuple[Cell, ...]
    ticks: tuple[Tick, ...]
    marks: tuple[Mark, ...]
    watermark: Tick | None
    height: int
    keys_hidden: int
    summary: str
    overlapping: bool  # then each window is drawn from where the one before it ends


def timeline(tail: Tail, late: Sequence[LateRow], *, event_time: str | None) -> Timeline | None:
    """None where a view has no windows, or none yet."""
    rows = [row for row in tail.rows if row.values.get("window_end") is not None]
    if not tail.spec.windowed or not rows:
        return None
    keys = [name for name in tail.spec.key if name not in ("window_start", "window_end")]
    value = _value_column(tail)
    shown_from = _shown_from(rows, keys)
    from_us, to = _range(rows, shown_from, tail.closed_us)
    rows = [row for row in rows if _end(row) > from_us]
    lanes = _lanes(rows, keys)
    scale = (WIDTH - LEFT) / max(1, to - from_us)
    at = {label: number for number, label in enumerate(lanes)}

    def x(time_us: int) -> float:
        return round(LEFT + (time_us - from_us) * scale, 1)

    cells = [
        _cell(row, shown_from[id(row)], at[_label(row.values, keys)], value, x)
        for row in rows
        if _label(row.values, keys) in at
    ]
    marks = _marks(late, keys, at, x, from_us, to, event_time)
    watermark = None
    if tail.closed_us is not None and from_us <= tail.closed_us <= to:
        watermark = Tick(x(tail.closed_us), f"watermark {words.clock(tail.closed_us)}")
    hidden = len({_label(row.values, keys) for row in rows}) - len(lanes)
    return Timeline(
        tuple(Lane(_short(label), label, TOP + 8 + number * _LANE) for label, number in at.items()),
        tuple(cells), tuple(_ticks(from_us, to, x)), tuple(marks), watermark, TOP + len(lanes) * _LANE + 26,
        hidden, _summary(cells, marks, tail.closed_us),
        any(shown_from[id(row)] > _start(row) for row in rows),
    )  # fmt: skip


def _value_column(tail: Tail) -> str | None:
    """The first column that is no part of the key."""
    return next((name for name in tail.spec.columns.names if name not in tail.spec.key), None)


def _start(row: Row) -> int:
    start: datetime | None = row.values.get("window_start")
    return to_us(start) if start is not None else _end(row)


def _end(row: Row) -> int:
    return to_us(row.values["window_end"])


def _shown_from(rows: Sequence[Row], keys: Sequence[str]) -> dict[int, int]:
    """Of each row by its id, where its window is drawn from: hopping windows of a key lie over each other."""
    ended: dict[str, int] = {}
    found = {}
    for row in sorted(rows, key=lambda row: (_end(row), _start(row))):
        label = _label(row.values, keys)
        found[id(row)] = max(_start(row), min(ended.get(label, 0), _end(row) - 1))
        ended[label] = _end(row)
    return found


def _range(rows: Sequence[Row], shown_from: Mapping[int, int], closed_us: int | None) -> tuple[int, int]:
    """The newest windows, and the watermark among them."""
    lengths = sorted(_end(row) - shown_from[id(row)] for row in rows)
    length = max(1, lengths[len(lengths) // 2])
    newest = max(_end(row) for row in rows)
    to = max(newest, closed_us or newest) if (closed_us or 0) < newest + 2 * length else newest
    oldest = min(shown_from.values())
    return max(oldest, to - _SPAN_MAX * length), to + length // 3


def _label(values: Mapping[str, Any], keys: Sequence[str]) -> str:
    return " · ".join(words.cell(values.get(name)) for name in keys) or "all"


def _lanes(rows: Sequence[Row], keys: Sequence[str]) -> list[str]:
    """The keys that have most windows here, by name."""
    counts: dict[str, int] = {}
    for row in rows:
        label = _label(row.values, keys)
        counts[label] = counts.get(label, 0) + 1
    busiest = sorted(counts, key=lambda label: (-counts[label], label))[:_KEYS_MAX]
    return sorted(busiest)


def _cell(row: Row, shown_from: int, lane: int, value: str | None, x: Any) -> Cell:
    left, right = max(LEFT, x(shown_from)), x(_end(row))
    state: State = "revised" if row.revision else "final" if row.final else "open"
    text = words.cell(row.values[value]) if value else "•"
    shown = text if len(text) * 7.4 < right - left - 6 else ""
    if row.revision and shown:
        shown += str(row.revision + 1).translate(_SUPERSCRIPTS)
    said = {"revised": f"corrected {words.count(row.revision, 'time')}", "final": "final", "open": "open"}[
        state
    ]
    moment = words.clock if _end(row) - _start(row) < _DAY_US else words.date
    span = f"{moment(_start(row))} to {moment(_end(row))}"
    return Cell(
        left + 2,
        TOP + 8 + lane * _LANE,
        max(3.0, round(right - left - 4, 1)),
        shown,
        state,
        f"{span}: {text}, {said}",
    )


def _marks(
    late: Sequence[LateRow], keys: Sequence[str], at: Mapping[str, int], x: Any, from_us: int, to: int,
    event_time: str | None,
) -> list[Mark]:  # fmt: skip
    found = []
    for pair in late:
        values = pair.row or {}
        lane = at.get(_label(values, keys)) if keys else 0
        happened = values.get(event_time) if event_time else None
        time_us = to_us(happened) if isinstance(happened, datetime) else pair.start_us
        if lane is None or time_us is None or not from_us <= time_us <= to:
            continue
        said = f"late: from {words.clock(time_us)}, came at {words.clock(pair.at_us)}"
        found.append(Mark(x(time_us), TOP + 8 + lane * _LANE + _CELL + 3, said))
        if len(found) >= _MARKS_MAX:
            break
    return found


def _ticks(from_us: int, to: int, x: Any) -> list[Tick]:
    step = next((s for s in _STEPS_US if (to - from_us) / s <= _TICKS_MAX), _STEPS_US[-1])
    first = -(-from_us // step) * step
    form = words.clock if step < 60_000_000 else _minutes_or_day
    return [Tick(x(time_us), form(time_us)) for time_us in range(first, to + 1, step)]


def _minutes_or_day(time_us: int) -> str:
    """At midnight the day: of windows that are days long, each begins at 00:00."""
    return words.moment(time_us).strftime("%m-%d" if time_us % _DAY_US == 0 else "%H:%M")


_STEPS_US = [
    seconds * 1_000_000
    for seconds in (
        1,
        2,
        5,
        10,
        15,
        30,
        60,
        120,
        300,
        600,
        900,
        1800,
        3600,
        7200,
        21600,
        43200,
        86400,
        604800,
    )
]


def _short(label: str) -> str:
    return label if len(label) <= 19 else f"{label[:18]}…"


def _summary(cells: Sequence[Cell], marks: Sequence[Mark], closed_us: int | None) -> str:
    counts = {state: sum(cell.state == state for cell in cells) for state in ("final", "open", "revised")}
    return (
        f"{counts['final']} windows are final, {counts['open']} are open, {counts['revised']} corrected, "
        f"{len(marks)} late rows are marked; the watermark is {words.date(closed_us)}"
    )
