"""Folding changelog records to the last change of every key."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.follow.backends import delete, record, upsert

from penstock.errors import BadName, BadRecord, BadSchema
from penstock.follow import TableSpec, fold, spec_of
from penstock.follow.changes import changed
from penstock.schema import RecordSchema

CHANGELOG = RecordSchema.of(
    "k STRING, n BIGINT, v BIGINT, _op STRING, _batch BIGINT, _revision INT, _closed TIMESTAMP"
).arrow
SPEC = spec_of(CHANGELOG, ("k", "n"), name="counts")


def batch_of(*records: dict[str, Any]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(list(records), schema=CHANGELOG)


def folded(*records: dict[str, Any]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = fold([batch_of(each) for each in records], ("k", "n")).to_pylist()
    return rows


def test_the_last_upsert_of_a_key_is_its_row() -> None:
    rows = folded(upsert(k="a", n=1, v=1), upsert(k="b", n=1, v=2), upsert(k="a", n=1, v=3, revision=2))
    assert sorted(rows, key=str) == [
        {"k": "a", "n": 1, "v": 3, "_revision": 2},
        {"k": "b", "n": 1, "v": 2, "_revision": 0},
    ]


def test_a_deleted_key_has_no_row_until_it_comes_back() -> None:
    assert folded(upsert(k="a", n=1, v=1), delete(k="a", n=1)) == []
    back = folded(upsert(k="a", n=1, v=1), delete(k="a", n=1), upsert(k="a", n=1, v=5))
    assert [row["v"] for row in back] == [5]


def test_null_is_a_key_value_like_any_other() -> None:
    rows = folded(upsert(k=None, n=1, v=1), upsert(k=None, n=None, v=2), upsert(k=None, n=1, v=3))
    assert sorted(row["v"] for row in rows) == [2, 3]


def test_news_of_progress_changes_no_row() -> None:
    assert [row["v"] for row in folded(upsert(k="a", n=1, v=1), record("w", batch=9))] == [1]


def test_a_changelog_without_records_folds_to_a_table_without_rows() -> None:
    assert fold([], ("k",), columns=SPEC.columns).schema == SPEC.values


def test_folding_in_many_pieces_is_folding_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(7)
    records = [
        (delete if chance.random() < 0.3 else upsert)(
            k=chance.choice(["a", "b", None]), n=chance.choice([1, 2, None]), v=at
        )
        for at in range(500)
    ]
    expected: dict[object, int] = {}
    for each in records:
        key = (each["k"], each["n"])
        if each["_op"] == "u":
            expected[key] = each["v"]
        else:
            expected.pop(key, None)
    monkeypatch.setattr("penstock.follow.changes._FOLD_ROWS", 7)
    assert {(row["k"], row["n"]): row["v"] for row in folded(*records)} == expected


def test_a_float_key_has_one_zero_and_one_nan() -> None:
    schema = pa.schema([("f", pa.float64()), ("_op", pa.string()), ("_revision", pa.int32())])
    other_nan = np.array([0x7FF8000000000001], dtype=np.uint64).view(np.float64)[0]
    rows = pa.RecordBatch.from_arrays(
        [pa.array([0.0, -0.0, np.nan, other_nan, None]), pa.array(["u"] * 5), pa.array([0] * 5, pa.int32())],
        schema=schema,
    )
    assert fold([rows], ("f",)).num_rows == 3


def test_an_unknown_operation_is_refused() -> None:
    with pytest.raises(BadRecord, match="operation 'x'"):
        folded(upsert(k="a"), record("x", k="a"))


def test_progress_is_taken_from_every_record() -> None:
    closed = [np.datetime64("2026-01-01T00:00:00", "us").item(), None]
    table = pa.Table.from_batches(
        [batch_of(upsert(k="a", batch=3, closed=closed[0]), record("w", batch=4, closed=closed[1]))]
    )
    todo = changed(SPEC, table)
    assert (todo.batch, todo.closed_us) == (4, 1_767_225_600_000_000)


@pytest.mark.parametrize(
    ("name", "columns", "key", "error"),
    [
        ("v", "k STRING", ("nope",), BadSchema),
        ("v", "k STRING", ("k", "k"), BadSchema),
        ("v", "k ARRAY<STRING>", ("k",), BadSchema),
        ("v", "_batch STRING", (), BadSchema),
        ("v", "window_end TIMESTAMP, final BOOLEAN", (), BadSchema),
        ("v__rows", "k STRING", (), BadName),
        ("penstock_views", "k STRING", (), BadName),
        ("a/b", "k STRING", (), BadName),
    ],
)
def test_a_table_that_no_store_could_hold_is_refused(
    name: str, columns: str, key: tuple[str, ...], error: type[Exception]
) -> None:
    with pytest.raises(error):
        TableSpec(name, RecordSchema.of(columns).arrow, key)


def test_a_hundred_thousand_records_fold_to_a_row_for_each_key(report: Callable[[str], None]) -> None:
    count = 100_000
    keys = np.random.default_rng(1).integers(0, 10_000, count)
    columns = [
        pa.array(keys.astype(str)), pa.array(keys), pa.array(np.arange(count)), pa.array(["u"] * count),
        pa.array(np.zeros(count, np.int64)), pa.array(np.zeros(count, np.int32)),
        pa.nulls(count, CHANGELOG.field("_closed").type),
    ]  # fmt: skip
    batch = pa.RecordBatch.from_arrays(columns, schema=CHANGELOG)
    began = time.perf_counter()
    assert fold([batch], ("k", "n")).num_rows == len(np.unique(keys))
    took_s = time.perf_counter() - began
    report(f"fold: {count / took_s:,.0f} records/s")
