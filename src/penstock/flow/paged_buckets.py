"""Steps whose state is as large as a table: hot tables in the bucket, the rest in pages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import pyarrow as pa
from pyspark.sql.streaming.stateful_processor import MapState, StatefulProcessorHandle

from penstock.flow.buckets import BUCKETS, Bucket, Input, Tables, processed
from penstock.flow.pages import Pages
from penstock.flow.stepped import SteppedTables

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

PagedStep: TypeAlias = Callable[[Tables | None, tuple[Pages, ...], Tables, int], SteppedTables]
"""(state, pages, new rows of each input, watermark in microseconds) to what follows. It changes the pages."""


@dataclass(frozen=True, slots=True)
class Paged:
    """What one table of a step's pages looks like."""

    schema: pa.Schema
    key: tuple[str, ...]


def in_paged_buckets(
    inputs: Sequence[Input],
    *,
    step: PagedStep,
    pages: Sequence[Paged],
    output: pa.Schema,
    buckets: int = BUCKETS,
) -> DataFrame:
    """Runs `step` over several inputs, with a table of pages for each of `pages`."""
    processor = _PagedBucket(step, tuple(each.rows for each in inputs), tuple(pages))
    return processed(inputs, processor, output=output, buckets=buckets)


class _PagedBucket(Bucket):
    def __init__(self, step: PagedStep, schemas: tuple[pa.Schema, ...], paged: tuple[Paged, ...]) -> None:
        super().__init__(step, schemas)
        self._paged = paged

    def init(self, handle: StatefulProcessorHandle) -> None:
        super().init(handle)
        self._stores = [
            _MapPages(handle.getMapState(f"pages{number}", "page INT", "packed BINARY"))
            for number in range(len(self._paged))
        ]

    def _stepped(self, state: Tables | None, new: Tables, watermark_us: int) -> SteppedTables:
        pages = tuple(
            Pages(store, each.schema, each.key) for store, each in zip(self._stores, self._paged, strict=True)
        )
        return self._step(state, pages, new, watermark_us)


class _MapPages:
    """Pages as entries of Spark's map state, of the bucket that is being processed."""

    def __init__(self, pages: MapState) -> None:
        self._pages = pages

    def get(self, number: int) -> bytes | None:
        found = self._pages.getValue((number,))
        return None if found is None else bytes(found[0])

    def put(self, number: int, page: bytes) -> None:
        self._pages.updateValue((number,), (page,))

    def remove(self, number: int) -> None:
        self._pages.removeKey((number,))
