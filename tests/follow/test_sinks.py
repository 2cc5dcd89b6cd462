"""Sinks that hold rows by key and are no stores, each by the same contract: they hold what the log says."""

from __future__ import annotations

import itertools
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from tests.follow import dying_sink
from tests.follow.backends import changelog, delete, record, upsert
from tests.follow.sinks import STEPS, Keyed, Rows, open_sink, place
from tests.follow.test_follower import running
from tests.servers import Redis
from tests.waiting import wait_until

import penstock as ps
from penstock.errors import Contended
from penstock.follow import Follower, Progress, Sink, TableSpec, fold, spec_of
from penstock.follow.documents import key_texts, plain_rows

ROOT = Path(__file__).parents[2]
KINDS = ["redis", "search", "delta"]
RACES = [("redis", "begun"), ("redis", "queued"), ("delta", "begun"), ("delta", "merging")]
CHUNK, RECORDS = 4, 12


@pytest.fixture(params=KINDS)
def kept(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Keyed]:
    server: Redis | None = request.getfixturevalue("redis") if request.param == "redis" else None
    made = place(request.param, tmp_path / "kept", server.url if server else "")
    yield made
    made.close()


@pytest.fixture
def counted(log: ps.Log) -> tuple[ps.Topic, TableSpec]:
    return changelog(log, "counts", "k STRING, v BIGINT", ("k",))


def opened(kept: Keyed) -> Sink:
    return open_sink(kept.kind, kept.address)


def by_key(rows: pa.Table, key: tuple[str, ...]) -> Rows:
    tidy = [{n: v for n, v in row.items() if n != "_revision" or v} for row in plain_rows(rows)]
    return dict(zip(key_texts(rows, key), tidy, strict=True))


def folded(topic: ps.Topic, spec: TableSpec, end: int) -> Rows:
    return by_key(fold(topic.read(end=end), spec.key, columns=spec.columns), spec.key)


def test_what_is_there_is_the_fold_of_the_changelog(kept: Keyed, log: ps.Log) -> None:
    columns = "k STRING, n INT, v DOUBLE, at TIMESTAMP, tags ARRAY<STRING>, price DECIMAL(10,2), raw BINARY"
    topic, spec = changelog(log, "shop", columns, ("k", "n"))
    chance = random.Random(7)
    keys = list(itertools.product(["a", "b|c", "%N", "", "ü", None], [1, -2, None]))
    for number in range(4):
        records = [
            chance.choice([upsert, upsert, delete])(
                k=k, n=n, v=chance.random(), at=datetime(2026, 11, 16, number, tzinfo=UTC), tags=["x", "y"],
                price=None, raw=b"\xff", batch=number, revision=chance.randrange(2),
            )
            for k, n in chance.choices(keys, k=40)
        ]  # fmt: skip
        topic.append([*records, record("w", batch=number)])
        sink = opened(kept)
        Follower(topic, sink, spec, chunk_records=25).step(timeout_s=0)
        sink.close()
        rows = kept.rows("shop")
        assert len(rows) > 5
        assert rows == folded(topic, spec, 41 * (number + 1))


def test_records_that_change_nothing_are_passed_over(
    kept: Keyed, counted: tuple[ps.Topic, TableSpec]
) -> None:
    topic, spec = counted
    sink = opened(kept)
    follower = Follower(topic, sink, spec, look_s=0)
    topic.append([upsert(k="a", v=1)])
    for number in range(4):
        topic.append([record("w", batch=number) if number % 2 else delete(k="never there")])
        assert follower.step(timeout_s=0) == (2 if number == 0 else 1)
        assert follower.step(timeout_s=0) == 0
        assert follower.step(timeout_s=0) == 0  # it has looked whether the copy is still there
    topic.append([upsert(k="a", v=2)])
    assert follower.step(timeout_s=0) == 1
    assert kept.rows("counts") == {"a": {"k": "a", "v": 2}}


def test_a_table_of_one_row(kept: Keyed, log: ps.Log) -> None:
    topic, spec = changelog(log, "total", "v BIGINT", ())
    follower = Follower(topic, opened(kept), spec)
    topic.append([upsert(v=1), upsert(v=2)])
    follower.step(timeout_s=0)
    assert kept.rows("total") == {"": {"v": 2}}
    topic.append([delete()])
    follower.step(timeout_s=0)
    assert kept.rows("total") == {}


def test_a_sink_added_later_catches_up(kept: Keyed, counted: tuple[ps.Topic, TableSpec]) -> None:
    topic, spec = counted
    topic.append([upsert(k=str(n % 5), v=n) for n in range(20)])
    late = opened(kept)
    assert Follower(topic, late, spec).lag() == 20
    assert Follower(topic, late, spec).step(timeout_s=0) == 20
    assert kept.rows("counts") == {str(n % 5): {"k": str(n % 5), "v": n} for n in range(15, 20)}
    late.close()
    assert Follower(topic, opened(kept), spec).step(timeout_s=0) == 0


def test_a_second_follower_and_an_old_one_apply_nothing(
    kept: Keyed, counted: tuple[ps.Topic, TableSpec]
) -> None:
    topic, spec = counted
    sink = opened(kept)
    old = sink.prepare(spec, topic.settings.id)
    topic.append([upsert(k="a", v=1)])
    Follower(topic, sink, spec).step(timeout_s=0)
    topic.append([upsert(k="a", v=2)])
    Follower(topic, sink, spec).step(timeout_s=0)
    again = pa.Table.from_batches(topic.read(end=1))
    with pytest.raises(Contended):
        sink.apply(spec, again, from_offset=old.next_offset, next_offset=1)
    assert kept.rows("counts") == {"a": {"k": "a", "v": 2}}


