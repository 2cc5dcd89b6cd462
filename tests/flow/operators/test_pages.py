"""Table-sized state in pages: what is touched is read and written, and nothing else."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.flow.pages import MemoryPages, Pages

SCHEMA = pa.schema([("id", pa.int64()), ("x", pa.int64())])

thorough = settings(max_examples=200, deadline=None)
changes = st.lists(
    st.dictionaries(st.integers(0, 40), st.none() | st.integers(0, 9), max_size=12), max_size=8
)


def rows(found: dict[int, int]) -> pa.Table:
    return pa.Table.from_pylist([{"id": k, "x": x} for k, x in found.items()], schema=SCHEMA)


def keys(found: object) -> pa.Table:
    return pa.table({"id": pa.array(list(found), pa.int64())})  # type: ignore[call-overload]


def change(store: MemoryPages, news: dict[int, int | None], *, rows_each: int) -> Pages:
    pages = Pages(store, SCHEMA, ("id",), rows_each=rows_each)
    there = {row["id"]: row["x"] for row in pages.read([keys(news)]).to_pylist()}
    there |= {key: x for key, x in news.items() if x is not None}
    pages.write(rows({k: x for k, x in there.items() if news.get(k, 0) is not None}), keys(news))
    return pages


@thorough
@given(batches=changes, rows_each=st.integers(1, 5))
def test_pages_hold_what_was_written_however_often_they_were_split(
    batches: list[dict[int, int | None]], rows_each: int
) -> None:
    store, model = MemoryPages(), dict[int, int]()
    for news in batches:
        change(store, news, rows_each=rows_each)
        for key, x in news.items():
            if x is None:
                model.pop(key, None)
            else:
                model[key] = x
    pages = Pages(store, SCHEMA, ("id",), rows_each=rows_each)
    assert {row["id"]: row["x"] for row in pages.read([keys(range(41))]).to_pylist()} == model
    assert len(model) <= rows_each << pages.level


def test_a_step_touches_only_the_pages_of_its_keys() -> None:
    store = MemoryPages()
    pages = change(store, dict.fromkeys(range(100_000), 1), rows_each=1_000)
    assert pages.level == 7
    store.read.clear()
    store.written.clear()
    change(store, {7: 2, 12: 3}, rows_each=1_000)
    assert len(set(store.read) - {-1}) <= 2
    assert len(set(store.written)) <= 2
