"""Standing queries matched with every event: which query, in which version.

A query is a record of a table; its version is where that record is in the log. An event is matched with the
versions that were in force when it was appended: a version counts from its record's append time (for an
event of the very same time too) until that of the next record of its key, which replaces or deletes it. A
query that cannot be read is a misfit: it matches nothing, and the version before it is out of force all
the same, since its owner has replaced it.

So what matches is a property of the log, whatever the batches, as long as these are cut at one append time
for events and queries alike. Nothing waits for a watermark. State: the records in force.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import BadDefinition, BadQuery
from penstock.flow import ordering
from penstock.flow.aggregates import ARRIVAL
from penstock.flow.ordering import Ints
from penstock.flow.search_tree import Field, Kind
from penstock.schema import did_you_mean

DELETED = "_deleted"
_FOREVER = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True)
class Search:
    """What is looked for where: the columns of the table of queries, and those of the events."""

    key: tuple[str, ...]
    fields: tuple[str, ...]
    query: str = "query"


@dataclass(frozen=True, slots=True)
class Searched:
    """What a step leaves behind."""

    state: pa.Table  # the queries in force; may be empty
    output: pa.Table  # a row for each event and version that match, in the order of both in the log
    misfits: pa.Table  # queries that cannot be read, and why


def check(search: Search, events: pa.Schema, queries: pa.Schema) -> None:
    """Raises BadDefinition for columns that are not there or cannot be searched."""
    for name in (*search.key, search.query, DELETED, *ARRIVAL):
        _column(queries, name, "the table of queries")
    for name in ARRIVAL:
        _column(events, name, "the events")
    if not search.key:
        raise BadDefinition("the table of queries has no key.", hint='say key="id"')
    if not _is_text(queries.field(search.query).type):
        raise BadDefinition(
            f'the queries in "{search.query}" are no STRING.', hint="name the column with them"
        )
    if not search.fields:
        raise BadDefinition("there is no field to search.", hint='say fields=["title", "text"]')
    fields_of(search, events)
    names = [*events.names, *_version_names(search)]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise BadDefinition(
            f'the output would have two columns "{twice[0]}".', hint="rename one before ps.search"
        )


def fields_of(search: Search, events: pa.Schema) -> tuple[Field, ...]:
    return tuple(
        Field(name, _kind(_column(events, name, "the events"))) for name in dict.fromkeys(search.fields)
    )


def state_schema(search: Search, queries: pa.Schema) -> pa.Schema:
    return pa.schema([queries.field(name) for name in (*search.key, search.query, *ARRIVAL)])


def output_schema(search: Search, events: pa.Schema, queries: pa.Schema) -> pa.Schema:
    """The event's columns, then `query_` with the key, `query_partition` and `query_offset`."""
    named = zip(_version_names(search), (*search.key, *ARRIVAL[1:]), strict=True)
    return pa.schema([*events, *(queries.field(name).with_name(new) for new, name in named)])


def misfit_schema(search: Search, queries: pa.Schema) -> pa.Schema:
    kept = [queries.field(name) for name in (*search.key, search.query)]
    place = [queries.field(name) for name in ARRIVAL[1:]]
    return pa.schema([*kept, pa.field("reason", pa.string()), *place])


def step(state: pa.Table | None, new_events: pa.Table, new_queries: pa.Table, *, search: Search) -> Searched:
    """What follows from the next events and queries; those of one batch may lie between each other in time.

    Later batches have later append times only. A query that cannot be read is reported once, when it comes.
    """
    fields = fields_of(search, new_events.schema)
    records = _Records.of(state, new_queries, search)
    reasons = _reasons(records.texts, fields)
    good = records.good(reasons)
    return Searched(
        state=records.rows.filter(pa.array(good & (records.until == _FOREVER))),
        output=_matches(new_events, records, good, search, fields),
        misfits=_misfits(records, reasons, search),
    )


@dataclass(frozen=True, slots=True)
class _Records:
    """Records of queries, in the order of their keys and then of the log; old and new ones."""

    rows: pa.Table  # as in the state
    deleted: np.ndarray[tuple[int], np.dtype[np.bool_]]
    codes: Ints  # which of `texts` is the query
    texts: list[str | None]
    since: Ints  # append time: from here on in force, before `until`
    until: Ints

    @classmethod
    def of(cls, state: pa.Table | None, new: pa.Table, search: Search) -> _Records:
        schema = state_schema(search, new.schema)
        old = schema.empty_table() if state is None else state
        rows = pa.concat_tables([old, new.select(schema.names)])
        deletions = np.asarray(pc.fill_null(new[DELETED], False)).astype(bool)
        deleted = np.concatenate([np.zeros(len(old), dtype=bool), deletions])
        keys = ordering.groups(rows, search.key)
        order = np.lexsort([*reversed(ordering.arrival(rows)), keys])
        rows, keys = rows.take(pa.array(order)), keys[order]
        since = ordering.micros(rows[ARRIVAL[0]])
        until = np.full(len(rows), _FOREVER, dtype=np.int64)
        until[:-1] = np.where(keys[1:] == keys[:-1], since[1:], _FOREVER)
        encoded = pc.dictionary_encode(rows[search.query].combine_chunks(), null_encoding="encode")
        codes = np.asarray(encoded.indices).astype(np.int64)
        return cls(rows, deleted[order], codes, encoded.dictionary.to_pylist(), since, until)

    def good(self, reasons: dict[str | None, str]) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """Which records are queries that can be read. (A deletion's text is not looked at.)"""
        readable = np.array([text not in reasons for text in self.texts], dtype=bool)
        return readable[self.codes] & ~self.deleted


