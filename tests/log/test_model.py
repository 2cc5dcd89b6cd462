"""The log against a plain in-memory model, under random interleavings of everything one can do to it."""

from __future__ import annotations

import itertools
import os
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
    last_us: int = 0  # append times never go back, even if the clock does
    hold: int | None = None


@dataclass
class Model:
    compacted: bool
    partitions: list[Partition]
    columns: list[str]
    committed: dict[int, int] = field(default_factory=dict)

    latest: dict[int, dict[str, Any]] = field(default_factory=dict)  # whatever was compacted or archived

    def append(self, number: int, row: dict[str, Any], now_us: int, *, deleted: bool = False) -> None:
        partition = self.partitions[number]
        partition.last_us = max(now_us, partition.last_us)
        partition.records.append(Record(partition.end, partition.last_us, row, deleted))
        partition.end += 1
        if deleted:
            self.latest.pop(row["id"], None)
        else:
            self.latest[row["id"]] = row

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
        # In memory where that can be had: no power is lost here, and a disk only makes it slower.
        memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        self.home = Path(tempfile.mkdtemp(prefix="penstock-model-", dir=memory))
        self.clock = ManualClock()
        self.disk = RestartingDisk()
        self.ports = [self.opened()]
        self.positions: dict[str, bytes | None] = {}
        self.clock_went_back = False

    def opened(self) -> EmbeddedLog:
        return EmbeddedLog(self.home, disk=self.disk, clock=self.clock)

    @initialize(partitions=st.integers(1, 3), small=st.booleans(), tombstones=st.booleans())
    def create(self, partitions: int, small: bool, tombstones: bool) -> None:
        self.tombstone_ms = 10**12 if tombstones else 2_000
        log = Log(self.ports[0])
        options: dict[str, Any] = {"segment_bytes": 4_000} if small else {}
        log.create_topic("events", "id INT, text STRING", key="id", partitions=partitions, **options)
        log.create_topic(
            "state",
            "id INT NOT NULL, text STRING",
            key="id",
            partitions=partitions,
            cleanup="compact",
            tombstone_ms=self.tombstone_ms,
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
        again = made.append({"events": {"id": 0, "text": "again"}}, sequence=made.next_sequence - 1)
        assert again.duplicate, "a sequence stored before changes nothing"
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
            archive_now=archive,
        )
        self.notice_compaction(name, number)

    def notice_compaction(self, name: str, number: int) -> None:
        """Within a compacted segment only the latest of each key is left, and deletes for a while.

        Which segments those are is the log's affair.
        """
        model = self.models[name]
        if not model.compacted:
            return
        partition = model.partitions[number]
        there = {event.offset for event in self.topic(name).events(partition=number)}
        cutoff_us = self.clock.now_us() - self.tombstone_ms * 1_000
        for entry in self.ports[0].partition(name, number).manifest().sealed:
            if not entry.compacted_to:
                continue
            inside = [r for r in partition.records if entry.base <= r.offset < (entry.end or 0)]
            latest = {r.row["id"]: r for r in inside}
            old = {r.offset for r in inside if latest[r.row["id"]] is not r}
            expired = {r.offset for r in latest.values() if r.offset not in there}
            assert all(r.deleted and r.time_us < cutoff_us for r in inside if r.offset in expired)
            partition.records = [r for r in partition.records if r.offset not in old | expired]

    @rule(days=st.integers(1, 5))
    def expire_by_age(self, days: int) -> None:
        self.clock.advance(days * DAY_S)
        cutoff_us = self.clock.now_us() - int(3 * DAY_S * 1_000_000)
        for partition, removed in self.expire(retention_ms=int(3 * DAY_S * 1_000)):
            assert all(record.time_us < cutoff_us for record in removed), "nothing young"
            if partition.hold is None:
                sealed = self.ports[0].partition("events", self.number_of(partition)).manifest().sealed
                assert all(entry.last_time_us >= cutoff_us for entry in sealed), "nothing old is left"

    @rule(kilobytes=st.integers(1, 20))
    def expire_by_size(self, kilobytes: int) -> None:
        for partition, _ in self.expire(retention_bytes=kilobytes * 1_000):
            part = self.ports[0].partition("events", self.number_of(partition))
            sealed = sum(entry.size_bytes for entry in part.manifest().sealed)
            assert not sealed or partition.hold is not None or (
                sealed + part.head().written_bytes <= kilobytes * 1_000
            )  # fmt: skip

    def number_of(self, partition: Partition) -> int:
        return next(n for n, each in enumerate(self.models["events"].partitions) if each is partition)

    def expire(self, **retention: int) -> list[tuple[Partition, list[Record]]]:
        """What retention took of each partition: the oldest, and nothing that is held."""
        log, port = Log(self.ports[0]), self.ports[0]
        log.alter_topic("events", **retention)
        taken = []
        for number, partition in enumerate(self.models["events"].partitions):
            maintenance.run(port.partition("events", number), port.settings("events"), port.groups_store())
            start, end = port.bounds("events", number)
            assert end == partition.end
            assert start <= (partition.hold if partition.hold is not None else end)
            taken.append((partition, [r for r in partition.records if r.offset < start]))
            partition.start = max(start, partition.start)
            partition.records = [r for r in partition.records if r.offset >= start]
        log.alter_topic("events", **dict.fromkeys(retention))
        return taken

    @rule(pick=st.integers(0, 10), share=st.floats(0, 1))
    def hold(self, pick: int, share: float) -> None:
        number = pick % len(self.models["events"].partitions)
        partition = self.models["events"].partitions[number]
        partition.hold = partition.start + round(share * (partition.end - partition.start))
        self.ports[0].groups_store().hold("view", "events", {number: partition.hold}, reason="a view")

    @rule()
    def let_go(self) -> None:
        self.ports[0].groups_store().let_go("view")
        for partition in self.models["events"].partitions:
            partition.hold = None

    @rule(seconds=st.integers(1, 100))
    def the_clock_is_set_back(self, seconds: int) -> None:
        self.clock._now_us -= seconds * 1_000_000  # wall time only
        self.clock_went_back = True

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
            for event in itertools.islice(consumer, count):
                seen.setdefault(event.partition, []).append(event.offset)
        for number, offsets in seen.items():
            first = max(model.committed.get(number, 0), model.partitions[number].start)
            due = [r.offset for r in model.partitions[number].records if r.offset >= first]
            assert offsets == due[: len(offsets)]
        for number, offset in self.ports[0].committed("g", "events").items():
            assert offset >= model.committed.get(number, 0)
            model.committed[number] = offset

    @rule(pick=st.integers(0, 10), share=st.floats(0, 1), count=st.integers(1, 5))
    def seek_and_commit(self, pick: int, share: float, count: int) -> None:
        """A group goes anywhere, forward or back, and stays there."""
        model = self.models["events"]
        with self.topic("events").consume(group="g", follow=False, on_lost="earliest") as consumer:
            mine = sorted(consumer.assignment())
            number = mine[pick % len(mine)]
            partition = model.partitions[number]
            offset = partition.start + round(share * (partition.end - partition.start))
            consumer.seek(offset, partition=number)
            seen = []
            for event in itertools.islice(consumer, count):
                if event.partition == number:
                    seen.append(event.offset)
        due = [r.offset for r in partition.records if r.offset >= offset]
        assert seen == due[: len(seen)]
        model.committed.update(self.ports[0].committed("g", "events"))
        assert model.committed[number] == (seen[-1] + 1 if seen else offset)

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
        for name, model in self.models.items():
            for number, partition in enumerate(model.partitions):
                last_us = self.ports[0].partition(name, number).head().last_time_us
                assert last_us >= max((record.time_us for record in partition.records), default=0)
                partition.last_us = last_us  # of an empty partition, a restart may forget it

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
        """Of the compacted topic, whatever was compacted or archived; of the other, of what there is."""
        if not hasattr(self, "models"):
            return
        assert self.topic("state").latest() == self.models["state"].latest
        if self.clock_went_back:
            return  # a key in two partitions is compared by time
        model = self.models["events"]
        records = [record for partition in model.partitions for record in partition.records]
        by_time = sorted(records, key=lambda record: record.time_us)
        latest = {record.row["id"]: model.shown(record)[2] for record in by_time}
        assert self.topic("events").latest() == latest

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
    stateful_step_count=30,
    max_examples=60,
)


def test_the_log_does_what_a_list_would() -> None:
    run_state_machine_as_test(LogMachine, settings=QUIET)


@pytest.mark.crash
@pytest.mark.timeout(3_600)
def test_the_log_does_what_a_list_would_for_a_long_time() -> None:
    long = settings(QUIET, derandomize=False, max_examples=1_500, stateful_step_count=50)
    run_state_machine_as_test(LogMachine, settings=long)
