"""The log against a plain in-memory model, under random interleavings of everything one can do to it."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

import penstock as ps
from penstock.clock import ManualClock
from penstock.log import keys, maintenance
from penstock.log.disk import RealDisk
from penstock.log.embedded import EmbeddedLog
from penstock.log.log import Log

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
DAY_S = 86_400.0
KEYS = st.integers(0, 6)
TEXTS = st.text("abc", max_size=4)
ROWS = st.lists(st.tuples(KEYS, TEXTS), min_size=1, max_size=6)


class RestartingDisk(RealDisk):
    """A real disk on a machine that can start anew: what was only in memory is gone then."""

    def __init__(self) -> None:
        self.boots = 0

    def boot_id(self) -> str:
        return f"boot {self.boots}"


@dataclass
class Record:
    offset: int
    time_us: int
    row: dict[str, Any]
    deleted: bool = False


@dataclass
class Partition:
    """A list of records; `sealed` is how many offsets can no longer grow."""

    records: list[Record] = field(default_factory=list)
    start: int = 0
    end: int = 0


@dataclass
class Model:
    compacted: bool
    partitions: list[Partition]
    columns: list[str]
    committed: dict[int, int] = field(default_factory=dict)

    def append(self, number: int, row: dict[str, Any], time_us: int, *, deleted: bool = False) -> None:
        partition = self.partitions[number]
        partition.records.append(Record(partition.end, time_us, row, deleted))
        partition.end += 1

    def shown(self, record: Record) -> tuple[int, int, dict[str, Any], bool]:
        return (
            record.offset,
            record.time_us,
            {name: record.row.get(name) for name in self.columns},
            record.deleted,
        )


class LogMachine(RuleBasedStateMachine):
    """Two topics: "events" keeps everything, "state" is compacted."""

    def __init__(self) -> None:
        super().__init__()
        self.home = Path(tempfile.mkdtemp(prefix="penstock-model-"))
        self.clock = ManualClock()
        self.disk = RestartingDisk()
        self.ports = [self.opened()]
        self.positions: dict[str, bytes | None] = {}

    def opened(self) -> EmbeddedLog:
        return EmbeddedLog(self.home, disk=self.disk, clock=self.clock)

    @initialize(partitions=st.integers(1, 3), small=st.booleans())
    def create(self, partitions: int, small: bool) -> None:
        log = Log(self.ports[0])
        options: dict[str, Any] = {"segment_bytes": 4_000} if small else {}
        log.create_topic("events", "id INT, text STRING", key="id", partitions=partitions, **options)
        log.create_topic(
            "state",
            "id INT NOT NULL, text STRING",
            key="id",
            partitions=partitions,
            cleanup="compact",
            tombstone_ms=10**12,  # when deletes go is tested with maintenance
            **options,
        )
        self.models = {
            "events": Model(False, [Partition() for _ in range(partitions)], ["id", "text"]),
            "state": Model(True, [Partition() for _ in range(partitions)], ["id", "text"]),
        }

    def topic(self, name: str, handle: int = 0) -> ps.Topic:
        return Log(self.ports[handle % len(self.ports)]).topic(name)

    def partition_of(self, name: str, key: int) -> int:
        count = len(self.models[name].partitions)
        return (keys.murmur2(str(key).encode()) & 0x7FFFFFFF) % count

    # ---- writing ----------------------------------------------------------------------------------

    @rule(name=st.sampled_from(["events", "state"]), rows=ROWS, handle=st.integers(0, 1), arrow=st.booleans())
    def append(self, name: str, rows: list[tuple[int, str]], handle: int, arrow: bool) -> None:
        self.clock.advance(0.5)
        dicts: list[dict[str, Any]] = [{"id": key, "text": text} for key, text in rows]
        topic = self.topic(name, handle)
        given = pa.Table.from_pylist(dicts, topic.settings.schema.arrow.remove_metadata()) if arrow else dicts
        topic.append(given)
        for row in dicts:
            self.models[name].append(self.partition_of(name, row["id"]), row, self.clock.now_us())

    @rule(rows=ROWS, pick=st.integers(0, 10))
    def append_to_a_partition(self, rows: list[tuple[int, str]], pick: int) -> None:
        self.clock.advance(0.5)
        number = pick % len(self.models["events"].partitions)
        self.topic("events").append([{"id": key, "text": text} for key, text in rows], partition=number)
        for key, text in rows:
            self.models["events"].append(number, {"id": key, "text": text}, self.clock.now_us())

    @rule(producer=st.sampled_from(["p", "q"]), rows=ROWS, more=ROWS, position=st.binary(max_size=4))
    def append_atomically(
        self, producer: str, rows: list[tuple[int, str]], more: list[tuple[int, str]], position: bytes
    ) -> None:
        self.clock.advance(0.5)
        made = Log(self.ports[-1]).producer(producer)
        assert made.position() == self.positions.get(producer)
        both = {"events": rows, "state": more}
        made.append(
            {name: [{"id": k, "text": t} for k, t in given] for name, given in both.items()},
            position=position,
        )
        self.positions[producer] = position
        for name, given in both.items():
            for key, text in given:
                row = {"id": key, "text": text}
                self.models[name].append(self.partition_of(name, key), row, self.clock.now_us())

    @rule(key=KEYS)
    def delete(self, key: int) -> None:
        self.clock.advance(0.5)
        self.topic("state").delete({"id": key})
        number = self.partition_of("state", key)
        self.models["state"].append(number, {"id": key}, self.clock.now_us(), deleted=True)

    # ---- keeping it in shape ------------------------------------------------------------------------

    @rule(name=st.sampled_from(["events", "state"]), pick=st.integers(0, 10))
    def seal(self, name: str, pick: int) -> None:
        part = self.ports[0].partition(name, pick % len(self.models[name].partitions))
        with part.locked() as head:
            part.roll(head, self.ports[0].settings(name))

    @rule(name=st.sampled_from(["events", "state"]), pick=st.integers(0, 10), archive=st.booleans())
    def maintain(self, name: str, pick: int, archive: bool) -> None:
        """Merge, compact or archive: nothing that changes what `latest` says."""
        number = pick % len(self.models[name].partitions)
        port = self.ports[0]
        part = port.partition(name, number)
        maintenance.run(
            part,
            port.settings(name),
            port.groups_store(),
            force=True,
            archive_now=archive and name == "events",
        )
        self.notice_compaction(name, number)

    def notice_compaction(self, name: str, number: int) -> None:
        """Of what was compacted, only the latest of each key is left; how far is its own affair."""
        model = self.models[name]
        if not model.compacted:
            return
        covered = max(
            (s.compacted_to for s in self.ports[0].partition(name, number).manifest().segments), default=0
        )
        partition = model.partitions[number]
        latest = {r.row["id"]: r.offset for r in partition.records if r.offset < covered}
        partition.records = [
            r for r in partition.records if r.offset >= covered or latest[r.row["id"]] == r.offset
        ]

    @rule(days=st.integers(1, 5))
    def expire_by_age(self, days: int) -> None:
        self.clock.advance(days * DAY_S)
        log, port = Log(self.ports[0]), self.ports[0]
        log.alter_topic("events", retention_ms=int(3 * DAY_S * 1_000))
        for number, partition in enumerate(self.models["events"].partitions):
            maintenance.run(port.partition("events", number), port.settings("events"), port.groups_store())
            start, end = port.bounds("events", number)
            assert end == partition.end
            # Never more than was over, and nothing young.
            cutoff_us = self.clock.now_us() - int(3 * DAY_S * 1_000_000)
            assert all(r.time_us < cutoff_us for r in partition.records if r.offset < start)
            partition.start = start
            partition.records = [r for r in partition.records if r.offset >= start]
        log.alter_topic("events", retention_ms=None)

    @precondition(lambda self: len(self.models["events"].columns) < 5)
    @rule()
    def add_a_column(self) -> None:
        columns = self.models["events"].columns
        columns.append(f"c{len(columns)}")
        more = "".join(f", {name} DOUBLE" for name in columns[2:])
        Log(self.ports[0]).alter_topic("events", schema="id INT, text STRING" + more)

    @precondition(lambda self: len(self.models["events"].partitions) < 6)
    @rule(more=st.integers(1, 3))
    def add_partitions(self, more: int) -> None:
        model = self.models["events"]
        Log(self.ports[0]).alter_topic("events", partitions=len(model.partitions) + more)
        model.partitions.extend(Partition() for _ in range(more))

    # ---- consuming ------------------------------------------------------------------------------------

    @rule(count=st.integers(1, 20))
    def consume_and_commit(self, count: int) -> None:
        """A group goes on exactly where it was, in every partition it may read."""
        model = self.models["events"]
        consumer = self.topic("events").consume(group="g", follow=False, on_lost="earliest")
        seen: dict[int, list[int]] = {}
        with consumer:
            for event, _ in zip(consumer, range(count), strict=False):
                seen.setdefault(event.partition, []).append(event.offset)
        for number, offsets in seen.items():
            first = max(model.committed.get(number, 0), model.partitions[number].start)
            due = [r.offset for r in model.partitions[number].records if r.offset >= first]
            assert offsets == due[: len(offsets)]
        for number, offset in self.ports[0].committed("g", "events").items():
            assert offset >= model.committed.get(number, 0)
            model.committed[number] = offset

    # ---- life ---------------------------------------------------------------------------------------------

    @rule()
    def second_handle(self) -> None:
        if len(self.ports) < 2:
            self.ports.append(self.opened())

    @rule(restart=st.booleans())
    def reopen(self, restart: bool) -> None:
        for port in self.ports:
            port.close()
        self.disk.boots += restart
        self.ports = [self.opened()]

    # ---- what must hold --------------------------------------------------------------------------------

    @invariant()
    def every_record_is_there(self) -> None:
        for name, model in getattr(self, "models", {}).items():
            topic = self.topic(name, -1)
            for number, partition in enumerate(model.partitions):
                if model.compacted:
                    self.notice_compaction(name, number)
                found = [(e.offset, e.time_us, e.value, e.deleted) for e in topic.events(partition=number)]
                assert found == [model.shown(record) for record in partition.records]
                start, end = self.ports[-1].bounds(name, number)
                assert end == partition.end
                assert start == partition.start

    @invariant()
    def the_latest_is_the_latest(self) -> None:
        if not hasattr(self, "models"):
            return
        model = self.models["state"]
        latest: dict[int, Any] = {}
        for partition in model.partitions:
            for record in partition.records:
                latest[record.row["id"]] = None if record.deleted else record.row
        assert self.topic("state").latest() == {k: row for k, row in latest.items() if row is not None}

    @rule(name=st.sampled_from(["events", "state"]), pick=st.integers(0, 10), share=st.floats(0, 1))
    def read_from_anywhere(self, name: str, pick: int, share: float) -> None:
        model = self.models[name]
        number = pick % len(model.partitions)
        partition = model.partitions[number]
        offset = partition.start + round(share * (partition.end - partition.start))
        found = [e.offset for e in self.topic(name).events(partition=number, start=offset)]
        assert found == [r.offset for r in partition.records if r.offset >= offset]

    @rule(name=st.sampled_from(["events", "state"]), pick=st.integers(0, 10), share=st.floats(0, 1))
    def read_from_any_time(self, name: str, pick: int, share: float) -> None:
        model = self.models[name]
        number = pick % len(model.partitions)
        partition = model.partitions[number]
        first_us = partition.records[0].time_us if partition.records else 0
        time_us = first_us + round(share * (self.clock.now_us() + 1 - first_us))
        due = [r.offset for r in partition.records if r.time_us >= time_us]
        offset = self.topic(name).offset_of(number, EPOCH + timedelta(microseconds=time_us))
        found = [e.offset for e in self.topic(name).events(partition=number, start=offset)]
        assert found == due

    def teardown(self) -> None:
        for port in self.ports:
            port.close()
        shutil.rmtree(self.home)


QUIET = settings(
    deadline=None,
    suppress_health_check=list(HealthCheck),
    derandomize=True,
    stateful_step_count=20,
    max_examples=40,
)


def test_the_log_does_what_a_list_would() -> None:
    run_state_machine_as_test(LogMachine, settings=QUIET)


@pytest.mark.crash
@pytest.mark.timeout(3_600)
def test_the_log_does_what_a_list_would_for_a_long_time() -> None:
    long = settings(QUIET, derandomize=False, max_examples=1_500, stateful_step_count=50)
    run_state_machine_as_test(LogMachine, settings=long)
