"""Records in Parquet files: each once, whatever was killed when."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest
from tests.follow import dying_archive
from tests.follow.backends import changelog, delete, record, upsert

import penstock as ps
from penstock.errors import Contended, StorageError
from penstock.follow import Follower, TableSpec, spec_of
from penstock.follow.parquet import ParquetSink

CHUNK, RECORDS = 4, 12


@pytest.fixture
def orders(log: ps.Log) -> ps.Topic:
    return log.create_topic("orders", "id BIGINT, tags ARRAY<STRING>")


def spec(topic: ps.Topic) -> TableSpec:
    return spec_of(topic.schema.arrow, topic.settings.key, name=topic.name)


def fill(topic: ps.Topic, count: int) -> None:
    topic.append([{"id": number, "tags": ["a", None]} for number in range(count)])


def archived(folder: Path, topic: ps.Topic) -> pa.Table:
    """Every record in the files of a topic, as a reader who knows nothing of us finds them."""
    files = sorted((folder / topic.name / topic.settings.id).glob("*.parquet"))
    tables = [pyarrow.parquet.read_table(file) for file in files]
    return pa.concat_tables(tables) if tables else topic.settings.read_schema.empty_table()


def follow(topic: ps.Topic, folder: Path, *, records: int | None = None) -> int:
    sink = ParquetSink(folder)
    try:
        return Follower(topic, sink, spec(topic), kind="stream", chunk_records=records).step(timeout_s=0)
    finally:
        sink.close()


def test_the_archive_is_every_record_with_all_its_columns(orders: ps.Topic, tmp_path: Path) -> None:
    fill(orders, 5)
    assert follow(orders, tmp_path) == 5
    fill(orders, 3)
    assert follow(orders, tmp_path) == 3
    assert follow(orders, tmp_path) == 0
    found = archived(tmp_path, orders)
    assert found.to_pylist() == pa.Table.from_batches(orders.read()).to_pylist()
    assert found.schema.names == ["_partition", "_offset", "_timestamp", "id", "tags"]


def test_the_changelog_of_a_view_is_archived_as_it_is(log: ps.Log, tmp_path: Path) -> None:
    topic, counts = changelog(log, "counts", "k STRING, v BIGINT", ("k",))
    topic.append([upsert(k="a", v=1), record("w", batch=1), delete(k="a", batch=2)])
    sink = ParquetSink(tmp_path)
    Follower(topic, sink, counts).step(timeout_s=0)
    sink.close()
    assert archived(tmp_path, topic)["_op"].to_pylist() == ["u", "w", "d"]


def test_several_partitions_have_files_of_their_own(tmp_path: Path, log: ps.Log) -> None:
    topic = log.create_topic("wide", "id BIGINT", key="id", partitions=3)
    topic.append([{"id": number} for number in range(20)])
    follow(topic, tmp_path, records=4)
    topic.append([{"id": number} for number in range(20, 30)])
    follow(topic, tmp_path)
    assert sorted(archived(tmp_path, topic)["id"].to_pylist()) == list(range(30))


def test_another_topic_of_the_name_does_not_mix_with_the_first(log: ps.Log, tmp_path: Path) -> None:
    first = log.create_topic("orders", "id BIGINT")
    first.append({"id": 1})
    follow(first, tmp_path)
    log.delete_topic("orders")
    second = log.create_topic("orders", "id BIGINT")
    second.append({"id": 2})
    follow(second, tmp_path)
    assert archived(tmp_path, second)["id"].to_pylist() == [2]
    assert len(list((tmp_path / "orders").rglob("*.parquet"))) == 2


def test_one_follower_at_a_time_writes_an_archive(orders: ps.Topic, tmp_path: Path) -> None:
    fill(orders, 1)
    sink = ParquetSink(tmp_path)
    sink.prepare(spec(orders), orders.settings.id)
    with pytest.raises(Contended, match="held by"):
        follow(orders, tmp_path)
    sink.close()
    assert follow(orders, tmp_path) == 1


def test_a_missing_file_is_an_error_and_not_a_silent_gap(orders: ps.Topic, tmp_path: Path) -> None:
    fill(orders, RECORDS)
    follow(orders, tmp_path, records=CHUNK)
    second = sorted((tmp_path / "orders").rglob("*.parquet"))[1]
    second.unlink()
    with pytest.raises(StorageError, match="offsets 4 to 7"):
        follow(orders, tmp_path)


@pytest.mark.parametrize("step", ["begun", "written", "synced", "committed"])
def test_a_killed_follower_leaves_whole_files_up_to_an_offset(
    orders: ps.Topic, home: Path, tmp_path: Path, step: str
) -> None:
    fill(orders, RECORDS)
    child = subprocess.run(
        [sys.executable, dying_archive.__file__, str(tmp_path), str(home), step, "2"],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert child.returncode == -signal.SIGKILL, child.stderr
    done = CHUNK * (2 if step == "committed" else 1)
    assert archived(tmp_path, orders)["_offset"].to_pylist() == list(range(done))
    assert follow(orders, tmp_path) == RECORDS - done
    assert archived(tmp_path, orders)["_offset"].to_pylist() == list(range(RECORDS))
    assert list((tmp_path / "orders").rglob("*.unfinished")) == []
