"""The contract of stores, on every one of them."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from tests.follow.backends import Backend, changelog, delete, plain, record, upsert

import penstock as ps
from penstock.errors import BadOption, BadSchema, Contended, Fenced
from penstock.follow import Follower, Progress, Store, TableSpec, spec_of
from penstock.follow.cells import whole
from penstock.log.decode import decode
from penstock.schema import RecordSchema

NOON = datetime(2026, 11, 16, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


def spec(columns: str = "k STRING, n BIGINT, v BIGINT", key: tuple[str, ...] = ("k", "n")) -> TableSpec:
    return TableSpec("counts", RecordSchema.of(columns).arrow, key)


def table(of: TableSpec, *records: dict[str, Any]) -> pa.Table:
    system = RecordSchema.of("_op STRING, _batch BIGINT, _revision INT, _closed TIMESTAMP").arrow
    return pa.Table.from_pylist(list(records), schema=pa.schema([*of.columns, *system]))


def apply(store: Store, of: TableSpec, *records: dict[str, Any], at: int = 0) -> None:
    store.apply(of, table(of, *records), from_offset=at, next_offset=at + len(records))


@pytest.fixture
def store(backend: Backend) -> Store:
    made = backend.open()
    made.prepare(spec(), "log-1")
    return made


def test_a_new_copy_is_empty_and_at_the_beginning(backend: Backend) -> None:
    store = backend.open()
    assert store.progress("counts") is None
    assert store.prepare(spec(), "log-1") == Progress(0)
    assert store.rows(spec())[0].num_rows == 0
    assert store.progress("counts") == Progress(0)


def test_upserts_and_deletes_make_the_rows(store: Store) -> None:
    apply(store, spec(), upsert(k="a", n=1, v=1), upsert(k="b", n=1, v=2), upsert(k="c", n=1, v=3))
    apply(store, spec(), upsert(k="a", n=1, v=9, revision=1), delete(k="b", n=1), delete(k="z", n=1), at=3)
    assert plain(store, spec()) == [
        {"k": "a", "n": 1, "v": 9, "_revision": 1},
        {"k": "c", "n": 1, "v": 3},
    ]
    assert store.progress("counts") == Progress(6, 0)


def test_a_key_deleted_and_written_again_in_one_chunk_is_there(store: Store) -> None:
    apply(store, spec(), upsert(k="a", n=1, v=1))
    apply(
        store,
        spec(),
        delete(k="a", n=1),
        upsert(k="a", n=1, v=2),
        upsert(k="b", n=1),
        delete(k="b", n=1),
        at=1,
    )
    assert plain(store, spec()) == [{"k": "a", "n": 1, "v": 2}]


def test_null_is_a_key_value_like_any_other(store: Store) -> None:
    keys = [("a", 1), ("a", None), (None, 1), (None, None)]
    apply(store, spec(), *(upsert(k=k, n=n, v=1) for k, n in keys))
    apply(store, spec(), *(upsert(k=k, n=n, v=2) for k, n in keys), at=4)
    rows = plain(store, spec())
    assert sorted(((r["k"], r["n"]) for r in rows), key=str) == sorted(keys, key=str)
    assert {row["v"] for row in rows} == {2}
    apply(store, spec(), delete(k=None, n=1), delete(k="a", n=None), at=8)
    assert {(r["k"], r["n"]) for r in plain(store, spec())} == {("a", 1), (None, None)}


def test_a_table_without_a_key_has_one_row(backend: Backend) -> None:
    store, single = backend.open(), spec("v BIGINT", ())
    store.prepare(single, "log-1")
    apply(store, single, upsert(v=1), upsert(v=2))
    apply(store, single, upsert(v=3), at=2)
    assert plain(store, single) == [{"v": 3}]
    apply(store, single, delete(), at=3)
    assert plain(store, single) == []


def test_a_table_of_nothing_but_its_key_can_be_written_twice(backend: Backend) -> None:
    store, keys = backend.open(), spec("k STRING", ("k",))
    store.prepare(keys, "log-1")
    apply(store, keys, upsert(k="a"))
    apply(store, keys, upsert(k="a", revision=4), at=1)
    assert plain(store, keys) == [{"k": "a", "_revision": 4}]


def test_batches_and_closing_times_never_go_back(store: Store) -> None:
    noon_us = int(NOON.timestamp() * 1_000_000)
    apply(store, spec(), record("w", batch=5, closed=NOON))
    assert store.progress("counts") == Progress(1, 5, noon_us)
    apply(store, spec(), record("w", batch=6, closed=NOON - MINUTE), at=1)
    apply(store, spec(), record("w", batch=7, closed=None), at=2)
    apply(store, spec(), at=3)
    assert store.progress("counts") == Progress(3, 7, noon_us)


def test_no_records_can_move_the_offset(store: Store) -> None:
    store.apply(spec(), table(spec()), from_offset=0, next_offset=10)
    assert store.progress("counts") == Progress(10)


def test_windows_that_end_at_or_before_the_closing_time_are_final(backend: Backend) -> None:
    store = backend.open()
    windows = spec("window_start TIMESTAMP, window_end TIMESTAMP, v BIGINT", ("window_start", "window_end"))
    store.prepare(windows, "log-1")
    rows = [
        upsert(window_start=NOON + at * MINUTE, window_end=NOON + (at + 1) * MINUTE, v=at) for at in range(3)
    ]
    apply(store, windows, *rows)
    assert [row["final"] for row in plain(store, windows)] == [False, False, False]
    apply(store, windows, record("w", closed=NOON + 2 * MINUTE), at=3)
    assert [row["final"] for row in plain(store, windows)] == [True, True, False]
    assert store.rows(windows)[0].schema == windows.shown
    seen = backend.query("SELECT v, final FROM counts ORDER BY v")
    assert [(v, bool(final)) for v, final in seen] == [(0, True), (1, True), (2, False)]


TYPES = (
    "id BIGINT, tiny TINYINT, small SMALLINT, whole INT, single FLOAT, real DOUBLE, text STRING, raw BINARY, "
    "flag BOOLEAN, day DATE, at TIMESTAMP, naive TIMESTAMP_NTZ, money DECIMAL(38, 18), list ARRAY<DOUBLE>, "
    "counts MAP<STRING, BIGINT>, inner STRUCT<a: TIMESTAMP, b: ARRAY<STRING>, c: BINARY>, "
    "`odd \"'%s; name` STRING"
)
ODD = "odd \"'%s; name"
FULL: dict[str, Any] = {
    "tiny": -128, "small": 32_767, "whole": -(2**31), "single": 0.1, "real": 0.1,
    "text": 'é"\',\n\\N \\.\t%s',
    "raw": b"\x00\xff\\x", "flag": True, "day": date(2026, 2, 28), "at": NOON + timedelta(microseconds=1),
    "naive": datetime(1, 1, 1), "money": Decimal("0.000000000000000001"), "list": [1.5, None, -0.25],
    "counts": {"x": 2**62, "": None}, "inner": {"a": NOON, "b": ["", None], "c": b"\xff"}, ODD: "",
}  # fmt: skip
ROWS: list[dict[str, Any]] = [
    {"id": 2**63 - 1, **FULL},
    {"id": 1, **dict.fromkeys(FULL)},
    {
        "id": 2,
        **FULL,
        "inner": {"a": None, "b": None, "c": b"a\0"},
        "real": math.inf,
        "single": -math.inf,
        "flag": False,
        "list": [],
        "counts": {},
    },
    {"id": 3, **FULL, "at": datetime(9999, 12, 31, 23, 59, 59, 999_999, UTC), "money": Decimal(10) ** 19},
]


def test_every_type_comes_back_as_it_was(backend: Backend) -> None:
    store, typed = backend.open(), spec(TYPES, ("id",))
    store.prepare(typed, "log-1")
    given = table(typed, *(upsert(**row) for row in ROWS))
    store.apply(typed, given, from_offset=0, next_offset=4)
    found = store.rows(typed)[0]
    assert found.schema == typed.values
    expected = given.select(typed.columns.names).take(pa.array([1, 2, 3, 0]))
    for name in typed.columns.names:
        # A map has no order, and jsonb gives its keys another one.
        as_they_are = [decode(pa.record_batch([whole(each[name])], ["v"])) for each in (found, expected)]
        assert as_they_are[0] == as_they_are[1], name


def test_every_plain_type_can_be_a_key(backend: Backend) -> None:
    columns = {name: value for name, value in FULL.items() if not isinstance(value, list | dict)}
    store, typed = backend.open(), spec(TYPES, tuple(columns))
    store.prepare(typed, "log-1")
    apply(store, typed, upsert(id=1, **columns), upsert(id=2, **{**columns, "raw": b"", "flag": None}))
    apply(store, typed, upsert(id=3, **columns), delete(**{**columns, "raw": b"", "flag": None}), at=2)
    assert store.rows(typed)[0]["id"].to_pylist() == [3]


def test_not_a_number_is_neither_null_nor_lost(backend: Backend) -> None:
    store, floats = backend.open(), spec("k DOUBLE, v DOUBLE", ("k",))
    store.prepare(floats, "log-1")
    apply(store, floats, upsert(k=math.nan, v=math.nan), upsert(k=None, v=None), upsert(k=0.0, v=1.0))
    apply(store, floats, upsert(k=math.nan, v=math.nan), upsert(k=-0.0, v=math.inf), at=3)
    rows = plain(store, floats)
    assert len(rows) == 3
    assert math.isnan(next(row["v"] for row in rows if row["k"] is not None and math.isnan(row["k"])))
    assert [row["v"] for row in rows if row["k"] == 0] == [math.inf]
    assert len(plain(store, floats, where={"v": math.nan})) == 1


def test_rows_can_be_chosen_by_values_and_cut_short(backend: Backend) -> None:
    store, typed = backend.open(), spec(TYPES, ("id",))
    store.prepare(typed, "log-1")
    apply(store, typed, *(upsert(**row) for row in ROWS))

    def ids(where: dict[str, object] | None, limit: int | None = None) -> list[int]:
        return [row["id"] for row in plain(store, typed, where=where, limit=limit)]

    assert ids({"at": FULL["at"], "flag": True}) == [2**63 - 1]
    assert ids({"text": None}) == [1]
    assert ids({"money": FULL["money"], "raw": FULL["raw"], "day": FULL["day"], ODD: ""}) == [2, 2**63 - 1]
    assert ids({"text": "' OR 1=1 --"}) == []
    assert ids(None, limit=2) == [1, 2]
    assert ids(None, limit=0) == []
    with pytest.raises(BadSchema, match="tex"):
        ids({"tex": "a"})
    for other in ("many", 1.5):
        with pytest.raises(BadOption, match="id"):
            ids({"id": other})


def test_a_chunk_that_was_applied_is_refused_a_second_time(store: Store) -> None:
    apply(store, spec(), upsert(k="a", n=1, v=1))
    with pytest.raises(Contended, match="at offset 1, not at 0"):
        apply(store, spec(), upsert(k="a", n=1, v=2))
    with pytest.raises(Contended):
        apply(store, spec(), upsert(k="a", n=1, v=2), at=2)
    assert plain(store, spec()) == [{"k": "a", "n": 1, "v": 1}]


def test_two_stores_on_one_place_cannot_apply_the_same(backend: Backend, store: Store) -> None:
    other = backend.open()
    assert other.prepare(spec(), "log-1") == Progress(0)
    apply(store, spec(), upsert(k="a", n=1, v=1))
    with pytest.raises(Contended):
        apply(other, spec(), upsert(k="a", n=1, v=2))
    apply(other, spec(), upsert(k="a", n=1, v=3), at=1)
    assert plain(store, spec()) == [{"k": "a", "n": 1, "v": 3}]


def test_a_copy_survives_closing(backend: Backend, store: Store) -> None:
    apply(store, spec(), upsert(k="a", n=1, v=1, batch=4))
    store.close()
    again = backend.open()
    assert again.prepare(spec(), "log-1") == Progress(1, 4)
    assert plain(again, spec()) == [{"k": "a", "n": 1, "v": 1}]


@pytest.mark.parametrize(
    ("changed", "changelog_id"),
    [
        (spec(), "log-2"),
        (spec("k STRING, n BIGINT, v DOUBLE"), "log-1"),
        (spec("k STRING, n BIGINT, v BIGINT, w BIGINT"), "log-1"),
        (spec(key=("k",)), "log-1"),
    ],
    ids=["another changelog", "another type", "another column", "another key"],
)
def test_a_copy_of_something_else_begins_anew(
    backend: Backend, store: Store, changed: TableSpec, changelog_id: str
) -> None:
    apply(store, spec(), upsert(k="a", n=1, v=1))
    newer = backend.open()
    assert newer.prepare(changed, changelog_id) == Progress(0)
    assert plain(newer, changed) == []
    with pytest.raises(Fenced, match="begun anew"):
        apply(store, spec(), upsert(k="a", n=1, v=1), at=1)
    with pytest.raises(Fenced):
        apply(store, spec(), upsert(k="a", n=1, v=1))
    apply(newer, changed, upsert(k="b", n=1, v=1))
    assert [row["k"] for row in plain(newer, changed)] == ["b"]


def test_a_table_that_somebody_dropped_is_filled_again(backend: Backend, store: Store) -> None:
    apply(store, spec(), upsert(k="a", n=1, v=1))
    backend.query("DROP VIEW counts")
    backend.query("DROP TABLE counts__rows")
    assert backend.open().prepare(spec(), "log-1") == Progress(0)


@pytest.mark.parametrize("name", ["counts", "counts__rows"])
def test_somebody_elses_table_is_left_alone(backend: Backend, name: str) -> None:
    backend.query(f"CREATE TABLE {name} (precious INTEGER)")
    with pytest.raises(BadOption, match=f'"{name}" that is not Penstock'):
        backend.open().prepare(spec(), "log-1")
    assert backend.query(f"SELECT precious FROM {name}") == []


def test_a_dropped_copy_is_gone_and_can_be_made_again(store: Store) -> None:
    apply(store, spec(), upsert(k="a", n=1, v=1))
    store.drop("counts")
    store.drop("counts")
    assert store.progress("counts") is None
    with pytest.raises(BadOption, match="no view"):
        store.rows(spec())
    assert store.prepare(spec(), "log-1") == Progress(0)


def test_reading_with_other_columns_is_refused(store: Store) -> None:
    with pytest.raises(BadOption, match="other columns"):
        store.rows(spec("k STRING", ("k",)))


def test_views_do_not_touch_each_other(backend: Backend, store: Store) -> None:
    other = TableSpec("a.b-c", spec().columns, ("k", "n"))
    store.prepare(other, "log-9")
    apply(store, other, upsert(k="x", n=1, v=1))
    assert plain(store, spec()) == []
    store.drop("counts")
    assert len(plain(store, other)) == 1
    assert backend.query('SELECT k FROM "a.b-c"') == [("x",)]


def test_an_apply_that_fails_in_the_middle_changes_nothing(backend: Backend) -> None:
    failing = False

    def watch(step: str) -> None:
        if failing and step == "noted":
            raise RuntimeError("in the middle")

    store = backend.open(watch=watch)
    store.prepare(spec(), "log-1")
    apply(store, spec(), upsert(k="a", n=1, v=1))
    failing = True
    with pytest.raises(RuntimeError):
        apply(store, spec(), delete(k="a", n=1), upsert(k="b", n=1, v=1), at=1)
    assert plain(store, spec()) == [{"k": "a", "n": 1, "v": 1}]
    failing = False
    apply(store, spec(), upsert(k="c", n=1, v=1), at=1)
    assert [row["k"] for row in plain(store, spec())] == ["a", "c"]


def test_a_large_changelog_ends_in_the_rows_of_its_fold(log: ps.Log, backend: Backend) -> None:
    from penstock.follow import fold

    topic, of = changelog(log, "big", "k STRING, n BIGINT, v BIGINT", ("k", "n"))
    make = [upsert, upsert, delete]
    topic.append(
        [
            make[at % 3](k=None if at % 7 == 0 else f"k{at % 501}", n=at % 11 or None, v=at, batch=at)
            for at in range(20_000)
        ]
    )
    store = backend.open()
    follower = Follower(topic, store, of, chunk_records=3_000)
    assert follower.step(timeout_s=0) == 20_000
    expected = fold(topic.read(), of.key)
    found, progress = store.rows(of)
    assert progress == Progress(20_000, 19_999)
    order = [("v", "ascending")]
    assert found.sort_by(order).equals(expected.sort_by(order).cast(found.schema))
    assert spec_of(topic.schema.arrow, of.key, name="big") == of
