"""Losing power, or the writing process, after every single operation of a long day's work.

One run on a CrashingDisk goes through everything the log does to its files and notes what was
acknowledged when, and how far readers could see. Then every crash is tried, and the log
must hold every acknowledged record once, in order and at its offset; atomic appends whole or
not at all, with a position that agrees; and go on.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from penstock.clock import ManualClock
from penstock.errors import Fenced, PenstockError
from penstock.log import ledger, maintenance
from penstock.log.embedded import EmbeddedLog
from penstock.log.frame import PendingFrame
from penstock.log.head import Head, SharedHead
from penstock.log.ledger import Ledger
from penstock.log.log import AtomicProducer, Log
from penstock.log.partition import Partition
from penstock.log.topic import Topic
from penstock.testing.crashing_disk import CrashingDisk, CrashingFile
from penstock.testing.volatile import Memory, Mode

Place = tuple[str, int]
Contents = dict[Place, dict[int, int]]  # record ids by offset

LEDGER_BYTES = 700


# ---- the day ------------------------------------------------------------------------------------


@dataclass
class Step:
    """What one piece of work did: between which operations, and what it acknowledged."""

    name: str
    start: int
    now_us: int
    end: int = 0
    records: Contents = field(default_factory=dict)
    position: int = 0  # of an atomic append
    topic: str = ""  # created
    gone: str = ""  # deleted
    partitions: int = 0
    expires: dict[Place, int] = field(default_factory=dict)  # records before these offsets may go
    compacts: bool = False


class Day:
    """Runs the work and keeps what must be true after a crash at any moment of it."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.clock = ManualClock()
        self.disk = CrashingDisk(home.parent)
        self.steps: list[Step] = []
        self.keys: dict[int, str] = {}  # of the records of the compacted topic
        self.deletes: set[int] = set()
        self._ids = 0
        self._known: Contents = {}
        with self.step("open"):
            self.log = open_log(home, self.disk, self.clock)

    @contextlib.contextmanager
    def step(self, name: str) -> Iterator[Step]:
        self.clock.advance(1)
        step = Step(name, len(self.disk.trace), self.clock.now_us())
        self.steps.append(step)
        yield step
        step.end = len(self.disk.trace)
        if name != "open":
            self._note_records(step)

    def _note_records(self, step: Step) -> None:
        for place, records in contents_of(self.log).items():
            known = self._known.setdefault(place, {})
            step.records[place] = {offset: id for offset, id in records.items() if offset not in known}
            known.update(records)

    def ids(self, count: int) -> list[int]:
        self._ids += count
        return list(range(self._ids - count + 1, self._ids + 1))

    def orders(self, count: int) -> list[dict[str, Any]]:
        return [{"id": id, "name": f"order {id}"} for id in self.ids(count)]

    def events(self, count: int) -> list[dict[str, Any]]:
        return [{"id": id} for id in self.ids(count)]

    def values(self, keys: str) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = [
            {"k": k, "id": id} for k, id in zip(keys, self.ids(len(keys)), strict=True)
        ]
        self.keys.update({row["id"]: row["k"] for row in rows})
        return rows

    # ---- pieces of work ---------------------------------------------------------------------

    def create(self, name: str, schema: str, **options: Any) -> None:
        with self.step(f"create {name}") as step:
            step.topic, step.partitions = name, options.get("partitions", 1)
            self.log.create_topic(name, schema, **options)

    def append(self, topic: str, rows: list[dict[str, Any]], **options: Any) -> None:
        with self.step(f"append to {topic}"):
            self.log.topic(topic).append(rows, **options)

    def delete(self, *keys: str) -> None:
        """The id of a delete is what a reader gets for it: minus one minus its offset."""
        with self.step(f"delete {keys}"):
            self.log.topic("state").delete(*({"k": key} for key in keys))
        for offset, id in self.steps[-1].records["state", 0].items():
            assert id == delete_id(offset)
            self.keys[id] = keys[list(self.steps[-1].records["state", 0]).index(offset)]
            self.deletes.add(id)

    def atomic(self, producer: AtomicProducer, records: dict[Topic | str, Any]) -> None:
        position = max(step.position for step in self.steps) + 1
        with self.step(f"atomic append {position}") as step:
            step.position = position
            producer.append(records, position=str(position).encode())

    def maintain(self, topic: str, number: int, **how: bool) -> None:
        with self.step(f"maintain {topic} {how}") as step:
            step.compacts = topic == "state"
            step.expires = {(topic, number): 1 << 60} if topic == "events" else {}
            maintain(self.log, topic, number, **how)
        if step.expires:
            step.expires = {(topic, number): self.log.topic(topic).bounds()[number][0]}

    def alter(self, topic: str, **changes: Any) -> None:
        with self.step(f"alter {topic} {changes}") as step:
            step.topic, step.partitions = topic, changes.get("partitions", 0)
            self.log.alter_topic(topic, **changes)

    def drop(self, topic: str) -> None:
        with self.step(f"delete topic {topic}") as step:
            step.gone = topic
            self.log.delete_topic(topic)

    # ---- what a crash just after operation `at` must respect ----------------------------------

    def begun(self, at: int) -> list[Step]:
        return [step for step in self.steps if step.start <= at]

    def acknowledged(self, at: int) -> list[Step]:
        return [step for step in self.steps if step.end <= at + 1]

    def moments(self, mode: Mode = "torn") -> list[int]:
        """Operations that change what is left in this mode, and the last one before each acknowledgement.

        If only what is synced survives, writing changes nothing; if everything written does, syncing.
        """
        acks = {step.end - 1 for step in self.steps}
        syncs = {"sync", "sync_folder"}
        return [
            at
            for at, done in enumerate(self.disk.trace)
            if at in acks
            or (done.kind in syncs and mode != "written")
            or (done.kind not in {*syncs, "share"} and mode != "synced")
        ]

    def seen(self) -> list[dict[Place, int]]:
        """For each operation, how far readers could have seen by then."""
        seen: list[dict[Place, int]] = []
        for at, done in enumerate(self.disk.trace):
            latest = dict(seen[-1]) if seen else {}
            if done.kind == "share" and done.path.name == "head" and "topics" in done.path.parts:
                head = SharedHead(self.disk.after_kill(at=at), done.path).read()
                place = (done.path.parts[-3], int(done.path.parts[-2]))
                latest[place] = max(latest.get(place, 0), head.visible_offset if head else 0)
            seen.append(latest)
        return seen


