"""Streams of events for patterns, and all the ways to look for one in them."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from tests.flow.operators.events import TIME, Row, plain

from penstock.flow import pattern_reference
from penstock.flow.pattern import Definition
from penstock.flow.pattern_match import State, states, step
from penstock.flow.pattern_plan import Pattern
from penstock.flow.stepped import SteppedTables

MS = 1_000  # times in tests are milliseconds; a limit of microseconds is 0.001
FOREVER = 10**9 * MS
_ARRIVAL = [("_timestamp", TIME), ("_partition", pa.int32()), ("_offset", pa.int64())]


def _stream(**columns: pa.DataType) -> pa.Schema:
    return pa.schema([("user", pa.string()), ("at", TIME), *columns.items(), *_ARRIVAL])


STREAMS = {
    "a": _stream(x=pa.int64(), y=pa.float64()),
    "b": _stream(x=pa.int64(), y=pa.float64()),
    "ticks": _stream(price=pa.float64()),
    "logins": _stream(country=pa.string(), ok=pa.bool_()),
    "purchases": _stream(country=pa.string(), amount=pa.int64()),
    "mails": _stream(subject=pa.string()),
    "calls": _stream(seconds=pa.int64()),
}


@dataclass(frozen=True)
class Event:
    stream: str
    at: float  # milliseconds
    values: dict[str, Any]
    user: str | None = "ann"


def event(stream: str, at: float, user: str | None = "ann", **values: Any) -> Event:
    return Event(stream, at, values, user)


def letters(said: str, *, every: float = 1) -> list[Event]:
    """Events of stream a, one for each letter: x is its place in the alphabet. A dot is time that passes."""
    return [
        event("a", place * every, x=ord(letter) - ord("A"))
        for place, letter in enumerate(said)
        if letter != "."
    ]


def compiled(definition: Definition) -> Pattern:
    return definition.compiled(
        [STREAMS[name] for name in definition.streams], ["at"] * len(definition.streams)
    )


def inputs(definition: Definition, events: Sequence[tuple[int, Event]]) -> State:
    """The events, each with its number in the log, as the tables of a step."""
    pattern = compiled(definition)
    found = []
    for name, each in zip(definition.streams, pattern.inputs, strict=True):
        rows = [_row(number, one) for number, one in events if one.stream == name]
        columns = [_column([row.get(field.name) for row in rows], field.type) for field in each.rows]
        found.append(pa.Table.from_arrays(columns, schema=each.rows))
    return tuple(found)


def _row(number: int, one: Event) -> Row:
    arrival = {"_timestamp": number // 3, "_partition": number % 2, "_offset": number}
    return {"user": one.user, "at": round(one.at * MS), **one.values, **arrival}


def _column(values: list[Any], type: pa.DataType) -> Any:
    return pa.array(values, pa.int64()).cast(TIME) if type == TIME else pa.array(values, type)


@dataclass(frozen=True)
class Turn:
    """What one batch brings, and the watermark it is processed with."""

    events: list[tuple[int, Event]]
    watermark_us: int


def turns_taken(definition: Definition, turns: Sequence[Turn]) -> Iterator[SteppedTables]:
    """A step for every turn that Spark would call it for, with all that has to hold of it."""
    pattern = compiled(definition)
    state: State | None = None
    wake_us: int | None = None
    for turn in turns:
        if not turn.events and (wake_us is None or wake_us > turn.watermark_us):
            continue
        stepped = step(state, inputs(definition, turn.events), turn.watermark_us, pattern=pattern)
        assert tuple(each.schema for each in stepped.state) == states(pattern)
        assert stepped.output.schema == pattern.output
        state = stepped.state if any(map(len, stepped.state)) else None
        wake_us = stepped.wake_us
        assert wake_us is None or wake_us > turn.watermark_us
        assert (state is None) == (wake_us is None), "state that nothing would ever clear"
        yield stepped


def emitted(definition: Definition, turns: Sequence[Turn]) -> list[Row]:
    return by_user(plain([stepped.output for stepped in turns_taken(definition, turns)]))


def reference(definition: Definition, events: Sequence[tuple[int, Event]], watermark_us: int) -> list[Row]:
    found = pattern_reference.matches(compiled(definition), inputs(definition, events), watermark_us)
    return by_user(plain([found]))


def by_user(rows: list[Row]) -> list[Row]:
    """Rows of one key have an order, those of several have none."""
    return sorted(rows, key=lambda row: str(row["user"]))


def found(definition: Definition, events: Sequence[Event], *, watermark: float | None = None) -> list[Row]:
    """The matches, the same whether events come together, one by one, in disorder, or to the reference."""
    numbered = list(enumerate(events))
    end_us = FOREVER if watermark is None else round(watermark * MS)
    rows = emitted(definition, [Turn(numbered, end_us)])
    one_by_one = [Turn([pair], min(end_us, round(pair[1].at * MS) - 1)) for pair in numbered]
    assert rows == emitted(definition, [*one_by_one, Turn([], end_us)])
    mixed = random.Random(1).sample(numbered, len(numbered))
    assert rows == emitted(definition, [*(Turn([pair], -1) for pair in mixed), Turn([], end_us)])
    assert rows == reference(definition, numbered, end_us)
    return [{name: value for name, value in row.items() if name != "user"} for row in rows]
