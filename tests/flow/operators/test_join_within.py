"""Events of two streams that are close in time: the kernel against a naive join."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.flow.operators.events import TIME, Row, thorough

from penstock.flow.join_within import JoinWithin, Side

SCHEMA = pa.schema(
    [
        ("user", pa.string()), ("n", pa.int64()), ("at", TIME), ("_topic", pa.string()),
        ("_partition", pa.int32()), ("_offset", pa.int64()),
    ]
)  # fmt: skip
AFTER, BEFORE = 5, 2


def joining(how: str) -> JoinWithin:
    columns = ("n", "at")
    left = Side(("user",), "at", columns, columns, AFTER, outer=how in ("left", "full"), schema=SCHEMA)
    names = ("n_right", "at_right")
    right = Side(("user",), "at", columns, names, BEFORE, outer=how in ("right", "full"), schema=SCHEMA)
    return JoinWithin(left, right)


def table(rows: list[Row]) -> pa.Table:
    columns: dict[str, Any] = {name: [row[name] for row in rows] for name in SCHEMA.names}
    columns["at"] = pa.array(columns["at"], pa.int64()).cast(TIME)
    return pa.table({name: pa.array(columns[name], SCHEMA.field(name).type) for name in SCHEMA.names})


@st.composite
def batches(draw: st.DrawFn, *, itself: bool) -> list[tuple[list[Row], list[Row], int]]:
    """New rows of both sides, all later than the watermark; `itself`: both are one stream."""
    found, watermark, number = [], 0, 0
    for _ in range(draw(st.integers(1, 6))):
        sides: tuple[list[Row], list[Row]] = ([], [])
        for side in (0,) if itself else (0, 1):
            for _ in range(draw(st.integers(0, 5))):
                number += 1
                at = watermark + draw(st.integers(1, 12))
                user = draw(st.sampled_from(["a", "b", None]))
                topic = "one" if itself else ("left", "right")[side]
                row = {
                    "user": user,
                    "n": number,
                    "at": at,
                    "_topic": topic,
                    "_partition": 0,
                    "_offset": number,
                }
                sides[side].append(row)
        found.append((sides[0], sides[0] if itself else sides[1], watermark))
        watermark += draw(st.integers(0, 9))
    return [*found, ([], [], watermark)]


def naive(how: str, lefts: list[Row], rights: list[Row], watermark: int) -> Counter[Any]:
    found: Counter[Any] = Counter()
    met: set[tuple[int, int]] = set()
    for left in lefts:
        for right in rights:
            near = left["at"] - BEFORE <= right["at"] <= left["at"] + AFTER
            itself = (left["_topic"], left["_offset"]) == (right["_topic"], right["_offset"])
            if near and not itself and left["user"] is not None and left["user"] == right["user"]:
                found[left["user"], left["n"], right["n"], max(left["at"], right["at"])] += 1
                met |= {(0, left["n"]), (1, right["n"])}
    for side, rows, range_ in ((0, lefts, AFTER), (1, rights, BEFORE)):
        for row in rows if how in (("left", "right")[side], "full") else []:
            if (side, row["n"]) not in met and row["at"] + range_ <= watermark:
                pair = (row["n"], None) if side == 0 else (None, row["n"])
                found[row["user"], *pair, row["at"] + range_] += 1
    return found


@pytest.mark.parametrize("itself", [False, True], ids=["two streams", "one stream"])
@pytest.mark.parametrize("how", ["inner", "left", "right", "full"])
@thorough
@given(data=st.data())
def test_the_pairs_and_those_without_a_partner_are_those_of_a_naive_join(
    how: str, itself: bool, data: st.DataObject
) -> None:
    join, state, woken = joining(how), None, None
    known: tuple[list[Row], list[Row]] = ([], [])
    got: Counter[Any] = Counter()
    for lefts, rights, watermark in data.draw(batches(itself=itself)):
        stepped = join.step(state, (table(lefts), table(rights)), watermark)
        state, woken = stepped.state, stepped.wake_us
        known[0].extend(lefts)
        known[1].extend(rights)
        for row in stepped.output.to_pylist():
            got[row["user"], row["n"], row["n_right"], round(row["joined_at"].timestamp() * 1e6)] += 1
        assert got == naive(how, *known, watermark)
        assert woken is None or woken > watermark
        for kept, rows, range_ in zip(state, known, (AFTER, BEFORE), strict=True):
            assert len(kept) <= sum(row["at"] + range_ > watermark for row in rows)
        assert (woken is None) == (not any(map(len, state)))
