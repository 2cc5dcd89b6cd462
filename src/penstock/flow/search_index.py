"""One micro-batch of events as a tantivy index in memory, and queries as tantivy has them.

tantivy's own query parser knows no prefix and no `word~1`, so queries are built from our tree. Its slop is
not used either: it finds "a a" with slop in a text that has a single `a`, so a phrase with slop is made of
all the ways to spread it. Its score is not shown: it depends on what else is in the micro-batch.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import combinations
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.errors import NotSupported
from penstock.flow.ordering import Ints
from penstock.flow.search_query import parse
from penstock.flow.search_tree import And, Field, Fuzzy, Not, Or, Phrase, Prefix, Query, Range, Word
from penstock.flow.search_words import spaced

try:
    import tantivy
    from tantivy import FieldType, Occur, Order
except ImportError as error:
    raise NotSupported(
        "search on streams runs on tantivy, which is not installed.",
        hint='pip install "penstock[search]"',
    ) from error

ROWS_MAX = 65_536  # of one index, so that memory is bounded
_HEAP_BYTES = 256_000_000  # a limit, not an allocation: beyond it the index is in more than one segment
_ROW = "row"


class EventIndex:
    """At most `ROWS_MAX` rows. Made once, searched many times, then dropped with all it holds."""

    def __init__(self, rows: pa.Table, fields: tuple[Field, ...]) -> None:
        assert len(rows) <= ROWS_MAX
        self._rows = len(rows)
        index = tantivy.Index(schema_of(fields))
        # One thread: several would make several segments, and Spark has a task on every core.
        writer = index.writer(_HEAP_BYTES, 1)
        for document in _documents(rows, fields):
            writer.add_document(document)
        writer.commit()
        writer.wait_merging_threads()
        index.reload()
        self._searcher = index.searcher()

    def rows_of(self, query: tantivy.Query) -> Ints:
        """The numbers of the rows that match, ascending."""
        found = self._searcher.search(
            query, limit=self._rows, count=False, order_by_field=_ROW, order=Order.Asc
        )
        return np.array([row for row, _ in found.hits], dtype=np.int64)


@lru_cache(maxsize=65_536)
def compiled(text: str, fields: tuple[Field, ...]) -> tantivy.Query:
    """The query for any index over these fields. Raises BadQuery, each time again."""
    return Compiler(fields, schema_of(fields)).query(parse(text, fields))


def place(number: int) -> str:
    """What a column is called in an index, which does not take every name."""
    return f"c{number}"


@lru_cache(maxsize=256)
def schema_of(fields: tuple[Field, ...]) -> tantivy.Schema:
    builder = tantivy.SchemaBuilder()
    builder.add_integer_field(_ROW, fast=True)
    add_fields(builder, fields)
    return builder.build()


def add_fields(builder: tantivy.SchemaBuilder, fields: tuple[Field, ...]) -> None:
    """What an index needs to have for these columns, so that queries can be compiled for it."""
    for number, field in enumerate(fields):
        if field.kind == "text":
            builder.add_text_field(place(number), tokenizer_name="whitespace", index_option="position")
        elif field.kind == "whole":
            builder.add_integer_field(place(number), fast=True)
        else:
            builder.add_float_field(place(number), fast=True)


def _documents(rows: pa.Table, fields: tuple[Field, ...]) -> Iterator[tantivy.Document]:
    for row, given in enumerate(indexed(rows, fields)):
        yield tantivy.Document(**{_ROW: row}, **given)


def indexed(rows: pa.Table, fields: tuple[Field, ...]) -> Iterator[dict[str, Any]]:
    """What of each row is to be found, by its place."""
    columns = [_values(rows[field.name], field) for field in fields]
    names = [place(number) for number in range(len(fields))]
    for values in zip(*columns, strict=True):
        yield {name: value for name, value in zip(names, values, strict=True) if value is not None}


def _values(column: pa.ChunkedArray, field: Field) -> list[Any]:
    """As the index takes them: None where there is nothing to find."""
    values: list[Any] = column.to_pylist()
    if field.kind == "text":
        return [spaced(text) if text else None for text in values]
    if field.kind == "whole":
        return values
    # 0.0 is added because the index would tell -0.0 from 0.0; NaN is larger than all there.
    return [None if value is None or math.isnan(value) else float(value) + 0.0 for value in values]


class Compiler:
    """A query tree as tantivy's, for an index of this schema, to which these fields were added."""

    def __init__(self, fields: tuple[Field, ...], schema: tantivy.Schema) -> None:
        self._schema = schema
        self._places = {field.name: place(number) for number, field in enumerate(fields)}
        self._kinds = {field.name: field.kind for field in fields}

    def query(self, tree: Query) -> tantivy.Query:
        match tree:
            case Range():
                return self._range(tree)
            case Not(part):
                return self._all([Not(part)])
            case And(parts):
                return self._all(parts)
            case Or(parts):
                return self._any([self.query(part) for part in parts])
            case Word(fields) | Prefix(fields) | Fuzzy(fields) | Phrase(fields):
                return self._any([self._in_field(self._places[name], tree) for name in fields])

    def _in_field(self, place: str, tree: Word | Prefix | Fuzzy | Phrase) -> tantivy.Query:
        make, schema = tantivy.Query, self._schema
        match tree:
            case Word(_, word):
                return make.term_query(schema, place, word)
            case Prefix(_, start):
                # Not phrase_prefix_query, which stops at the first 50 words with that prefix.
                return make.fuzzy_term_query(schema, place, start, 0, True, True)
            case Fuzzy(_, word, distance):
                return make.fuzzy_term_query(schema, place, word, distance, True, False)
            case Phrase(_, words, slop):
                spread = _spreads(len(words), slop)
                return self._any(
                    [make.phrase_query(schema, place, list(zip(at, words, strict=True))) for at in spread]
                )

    def _range(self, tree: Range) -> tantivy.Query:
        if tree.low is None and tree.high is None:
            return tantivy.Query.exists_query(self._places[tree.field])
        return tantivy.Query.range_query(
            self._schema,
            self._places[tree.field],
            FieldType.Integer if self._kinds[tree.field] == "whole" else FieldType.Float,
            tree.low,
            tree.high,
            tree.low_included,
            tree.high_included,
        )

    def _all(self, parts: Sequence[Query]) -> tantivy.Query:
        without = [(Occur.MustNot, self.query(part.part)) for part in parts if isinstance(part, Not)]
        wanted = [(Occur.Must, self.query(part)) for part in parts if not isinstance(part, Not)]
        # What is only excluded is excluded from all events; tantivy would find none.
        everything = [] if wanted else [(Occur.Must, tantivy.Query.all_query())]
        return tantivy.Query.boolean_query([*everything, *wanted, *without])

    def _any(self, queries: Sequence[tantivy.Query]) -> tantivy.Query:
        if len(queries) == 1:
            return queries[0]
        return tantivy.Query.boolean_query([(Occur.Should, each) for each in queries])


def _spreads(words: int, slop: int) -> Iterator[tuple[int, ...]]:
    """The places that so many words may have, the first at 0, with at most `slop` others between them."""
    for rest in combinations(range(1, words + slop), words - 1):
        yield (0, *rest)
