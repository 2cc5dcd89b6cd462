"""`ps.search`: standing text queries, matched with every event of a stream."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa

from penstock.errors import BadDefinition
from penstock.flow import build as builds
from penstock.flow import search_match
from penstock.flow.aggregate import time_of
from penstock.flow.aggregates import ARRIVAL
from penstock.flow.build import Aside, Operator
from penstock.flow.inputs import in_time
from penstock.flow.search_match import DELETED, Search
from penstock.flow.stepped import SteppedTables

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class Queries(Protocol):
    """A table of an app."""

    name: str

    def stream(self) -> DataFrame: ...


def search(stream: DataFrame, *, queries: Queries, fields: Sequence[str], query: str = "query") -> DataFrame:
    """The events that a saved search matches, once for each, as they come.

    `queries` is a table with a text column `query`; a search counts for events that are appended after it.
    `fields`: where to look, in columns of text or numbers. Added to an event: `query_` with the key of the
    search, and its version, `query_partition` and `query_offset`. A search that cannot be read goes to
    `<name>.late` with the reason, and the others go on.
    """
    from penstock.flow import search_index  # noqa: F401 - raises here where tantivy is missing
    from penstock.flow.buckets import Input, arrow_schema, together_in_buckets

    build = builds.current()
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
    return _as_event(found.drop(*ARRIVAL), time_of(stream))


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


def _as_event(found: DataFrame, time: str) -> DataFrame:
    """With the event's own time as that of the match."""
    from pyspark.sql import functions as F

    if time not in found.columns:
        return found
    return found.withColumn(time, F.col(f"`{time}`").alias(time, metadata={builds.TIME_MARK: True}))