def a_long_day(home: Path) -> Day:
    day = Day(home)
    day.create("orders", "id BIGINT NOT NULL, name STRING", key="id", partitions=2, segment_bytes=2_600)
    day.create("events", "id BIGINT NOT NULL", retention=60, segment_bytes=2_000)
    day.create(
        "state",
        "k STRING NOT NULL, id BIGINT",
        key="k",
        cleanup="compact",
        segment_bytes=3_000,
        tombstone_ms=5_000,
    )
    day.append("orders", day.orders(5))
    day.append("events", day.events(2))
    day.append("state", day.values("abcd"))
    with day.step("open a producer"):
        old = day.log.producer("p")
    for _ in range(3):
        day.atomic(old, {"orders": day.orders(4), "events": day.events(2), "state": day.values("ae")})
        day.append("orders", day.orders(3))
        day.append("state", day.values("bcf"))
    day.delete("b", "f")
    for _ in range(5):
        day.append("events", day.events(1))
    day.maintain("state", 0, force=True)
    with day.step("open the producer again"):
        new = day.log.producer("p")
    with day.step("the old one is fenced"), pytest.raises(Fenced):
        old.append({"orders": day.orders(2)}, position=b"9")
    day.alter("orders", schema="id BIGINT NOT NULL, name STRING, note STRING", partitions=3)
    for _ in range(4):
        day.atomic(new, {"orders": day.orders(4), "state": day.values("agh")})
        day.append("orders", day.orders(3))
    day.atomic(new, {})  # a position alone
    day.maintain("orders", 0, archive_now=True)
    day.clock.advance(70)
    day.maintain("events", 0)
    day.append("state", day.values("aaccddeeffgg"))
    day.append("state", day.values("xyz"))
    day.maintain("state", 0, force=True)  # the deletes are old enough to go
    day.append("events", day.events(2))
    day.atomic(new, {"orders": day.orders(6), "events": day.events(2)})
    day.create("short", "id BIGINT NOT NULL", segment_bytes=2_000)
    day.append("short", day.events(3))
    day.append("short", day.events(30))
    day.append("short", day.events(30))
    day.drop("short")
    day.append("orders", day.orders(2))
    return day