@pytest.mark.parametrize(("kept", "step"), RACES, indirect=["kept"])
def test_of_two_commits_at_once_the_second_is_refused(
    kept: Keyed, counted: tuple[ps.Topic, TableSpec], step: str
) -> None:
    topic, spec = counted
    topic.append([upsert(k="a", v=1), upsert(k="b", v=2)])
    other = opened(kept)

    def overtaken(reached: str) -> None:
        if reached == step:
            Follower(topic, other, spec, chunk_records=1).step(timeout_s=0)
            topic.append([upsert(k="a", v=3)])
            Follower(topic, other, spec).step(timeout_s=0)

    slow = Follower(topic, open_sink(kept.kind, kept.address, watch=overtaken), spec)
    with pytest.raises(Contended):
        slow.step(timeout_s=0)
    assert kept.rows("counts") == {"a": {"k": "a", "v": 3}, "b": {"k": "b", "v": 2}}
    assert Follower(topic, other, spec).step(timeout_s=0) == 0


def test_two_followers_that_run_together_end_with_every_row(
    kept: Keyed, counted: tuple[ps.Topic, TableSpec]
) -> None:
    topic, spec = counted
    sinks = [opened(kept), opened(kept)]
    with (
        running(Follower(topic, sinks[0], spec)) as first,
        running(Follower(topic, sinks[1], spec)) as second,
    ):
        for number in range(10):
            topic.append([upsert(k=str(number % 7), v=number)])
        done = folded(topic, spec, 10)
        wait_until(lambda: kept.rows("counts") == done, what="every row")
        assert (first(), second()) == (None, None)
    for sink in sinks:
        sink.close()


def test_another_changelog_or_other_columns_begin_anew(kept: Keyed, log: ps.Log) -> None:
    topic, spec = changelog(log, "counts", "k STRING, v BIGINT", ("k",))
    topic.append([upsert(k="old", v=1), upsert(k="older", v=1)])
    sink = opened(kept)
    Follower(topic, sink, spec).step(timeout_s=0)
    log.delete_topic("counts")
    again, _ = changelog(log, "counts", "k STRING, v BIGINT", ("k",))
    again.append([upsert(k="new", v=1)])
    Follower(again, sink, spec).step(timeout_s=0)
    assert kept.rows("counts") == {"new": {"k": "new", "v": 1}}
    wider = TableSpec("counts", pa.schema([*spec.columns, pa.field("w", pa.string())]), ("k",))
    assert sink.prepare(wider, again.settings.id) == Progress(0)
    assert kept.rows("counts") == {}


def test_a_copy_that_is_dropped_is_made_again(kept: Keyed, counted: tuple[ps.Topic, TableSpec]) -> None:
    topic, spec = counted
    topic.append([upsert(k="a", v=1)])
    sink = opened(kept)
    follower = Follower(topic, sink, spec, look_s=0)
    follower.step(timeout_s=0)
    sink.drop("counts")
    assert kept.rows("counts") == {}
    wait_until(lambda: follower.step(timeout_s=0) == 1, what="the copy to be made again")
    assert kept.rows("counts") == {"a": {"k": "a", "v": 1}}


def test_a_table_of_several_partitions_has_an_offset_for_each(kept: Keyed, tmp_path: Path) -> None:
    app = ps.App("shop", home=tmp_path / "home")
    users = app.table("users", "id BIGINT, name STRING", key="id", partitions=3)
    users.upsert([{"id": n, "name": f"u{n}"} for n in range(30)])
    spec = spec_of(users.settings.schema.arrow, users.settings.key, name="users")
    sink = opened(kept)
    assert Follower(users, sink, spec, kind="table", chunk_records=4).step(timeout_s=0) == 30
    users.delete(*({"id": n} for n in range(0, 30, 2)))
    users.upsert({"id": 1, "name": "first"})
    follower = Follower(users, sink, spec, kind="table")
    assert follower.step(timeout_s=0) == 16
    assert follower.lag() == 0
    assert kept.rows("users") == {str(row["id"]): dict(row) for row in users.current()}
    assert len(kept.rows("users")) == 15
    progress = sink.progress("users")
    assert progress is not None
    assert progress.offsets == tuple(end for _, end in users.bounds().values())
    app.close()


@pytest.mark.parametrize(
    ("kept", "step"), [(kind, step) for kind in KINDS for step in STEPS[kind]], indirect=["kept"]
)
def test_a_killed_follower_leaves_the_changes_up_to_its_offset(
    kept: Keyed, log: ps.Log, home: Path, counted: tuple[ps.Topic, TableSpec], step: str
) -> None:
    topic, spec = counted
    keys, make = ["a", "b", None], [upsert, upsert, upsert, delete]
    topic.append([make[at % 4](k=keys[at % 3], v=at, batch=at) for at in range(RECORDS)])
    child = subprocess.run(
        [sys.executable, dying_sink.__file__, kept.kind, kept.address, str(home), step, "2"],
        capture_output=True, text=True, timeout=60, check=False, env={**os.environ, "PYTHONPATH": _paths()},
    )  # fmt: skip
    assert child.returncode == -signal.SIGKILL, child.stderr
    sink = opened(kept)
    done = sink.prepare(spec, topic.settings.id).next_offset
    assert done == CHUNK * (2 if step == "committed" else 1)
    assert kept.rows("counts") == folded(topic, spec, done)
    assert Follower(topic, sink, spec, chunk_records=CHUNK).step(timeout_s=0) == RECORDS - done
    assert kept.rows("counts") == folded(topic, spec, RECORDS)


def _paths() -> str:
    return os.pathsep.join([str(ROOT / "src"), str(ROOT)])
