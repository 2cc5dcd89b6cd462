"""A changelog into a store, whatever happens on the way."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from psycopg.conninfo import conninfo_to_dict
from tests.follow.backends import SYSTEM_DDL, Backend, SQLiteBackend, changelog, delete, plain, upsert
from tests.servers import Postgres
from tests.waiting import wait_until

import penstock as ps
from penstock.clock import ManualClock
from penstock.errors import BadOption, BadRecord, Contended, RecordsLost, StorageError
from penstock.follow import Follower, Progress, Store, TableSpec, open_store, spec_of
from penstock.follow.postgres import PostgresStore
from penstock.follow.sqlite import SQLiteStore
from penstock.log.embedded import EmbeddedLog
from penstock.log.log import Log
from penstock.schema import RecordSchema


@pytest.fixture
def counted(log: ps.Log) -> tuple[ps.Topic, TableSpec]:
    return changelog(log, "counts", "k STRING, v BIGINT", ("k",))


@contextmanager
def running(follower: Follower) -> Iterator[Callable[[], BaseException | None]]:
    """Follows in a thread; gives what ended it, if anything did."""
    stop, ended = threading.Event(), list[BaseException]()

    def follow() -> None:
        try:
            follower.run(stop)
        except Exception as error:
            ended.append(error)

    thread = threading.Thread(target=follow)
    thread.start()
    try:
        yield lambda: ended[0] if ended else None
    finally:
        stop.set()
        thread.join(20)
    assert not thread.is_alive()


def keys(store: Store, spec: TableSpec) -> list[str]:
    return [row["k"] for row in plain(store, spec)]


def test_a_step_applies_what_there_is(backend: Backend, counted: tuple[ps.Topic, TableSpec]) -> None:
    topic, spec = counted
    store = backend.open()
    follower = Follower(topic, store, spec)
    assert follower.step(timeout_s=0) == 0
    topic.append([upsert(k="a", v=1), upsert(k="b", v=2)])
    assert follower.lag() == 2
    assert follower.step(timeout_s=0) == 2
    topic.append([delete(k="a")])
    assert follower.step(timeout_s=0) == 1
    assert keys(store, spec) == ["b"]
    assert follower.lag() == 0


def test_a_step_wakes_up_when_records_come(backend: Backend, counted: tuple[ps.Topic, TableSpec]) -> None:
    topic, spec = counted
    store = backend.open()
    follower = Follower(topic, store, spec)
    follower.step(timeout_s=0)
    later = threading.Timer(0.05, lambda: topic.append([upsert(k="a", v=1)]))
    later.start()
    assert follower.step(timeout_s=20) == 1
    later.join()


def test_lag_is_known_before_the_first_step(backend: Backend, counted: tuple[ps.Topic, TableSpec]) -> None:
    topic, spec = counted
    topic.append([upsert(k=str(n), v=n) for n in range(10)])
    store = backend.open()
    assert Follower(topic, store, spec).lag() == 10
    Follower(topic, store, spec).step(timeout_s=0)
    assert Follower(topic, store, spec).lag() == 0


def test_chunks_are_bounded_and_each_is_a_commit(
    backend: Backend, counted: tuple[ps.Topic, TableSpec]
) -> None:
    topic, spec = counted
    topic.append([upsert(k=str(n), v=n) for n in range(25)])
    topic.append([upsert(k=str(n), v=n) for n in range(3)])
    commits: list[Progress | None] = []
    store = backend.open(
        watch=lambda step: commits.append(look.progress("counts")) if step == "committed" else None
    )
    look = backend.open()
    assert Follower(topic, store, spec, chunk_records=10).step(timeout_s=0) == 28
    assert [commit.next_offset for commit in commits if commit] == [10, 20, 28]


def test_two_followers_of_one_store_apply_nothing_twice(
    backend: Backend, counted: tuple[ps.Topic, TableSpec]
) -> None:
    topic, spec = counted
    store, other = backend.open(), backend.open()
    first, second = Follower(topic, store, spec), Follower(topic, other, spec)
    first.step(timeout_s=0)
    second.step(timeout_s=0)
    topic.append([upsert(k="a", v=1)])
    assert first.step(timeout_s=0) == 1
    with pytest.raises(Contended):
        second.step(timeout_s=0)
    assert second.step(timeout_s=0) == 0
    topic.append([upsert(k="b", v=1)])
    assert second.step(timeout_s=0) == 1
    assert keys(store, spec) == ["a", "b"]


def test_two_followers_that_run_together_end_with_every_row(
    backend: Backend, counted: tuple[ps.Topic, TableSpec]
) -> None:
    topic, spec = counted
    store = backend.open()
    followers = [Follower(topic, backend.open(), spec), Follower(topic, backend.open(), spec)]
    with running(followers[0]) as first, running(followers[1]) as second:
        for number in range(20):
            topic.append([upsert(k=f"{number:02}", v=number)])
        wait_until(lambda: store.progress("counts") == Progress(20, 0), what="both to be done")
        assert (first(), second()) == (None, None)
    assert len(keys(store, spec)) == 20


def test_a_store_that_is_down_is_waited_for(backend: Backend, counted: tuple[ps.Topic, TableSpec]) -> None:
    topic, spec = counted
    store = backend.open()
    follower = Follower(topic, store, spec)
    topic.append([upsert(k="a", v=1)])
    with running(follower) as ended:
        wait_until(lambda: store.progress("counts") == Progress(1, 0), what="the first record")
        with backend.down():
            topic.append([upsert(k="b", v=1)])
            wait_until(lambda: follower.retries >= 2, timeout_s=60, what="two more tries")
            assert follower.last_error
        wait_until(lambda: store.progress("counts") == Progress(2, 0), what="the second record")
        wait_until(lambda: follower.last_error is None and follower.retries == 0, what="the all-clear")
        assert ended() is None
    assert keys(store, spec) == ["a", "b"]


def test_a_store_that_is_down_at_the_start_is_waited_for(
    backend: Backend, counted: tuple[ps.Topic, TableSpec]
) -> None:
    topic, spec = counted
    topic.append([upsert(k="a", v=1)])
    backend.open().prepare(spec, "another")
    store = backend.open()
    follower = Follower(topic, store, spec)
    with backend.down(), pytest.raises((StorageError, Contended)):
        follower.step(timeout_s=0)
    assert follower.step(timeout_s=0) == 1


def test_records_that_retention_took_are_an_error(backend: Backend, home: Path) -> None:
    clock = ManualClock()
    port = EmbeddedLog(home, clock=clock)
    topic = Log(port).create_topic("counts", f"k STRING, v BIGINT, {SYSTEM_DDL}", retention="1 day")
    spec = spec_of(topic.schema.arrow, ("k",), name="counts")
    topic.append([upsert(k="a", v=1)])
    store = backend.open()
    Follower(topic, store, spec).step(timeout_s=0)
    topic.append([upsert(k="b", v=1), upsert(k="c", v=1)])
    clock.advance(3 * 86_400)
    port.maintain("counts", 0)  # seals
    topic.append([upsert(k="d", v=1)])
    port.maintain("counts", 0)
    assert topic.bounds()[0] == (3, 4)
    lost = Follower(topic, store, spec)
    with running(lost) as ended:
        wait_until(lambda: isinstance(ended(), RecordsLost), what="the follower to give up")
    assert "rebuild the view" in str(lost.last_error)
    assert keys(store, spec) == ["a"]
    port.close()


def test_records_that_retention_took_before_the_first_could_be_applied_are_an_error(
    backend: Backend, home: Path
) -> None:
    clock = ManualClock()
    port = EmbeddedLog(home, clock=clock)
    topic = Log(port).create_topic("counts", "k STRING, v BIGINT", key="k", retention="1 day")
    spec = spec_of(topic.schema.arrow, ("k",), name="counts")
    topic.append([{"k": "a", "v": 1}, {"k": "b", "v": 1}])
    backend.open().prepare(spec, "another")
    store = backend.open()
    follower = Follower(topic, store, spec, kind="stream")
    with backend.down(), pytest.raises((StorageError, Contended)):
        follower.step(timeout_s=0)
    clock.advance(3 * 86_400)
    port.maintain("counts", 0)  # seals
    topic.append([{"k": "c", "v": 1}])
    port.maintain("counts", 0)
    assert topic.bounds()[0] == (2, 3)
    with pytest.raises(RecordsLost):
        follower.step(timeout_s=0)
    assert Follower(topic, store, spec, kind="stream").step(timeout_s=0) == 1  # one that comes later
    assert keys(store, spec) == ["c"]
    port.close()


def test_a_copy_that_is_dropped_under_a_follower_is_made_again(
    backend: Backend, counted: tuple[ps.Topic, TableSpec]
) -> None:
    topic, spec = counted
    topic.append([upsert(k="a", v=1)])
    store = backend.open()
    follower = Follower(topic, store, spec)
    with running(follower) as ended:
        wait_until(lambda: store.progress("counts") == Progress(1, 0), what="the first record")
        backend.open().drop("counts")
        topic.append([upsert(k="b", v=1)])
        wait_until(lambda: store.progress("counts") == Progress(2, 0), what="both records")
        assert ended() is None
    assert keys(store, spec) == ["a", "b"]


def test_a_sqlite_file_that_is_deleted_under_a_follower_is_made_again(
    tmp_path: Path, counted: tuple[ps.Topic, TableSpec]
) -> None:
    topic, spec = counted
    topic.append([upsert(k="a", v=1)])
    store = SQLiteStore(tmp_path / "views.db")
    with running(Follower(topic, store, spec)) as ended:
        wait_until(lambda: store.progress("counts") == Progress(1, 0), what="the first record")
        for file in tmp_path.glob("views.db*"):
            file.unlink()
        topic.append([upsert(k="b", v=1)])
        wait_until(lambda: store.progress("counts") == Progress(2, 0), what="both records")
        assert ended() is None
    assert keys(store, spec) == ["a", "b"]
    store.close()


def test_a_missing_driver_is_named_with_the_way_to_get_it() -> None:
    program = (
        "import sys; sys.modules['psycopg'] = None\n"
        "from penstock.follow import open_store\n"
        "try: open_store('postgresql://db/shop')\n"
        "except Exception as error: print(type(error).__name__, error)\n"
    )
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert said.startswith("NotSupported")
    assert 'pip install "penstock[postgres]"' in said


def test_a_changelog_made_again_is_copied_again(backend: Backend, log: ps.Log) -> None:
    topic, spec = changelog(log, "counts", "k STRING, v BIGINT", ("k",))
    topic.append([upsert(k="old", v=1), upsert(k="older", v=1)])
    store = backend.open()
    follower = Follower(topic, store, spec)
    follower.step(timeout_s=0)
    log.delete_topic("counts")
    again, _ = changelog(log, "counts", "k STRING, v BIGINT", ("k",))
    again.append([upsert(k="new", v=1), upsert(k="newer", v=1), upsert(k="newest", v=1)])
    wait_until(lambda: follower.step(timeout_s=0) == 3, what="the new records")
    assert keys(store, spec) == ["new", "newer", "newest"]


def test_a_changelog_has_one_partition(log: ps.Log, tmp_path: Path) -> None:
    topic = log.create_topic("wide", "k STRING", partitions=2)
    spec = TableSpec("wide", RecordSchema.of("k STRING").arrow, ("k",))
    with pytest.raises(BadOption, match="2 partitions"):
        Follower(topic, SQLiteStore(tmp_path / "views.db"), spec)


def test_text_that_postgres_cannot_hold_ends_the_follower_with_a_reason(
    backend: Backend, counted: tuple[ps.Topic, TableSpec]
) -> None:
    topic, spec = counted
    topic.append([upsert(k="a\0b", v=1)])
    store = backend.open()
    follower = Follower(topic, store, spec)
    if isinstance(backend, SQLiteBackend):
        follower.step(timeout_s=0)
        assert keys(store, spec) == ["a\0b"]
        return
    with running(follower) as ended:
        wait_until(lambda: isinstance(ended(), BadRecord), what="the follower to give up")
    assert "zero characters" in str(follower.last_error)


def test_long_names_are_refused_by_postgres(postgres: Postgres) -> None:
    store = PostgresStore(postgres.dsn)
    with pytest.raises(BadOption, match="at most 63"):
        store.prepare(TableSpec("v" * 58, RecordSchema.of("k STRING").arrow, ("k",)), "log-1")
    with pytest.raises(BadOption, match="64 bytes"):
        store.prepare(TableSpec("v", RecordSchema.of(f"{'k' * 64} STRING").arrow, ()), "log-1")
    store.close()


def test_views_whose_names_differ_in_case_are_refused_by_sqlite(tmp_path: Path) -> None:
    store = SQLiteStore(tmp_path / "views.db")
    columns = RecordSchema.of("k STRING").arrow
    store.prepare(TableSpec("Counts", columns, ("k",)), "log-1")
    with pytest.raises(BadOption, match="case does not count"):
        store.prepare(TableSpec("counts", columns, ("k",)), "log-2")
    store.close()


def test_a_damaged_sqlite_file_is_an_error_that_says_so(tmp_path: Path) -> None:
    path = tmp_path / "views.db"
    path.write_bytes(b"not a database" * 1_000)
    store = SQLiteStore(path)
    with pytest.raises(StorageError, match=r"views\.db"):
        store.progress("counts")


def test_times_in_sqlite_can_be_read_by_people(backend: Backend, log: ps.Log) -> None:
    from datetime import UTC, datetime

    topic, spec = changelog(log, "seen", "k STRING, at TIMESTAMP", ("k",))
    topic.append([upsert(k="a", at=datetime(2026, 11, 16, 10, tzinfo=UTC))])
    Follower(topic, backend.open(), spec).step(timeout_s=0)
    if isinstance(backend, SQLiteBackend):
        assert backend.query("SELECT at FROM seen") == [("2026-11-16 10:00:00.000000",)]
    else:
        assert backend.query("SELECT pg_typeof(at)::text FROM seen") == [("timestamp with time zone",)]


def test_a_store_is_opened_by_its_address(tmp_path: Path, postgres: Postgres) -> None:
    for address in (tmp_path / "a.db", str(tmp_path / "a.db"), f"sqlite:///{tmp_path}/a.db"):
        store = open_store(address)
        assert isinstance(store, SQLiteStore)
        assert store.progress("counts") is None
        store.close()
    assert (tmp_path / "a.db").exists()
    host = conninfo_to_dict(postgres.dsn)
    for scheme in ("postgres", "postgresql"):
        opened = open_store(f"{scheme}://postgres@127.0.0.1:{host['port']}/postgres")
        assert isinstance(opened, PostgresStore)
        assert opened.progress("counts") is None
        opened.close()
    for wrong in ("mysql://db/shop", "", "sqlite:///"):
        with pytest.raises(BadOption):
            open_store(wrong)