# ---- reading and checking -------------------------------------------------------------------------


def open_log(home: Path, disk: CrashingDisk, clock: ManualClock) -> Log:
    return Log(EmbeddedLog(home, disk=disk, clock=clock))


def maintain(log: Log, topic: str, number: int, **how: bool) -> None:
    port = log.port
    assert isinstance(port, EmbeddedLog)
    maintenance.run(port.partition(topic, number), port.settings(topic), port.groups_store(), **how)


def delete_id(offset: int) -> int:
    return -1 - offset


def contents_of(log: Log) -> Contents:
    found: Contents = {}
    for name in log.topics():
        for number in range(log.port.settings(name).partitions):
            start, end = log.port.bounds(name, number)
            batches = list(log.port.read(name, number, start))
            offsets = [offset for batch in batches for offset in batch.column("_offset").to_pylist()]
            ids = [id for batch in batches for id in batch.column("id").to_pylist()]
            assert offsets == sorted(set(offsets)), "in order, each once"
            assert not offsets or (start <= offsets[0] and offsets[-1] < end)
            assert name == "state" or offsets == list(range(start, end)), "no gaps"
            found[name, number] = {
                at: delete_id(at) if id is None else id for at, id in zip(offsets, ids, strict=True)
            }
    return found


def position_of(log: Log) -> int:
    position = log.port.producer_position("p").position
    return int(position or 0)


class Check:
    """Everything that must hold when a log is opened after a crash at `at`."""

    def __init__(self, day: Day, seen: list[dict[Place, int]], at: int) -> None:
        self.day, self.at = day, at
        self.begun, self.acknowledged = day.begun(at), day.acknowledged(at)
        self.seen = seen[at]

    def holds(self, log: Log) -> tuple[Contents, int]:
        position = position_of(log) if self.at % 2 else -1
        found = contents_of(log)
        position = position if position >= 0 else position_of(log)
        self._topics(log)
        self._nothing_foreign(found)
        self._nothing_lost(found, self._required(position))
        self._all_or_nothing(found, position)
        return found, position

    def _topics(self, log: Log) -> None:
        gone = {step.gone for step in self.begun}
        for step in self.acknowledged:
            if step.topic and step.topic not in gone:
                assert log.port.settings(step.topic).partitions >= step.partitions
        assert set(log.topics()) <= {step.topic for step in self.begun}
        assert not set(log.topics()) & {step.gone for step in self.acknowledged if step.gone}

    def _nothing_foreign(self, found: Contents) -> None:
        allowed = self.attempted()
        for place, records in found.items():
            assert records.items() <= allowed.get(place, {}).items(), f"unknown records in {place}"

    def attempted(self) -> Contents:
        attempted: Contents = {}
        for step in self.begun:
            for place, records in step.records.items():
                attempted.setdefault(place, {}).update(records)
        return attempted

    def _required(self, position: int) -> Contents:
        """Acknowledged, seen by a reader, or part of an atomic append whose position is stored."""
        required: Contents = {}
        for step in self.begun:
            counted = step in self.acknowledged or 0 < step.position <= position
            for place, records in step.records.items():
                limit = (1 << 60) if counted else self.seen.get(place, 0)
                kept = {offset: id for offset, id in records.items() if offset < limit}
                required.setdefault(place, {}).update(kept)
        return required

    def _nothing_lost(self, found: Contents, required: Contents) -> None:
        gone = {step.gone for step in self.begun}
        for place, records in required.items():
            if place[0] in gone:
                continue
            floor = max((step.expires.get(place, 0) for step in self.begun), default=0)
            kept = found.get(place, {})
            for offset, id in records.items():
                assert offset in kept or offset < floor or self._superseded(place, id, kept), (
                    f"record {id} at offset {offset} of {place} is lost"
                )

    def _superseded(self, place: Place, id: int, kept: dict[int, int]) -> bool:
        """May compaction have removed it, for a later value of its key, or as or by an old delete?"""
        if place[0] != "state":
            return False
        key, deletes = self.day.keys[id], self.day.deletes
        later = [other for offset, other in kept.items() if self.day.keys[other] == key]
        return bool(later) or id in deletes or any(self.day.keys[delete] == key for delete in deletes)

    def _all_or_nothing(self, found: Contents, position: int) -> None:
        assert position >= max(step.position for step in self.acknowledged) if self.acknowledged else True
        ids = {id for records in found.values() for id in records.values()}
        for step in self.begun:
            if step.position > position:
                partial = ids & {id for records in step.records.values() for id in records.values()}
                assert not partial, f"part of atomic append {step.position} is there, position is {position}"


