"""Tables joined by columns that are no key: posts and those who follow their authors."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st
from tests.flow.operators.events import thorough
from tests.flow.operators.versions_world import SYSTEM, Row, table

from penstock.flow.join_rows import JoinRows
from penstock.flow.pages import MemoryPages, Pages
from penstock.flow.table_changes import Newest

POSTS = pa.schema([("post", pa.int64()), ("author", pa.int64()), ("text", pa.int64())])
FOLLOWS = pa.schema([("follower", pa.int64()), ("whom", pa.int64()), ("since", pa.int64())])
JOIN = JoinRows(
    ("author",), ("whom",), Newest(("post",), tuple(POSTS.names), POSTS),
    Newest(("follower",), tuple(FOLLOWS.names), FOLLOWS), ("follower", "since"), ("follower", "since"),
)  # fmt: skip


@st.composite
def changes(draw: st.DrawFn, schema: pa.Schema) -> list[list[Row]]:
    """Batches of records of a table: upserts and deletes, of which some come out of order."""
    key, other, value = schema.names
    number, found = 0, []
    for _ in range(6):
        rows = []
        for _ in range(draw(st.integers(0, 4))):
            number += 1
            rows.append(
                {
                    key: draw(st.integers(0, 4)), other: draw(st.none() | st.integers(0, 3)), value: number,
                    "_from": draw(st.integers(1, 30)), "_timestamp": number, "_partition": 0,
                    "_offset": number, "_deleted": draw(st.integers(0, 3)) == 0,
                }
            )  # fmt: skip
        found.append(rows)
    return found


def newest(records: list[Row], key: str) -> dict[int, Row]:
    rows: dict[int, Row] = {}
    for record in records:
        if record["_from"] >= rows.get(record[key], {"_from": 0})["_from"]:
            rows[record[key]] = record
    return {number: row for number, row in rows.items() if not row["_deleted"]}


@thorough
@given(posts=changes(POSTS), follows=changes(FOLLOWS))
def test_the_pairs_are_those_of_both_tables(posts: list[list[Row]], follows: list[list[Row]]) -> None:
    stores = [MemoryPages() for _ in range(6)]
    view: dict[tuple[int, int], tuple[Any, ...]] = {}
    known: tuple[list[Row], list[Row]] = ([], [])
    for batch in zip(posts, follows, strict=True):
        moved = []
        for number, (moves, rows) in enumerate(zip(JOIN.moves, batch, strict=True)):
            schema = pa.schema([*(POSTS, FOLLOWS)[number], *SYSTEM])
            pages = Pages(stores[number], moves.newest.versions, moves.newest.key, rows_each=2)
            moved.append(moves.step(None, (pages,), (table(rows, schema),), 0).output)
            known[number].extend(rows)
        told: list[Row] = []
        for bucket in (0, 1):
            mine = [
                rows.filter(
                    pa.array([(value or 0) % 2 == bucket for value in rows[name].to_pylist()], pa.bool_())
                )
                for rows, name in zip(moved, ("author", "whom"), strict=True)
            ]
            both = (
                Pages(stores[2 + 2 * bucket], JOIN.lefts, JOIN.on, rows_each=2),
                Pages(stores[3 + 2 * bucket], JOIN.rights, JOIN.theirs, rows_each=2),
            )
            told += JOIN.step(None, both, (mine[0], mine[1]), 0).output.to_pylist()
        for op in ("d", "u"):  # retractions first
            for row in (row for row in told if row["_op"] == op):
                pair = row["post"], row["follower"]
                assert op == "u" or pair in view
                view.pop(pair, None)
                if op == "u":
                    view[pair] = row["author"], row["text"], row["since"]
        upserts = [(row["post"], row["follower"]) for row in told if row["_op"] == "u"]
        assert len(upserts) == len(set(upserts))
        people = newest(known[1], "follower").values()
        assert view == {
            (post["post"], one["follower"]): (post["author"], post["text"], one["since"])
            for post in newest(known[0], "post").values()
            for one in people
            if post["author"] is not None and post["author"] == one["whom"]
        }
