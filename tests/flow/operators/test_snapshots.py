"""Snapshots to changes and back again."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock as ps

thorough = settings(max_examples=300, deadline=None)
SCHEMA = pa.schema([("id", pa.int64()), ("x", pa.float64()), ("tags", pa.list_(pa.string()))])

values = st.tuples(
    st.sampled_from([None, 0.0, 1.5, 2.5]), st.none() | st.lists(st.sampled_from("ab"), max_size=2)
)
snapshots = st.lists(st.dictionaries(st.none() | st.integers(0, 5), values, max_size=5), max_size=6)


def table(rows: dict[Any, Any]) -> pa.Table:
    return pa.Table.from_pylist(
        [{"id": k, "x": x, "tags": tags} for k, (x, tags) in rows.items()], schema=SCHEMA
    )


def rows(found: pa.Table) -> list[Any]:
    return sorted(found.to_pylist(), key=str)


@thorough
@given(given_=snapshots)
def test_integrating_the_differences_gives_the_snapshots_back(given_: list[dict[Any, Any]]) -> None:
    tables = [table(each) for each in given_]
    back = list(ps.integrate(ps.differentiate(tables, key="id"), key="id"))
    assert [rows(each) for each in back] == [rows(each) for each in tables]


@thorough
@given(given_=snapshots)
def test_differentiating_the_integral_gives_the_changes_back(given_: list[dict[Any, Any]]) -> None:
    changes = list(ps.differentiate([table(each) for each in given_], key="id"))
    back = list(ps.differentiate(ps.integrate(changes, key="id"), key="id"))
    assert [rows(each) for each in back] == [rows(each) for each in changes]


@thorough
@given(given_=snapshots)
def test_changes_say_what_was_and_what_is(given_: list[dict[Any, Any]]) -> None:
    before: dict[Any, Any] = {}
    for snapshot, batch in zip(given_, ps.differentiate(map(table, given_), key="id"), strict=True):
        told = {change["id"]: change for change in batch.to_pylist()}
        assert len(told) == len(batch)
        for key in before.keys() | snapshot.keys():
            was, is_ = before.get(key), snapshot.get(key)
            if was == is_:
                assert key not in told
                continue
            op = "insert" if was is None else "delete" if is_ is None else "update"
            images = [None if v is None else {"id": key, "x": v[0], "tags": v[1]} for v in (was, is_)]
            assert told[key] == {"id": key, "op": op, "before": images[0], "after": images[1]}
        before = snapshot


def test_of_several_changes_of_a_key_the_last_counts() -> None:
    row = pa.struct([("id", pa.int64())])
    changes = pa.table(
        {
            "id": pa.array([1, 1, 2]), "op": ["insert", "delete", "insert"],
            "before": pa.array([None, {"id": 1}, None], row),
            "after": pa.array([{"id": 1}, None, {"id": 2}], row),
        }
    )  # fmt: skip
    (found,) = ps.integrate([changes], key="id")
    assert found.to_pylist() == [{"id": 2}]


def test_a_key_that_is_none_is_refused() -> None:
    twice = pa.table({"id": [1, 1], "x": [1, 2]})
    with pytest.raises(ps.BadInput, match="several rows"):
        list(ps.differentiate([twice], key="id"))
    with pytest.raises(ps.BadSchema, match='no column "ids"'):
        list(ps.differentiate([twice], key="ids"))
    with pytest.raises(ps.BadSchema, match='"after"'):
        list(ps.integrate([twice], key="id"))
