"""What search on streams must find, in plain Python: the log replayed record by record.

Written to be read, not to be fast, and without the index: it shares with the kernel the query language and
what a word is, and nothing that matches. `penstock verify` compares the two.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import pyarrow as pa

from penstock.errors import BadQuery
from penstock.flow import ordering
from penstock.flow.aggregates import ARRIVAL
from penstock.flow.search_match import (
    DELETED,
    Search,
    Searched,
    fields_of,
    misfit_schema,
    output_schema,
    state_schema,
)
from penstock.flow.search_query import parse
from penstock.flow.search_tree import And, Field, Fuzzy, Not, Or, Phrase, Prefix, Query, Range, Word
from penstock.flow.search_words import words

Row: TypeAlias = dict[str, Any]


def search_reference(events: pa.Table, queries: pa.Table, *, search: Search) -> Searched:
    """All that steps over these events and records of queries give together, and the state they end in."""
    fields = fields_of(search, events.schema)
    in_force: dict[tuple[Any, ...], tuple[Row, Query]] = {}
    output: list[Row] = []
    misfits: list[Row] = []
    for is_event, row in _replayed(events, queries):
        if is_event:
            output += _matched(row, list(in_force.values()), search, fields)
        else:
            misfits += _changed(in_force, row, search, fields)
    left = sorted(
        (row for row, _ in in_force.values()), key=lambda row: [str(row[name]) for name in search.key]
    )
    misfits.sort(key=_place)
    return Searched(
        state=_table(left, state_schema(search, queries.schema)),
        output=_table(output, output_schema(search, events.schema, queries.schema)),
        misfits=_table(misfits, misfit_schema(search, queries.schema)),
    )


def searchable(event: Row, fields: tuple[Field, ...]) -> Row:
    """The words of a text, and numbers as they are."""
    texts = {field.name: words(event[field.name] or "") for field in fields if field.kind == "text"}
    return {**event, **texts}


def matches(query: Query, event: Row) -> bool:
    """Whether a query matches an event made `searchable`."""
    match query:
        case And(parts):
            return all(matches(part, event) for part in parts)
        case Or(parts):
            return any(matches(part, event) for part in parts)
        case Not(part):
            return not matches(part, event)
        case Range():
            return _in_range(query, event[query.field])
        case Word(fields) | Prefix(fields) | Fuzzy(fields) | Phrase(fields):
            return any(_in_words(query, event[name]) for name in fields)


def _in_words(query: Word | Prefix | Fuzzy | Phrase, text: Sequence[str]) -> bool:
    match query:
        case Word(_, word):
            return word in text
        case Prefix(_, start):
            return any(word.startswith(start) for word in text)
        case Fuzzy(_, word, distance):
            close = {other for other in text if abs(len(other) - len(word)) <= distance}
            return any(edits(word, other) <= distance for other in close)
        case Phrase(_, wanted, slop):
            starts = [place for place, word in enumerate(text) if word == wanted[0]]
            return any(_follows(wanted[1:], text, start + 1, slop) for start in starts)


def _follows(wanted: Sequence[str], text: Sequence[str], start: int, slop: int) -> bool:
    """Whether the words come in this order from `start` on, with at most `slop` others between them."""
    if not wanted:
        return True
    return any(
        text[start + gap] == wanted[0] and _follows(wanted[1:], text, start + gap + 1, slop - gap)
        for gap in range(min(slop + 1, len(text) - start))
    )


def _in_range(query: Range, value: Any) -> bool:
    if value is None or math.isnan(value):
        return False
    number = value if isinstance(value, int) else float(value)
    low, high = query.low, query.high
    above = low is None or number > low or (query.low_included and number == low)
    below = high is None or number < high or (query.high_included and number == high)
    return above and below


def edits(one: str, other: str) -> int:
    """How many letters to add, leave out, change, or swap with their neighbour (and not touch again)."""
    before: list[int] = []
    last = list(range(len(other) + 1))
    for i, a in enumerate(one, 1):
        row = [i]
        for j, b in enumerate(other, 1):
            least = min(last[j] + 1, row[j - 1] + 1, last[j - 1] + (a != b))
            if i > 1 and j > 1 and a == other[j - 2] and one[i - 2] == b:
                least = min(least, before[j - 2] + 1)
            row.append(least)
        before, last = last, row
    return last[-1]


def _replayed(events: pa.Table, queries: pa.Table) -> Iterator[tuple[bool, Row]]:
    """Both in the order of time; of one time, the queries first."""
    every = [(True, row) for row in _rows(events)] + [(False, row) for row in _rows(queries)]
    yield from sorted(every, key=lambda each: (each[1]["__us"], each[0], *_place(each[1])))


def _rows(table: pa.Table) -> list[Row]:
    times = ordering.micros(table[ARRIVAL[0]]).tolist()
    return [{**row, "__us": us} for row, us in zip(table.to_pylist(), times, strict=True)]


def _place(row: Row) -> tuple[int, int]:
    return row[ARRIVAL[1]], row[ARRIVAL[2]]


def _matched(
    event: Row, in_force: list[tuple[Row, Query]], search: Search, fields: tuple[Field, ...]
) -> Iterator[Row]:
    prepared = searchable(event, fields)
    found = [record for record, query in in_force if matches(query, prepared)]
    for record in sorted(found, key=_place):
        key = {f"query_{name}": record[name] for name in search.key}
        yield {**event, **key, "query_partition": record["_partition"], "query_offset": record["_offset"]}


def _changed(
    in_force: dict[tuple[Any, ...], tuple[Row, Query]], record: Row, search: Search, fields: tuple[Field, ...]
) -> Iterator[Row]:
    """Puts the record in the place of the one before. Yields it if it cannot be read."""
    key, text = tuple(record[name] for name in search.key), record[search.query]
    in_force.pop(key, None)
    if record[DELETED]:
        return
    try:
        if text is None:
            yield {**record, "reason": "the query is NULL."}
        else:
            in_force[key] = record, parse(text, fields)
    except BadQuery as error:
        yield {**record, "reason": str(error)}


def _table(rows: list[Row], schema: pa.Schema) -> pa.Table:
    columns = {name: [row[name] for row in rows] for name in schema.names}
    return pa.Table.from_pydict(columns, schema=schema)