def goes_on(log: Log, before: Contents) -> Contents:
    """Append to every partition and atomically to all; offsets go on where they ended."""
    ends = {(name, n): log.port.bounds(name, n)[1] for name, n in before}
    id = 10_000
    added: Contents = {place: {} for place in before}
    for name, number in before:
        id += 1
        row = {"k": "z", "id": id} if name == "state" else {"id": id}
        placed = log.topic(name).append(row, partition=number)
        assert placed.firsts[number] >= ends[name, number], "offsets go on without overlap"
        added[name, number][placed.firsts[number]] = id
    producer = log.producer("p")
    rows: dict[Topic | str, Any] = {
        name: {"k": "z", "id": id + 1} if name == "state" else {"id": id + 1} for name, _ in before
    }
    for placed in producer.append(rows, position=b"999").positions:
        added[placed.topic, placed.partition][placed.offset] = id + 1
    assert producer.position() == b"999"
    return added


def assert_kept(now: Contents, before: Contents, added: Contents, attempted: Contents) -> None:
    """Everything there was and everything new, and nothing that was never written."""
    for place, records in before.items():
        if place[0] == "state":  # a compaction of its own may have run
            assert max(added[place].items()) in now[place].items()
            continue
        start = min(now[place], default=0)
        kept = {offset: id for offset, id in records.items() if offset >= start}
        new = added.get(place, {})
        assert {**kept, **new}.items() <= now[place].items()
        assert now[place].items() <= {**attempted.get(place, {}), **new}.items()


def crash_and_check(
    day: Day,
    seen: list[dict[Place, int]],
    at: int,
    disk: CrashingDisk,
    *,
    seed: int,
    thorough: bool = True,
    killed: bool = False,
) -> None:
    """Open the log after the crash and check it; if `thorough`, crash again, go on, and crash once more.

    After a kill (unlike after power loss) records may come to light that were written and not yet shown.
    """
    check = Check(day, seen, at)
    clock = ManualClock(check.begun[-1].now_us)
    try:
        log = open_log(day.home, disk, clock)
        found, position = check.holds(log)
        if not thorough:
            return
        again, stored = check.holds(
            open_log(day.home, disk.after_power_loss(mode="torn", memory="mixed", seed=seed), clock)
        )
        if killed:
            # A topic that nobody wrote to may still go; records that were seen may not.
            assert all(found[place].items() <= again.get(place, {}).items() for place in found)
            assert stored >= position
        else:
            assert (again, stored) == (found, position), "a second power loss changes nothing"
        added = goes_on(log, found)
        assert_kept(contents_of(log), found, added, check.attempted())
        later = open_log(day.home, disk.after_power_loss(mode="synced", memory="mixed", seed=seed), clock)
        assert_kept(contents_of(later), found, added, check.attempted())
        assert position_of(later) == 999
    except (AssertionError, KeyError, PenstockError, OSError) as error:
        where = f"after operation {at} ({day.disk.trace[at]}, in: {check.begun[-1].name})"
        raise AssertionError(f"{where}: {error!r}") from error


# ---- the sweeps -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def day(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Day]:
    home = tmp_path_factory.mktemp("day") / "log"
    home.mkdir()  # for the groups' SQLite file; the disk knows nothing of it
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ledger, "_REWRITE_BYTES", LEDGER_BYTES)
        yield a_long_day(home)


@pytest.fixture(scope="module")
def seen(day: Day) -> list[dict[Place, int]]:
    return day.seen()


SWEEPS: list[tuple[Mode, Memory]] = [("synced", "zeroed"), ("written", "kept"), ("torn", "mixed")]


def sweep(
    day: Day,
    seen: list[dict[Place, int]],
    moments: Sequence[int],
    crash: Callable[[int], CrashingDisk],
    *,
    thorough_every: int = 1,
    killed: bool = False,
) -> None:
    """Check each crash; after every n-th also lose power again, go on, and lose power once more."""
    for number, at in enumerate(moments):
        # A kill right after a rename: others see the new name before it is durable.
        thorough = number % thorough_every == 0 or (killed and day.disk.trace[at].kind == "rename")
        crash_and_check(day, seen, at, crash(at), seed=at, thorough=thorough, killed=killed)


