"""Copies of tables whose deletes compaction has taken: right, whatever a follower has missed."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.app.feeds import compact
from tests.follow.backends import Backend, plain
from tests.follow.sinks import KEYS, open_sink, place
from tests.servers import Redis

import penstock as ps
from penstock.app.table import AppTable
from penstock.clock import ManualClock
from penstock.errors import StorageError
from penstock.follow import Follower, Progress, Sink, TableSpec, spec_of
from penstock.follow.sqlite import SQLiteStore

HOUR_S = 3_600


def users_of(app: ps.App, **options: Any) -> tuple[AppTable, TableSpec]:
    """Deletes are kept for an hour."""
    kept = {"history": 0, "tombstone_ms": HOUR_S * 1_000, "durability": "os", **options}
    users = app.table("users", "id BIGINT, name STRING", key="id", **kept)
    users.upsert([{"id": 1, "name": "Ann"}, {"id": 2, "name": "Bob"}])
    return users, spec_of(users.settings.schema.arrow, ("id",), name="users")


def to_the_end(users: AppTable, spec: TableSpec, sink: Sink) -> None:
    Follower(users, sink, spec, kind="table").step(timeout_s=0)


def test_a_copy_that_was_away_for_longer_than_deletes_are_kept_has_no_row_that_is_gone(
    app: ps.App, clock: ManualClock, backend: Backend
) -> None:
    users, spec = users_of(app)
    store = backend.open()
    to_the_end(users, spec, store)
    users.delete({"id": 1})
    for _ in range(2):
        clock.advance(2 * HOUR_S)
        compact(app, users)
    users.upsert({"id": 3, "name": "Cem"})
    to_the_end(users, spec, store)
    assert plain(store, spec) == [{"id": 2, "name": "Bob"}, {"id": 3, "name": "Cem"}]


@pytest.mark.parametrize("kind", ["redis", "search", "delta"])
def test_other_copies_neither(
    app: ps.App, clock: ManualClock, tmp_path: Path, redis: Redis, kind: str
) -> None:
    users, spec = users_of(app)
    kept = place(kind, tmp_path / "kept", redis.url)
    sink = open_sink(kind, kept.address)
    to_the_end(users, spec, sink)
    users.delete({"id": 1})
    for _ in range(2):
        clock.advance(2 * HOUR_S)
        compact(app, users)
    to_the_end(users, spec, sink)
    assert kept.rows("users") == {"2": {"id": 2, "name": "Bob"}}
    assert KEYS["users"] == spec.key
    sink.close()
    kept.close()


def test_a_copy_that_was_away_for_less_is_not_made_anew(
    app: ps.App, clock: ManualClock, tmp_path: Path
) -> None:
    users, spec = users_of(app)
    store = Counting(tmp_path / "copy.db")
    to_the_end(users, spec, store)
    for name in ("Anna", "Anne"):
        clock.advance(HOUR_S // 4)
        users.upsert({"id": 1, "name": name})
    clock.advance(HOUR_S // 4)
    compact(app, users)  # "Anna" is missing
    to_the_end(users, spec, store)
    assert plain(store, spec)[0]["name"] == "Anne"
    assert store.begun == 1


def test_who_follows_all_the_time_misses_nothing(app: ps.App, clock: ManualClock, tmp_path: Path) -> None:
    """However long nothing was written, and however much is missing from before it began."""
    users, spec = users_of(app)
    for number in range(20):
        users.upsert({"id": number % 3, "name": str(number)})
    users.delete({"id": 2})
    for _ in range(2):
        clock.advance(2 * HOUR_S)
        compact(app, users)
    store = Counting(tmp_path / "copy.db")
    follower = Follower(users, store, spec, kind="table", chunk_records=1)
    for number in range(4):
        while follower.step(timeout_s=0):
            pass
        clock.advance(24 * HOUR_S)
        follower.step(timeout_s=0)
        users.upsert([{"id": 1, "name": "a"}])
        users.upsert([{"id": 1, "name": f"b{number}"}])
        clock.advance(120)
        compact(app, users)
    follower.step(timeout_s=0)
    assert sorted(map(str, plain(store, spec))) == sorted(map(str, users.current()))
    assert store.begun == 1


def test_whatever_happens_meanwhile_a_copy_is_the_table(
    app: ps.App, clock: ManualClock, tmp_path: Path
) -> None:
    chance = random.Random(5)
    users, spec = users_of(app, partitions=2)
    store = SQLiteStore(tmp_path / "copy.db")
    follower = Follower(users, store, spec, kind="table", chunk_records=3)
    for number in range(150):
        for _ in range(chance.randrange(5)):
            key = chance.randrange(6)
            if chance.random() < 0.5:
                users.delete({"id": key})
            else:
                users.upsert({"id": key, "name": str(number)})
        clock.advance(chance.choice([1, 600, 2 * HOUR_S]))
        if chance.random() < 0.5:
            compact(app, users)
        if chance.random() < 0.3:
            follower = Follower(users, store, spec, kind="table", chunk_records=chance.choice([1, 2, 100]))
        if chance.random() < 0.5:
            follower.step(timeout_s=0)
            rows = sorted(plain(store, spec), key=lambda row: int(row["id"]))
            assert rows == sorted(users.current(), key=lambda row: int(row["id"]))
    store.close()


def test_a_first_copy_that_was_cut_off_for_that_long_has_no_row_that_is_gone(
    app: ps.App, clock: ManualClock, tmp_path: Path
) -> None:
    users, spec = users_of(app)
    users.delete({"id": 1})
    users.upsert({"id": 3, "name": "Cem"})
    store = Failing(tmp_path / "copy.db")
    follower = Follower(users, store, spec, kind="table", chunk_records=1)
    with pytest.raises(StorageError):
        follower.step(timeout_s=0)
    for _ in range(2):
        clock.advance(2 * HOUR_S)
        compact(app, users)
    follower.step(timeout_s=0)
    assert plain(store, spec) == [{"id": 2, "name": "Bob"}, {"id": 3, "name": "Cem"}]


def test_one_that_was_cut_off_for_less_goes_on(app: ps.App, clock: ManualClock, tmp_path: Path) -> None:
    """However old what is missing: the next error would begin it anew again."""
    users, spec = users_of(app)
    for name in ("Anna", "Anne"):
        users.upsert({"id": 1, "name": name})
    users.upsert({"id": 3, "name": "Cem"})
    clock.advance(24 * HOUR_S)
    compact(app, users)
    store = Failing(tmp_path / "copy.db")
    follower = Follower(users, store, spec, kind="table", chunk_records=1)
    with pytest.raises(StorageError):
        follower.step(timeout_s=0)
    clock.advance(HOUR_S // 4)
    follower.step(timeout_s=0)
    assert sorted(row["name"] for row in plain(store, spec)) == ["Anne", "Bob", "Cem"]
    assert store.begun == 1


class Counting(SQLiteStore):
    """Counts how often a copy was begun."""

    begun = 0

    def prepare(self, spec: TableSpec, changelog_id: str) -> Progress:
        progress = super().prepare(spec, changelog_id)
        self.begun += progress.offsets == (0,)
        return progress


class Failing(Counting):
    """Cannot be reached the second time that something is applied."""

    applied = 0

    def apply(
        self, spec: TableSpec, changes: pa.Table, *, from_offset: int, next_offset: int, partition: int = 0
    ) -> None:
        self.applied += 1
        if self.applied == 2:
            raise StorageError("it is down.")
        super().apply(spec, changes, from_offset=from_offset, next_offset=next_offset, partition=partition)
