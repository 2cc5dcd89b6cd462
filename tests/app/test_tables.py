"""Tables of an app, without Spark: what is current, was valid then, and was known then."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import penstock as ps
from penstock.app.table import AppTable, declared_table
from penstock.clock import ManualClock
from penstock.flow import history
from penstock.flow.offset import Offset, Point
from penstock.log import maintenance, versions
from penstock.log.embedded import EmbeddedLog

START = datetime(2026, 11, 1, 10, tzinfo=UTC)
START_US = round(START.timestamp()) * 1_000_000
DAY_S = 86_400
SCHEMA = "id BIGINT, name STRING, at TIMESTAMP"
Record = tuple[int, int | None, bool]  # key, seconds after START, deleted

records = st.lists(
    st.tuples(st.integers(0, 3), st.none() | st.integers(0, 9), st.booleans()), min_size=1, max_size=25
)
many = settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def users(app: ps.App, name: str = "users", **options: Any) -> AppTable:
    return app.table(name, SCHEMA, key="id", event_time="at", partitions=2, durability="os", **options)


def at(seconds: int | None) -> datetime | None:
    return None if seconds is None else START + timedelta(seconds=seconds)


def write(table: AppTable, number: int, record: Record) -> ps.Position:
    key, seconds, deleted = record
    if deleted:
        return table.delete({"id": key, "at": at(seconds)})
    return table.upsert({"id": key, "name": f"n{number}", "at": at(seconds)})


def model(written: list[Record], moment: float | None, *, appended: list[float]) -> dict[int, str]:
    """Key by key, version after version; `appended`: when, in seconds after START."""
    versions: dict[int, list[tuple[float, int, str | None]]] = {}
    for number, (key, seconds, deleted) in enumerate(written):
        start = seconds if seconds is not None else appended[number] if deleted else -1e9
        versions.setdefault(key, []).append((start, number, None if deleted else f"n{number}"))
    found = {}
    for key, known in versions.items():
        valid = [version for version in known if moment is None or version[0] <= moment]
        name = max(valid)[2] if valid else None
        if name is not None:
            found[key] = name
    return found


def _compacted(port: EmbeddedLog, topic: str, number: int) -> int:
    partition, known = port.partition(topic, number), port.settings(topic)
    with partition.locked(known) as head:
        if head.frames:
            partition.roll(head, known)
    return maintenance.run(partition, known, port.groups_store(), force=True).compacted_records


def names(rows: Any) -> dict[int, str]:
    return {row["id"]: row["name"] for row in rows}


def test_rows_are_valid_from_their_time_until_the_next(app: ps.App) -> None:
    table = users(app)
    table.upsert({"id": 1, "name": "Ann", "at": at(0)})
    table.upsert({"id": 1, "name": "Anna", "at": at(20)})
    table.delete({"id": 1, "at": at(30)})
    assert names(table.as_of(START - timedelta(seconds=1))) == {}
    assert names(table.as_of(START + timedelta(seconds=19))) == {1: "Ann"}
    assert names(table.as_of(START + timedelta(seconds=20))) == {1: "Anna"}
    assert names(table.current()) == {}


def test_snapshot_rows_are_valid_from_the_beginning_of_time(app: ps.App) -> None:
    table = users(app)
    table.upsert({"id": 1, "name": "Ann", "at": at(0)})
    table.upsert([{"id": 1, "name": "old", "at": None}, {"id": 2, "name": "Bob", "at": None}])
    assert names(table.as_of(datetime(1980, 1, 1))) == {1: "old", 2: "Bob"}
    assert names(table.current()) == {1: "Ann", 2: "Bob"}


def test_without_event_times_rows_are_valid_from_when_they_were_appended(
    app: ps.App, clock: ManualClock
) -> None:
    table = app.table("prices", "item STRING, price BIGINT", key="item", durability="os")
    table.upsert({"item": "a", "price": 1})
    clock.advance(10)
    table.upsert({"item": "a", "price": 2})
    assert table.as_of(START + timedelta(seconds=9))[0]["price"] == 1
    assert table.as_of(START + timedelta(seconds=10))[0]["price"] == 2


@many
@given(written=records, moment=st.integers(-1, 30), cuts=st.sets(st.integers(1, 24)))
def test_a_table_is_what_its_versions_say(written: list[Record], moment: int, cuts: set[int]) -> None:
    known = declared_table("users", SCHEMA, key=["id"], event_time="at", history=0, options={})
    rows = [
        {
            "_partition": 0, "_offset": number, "_timestamp": at(number), "id": key,
            "name": None if deleted else f"n{number}", "at": at(seconds), "_deleted": deleted,
        }
        for number, (key, seconds, deleted) in enumerate(written)
    ]  # fmt: skip
    edges = [0, *sorted(cut for cut in cuts if cut < len(rows)), len(rows)]
    batches = [
        pa.RecordBatch.from_pylist(rows[begin:end], schema=known.read_schema)
        for begin, end in pairwise(edges)
    ]
    appended = [float(number) for number in range(len(rows))]
    at_us = START_US + moment * 1_000_000
    assert names(versions.fold(batches, known).to_pylist()) == model(written, None, appended=appended)
    assert names(versions.fold(batches, known, moment_us=at_us).to_pylist()) == model(
        written, moment, appended=appended
    )


@settings(many, max_examples=15)
@given(written=records, known=st.integers(0, 24))
def test_what_was_known_at_a_position(
    app: ps.App, clock: ManualClock, written: list[Record], known: int
) -> None:
    table = users(app, f"users{len(app.topics)}")
    positions, appended = [], []
    for number, record in enumerate(written):
        clock.advance(0.5)
        appended.append((clock.now_us() - START_US) / 1_000_000)
        positions.append(write(table, number, record))
    known = min(known, len(written) - 1)
    assert names(table.as_of(positions[known])) == model(written[: known + 1], None, appended=appended)


@settings(many, max_examples=25)
@given(before=records, after=records, moment=st.integers(0, 10))
def test_compaction_takes_only_what_was_replaced_longer_than_the_history(
    app: ps.App, clock: ManualClock, before: list[Record], after: list[Record], moment: int
) -> None:
    table = users(app, f"users{len(app.topics)}", history="1 day", tombstone_ms=30 * DAY_S * 1_000)
    for number, (key, seconds, deleted) in enumerate(before):
        write(table, number, (key, 0 if deleted and seconds is None else seconds, deleted))
    clock.advance(2 * DAY_S)
    for number, (key, seconds, deleted) in enumerate(after):
        write(table, len(before) + number, (key, None if seconds is None else seconds + 10, deleted))
    moments = [START + timedelta(seconds=9), START + timedelta(seconds=10 + moment)]
    seen = names(table.current()), *(names(table.as_of(moment)) for moment in moments)
    assert isinstance(app.log.port, EmbeddedLog)
    for partition in range(2):
        _compacted(app.log.port, table.name, partition)
    assert (names(table.current()), *(names(table.as_of(moment)) for moment in moments)) == seen


def test_a_version_that_is_announced_replaces_nothing_yet(app: ps.App, clock: ManualClock) -> None:
    table = app.table("users", SCHEMA, key="id", event_time="at", durability="os", history="1 day")
    table.upsert({"id": 1, "name": "Ann", "at": at(0)})
    table.upsert({"id": 1, "name": "Anna", "at": at(30 * DAY_S)})
    clock.advance(2 * DAY_S)
    assert isinstance(app.log.port, EmbeddedLog)
    assert _compacted(app.log.port, "users", 0) == 0
    assert names(table.as_of(START + timedelta(days=2))) == {1: "Ann"}
    clock.advance(30 * DAY_S)
    assert _compacted(app.log.port, "users", 0) == 1
    assert names(table.as_of(START + timedelta(days=31))) == {1: "Anna"}


def test_what_compaction_has_taken_is_known(app: ps.App, clock: ManualClock) -> None:
    table = app.table("users", SCHEMA, key="id", event_time="at", durability="os", history="1 day")
    for seconds in range(3):
        table.upsert({"id": 1, "name": "Ann", "at": at(seconds)})
    clock.advance(2 * DAY_S)
    read = [Offset(Point({"users": (0,)}), Point({"users": (3,)}), rows=3)]
    assert history.compacted(app.log, read) == ""
    assert isinstance(app.log.port, EmbeddedLog)
    assert _compacted(app.log.port, "users", 0) == 2
    assert history.compacted(app.log, read) == 'compaction has removed records of "users" that were read'


def test_a_table_without_a_key_is_refused(app: ps.App) -> None:
    with pytest.raises(ps.BadOption, match="no key"):
        app.table("users", SCHEMA)
    with pytest.raises(ps.BadSchema, match='"ide"'):
        app.table("users", SCHEMA, key="ide")
    with pytest.raises(ps.BadOption, match="always compacted"):
        app.table("users", SCHEMA, key="id", cleanup="delete")


def test_what_is_no_moment_is_refused(app: ps.App) -> None:
    table, other = users(app), users(app, "others")
    with pytest.raises(ps.BadOption, match="no time"):
        table.as_of("yesterday")  # type: ignore[arg-type]
    with pytest.raises(ps.BadOption, match='topic "others"'):
        table.as_of(other.upsert({"id": 1, "name": "a", "at": at(0)}))