def test_the_day_exercises_everything(day: Day) -> None:
    log, trace = day.log, day.disk.trace
    port = log.port
    assert isinstance(port, EmbeddedLog)
    files = [name for n in range(3) for name in day.disk.names(day.home / "topics" / "orders" / str(n))]
    assert any(name.endswith(".parquet") for name in files)
    assert any("-0001.arrows" in name for name in files), "small batches were merged"
    rewrites = [done for done in trace if done.kind == "rename" and done.path.name == "commits.log.new"]
    assert len(rewrites) > 3, "the ledger was rewritten"
    assert log.topic("events").bounds()[0][0] > 0, "expired"
    assert len(contents_of(log)["state", 0]) < log.topic("state").bounds()[0][1], "compacted"
    assert len(day.moments()) > 900


@pytest.mark.parametrize(("mode", "memory"), SWEEPS)
def test_power_loss_after_every_operation(
    day: Day, seen: list[dict[Place, int]], mode: Mode, memory: Memory
) -> None:
    def crash(at: int) -> CrashingDisk:
        return day.disk.after_power_loss(at=at, mode=mode, memory=memory, seed=1)

    sweep(day, seen, day.moments(mode), crash, thorough_every=12)


@pytest.mark.crash
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("memory", ["zeroed", "stale", "kept", "missing", "mixed"])
@pytest.mark.parametrize("mode", ["synced", "written", "torn"])
def test_power_loss_after_every_operation_in_every_way(
    day: Day, seen: list[dict[Place, int]], mode: Mode, memory: Memory, seed: int
) -> None:
    def crash(at: int) -> CrashingDisk:
        return day.disk.after_power_loss(at=at, mode=mode, memory=memory, seed=100 + seed)

    sweep(day, seen, day.moments(), crash, thorough_every=1 if seed == 0 else 5)


def test_a_kill_after_every_operation(day: Day, seen: list[dict[Place, int]]) -> None:
    moments = [at for at, done in enumerate(day.disk.trace) if done.kind not in {"sync", "sync_folder"}]
    sweep(day, seen, moments, lambda at: day.disk.after_kill(at=at), thorough_every=20, killed=True)


@pytest.mark.crash
def test_a_kill_after_every_operation_and_then_power_loss(day: Day, seen: list[dict[Place, int]]) -> None:
    sweep(day, seen, range(len(day.disk.trace)), lambda at: day.disk.after_kill(at=at), killed=True)


# ---- topics that come and go, and one that asks for less --------------------------------------------------


def crashes(disk: CrashingDisk, moments: range) -> Iterator[tuple[str, CrashingDisk]]:
    """Every crash in one piece of work."""
    for at in moments:
        yield f"kill after {disk.trace[at]}", disk.after_kill(at=at)
        for mode in ("synced", "written", "torn"):
            loss = disk.after_power_loss(at=at, mode=mode, memory="mixed", seed=at)
            yield f"power loss ({mode}) after {disk.trace[at]}", loss


def test_a_topic_can_be_made_anew_after_a_crash_at_any_moment_of_its_making_or_deletion(
    tmp_path: Path,
) -> None:
    home, clock = tmp_path / "log", ManualClock()
    home.mkdir()
    disk = CrashingDisk(tmp_path)
    with open_log(home, disk, clock) as log:
        made = len(disk.trace)
        topic = log.create_topic("t", "id BIGINT NOT NULL", partitions=2, key="id", segment_bytes=600)
        created = len(disk.trace)
        for id in range(8):
            topic.append({"id": id})
        deleting = len(disk.trace)
        log.delete_topic("t")
    deleted = range(deleting, len(disk.trace))
    for told, left in itertools.chain(crashes(disk, range(made, created)), crashes(disk, deleted)):
        after = open_log(home, left, clock)
        if "t" in after.topics():
            ids = sorted(id for records in contents_of(after).values() for id in records.values())
            assert ids in ([], list(range(8))), told
            continue
        again = after.create_topic("t", "id BIGINT NOT NULL, name STRING")
        assert again.append({"id": 100, "name": "new"}).offset == 0, told
        later = open_log(home, left.after_power_loss(mode="torn", memory="mixed", seed=1), clock)
        assert contents_of(later) == {("t", 0): {0: 100}}, told


