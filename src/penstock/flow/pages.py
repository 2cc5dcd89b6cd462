"""Table-sized state: the rows of a bucket by key, a page for each group of keys.

Keys are spread over 2^level pages by a hash of their own. A step reads and writes only the pages of the keys
that it touches. When pages have more than about a thousand rows on average, their number is doubled.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol

import numpy as np
import pyarrow as pa

from penstock.flow.ordering import Ints
from penstock.flow.packed import from_bytes, to_bytes
from penstock.log import keys as log_keys

ROWS_EACH = 1_000
_SIZE = -1  # the page that says how many pages and rows there are


class PageStore(Protocol):
    """Where pages are kept, by number; one bucket's, used by one thread."""

    def get(self, number: int) -> bytes | None: ...

    def put(self, number: int, page: bytes) -> None: ...

    def remove(self, number: int) -> None: ...


class MemoryPages:
    """Pages in a dict, for tests and for looking at what was touched."""

    def __init__(self) -> None:
        self.pages: dict[int, bytes] = {}
        self.read: list[int] = []
        self.written: list[int] = []

    def get(self, number: int) -> bytes | None:
        self.read.append(number)
        return self.pages.get(number)

    def put(self, number: int, page: bytes) -> None:
        self.written.append(number)
        self.pages[number] = page

    def remove(self, number: int) -> None:
        self.written.append(number)
        self.pages.pop(number, None)


class Pages:
    """Rows of one schema with the columns `key`. Read some, then write them: for one step."""

    def __init__(
        self, store: PageStore, schema: pa.Schema, key: tuple[str, ...], *, rows_each: int = ROWS_EACH
    ) -> None:
        self._store = store
        self._schema = schema
        self._key = key
        self._rows_each = rows_each
        size = store.get(_SIZE)
        self._level, self._rows = map(int, np.frombuffer(size, np.int64)) if size else (0, 0)
        self._stored = self._level, self._rows
        self._counts: dict[int, int] = {}  # rows of the pages that were read

    @property
    def level(self) -> int:
        return self._level

    def read(self, keys: Iterable[pa.Table]) -> pa.Table:
        """All rows on the pages of these keys: those of the keys, and some others.

        The tables have the key's columns first, under whatever names.
        """
        return self._read(sorted({number for table in keys for number in np.unique(self._numbers(table))}))

    def write(self, rows: pa.Table, keys: pa.Table) -> None:
        """Put `rows` in place of all rows on the pages of `keys`, which were read; others are left aside."""
        numbers = np.unique(self._numbers(keys))
        for number, page in self._by_page(rows, numbers):
            self._put(number, page)
        if self._rows > self._rows_each << self._level:
            self._grow()
        if (self._level, self._rows) != self._stored:
            self._stored = self._level, self._rows
            self._store.put(_SIZE, np.array(self._stored, np.int64).tobytes())

    def _read(self, numbers: Iterable[int]) -> pa.Table:
        found = [self._schema.empty_table()]
        for number in numbers:
            page = self._store.get(int(number))
            rows = self._schema.empty_table() if page is None else from_bytes(page)
            self._counts[int(number)] = len(rows)
            found.append(rows)
        return pa.concat_tables(found).combine_chunks()

    def _put(self, number: int, page: pa.Table) -> None:
        before = self._counts[number]
        self._rows += len(page) - before
        self._counts[number] = len(page)
        if len(page):
            self._store.put(number, to_bytes(page))
        elif before:
            self._store.remove(number)

    def _by_page(self, rows: pa.Table, numbers: Ints) -> Iterator[tuple[int, pa.Table]]:
        """The part of `rows` on each of these pages."""
        places = self._numbers(rows.select(list(self._key)))
        order = np.argsort(places, kind="stable")
        low, high = (np.searchsorted(places[order], numbers, side=side) for side in ("left", "right"))
        for number, begin, end in zip(numbers.tolist(), low, high, strict=True):
            yield number, rows.take(pa.array(order[begin:end]))

    def _grow(self) -> None:
        """More pages: every row is written once more, as often as the table has doubled."""
        rows = self._read(range(1 << self._level))
        for number in range(1 << self._level):
            self._put(number, rows.slice(0, 0))
        while len(rows) > self._rows_each << self._level:
            self._level += 1
        self._counts = dict.fromkeys(range(1 << self._level), 0)
        for number, page in self._by_page(rows, np.arange(1 << self._level)):
            self._put(number, page)

    def _numbers(self, keys: pa.Table) -> Ints:
        if not len(keys):
            return np.zeros(0, np.int64)
        columns = keys.select(range(len(self._key))).rename_columns(list(self._key))
        fitting = columns.cast(pa.schema([self._schema.field(name) for name in self._key]))
        digests = log_keys.key_digests(fitting.combine_chunks().to_batches()[0], self._key)
        return (digests[:, 0] & np.uint64((1 << self._level) - 1)).astype(np.int64)