def _reasons(texts: list[str | None], fields: tuple[Field, ...]) -> dict[str | None, str]:
    """The queries that cannot be read, and why."""
    from penstock.flow.search_index import compiled

    found: dict[str | None, str] = {}
    for text in texts:
        try:
            if text is None:
                found[text] = "the query is NULL."
            else:
                compiled(text, fields)
        except BadQuery as error:
            found[text] = str(error)
    return found


def _misfits(records: _Records, reasons: dict[str | None, str], search: Search) -> pa.Table:
    bad = records.rows.filter(pa.array(~records.good(reasons) & ~records.deleted))
    said = pa.array([reasons[text] for text in bad[search.query].to_pylist()], pa.string())
    schema = misfit_schema(search, bad.schema)
    columns = [said if field.name == "reason" else bad[field.name] for field in schema]
    bad = pa.Table.from_arrays(columns, schema=schema)
    return bad.sort_by([(name, "ascending") for name in ARRIVAL[1:]])


def _matches(
    new: pa.Table,
    records: _Records,
    good: np.ndarray[tuple[int], np.dtype[np.bool_]],
    search: Search,
    fields: tuple[Field, ...],
) -> pa.Table:
    # In the order of time, the events that a version meets are one range of rows.
    events = new.take(pa.array(np.lexsort(ordering.arrival(new)[::-1])))
    times = ordering.micros(events[ARRIVAL[0]])
    first, end = np.searchsorted(times, records.since), np.searchsorted(times, records.until)
    versions = np.flatnonzero(good & (first < end))
    pairs = list(_pairs(events, records, versions, (first, end), fields))
    rows = np.concatenate([rows for rows, _ in pairs]) if pairs else np.empty(0, dtype=np.int64)
    of = np.repeat([version for _, version in pairs], [len(rows) for rows, _ in pairs]).astype(np.int64)
    places = [ordering.micros(records.rows[name])[of] for name in reversed(ARRIVAL[1:])]
    order = np.lexsort([*places, rows])
    found, matched = events.take(pa.array(rows[order])), records.rows.take(pa.array(of[order]))
    schema = output_schema(search, new.schema, records.rows.schema)
    added = [matched[name] for name in (*search.key, *ARRIVAL[1:])]
    return pa.Table.from_arrays([*found.columns, *added], schema=schema)


def _pairs(
    events: pa.Table, records: _Records, versions: Ints, span: tuple[Ints, Ints], fields: tuple[Field, ...]
) -> Iterator[tuple[Ints, int]]:
    """Rows of events, ascending, and the version that they match; each text is looked for once."""
    from penstock.flow.search_index import ROWS_MAX, EventIndex, compiled

    if not len(versions):
        return
    versions = versions[np.argsort(records.codes[versions], kind="stable")]
    for begin in range(0, len(events), ROWS_MAX):
        index = EventIndex(events.slice(begin, ROWS_MAX), fields)
        before, rows = -1, np.empty(0, dtype=np.int64)
        for version, code in zip(versions.tolist(), records.codes[versions].tolist(), strict=True):
            if code != before:
                text = records.texts[code]
                assert text is not None, "a good query has a text"
                before, rows = code, index.rows_of(compiled(text, fields)) + begin
            if len(rows):
                low, high = np.searchsorted(rows, [span[0][version], span[1][version]])
                yield rows[low:high], version


def _version_names(search: Search) -> list[str]:
    return [*(f"query_{name}" for name in search.key), *(f"query{name}" for name in ARRIVAL[1:])]


def _column(schema: pa.Schema, name: str, where: str) -> pa.DataType:
    if name not in schema.names:
        raise BadDefinition(f'{where}: there is no column "{name}".', hint=did_you_mean(name, schema.names))
    return schema.field(name).type


def _kind(dtype: pa.DataType) -> Kind:
    if _is_text(dtype):
        return "text"
    if pa.types.is_signed_integer(dtype):
        return "whole"
    if pa.types.is_floating(dtype) or pa.types.is_decimal(dtype):
        return "real"
    raise BadDefinition(f"a field of type {dtype} cannot be searched.", hint="take text or numbers")


def _is_text(dtype: pa.DataType) -> bool:
    return bool(pa.types.is_string(dtype) or pa.types.is_large_string(dtype))