def test_with_durability_os_a_kill_loses_nothing_and_power_loss_only_the_latest(tmp_path: Path) -> None:
    home, clock = tmp_path / "log", ManualClock()
    home.mkdir()
    disk, acks = CrashingDisk(tmp_path), []
    with open_log(home, disk, clock) as log:
        topic = log.create_topic("t", "id BIGINT NOT NULL", durability="os", segment_bytes=1_500)
        first = len(disk.trace)
        for id in range(12):
            topic.append({"id": id})
            acks.append(len(disk.trace))
        log.producer("p").append({"t": {"id": 12}}, position=b"1")
        synced = len(disk.trace)
    for at in range(first, len(disk.trace)):
        acknowledged = sum(end <= at + 1 for end in acks)
        killed = list(contents_of(open_log(home, disk.after_kill(at=at), clock))["t", 0].values())
        assert killed[:acknowledged] == list(range(acknowledged))
        for mode, memory in SWEEPS:
            left = disk.after_power_loss(at=at, mode=mode, memory=memory, seed=at)
            after = open_log(home, left, clock)
            ids = list(contents_of(after)["t", 0].values())
            assert ids == list(range(len(ids))), "what is left has no holes"
            assert len(ids) == 13 or at + 1 < synced, "an atomic append is durable there too"
            assert after.topic("t").append({"id": 99}).offset == len(ids)


# ---- the sweep can fail -----------------------------------------------------------------------------


def failures(day: Day, mode: Mode, memory: Memory) -> list[str]:
    """What the sweep finds on a disk that loses power."""
    seen, found = day.seen(), []
    for at in day.moments(mode)[::5]:
        disk = day.disk.after_power_loss(at=at, mode=mode, memory=memory, seed=1)
        try:
            crash_and_check(day, seen, at, disk, seed=at, thorough=False)
        except AssertionError as error:
            found.append(str(error))
    return found


@pytest.fixture
def broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Day]:
    """A day in the life of a log that was broken on purpose just before."""
    (tmp_path / "log").mkdir()

    def live() -> Day:
        monkeypatch.setattr(ledger, "_REWRITE_BYTES", LEDGER_BYTES)
        day = a_long_day(tmp_path / "log")
        monkeypatch.undo()
        return day

    return live


def test_the_sweep_finds_syncs_of_records_that_do_nothing(
    broken: Callable[[], Day], monkeypatch: pytest.MonkeyPatch
) -> None:
    sync = CrashingFile.sync
    monkeypatch.setattr(
        CrashingFile, "sync", lambda file: None if file.path.suffix == ".arrows" else sync(file)
    )
    assert failures(broken(), "synced", "zeroed")


def test_the_sweep_finds_folders_that_are_not_synced(
    broken: Callable[[], Day], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CrashingDisk, "sync_folder", lambda disk, path: None)
    assert failures(broken(), "synced", "zeroed")


def test_the_sweep_finds_a_commit_before_the_records_are_synced(
    broken: Callable[[], Day], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CrashingDisk, "sync_all", lambda self, syncs: None)
    assert any("is lost" in failure for failure in failures(broken(), "synced", "zeroed"))


def test_the_sweep_finds_records_shown_before_their_commit(
    broken: Callable[[], Day], monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = Partition.stage

    def shown(self: Partition, head: Head, frames: Sequence[PendingFrame], transaction: str) -> Head:
        staged = stage(self, head, frames, transaction)
        self.publish(staged)
        return staged

    monkeypatch.setattr(Partition, "stage", shown)
    assert any("is lost" in failure for failure in failures(broken(), "synced", "zeroed"))


def test_the_sweep_finds_an_acknowledgement_before_the_sync(
    broken: Callable[[], Day], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Partition, "finish", lambda self, extent, settings: None)
    assert any("is lost" in failure for failure in failures(broken(), "synced", "zeroed"))


def test_the_sweep_finds_uncommitted_records_that_are_kept(
    broken: Callable[[], Day], monkeypatch: pytest.MonkeyPatch
) -> None:
    day = broken()
    monkeypatch.setattr(Ledger, "was_committed", lambda self, transaction: True)
    assert any("part of atomic append" in failure for failure in failures(day, "written", "zeroed"))
