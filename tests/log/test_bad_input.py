"""Bad input is a typed error that says what to do, and loses nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import penstock as ps
from penstock.log.disk import RealLock
from penstock.log.embedded import EmbeddedLog
from penstock.log.log import Log

NOW = datetime(2026, 11, 15, 10, tzinfo=UTC)
GOOD = {"id": 1, "name": "ann", "at": NOW}


@pytest.fixture
def topic(log: ps.Log) -> ps.Topic:
    made = log.create_topic(
        "people",
        "id BIGINT NOT NULL, name STRING, at TIMESTAMP",
        key="id",
        partitions=2,
        record_bytes_max=1_000,
    )
    made.append(GOOD)
    return made


def stored(topic: ps.Topic) -> list[Any]:
    return sorted(row["id"] for row in topic.rows())


def test_an_unknown_topic_says_which_one_was_meant(log: ps.Log, topic: ps.Topic) -> None:
    with pytest.raises(ps.UnknownTopic, match='did you mean "people"') as raised:
        log.topic("poeple")
    assert raised.value.did_you_mean == "people"


def test_an_unknown_topic_unlike_any_other_says_how_to_create_it(log: ps.Log) -> None:
    with pytest.raises(ps.UnknownTopic, match="penstock topic create orders"):
        log.topic("orders")


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../up", "a b", "é", "a\0b", "a\nb", "x" * 250, "a*"])
def test_a_name_that_cannot_be_a_folder_is_refused(log: ps.Log, name: str) -> None:
    for use in (log.create_topic, log.topic, log.producer, log.delete_topic):
        with pytest.raises((ps.BadName, ps.UnknownTopic)):
            use(name)
    assert log.topics() == []


@pytest.mark.parametrize("name", [None, 5, b"bytes"])
def test_what_is_no_text_is_no_name(log: ps.Log, name: Any) -> None:
    for use in (log.create_topic, log.topic, log.producer, log.delete_topic):
        with pytest.raises(ps.BadName):
            use(name)


def test_the_longest_name_is_fine(log: ps.Log) -> None:
    assert log.create_topic("x" * 249).append({"key": b"k", "value": b"v"}).offset == 0


def test_a_topic_is_not_created_twice(log: ps.Log, topic: ps.Topic) -> None:
    with pytest.raises(ps.TopicExists, match="topic alter people"):
        log.create_topic("people", "other INT")
    assert stored(topic) == [1]


@pytest.mark.parametrize(
    ("record", "column"),
    [
        ({**GOOD, "id": "7"}, "id"),
        ({**GOOD, "id": 1.5}, "id"),
        ({**GOOD, "id": True}, "id"),
        ({**GOOD, "id": 2**63}, "id"),
        ({**GOOD, "id": None}, "id"),
        ({"name": "no id"}, "id"),
        ({**GOOD, "name": 7}, "name"),
        ({**GOOD, "name": b"bytes"}, "name"),
        ({**GOOD, "at": "2026-11-15"}, "at"),
        ({**GOOD, "nmae": "x"}, "nmae"),
    ],
)
def test_one_bad_record_stores_nothing_of_its_append(topic: ps.Topic, record: Any, column: str) -> None:
    with pytest.raises(ps.BadRecord) as raised:
        topic.append([{**GOOD, "id": 2}, {**GOOD, "id": 3}, record])
    assert (raised.value.row, raised.value.column) == (2, column)
    assert raised.value.hint
    assert stored(topic) == [1]


@pytest.mark.parametrize("record", ["text", b"bytes", 7, None, [7], [None], object()])
def test_what_is_no_record_is_refused(topic: ps.Topic, record: Any) -> None:
    with pytest.raises(ps.BadRecord):
        topic.append(record)
    assert stored(topic) == [1]


@pytest.mark.parametrize(
    "table",
    [
        pa.table({"id": ["a"], "name": ["b"]}),
        pa.table({"name": ["b"]}),
        pa.table({"id": [1], "name": ["b"], "extra": [1]}),
        pa.table({"id": pa.array([None], pa.int64())}),
        pa.table({"id": [1.5]}),
    ],
)
def test_arrow_data_that_does_not_fit_is_refused(topic: ps.Topic, table: Any) -> None:
    with pytest.raises(ps.BadInput):
        topic.append(table)
    assert stored(topic) == [1]


def test_a_record_over_the_size_limit_is_refused_with_both_sizes(topic: ps.Topic) -> None:
    with pytest.raises(ps.RecordTooLarge, match="max-record-bytes") as raised:
        topic.append([{**GOOD, "id": 2}, {**GOOD, "name": "x" * 2_000}])
    assert raised.value.row == 1
    assert raised.value.size_bytes > raised.value.size_bytes_max == 1_000
    assert stored(topic) == [1]


@pytest.mark.parametrize("partition", [-1, 2, 99])
def test_a_partition_that_is_not_there_is_refused(topic: ps.Topic, partition: int) -> None:
    with pytest.raises(ps.BadOption, match="choose 0 to 1"):
        topic.append(GOOD, partition=partition)


@pytest.mark.parametrize("offset", [-1, 2, 1_000])
def test_an_offset_out_of_range_says_what_there_is(log: ps.Log, offset: int) -> None:
    topic = log.create_topic("one")
    topic.append({"key": b"k", "value": b"v"})
    with pytest.raises(ps.OffsetOutOfRange) as raised:
        list(log.port.read("one", 0, offset))
    assert (raised.value.start, raised.value.end, raised.value.offset) == (0, 1, offset)


@pytest.mark.parametrize("offset", [-1, 2, 1_000])
def test_reading_a_topic_from_an_offset_out_of_range_is_refused_too(log: ps.Log, offset: int) -> None:
    topic = log.create_topic("one")
    topic.append({"key": b"k", "value": b"v"})
    for read in (topic.read, topic.events, topic.rows):
        with pytest.raises(ps.OffsetOutOfRange):
            list(read(partition=0, start=offset))
    assert list(topic.rows(partition=0, start=1)) == []


@pytest.mark.parametrize("partition", [-1, 2, 99])
def test_reading_a_partition_that_is_not_there_is_refused(topic: ps.Topic, partition: int) -> None:
    with pytest.raises(ps.BadOption, match="choose 0 to 1"):
        list(topic.read(partition=partition))


def test_a_place_to_start_that_makes_no_sense_is_refused(topic: ps.Topic) -> None:
    with pytest.raises(ps.BadOption) as raised:
        list(topic.read(start="yesterday"))
    assert "earliest" in raised.value.hint


@pytest.mark.parametrize("at", [0, 69_999, 65_536])
def test_a_bad_record_far_into_a_large_append_is_named_by_its_own_number(topic: ps.Topic, at: int) -> None:
    """Large appends are encoded in pieces."""
    for bad, error in (({"id": "x"}, ps.BadRecord), ({"id": 1, "name": "x" * 2_000}, ps.RecordTooLarge)):
        records: list[Any] = [{"id": number} for number in range(70_000)]
        records[at] = bad
        with pytest.raises(error) as raised:
            topic.append(records)
        assert raised.value.row == at
    assert stored(topic) == [1]


OPTIONS: list[Callable[[ps.Log], Any]] = [
    lambda log: log.create_topic("a", "id INT", key="nope"),
    lambda log: log.create_topic("a", "id DOUBLE", key="id"),
    lambda log: log.create_topic("a", "id INT", event_time="id"),
    lambda log: log.create_topic("a", "id INT", cleanup="compact"),
    lambda log: log.create_topic("a", "id INT", cleanup="sometimes"),  # type: ignore[arg-type]
    lambda log: log.create_topic("a", "id INT", durability="maybe"),  # type: ignore[arg-type]
    lambda log: log.create_topic("a", "id INT", partitions=0),
    lambda log: log.create_topic("a", "id INT", partitions=1_000_000),
    lambda log: log.create_topic("a", "id INT", retention="soon"),
    lambda log: log.create_topic("a", "id INT", retention=-1),
    lambda log: log.create_topic("a", "id INT", segment_byte=5),
    lambda log: log.create_topic("a", "id INT", segment_bytes="64 MB"),
    lambda log: log.create_topic("a", "id INT", retention_bytes="1 GB"),  # type: ignore[arg-type]
    lambda log: log.create_topic("a", "id INT", record_bytes_max=1.5),
    lambda log: log.create_topic("a", "id INT", partitions="4"),  # type: ignore[arg-type]
    lambda log: log.create_topic("a", "id INT", retention=float("nan")),
    lambda log: log.create_topic("a", "id INT", retention=float("inf")),
    lambda log: log.create_topic("a", "id INT", retention=[1]),  # type: ignore[arg-type]
    lambda log: log.create_topic("a", "id WHOLE"),
    lambda log: log.create_topic("a", "id INT, id INT"),
    lambda log: log.create_topic("a", "_offset INT"),
    lambda log: log.create_topic("a", ""),
    lambda log: log.create_topic("a", int),
]


@pytest.mark.parametrize("use", OPTIONS)
def test_a_declaration_that_cannot_be_is_refused(log: ps.Log, use: Callable[[ps.Log], Any]) -> None:
    with pytest.raises(ps.BadInput) as raised:
        use(log)
    assert str(raised.value)
    assert log.topics() == []


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"schema": "id BIGINT NOT NULL, name STRING"}, "at"),
        ({"schema": "id INT NOT NULL, name STRING, at TIMESTAMP"}, "id"),
        ({"schema": "id BIGINT NOT NULL, name STRING, at TIMESTAMP, more INT NOT NULL"}, "more"),
        ({"partitions": 1}, "cannot become 1"),
        ({"key": ("name",)}, "key cannot change"),
        ({"colour": "red"}, "colour"),
    ],
)
def test_an_alteration_that_would_lose_something_is_refused(
    log: ps.Log, topic: ps.Topic, change: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ps.BadInput, match=reason):
        log.alter_topic("people", **change)
    assert topic.settings.version == 1
    assert stored(topic) == [1]


@pytest.mark.parametrize("option", [{"delivery": "perhaps"}, {"on_lost": "shrug"}, {"lease": "0 seconds"}])
def test_a_consumer_option_that_does_not_exist_is_refused(topic: ps.Topic, option: Any) -> None:
    with pytest.raises(ps.BadOption):
        topic.consume(group="g", **option)


@pytest.mark.parametrize("position", ["7", 7])
def test_a_position_that_is_no_bytes_is_refused(log: ps.Log, topic: ps.Topic, position: Any) -> None:
    with pytest.raises(ps.BadOption, match="encode"):
        log.producer("p").append({topic: [GOOD]}, position=position)
    assert stored(topic) == [1]


@pytest.mark.parametrize("option", [{"overflow": "burst"}, {"batch_rows": 0}, {"linger": "a while"}])
def test_a_producer_option_that_does_not_exist_is_refused(topic: ps.Topic, option: Any) -> None:
    with pytest.raises(ps.BadOption):
        topic.producer(**option)


def test_a_lock_that_is_not_free_in_time_names_its_holder(topic: ps.Topic, home: Path) -> None:
    holder = RealLock(home / "topics/people/0/lock", "the lock")
    holder.acquire(1.0)
    try:
        with Log(EmbeddedLog(home)) as other:
            part = other.port.partition("people", 0)  # type: ignore[attr-defined]
            part._lock_timeout_s = 0.05
            with pytest.raises(ps.LockTimeout, match=f"process {os.getpid()}"):
                other.topic("people").append(GOOD, partition=0)
    finally:
        holder.release()
        holder.close()
    assert stored(topic) == [1]


def test_an_append_over_partitions_of_which_one_is_locked_tells_what_it_stored(
    topic: ps.Topic, home: Path
) -> None:
    holder = RealLock(home / "topics/people/1/lock", "the lock")
    holder.acquire(1.0)
    try:
        with Log(EmbeddedLog(home)) as other:
            other.port.partition("people", 1)._lock_timeout_s = 0.05  # type: ignore[attr-defined]
            with pytest.raises(ps.LockTimeout, match="was stored in partition 0") as raised:
                other.topic("people").append([{"id": number} for number in range(10, 20)])
            before = {event.offset for event in topic.events(partition=0)}
            assert set(raised.value.stored_ranges) == {0}
            stored_before = set(range(*raised.value.stored_ranges[0]))
            assert stored_before <= before, "and that is acknowledged, not half there"
    finally:
        holder.release()
        holder.close()


def test_an_append_in_several_pieces_tells_what_it_stored_before_the_disk_was_full(
    topic: ps.Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    pieces: list[int] = []
    append = EmbeddedLog.append

    def filling(self: EmbeddedLog, wanted: Any, parts: Any) -> Any:
        pieces.append(1)
        if len(pieces) > 1:
            raise ps.DiskFull("the disk")
        return append(self, wanted, parts)

    monkeypatch.setattr(EmbeddedLog, "append", filling)
    piece = pa.record_batch({"id": range(100, 150)})
    with pytest.raises(ps.DiskFull, match="Before that, a part") as raised:
        topic.append(pa.Table.from_batches([piece, piece]))
    assert sum(end - first for first, end in raised.value.stored_ranges.values()) == 50
    assert len(stored(topic)) == 51


def test_a_home_of_a_newer_format_is_left_alone(home: Path) -> None:
    ps.open_log(home).close()
    (home / "log.json").write_text(json.dumps({"format": 99}))
    with pytest.raises(ps.NotSupported, match="format 99"):
        ps.open_log(home)


def test_a_home_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(ps.StorageError):
        ps.open_log(tmp_path / "file")


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become somebody who may not write")
def test_a_home_that_may_not_be_written_is_refused(tmp_path: Path) -> None:
    code = (
        "import os, sys, penstock as ps; ps.open_log, ps.StorageError; os.setuid(65534)\n"
        "try: ps.open_log(sys.argv[1])\n"
        "except ps.StorageError as error: print(error)"
    )
    tmp_path.chmod(0o755)
    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path / "home"], capture_output=True, text=True, check=False
    )
    assert "Permission denied" in done.stdout, done.stderr
    assert "PENSTOCK_HOME" in done.stdout
