"""Tables and streams into stores: an offset for each partition, and no key goes back."""

from __future__ import annotations

import random
from datetime import UTC, datetime
from pathlib import Path

from tests.follow.backends import Backend, plain

import penstock as ps
from penstock.follow import Follower, spec_of
from penstock.follow.feed import limits


def test_a_table_is_copied_with_its_deletes_from_every_partition(backend: Backend, home: Path) -> None:
    app = ps.App("shop", home=home)
    users = app.table("users", "id BIGINT, name STRING", key="id", partitions=3)
    spec = spec_of(users.settings.schema.arrow, ("id",), name="users")
    chance = random.Random(3)
    for number in range(4):
        users.upsert([{"id": chance.randrange(20), "name": f"{number}.{n}"} for n in range(10)])
        users.delete(*({"id": chance.randrange(20)} for _ in range(3)))
        store = backend.open()
        assert Follower(users, store, spec, kind="table", chunk_records=3).step(timeout_s=0) == 13
        rows = sorted(plain(store, spec), key=lambda row: int(row["id"]))
        assert rows == sorted(users.current(), key=lambda row: int(row["id"]))
    progress = backend.open().progress("users")
    assert progress is not None
    assert progress.offsets == tuple(end for _, end in users.bounds().values())
    store = backend.open()
    assert store.prepare(spec, "another").offsets == (0,)
    app.close()


def test_keys_that_move_when_partitions_are_added_do_not_go_back(backend: Backend, log: ps.Log) -> None:
    topic = log.create_topic("seen", "k STRING, v BIGINT", key="k", partitions=2)
    topic.append([{"k": str(n), "v": 1} for n in range(40)])
    log.alter_topic("seen", partitions=5)
    topic.append([{"k": str(n), "v": 2} for n in range(40)])
    log.alter_topic("seen", partitions=7)
    topic.append([{"k": str(n), "v": 3} for n in range(40)])
    spec = spec_of(topic.schema.arrow, ("k",), name="seen")
    store = backend.open()
    follower = Follower(topic, store, spec, kind="stream", chunk_records=7)
    values = []
    while follower.step(timeout_s=0):
        values.append({row["v"] for row in plain(store, spec)})
    assert values == [{1}, {2}, {3}]
    assert follower.lag() == 0


def test_what_was_there_before_partitions_were_added_comes_first(log: ps.Log) -> None:
    topic = log.create_topic("seen", "k STRING", key="k", partitions=1)
    topic.append([{"k": "a"}, {"k": "b"}])
    settings = log.alter_topic("seen", partitions=2).settings
    assert limits(settings, {0: 1, 1: 0}, {0: 5, 1: 3}) == {0: 2, 1: 0}
    assert limits(settings, {0: 2, 1: 0}, {0: 5, 1: 3}) == {0: 5, 1: 3}


def test_the_rows_of_a_stream_of_windows_are_final(backend: Backend, log: ps.Log) -> None:
    topic = log.create_topic("minutes", "k STRING, window_end TIMESTAMP", key="k")
    spec = spec_of(topic.schema.arrow, ("k",), name="minutes")
    topic.append({"k": "a", "window_end": datetime(2026, 11, 16, 12, tzinfo=UTC)})
    store = backend.open()
    Follower(topic, store, spec, kind="stream").step(timeout_s=0)
    assert [row["final"] for row in plain(store, spec)] == [True]


def test_a_stream_that_retention_has_cut_is_followed_from_where_it_begins(
    backend: Backend, home: Path
) -> None:
    from penstock.clock import ManualClock
    from penstock.log.embedded import EmbeddedLog
    from penstock.log.log import Log

    clock = ManualClock()
    port = EmbeddedLog(home, clock=clock)
    topic = Log(port).create_topic("seen", "k STRING", key="k", retention="1 day")
    topic.append([{"k": "old"}, {"k": "older"}])
    clock.advance(3 * 86_400)
    port.maintain("seen", 0)  # seals
    topic.append({"k": "new"})
    port.maintain("seen", 0)
    assert topic.bounds()[0] == (2, 3)
    spec = spec_of(topic.schema.arrow, ("k",), name="seen")
    store = backend.open()
    assert Follower(topic, store, spec, kind="stream").step(timeout_s=0) == 1
    assert plain(store, spec) == [{"k": "new"}]
    port.close()
