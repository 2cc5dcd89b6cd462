"""`ps.search`: standing text queries, matched with every event of a stream."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa

from penstock.errors import BadDefinition
from penstock.flow import build as builds
from penstock.flow import search_match
from penstock.flow.aggregate import time_of, with_system
from penstock.flow.aggregates import ARRIVAL
from penstock.flow.build import Aside, Operator
from penstock.flow.inputs import in_time
from penstock.flow.search_match import DELETED, Search
from penstock.flow.search_query import parse
from penstock.flow.stepped import SteppedTables

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class Queries(Protocol):
    """A table of an app."""

    name: str

    def stream(self) -> DataFrame: ...


def search(
    stream: DataFrame,
    *,
    queries: Queries | Mapping[str, str],
    fields: Sequence[str],
    query: str = "query",
) -> DataFrame:
    """The events that a saved search matches, once for each, as they come.

    `queries` is a table with a text column `query`; a search counts for events that are appended after it.
    Searches that never change can be given as they are, by name: `queries={"lake": 'title:"by the lake"'}`;
    they count for all events, and come out as `query_id`.
    `fields`: where to look, in columns of text or numbers. Added to an event: `query_` with the key of the
    search, and its version, `query_partition` and `query_offset`. A search that cannot be read goes to
    `<name>.late` with the reason, and the others go on.
    """
    from penstock.flow import search_index  # noqa: F401 - raises here where tantivy is missing
    from penstock.flow.buckets import Input, arrow_schema, together_in_buckets

    build, stream = builds.current(), builds.frame(stream)
    if isinstance(queries, Mapping):
        return _fixed(stream, queries, fields)
    settings = build.log.port.settings(queries.name)
    if not settings.compacted:
        raise BadDefinition(
            f'"{queries.name}" is no table.', hint='declare it: app.table("searches", "…", key="id")'
        )
    wanted = Search(tuple(settings.key), tuple(fields), query)
    operator = Operator("search", inputs=2, windowed=False, output="append", means=repr(wanted))
    events, searches = in_time(build, operator, [stream, queries.stream()], drop_late=False)
    own = [name for name in stream.columns if not name.startswith("_")]
    rows = arrow_schema(events, [*own, *ARRIVAL])
    texts = arrow_schema(searches, [*wanted.key, query, DELETED, *ARRIVAL])
    search_match.check(wanted, rows, texts)
    operator.aside = Aside(queries.name, partial(_reasons, search=wanted, events=rows))
    output = search_match.output_schema(wanted, rows, texts)
    if build.mode == "stream":
        inputs = [Input(events, ARRIVAL[1:], rows), Input(searches, (), texts, everywhere=True)]
        found = together_in_buckets(inputs, step=partial(_step, search=wanted), output=output)
    else:
        whole = build.mode == "batch"  # in the second look only what is left out counts
        known = searches.select(*texts.names).toArrow() if whole else texts.empty_table()
        found = _reference(events.select(*rows.names), known, wanted, output)
    return builds.timed(found.drop(*ARRIVAL), time_of(stream))


def _fixed(stream: DataFrame, queries: Mapping[str, str], fields: Sequence[str]) -> DataFrame:
    """Searches that are part of the program. Raises BadQuery for one that cannot be read."""
    from pyspark.sql.pandas.types import from_arrow_schema

    from penstock.flow.buckets import arrow_schema

    build, wanted = builds.current(), Search(("id",), tuple(fields), "query")
    means = repr((wanted, sorted(queries.items())))
    build.add(Operator("search", stateful=False, windowed=False, output="append", means=means))
    own = [name for name in stream.columns if not name.startswith("_")]
    events = with_system(stream).select(*own, *ARRIVAL)
    rows, many = arrow_schema(events), len(queries)
    since = {
        name: pa.array([0] * many, pa.int64()).cast(rows.field(name).type) for name in ARRIVAL
    }  # all searches are there from the beginning
    texts = {"id": pa.array(queries.keys(), pa.string()), "query": pa.array(queries.values(), pa.string())}
    known = pa.table({**texts, DELETED: pa.array([False] * many, pa.bool_()), **since})
    search_match.check(wanted, rows, known.schema)
    for text in queries.values():
        parse(text, search_match.fields_of(wanted, rows))
    output = search_match.output_schema(wanted, rows, known.schema)
    if build.closed_us is not None:  # for verify
        found = _reference(events, known, wanted, output)
    else:

        def matched(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                yield from search_match.step(None, pa.table(batch), known, search=wanted).output.to_batches()

        found = events.mapInArrow(matched, from_arrow_schema(output))
    return builds.timed(found.drop(*ARRIVAL, "query_partition", "query_offset"), time_of(stream))


def _step(
    state: tuple[pa.Table, ...] | None, new: tuple[pa.Table, ...], _watermark_us: int, *, search: Search
) -> SteppedTables:
    found = search_match.step(state[0] if state else None, *new, search=search)
    return SteppedTables((found.state,), found.output)


def _reasons(records: pa.Table, *, search: Search, events: pa.Schema) -> pa.Table:
    """The searches among these records that cannot be read."""
    return search_match.step(None, events.empty_table(), records, search=search).misfits


def _reference(events: DataFrame, known: pa.Table, search: Search, output: pa.Schema) -> DataFrame:
    from pyspark.sql.pandas.types import from_arrow_schema

    from penstock.flow.search_reference import search_reference

    def found(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield from search_reference(pa.table(batch), known, search=search).output.to_batches()

    return events.mapInArrow(found, from_arrow_schema(output))
