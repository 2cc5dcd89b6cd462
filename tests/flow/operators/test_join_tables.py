"""Tables joined with tables, and what changes in them: the kernels against naive models."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.flow.operators.versions_world import SYSTEM, TABLE, VERSIONS, Row, table, version_at, worlds

from penstock.flow.join_tables import How, JoinTables
from penstock.flow.pages import MemoryPages, Pages
from penstock.flow.table_changes import Newest, TableChanges

thorough = settings(max_examples=150, deadline=None)
ORDERS = pa.schema([("order", pa.int64()), ("user", pa.int64()), ("x", pa.int64())])
USERS = Newest(("id",), ("id", "name"), TABLE)
BY_ORDER = Newest(("order",), ("order", "user", "x"), ORDERS)
JOINS: dict[How, JoinTables] = {
    how: JoinTables(("user",), BY_ORDER, USERS, ("name",), ("name",), how) for how in ("inner", "left")
}


@thorough
@given(found=worlds())
def test_changes_lead_from_each_row_to_the_next(found: list[Any]) -> None:
    kernel, store, rows = TableChanges(USERS), MemoryPages(), dict[int, Any]()
    versions: list[Row] = []
    for batch in found:
        pages = Pages(store, USERS.versions, USERS.key, rows_each=2)
        new = table(batch.versions, VERSIONS)
        for change in kernel.step(None, (pages,), (new,), batch.watermark).output.to_pylist():
            before = rows.pop(change["id"], None)
            assert change["before"] == before
            assert change["op"] == ("insert" if before is None else "update" if change["after"] else "delete")
            if change["after"] is not None:
                rows[change["id"]] = change["after"]
        versions += batch.versions
        newest = {key: version_at(versions, key, None) for key in range(4)}
        assert rows == {key: {"id": key, "name": row["name"]} for key, row in newest.items() if row}


@thorough
@given(found=worlds(), cut=st.integers(1, 9))
def test_changes_do_not_depend_on_where_batches_end(found: list[Any], cut: int) -> None:
    """The watermark of the first batch holds for all: only it decides what is forgotten."""
    rows = [row for batch in found for row in batch.versions]
    told = []
    for size in (cut, len(rows) + 1):
        store, out = MemoryPages(), []
        for begin in range(0, len(rows), size):
            pages = Pages(store, USERS.versions, USERS.key, rows_each=2)
            new = table(rows[begin : begin + size], VERSIONS)
            out += TableChanges(USERS).step(None, (pages,), (new,), 0).output.to_pylist()
        told.append(sorted(out, key=lambda change: change["id"]))
    assert told[0] == told[1]


@st.composite
def orders(draw: st.DrawFn, batches: int, watermarks: list[int]) -> list[list[Row]]:
    number, found = 1_000, []
    for watermark in watermarks[:batches]:
        rows = []
        for _ in range(draw(st.integers(0, 5))):
            number += 1
            rows.append(
                {
                    "order": draw(st.integers(0, 5)), "user": draw(st.none() | st.integers(0, 3)),
                    "x": number, "_from": max(draw(st.integers(0, 25)), watermark + 1), "_timestamp": number,
                    "_partition": 0, "_offset": number, "_deleted": draw(st.integers(0, 3)) == 0,
                }
            )  # fmt: skip
        found.append(rows)
    return found


class Joined:
    """The two steps, the second in two buckets, and the view that their changes make."""

    def __init__(self, join: JoinTables) -> None:
        self.join = join
        self.stores = [MemoryPages() for _ in range(5)]
        self.view: dict[int, tuple[Any, ...]] = {}
        self.told: list[Row] = []

    def step(self, lefts: list[Row], rights: list[Row], watermark: int) -> None:
        join = self.join
        moved = join.moves.step(
            None, (Pages(self.stores[4], join.left.versions, join.left.key, rows_each=2),),
            (table(lefts, pa.schema([*ORDERS, *SYSTEM])),), watermark,
        ).output  # fmt: skip
        self.told = []
        for bucket in (0, 1):
            mine = pa.array([(user or 0) % 2 == bucket for user in moved["user"].to_pylist()], pa.bool_())
            users = table([row for row in rights if row["id"] % 2 == bucket], VERSIONS)
            pages = (
                Pages(self.stores[2 * bucket], join.lefts, join.on, rows_each=2),
                Pages(self.stores[2 * bucket + 1], USERS.versions, USERS.key, rows_each=2),
            )
            self.told += join.step(None, pages, (moved.filter(mine), users), watermark).output.to_pylist()
        for op in ("d", "u"):  # retractions first
            for row in (row for row in self.told if row["_op"] == op):
                self.view.pop(row["order"], None)
                if op == "u":
                    self.view[row["order"]] = row["user"], row["x"], row["name"]


@pytest.mark.parametrize("how", ["inner", "left"])
@thorough
@given(data=st.data(), found=worlds())
def test_the_joined_view_is_the_join_of_both_tables(how: How, data: st.DataObject, found: list[Any]) -> None:
    lefts = data.draw(orders(len(found), [batch.watermark for batch in found]))
    joined = Joined(JOINS[how])
    known: tuple[list[Row], list[Row]] = ([], [])
    for batch, changed in zip(found, lefts, strict=True):
        before = dict(joined.view)
        joined.step(changed, batch.versions, batch.watermark)
        known[0].extend({**row, "id": row["order"]} for row in changed)
        known[1].extend(batch.versions)
        wanted = {}
        for order in range(6):
            row = version_at(known[0], order, None)
            user = row and version_at(known[1], row["user"], None)
            if row and (user or how == "left"):
                wanted[order] = row["user"], row["x"], user and user["name"]
        assert joined.view == wanted
        upserts = [row["order"] for row in joined.told if row["_op"] == "u"]
        assert len(upserts) == len(set(upserts))
        assert {row["order"] for row in joined.told if row["_op"] == "d"} <= set(before)
