"""What happens to sealed segments: nothing a reader would notice, until their time is over."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock as ps
from penstock.clock import ManualClock
from penstock.log import maintenance
from penstock.log.embedded import EmbeddedLog
from penstock.log.log import Log
from penstock.log.maintenance import Done

DAY_S = 86_400.0


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def port(home: Path, clock: ManualClock) -> Iterator[EmbeddedLog]:
    opened = EmbeddedLog(home, clock=clock)
    yield opened
    opened.close()


@pytest.fixture
def log(port: EmbeddedLog) -> ps.Log:
    return Log(port)


def seal(port: EmbeddedLog, topic: str) -> None:
    part = port.partition(topic, 0)
    with part.locked() as head:
        part.roll(head, port.settings(topic))


def maintain(port: EmbeddedLog, topic: str, **options: bool) -> Done:
    return maintenance.run(port.partition(topic, 0), port.settings(topic), port.groups_store(), **options)


def records(topic: ps.Topic) -> list[tuple[int, Any, Any]]:
    return [(e.offset, e.time_us, e.value) for e in topic.events()]


def files(port: EmbeddedLog, topic: str) -> list[str]:
    return [entry.file for entry in port.partition(topic, 0).manifest().segments]


def fill(topic: ps.Topic, clock: ManualClock, count: int) -> None:
    for n in range(count):
        clock.advance(1)
        topic.append({"id": n % 7, "text": f"value {n}"})


# ---- merging ------------------------------------------------------------------------------------


def test_merging_small_batches_keeps_offsets_times_and_values(
    log: ps.Log, port: EmbeddedLog, clock: ManualClock
) -> None:
    topic = log.create_topic("t", "id BIGINT, text STRING", key="id")
    fill(topic, clock, 50)
    seal(port, "t")
    fill(topic, clock, 5)
    before = records(topic)
    assert port.partition("t", 0).manifest().sealed[0].frames == 50

    assert maintain(port, "t").merged_segments == 1

    merged = port.partition("t", 0).manifest().sealed[0]
    assert (merged.frames, merged.rows, merged.generation) == (1, 50, 1)
    assert records(topic) == before
    assert [e.offset for e in topic.events(start=23, end=27, partition=0)] == [23, 24, 25, 26]
    assert maintain(port, "t").merged_segments == 0


def test_reading_by_time_finds_the_same_record_after_merging(
    log: ps.Log, port: EmbeddedLog, clock: ManualClock
) -> None:
    topic = log.create_topic("t", "id BIGINT, text STRING", key="id")
    fill(topic, clock, 30)
    moments = {e.offset: e.timestamp for e in topic.events()}
    seal(port, "t")
    maintain(port, "t")
    for offset, moment in moments.items():
        assert topic.offset_of(0, moment) == offset
        assert topic.offset_of(0, moment - timedelta(microseconds=1)) == offset


def test_a_sealed_segment_is_merged_by_itself_when_the_next_one_begins(
    log: ps.Log, port: EmbeddedLog
) -> None:
    topic = log.create_topic("t", "id BIGINT, text STRING", segment_bytes=20_000)
    for n in range(100):
        topic.append({"id": n, "text": "x" * 100})
    sealed = port.partition("t", 0).manifest().sealed
    assert len(sealed) > 1
    assert all(entry.rewritten for entry in sealed)
    assert [row["id"] for row in topic.rows()] == list(range(100))


# ---- compacting -----------------------------------------------------------------------------------


def compacted(log: ps.Log, **options: Any) -> ps.Topic:
    return log.create_topic("c", "id BIGINT NOT NULL, text STRING", key="id", cleanup="compact", **options)


def test_compaction_keeps_the_latest_of_every_key_at_its_offset(
    log: ps.Log, port: EmbeddedLog, clock: ManualClock
) -> None:
    topic = compacted(log)
    fill(topic, clock, 50)
    latest = {e["id"]: (e.offset, e.time_us, e.value) for e in topic.events()}
    seal(port, "c")
    assert maintain(port, "c", force=True).compacted_records == 43
    assert sorted(records(topic)) == sorted(latest.values())
    assert topic.bounds() == {0: (0, 50)}
    assert topic.append({"id": 1, "text": "next"}).offset == 50


def test_a_read_may_start_inside_a_gap_that_compaction_left(
    log: ps.Log, port: EmbeddedLog, clock: ManualClock
) -> None:
    topic = compacted(log)
    fill(topic, clock, 50)
    seal(port, "c")
    maintain(port, "c", force=True)
    for start in range(51):
        assert [e.offset for e in topic.events(start=start)] == [n for n in range(43, 50) if n >= start]


def test_latest_is_the_same_before_and_after_compaction(
    log: ps.Log, port: EmbeddedLog, clock: ManualClock
) -> None:
    topic = compacted(log)
    fill(topic, clock, 40)
    topic.delete({"id": 3}, {"id": 5})
    topic.append({"id": 5, "text": "back again"})
    before = topic.latest()
    assert 3 not in before
    assert before[5] == {"id": 5, "text": "back again"}
    seal(port, "c")
    maintain(port, "c", force=True)
    assert topic.latest() == before
    maintain(port, "c", force=True)
    assert topic.latest() == before


def test_a_delete_stays_for_a_while_and_then_goes(log: ps.Log, port: EmbeddedLog, clock: ManualClock) -> None:
    topic = compacted(log, tombstone_ms=int(DAY_S * 1_000))
    topic.append([{"id": 1, "text": "a"}, {"id": 2, "text": "b"}])
    topic.delete({"id": 1})
    seal(port, "c")
    maintain(port, "c", force=True)
    assert [(e["id"], e.deleted) for e in topic.events()] == [(2, False), (1, True)]
    clock.advance(DAY_S + 1)
    maintain(port, "c", force=True)
    assert [(e["id"], e.deleted) for e in topic.events()] == [(2, False)]
    assert topic.latest() == {2: {"id": 2, "text": "b"}}


def test_a_topic_whose_every_key_was_deleted_compacts_to_nothing(
    log: ps.Log, port: EmbeddedLog, clock: ManualClock
) -> None:
    topic = compacted(log, tombstone_ms=0)
    topic.append([{"id": 1, "text": "a"}, {"id": 2, "text": "b"}])
    topic.delete({"id": 1}, {"id": 2})
    seal(port, "c")
    clock.advance(1)
    for _ in range(2):  # what the deletes hide, and then they
        maintain(port, "c", force=True)
    assert records(topic) == []
    assert topic.latest() == {}
    assert topic.offset_of(0, datetime(2000, 1, 1, tzinfo=UTC)) == 4
    assert topic.append({"id": 1, "text": "again"}).offset == 4


def test_a_reader_in_the_middle_goes_on_while_files_are_replaced(
    log: ps.Log, port: EmbeddedLog, clock: ManualClock
) -> None:
    topic = log.create_topic("t", "id BIGINT, text STRING", segment_bytes=1 << 20)
    for _ in range(3):
        fill(topic, clock, 10)
        seal(port, "t")
    reading = topic.events()
    first = [next(reading).offset for _ in range(5)]
    maintain(port, "t")
    assert first + [e.offset for e in reading] == list(range(30))


def test_a_reader_in_the_middle_is_told_of_a_delete_whose_time_is_over(
    log: ps.Log, port: EmbeddedLog, clock: ManualClock
) -> None:
    topic = compacted(log, tombstone_ms=1_000)
    topic.append([{"id": 1, "text": "a"}, {"id": 2, "text": "b"}])
    seal(port, "c")
    topic.delete({"id": 1})
    seal(port, "c")
    clock.advance(DAY_S)
    reading = topic.events()
    read = [next(reading), next(reading)]
    maintain(port, "c", force=True)
    assert [(e["id"], e.deleted) for e in [*read, *reading]] == [(1, False), (2, False), (1, True)]


# ---- retention --------------------------------------------------------------------------------------


def test_retention_by_age_removes_whole_segments_whose_time_is_over(
    log: ps.Log, port: EmbeddedLog, clock: ManualClock
) -> None:
    topic = log.create_topic("t", "id BIGINT, text STRING", retention="7 days")
    fill(topic, clock, 10)
    seal(port, "t")
    clock.advance(6 * DAY_S)
    fill(topic, clock, 10)
    assert maintain(port, "t").expired_segments == 0
    clock.advance(2 * DAY_S)
    done = maintain(port, "t")
    assert (done.expired_segments, done.expired_records) == (1, 10)
    assert topic.bounds() == {0: (10, 20)}


def test_a_quiet_topic_expires_too(log: ps.Log, port: EmbeddedLog, clock: ManualClock) -> None:
    topic = log.create_topic("t", "id BIGINT, text STRING", retention="7 days")
    fill(topic, clock, 10)
    clock.advance(8 * DAY_S)
    assert maintain(port, "t").expired_records == 10
    assert topic.bounds() == {0: (10, 10)}
    assert topic.append({"id": 1, "text": "on"}).offset == 10


def test_retention_seals_a_slow_topic_in_time(log: ps.Log, port: EmbeddedLog, clock: ManualClock) -> None:
    topic = log.create_topic("t", "id BIGINT, text STRING", retention="4 days")
    for _ in range(12):
        clock.advance(DAY_S)
        topic.append({"id": 1, "text": "daily"})
    start, end = topic.bounds()[0]
    assert end == 12
    assert start >= 5


def test_retention_by_size_keeps_the_newest(log: ps.Log, port: EmbeddedLog) -> None:
    topic = log.create_topic("t", "id BIGINT, text STRING", segment_bytes=10_000, retention_bytes=30_000)
    for n in range(400):
        topic.append({"id": n, "text": "x" * 100})
    start, end = topic.bounds()[0]
    assert end == 400
    assert 0 < start < 400
    assert [row["id"] for row in topic.rows()] == list(range(start, 400))


def test_retention_does_not_take_what_somebody_still_needs(
    log: ps.Log, port: EmbeddedLog, clock: ManualClock
) -> None:
    topic = log.create_topic("t", "id BIGINT, text STRING", retention="1 day")
    for _ in range(3):
        fill(topic, clock, 10)
        seal(port, "t")
    port.groups_store().hold("view/daily", "t", {0: 15}, reason="as of last week")
    clock.advance(3 * DAY_S)
    done = maintain(port, "t")
    assert done.expired_records == 10
    assert done.held_by == ("view/daily (as of last week)",)
    assert topic.bounds()[0][0] == 10
    port.groups_store().let_go("view/daily")
    assert maintain(port, "t").expired_records == 20


# ---- archive ------------------------------------------------------------------------------------------


def test_archived_records_are_read_at_the_same_offsets_and_times(
    log: ps.Log, port: EmbeddedLog, clock: ManualClock
) -> None:
    topic = log.create_topic("t", "id BIGINT, text STRING", key="id")
    fill(topic, clock, 30)
    seal(port, "t")
    fill(topic, clock, 10)
    before = records(topic)
    moments = {e.offset: e.timestamp for e in topic.events()}

    assert maintain(port, "t", archive_now=True).archived_segments == 1

    assert files(port, "t")[0].endswith(".parquet")
    assert records(topic) == before
    assert [e.offset for e in topic.events(start=7, end=33, partition=0)] == list(range(7, 33))
    for offset, moment in moments.items():
        assert topic.offset_of(0, moment) == offset


def test_what_retention_would_remove_is_archived_where_the_topic_asks_for_it(
    log: ps.Log, port: EmbeddedLog, clock: ManualClock
) -> None:
    topic = log.create_topic("t", "id BIGINT, text STRING", retention="1 day", archive=True)
    fill(topic, clock, 10)
    clock.advance(2 * DAY_S)
    done = maintain(port, "t")
    assert (done.archived_segments, done.expired_segments) == (1, 0)
    assert topic.bounds() == {0: (0, 10)}
    assert len(records(topic)) == 10


def test_retention_takes_archives_too_where_the_topic_does_not_keep_them(
    log: ps.Log, port: EmbeddedLog, clock: ManualClock
) -> None:
    topic = log.create_topic("t", "id BIGINT, text STRING", retention="1 day")
    fill(topic, clock, 10)
    seal(port, "t")
    maintain(port, "t", archive_now=True)
    fill(topic, clock, 10)
    seal(port, "t")
    fill(topic, clock, 5)
    clock.advance(2 * DAY_S)
    assert maintain(port, "t").expired_records == 25
    assert records(topic) == []
    assert topic.bounds() == {0: (25, 25)}


def test_archived_records_take_the_shape_of_a_newer_schema(
    log: ps.Log, port: EmbeddedLog, clock: ManualClock
) -> None:
    topic = log.create_topic("t", "id INT, text STRING")
    fill(topic, clock, 5)
    seal(port, "t")
    maintain(port, "t", archive_now=True)
    log.alter_topic("t", schema="id BIGINT, text STRING, more DOUBLE")
    topic.append({"id": 2**40, "text": "new", "more": 1.5})
    assert [row["more"] for row in topic.rows()] == [None] * 5 + [1.5]
    assert pa.Table.from_batches(topic.read()).schema.field("id").type == pa.int64()


def test_other_tools_open_segments_and_archives(log: ps.Log, port: EmbeddedLog, clock: ManualClock) -> None:
    topic = log.create_topic("t", "id BIGINT, text STRING")
    fill(topic, clock, 20)
    folder = port.partition("t", 0).folder
    opened = pa.ipc.open_stream(folder / files(port, "t")[0]).read_all()
    assert opened.column("text").to_pylist() == [f"value {n}" for n in range(20)]
    with duckdb.connect() as database:
        summed = database.execute("SELECT sum(id) FROM opened").fetchall()
    assert summed == [(sum(n % 7 for n in range(20)),)]
    assert opened.to_pandas()["id"].sum() == sum(n % 7 for n in range(20))
    seal(port, "t")
    maintain(port, "t", archive_now=True)
    archived = folder / files(port, "t")[0]
    assert pq.read_table(archived).column("_offset").to_pylist() == list(range(20))
    with duckdb.connect() as database:
        found = database.execute(
            "SELECT count(*), max(_offset) FROM read_parquet(?)", [str(archived)]
        ).fetchall()
    assert found == [(20, 19)]


# ---- several of these together ------------------------------------------------------------------------


def test_a_reader_in_the_middle_of_what_is_compacted_goes_on_with_what_is_left(
    log: ps.Log, port: EmbeddedLog, clock: ManualClock
) -> None:
    topic = compacted(log)
    for _ in range(3):
        fill(topic, clock, 10)
        seal(port, "c")
    reading = topic.events()
    first = [next(reading).offset for _ in range(3)]
    maintain(port, "c", force=True)
    rest = [e.offset for e in reading]
    assert first == [0, 1, 2]
    assert rest == sorted(rest)
    assert set(rest) >= {e.offset for e in topic.events()}, "at least the latest of every key"


def test_a_reader_in_the_middle_of_what_is_archived_goes_on(
    log: ps.Log, port: EmbeddedLog, clock: ManualClock
) -> None:
    topic = log.create_topic("t", "id BIGINT, text STRING")
    for _ in range(3):
        fill(topic, clock, 10)
        seal(port, "t")
    reading = topic.events()
    first = [next(reading).offset for _ in range(5)]
    assert maintain(port, "t", archive_now=True).archived_segments == 3
    assert first + [e.offset for e in reading] == list(range(30))


def test_a_reader_that_retention_overtakes_is_told_so(
    log: ps.Log, port: EmbeddedLog, clock: ManualClock
) -> None:
    topic = log.create_topic("t", "id BIGINT, text STRING", retention="1 day")
    for _ in range(3):
        fill(topic, clock, 10)
        seal(port, "t")
    reading = topic.read()
    next(reading)
    clock.advance(2 * DAY_S)
    fill(topic, clock, 1)
    assert maintain(port, "t").expired_segments == 3
    with pytest.raises(ps.OffsetOutOfRange) as caught:
        while True:
            next(reading)
    assert caught.value.start == 30


def test_only_what_really_holds_records_back_is_named(
    log: ps.Log, port: EmbeddedLog, clock: ManualClock
) -> None:
    topic = log.create_topic("t", "id BIGINT, text STRING", retention="1 day")
    for _ in range(3):
        fill(topic, clock, 10)
        seal(port, "t")
    groups = port.groups_store()
    groups.hold("first", "t", {0: 10}, reason="a view")
    groups.hold("second", "t", {0: 29}, reason="a join")
    groups.hold("ahead", "t", {0: 30}, reason="at the end")
    clock.advance(3 * DAY_S)
    assert maintain(port, "t").held_by == ("first (a view)", "second (a join)")
    assert topic.bounds()[0][0] == 10
    groups.let_go("first")
    assert maintain(port, "t").held_by == ("second (a join)",)
    groups.let_go("second")
    done = maintain(port, "t")
    assert (done.held_by, topic.bounds()[0]) == ((), (30, 30))


def test_retention_by_size_does_not_take_what_somebody_still_needs(log: ps.Log, port: EmbeddedLog) -> None:
    topic = log.create_topic("t", "id BIGINT, text STRING", segment_bytes=5_000, retention_bytes=10_000)
    port.groups_store().hold("view", "t", {0: 60}, reason="reads slowly")
    for n in range(200):
        topic.append({"id": n, "text": "x" * 100})
    start, _ = topic.bounds()[0]
    assert 0 < start <= 60
    assert maintain(port, "t").held_by == ("view (reads slowly)",)
    assert [row["id"] for row in topic.rows()] == list(range(start, 200))


def test_a_delete_in_front_of_an_archive_stays_whatever_its_age(
    log: ps.Log, port: EmbeddedLog, clock: ManualClock
) -> None:
    """The archive is not rewritten, so the delete is all that hides the record in it."""
    topic = compacted(log, tombstone_ms=0)
    topic.append([{"id": 1, "text": "a"}, {"id": 2, "text": "b"}])
    seal(port, "c")
    maintain(port, "c", archive_now=True)
    topic.delete({"id": 1})
    seal(port, "c")
    clock.advance(DAY_S)
    maintain(port, "c", force=True)
    assert topic.latest() == {2: {"id": 2, "text": "b"}}


def test_merging_brings_old_records_into_the_newer_schema(
    log: ps.Log, port: EmbeddedLog, clock: ManualClock
) -> None:
    topic = log.create_topic("t", "id INT, text STRING")
    fill(topic, clock, 10)
    log.alter_topic("t", schema="id BIGINT, text STRING, more DOUBLE")
    topic.append({"id": 2**40, "text": "new", "more": 0.5})
    before = records(topic)
    maintain(port, "t")
    assert port.partition("t", 0).manifest().sealed[0].frames == 1
    assert [value["id"] for _, _, value in before] == [0, 1, 2, 3, 4, 5, 6, 0, 1, 2, 2**40]
    log.alter_topic("t", schema="id BIGINT, text STRING, more DOUBLE, last STRING")
    assert [(offset, time) for offset, time, _ in records(topic)] == [(o, t) for o, t, _ in before]
    assert {value["last"] for _, _, value in records(topic)} == {None}


def test_a_topic_that_becomes_compacted_compacts_what_it_held_before(
    log: ps.Log, port: EmbeddedLog, clock: ManualClock
) -> None:
    topic = log.create_topic("t", "id BIGINT NOT NULL, text STRING", key="id")
    fill(topic, clock, 20)
    seal(port, "t")
    maintain(port, "t")
    before = topic.latest()
    log.alter_topic("t", cleanup="compact")
    topic.delete({"id": 0})
    seal(port, "t")
    maintain(port, "t", force=True)
    del before[0]
    assert topic.latest() == before
    assert [e.offset for e in topic.events()] == [13, 15, 16, 17, 18, 19, 20]


def test_only_one_process_maintains_a_partition_at_a_time(log: ps.Log, port: EmbeddedLog, home: Path) -> None:
    log.create_topic("t", "id BIGINT")
    other = EmbeddedLog(home)
    with other.partition("t", 0).maintaining() as mine:
        assert mine
        assert maintain(port, "t").busy
    assert not maintain(port, "t").busy
    other.close()
