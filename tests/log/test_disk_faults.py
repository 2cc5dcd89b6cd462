"""A disk that is full, fails to sync, to read or to open, at every single operation of everything.

Whatever fails: nothing is acknowledged that did not happen, nothing is seen of what failed, readers
go on, the next append works, and what was acknowledged survives the power loss that comes next.
"""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from penstock.clock import ManualClock
from penstock.errors import DiskFull, PenstockError, StorageError, SyncFailed
from penstock.log import ledger, maintenance
from penstock.log.embedded import EmbeddedLog
from penstock.log.framing import frames
from penstock.log.log import AtomicProducer, Log
from penstock.testing.crashing_disk import CrashingDisk
from penstock.testing.faulty_disk import FaultyDisk, Kind
from penstock.testing.volatile import Memory, Mode

Contents = dict[tuple[str, int], list[int]]

FAULTS: dict[Kind, list[dict[str, Any]]] = {
    "open": [{"error": errno.EMFILE}],
    "read": [{"error": errno.EIO}],
    "write": [
        {"error": errno.ENOSPC},
        {"error": errno.ENOSPC, "written_share": 0.6},
        {"error": errno.EIO, "written_share": 1.0},
    ],
    "truncate": [{"error": errno.EIO}],
    "sync": [{"error": errno.EIO}, {"error": errno.ENOSPC}],
    "make_folder": [{"error": errno.ENOSPC}],
    "rename": [{"error": errno.ENOSPC}],
    "remove": [{"error": errno.EIO}],
    "sync_folder": [{"error": errno.EIO}],
}


def open_log(home: Path, disk: Any) -> Log:
    return Log(EmbeddedLog(home, disk=disk, clock=ManualClock()))


def maintain(log: Log, topic: str, **how: bool) -> None:
    port = log.port
    assert isinstance(port, EmbeddedLog)
    maintenance.run(port.partition(topic, 0), port.settings(topic), port.groups_store(), **how)


def contents_of(log: Log) -> Contents:
    found: Contents = {}
    for name in log.topics():
        for number in range(log.port.settings(name).partitions):
            start, end = log.port.bounds(name, number)
            batches = list(log.port.read(name, number, start))
            offsets = [offset for batch in batches for offset in batch.column("_offset").to_pylist()]
            assert name == "state" or offsets == list(range(start, end))
            found[name, number] = [id for batch in batches for id in batch.column("id").to_pylist()]
    return found


def position_of(log: Log) -> bytes | None:
    return log.port.producer_position("p").position


def rows(first: int, count: int) -> list[dict[str, Any]]:
    return [{"id": id} for id in range(first, first + count)]


# ---- what is done while the disk fails ---------------------------------------------------------------


@dataclass(frozen=True)
class Deed:
    """Something done to a log; `ids` are the records it stores, by topic."""

    name: str
    do: Callable[[Log, AtomicProducer], None]
    ids: dict[str, list[int]]
    position: bytes | None = None


def _append(log: Log, producer: AtomicProducer) -> None:
    log.topic("orders").append(rows(900, 6))


def _atomic(log: Log, producer: AtomicProducer) -> None:
    producer.append({"orders": rows(900, 6), "events": rows(906, 2)}, position=b"new")


def _append_rolling(log: Log, producer: AtomicProducer) -> None:
    log.topic("small").append(rows(900, 3))


def _atomic_rolling(log: Log, producer: AtomicProducer) -> None:
    producer.append({"small": rows(900, 3), "orders": rows(903, 2)}, position=b"new")


def _compact(log: Log, producer: AtomicProducer) -> None:
    maintain(log, "state", force=True)


def _archive(log: Log, producer: AtomicProducer) -> None:
    maintain(log, "sealed", archive_now=True)


def _alter(log: Log, producer: AtomicProducer) -> None:
    log.alter_topic("orders", schema="id BIGINT NOT NULL, note STRING", partitions=3)


def _create(log: Log, producer: AtomicProducer) -> None:
    with contextlib.suppress(PenstockError):
        log.delete_topic("fresh")
    log.create_topic("fresh", "id BIGINT NOT NULL")


DEEDS = [
    Deed("append", _append, {"orders": list(range(900, 906))}),
    Deed("atomic append", _atomic, {"orders": list(range(900, 906)), "events": [906, 907]}, b"new"),
    Deed("append that rolls", _append_rolling, {"small": [900, 901, 902]}),
    Deed(
        "atomic append that rolls", _atomic_rolling, {"small": [900, 901, 902], "orders": [903, 904]}, b"new"
    ),
    Deed("compact", _compact, {}),
    Deed("archive", _archive, {}),
    Deed("alter", _alter, {}),
    Deed("create", _create, {}),
]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("faults") / "log"
    made.mkdir()  # for the groups' SQLite file
    return made


@pytest.fixture(scope="module")
def prepared(home: Path) -> CrashingDisk:
    """A log in which every deed has something to do."""
    disk = CrashingDisk(home.parent)
    with open_log(home, disk) as log:
        orders = log.create_topic("orders", "id BIGINT NOT NULL", key="id", partitions=2)
        events = log.create_topic("events", "id BIGINT NOT NULL")
        small = log.create_topic("small", "id BIGINT NOT NULL", segment_bytes=1_500)
        sealed = log.create_topic("sealed", "id BIGINT NOT NULL", segment_bytes=1)
        state = log.create_topic("state", "id BIGINT NOT NULL", key="id", cleanup="compact", segment_bytes=1)
        orders.append(rows(0, 10))
        events.append(rows(10, 2))
        for n in range(3):
            small.append(rows(20 + n, 1))
            sealed.append(rows(30 + n, 1))
            state.append([*rows(40, 2), *rows(50 + n, 1)])
        producer = log.producer("p")
        for n in range(3):
            producer.append({"orders": rows(60 + n, 1)}, position=b"old")
    return disk


LOSSES: Sequence[tuple[Mode, Memory]] = (("synced", "zeroed"), ("torn", "mixed"), ("written", "kept"))


@dataclass
class Attempt:
    """One fault in one deed."""

    home: Path
    disk: CrashingDisk
    deed: Deed
    losses: Sequence[tuple[Mode, Memory]] = LOSSES

    def __post_init__(self) -> None:
        self.faulty = FaultyDisk(self.disk)
        self.reader = open_log(self.home, self.disk)
        self.log = open_log(self.home, self.faulty)
        self.producer = self.log.producer("p")
        self.before = contents_of(self.reader)

    def run(self) -> PenstockError | None:
        try:
            self.deed.do(self.log, self.producer)
        except PenstockError as error:
            return error
        return None

    def stored(self, contents: Contents) -> dict[str, list[int]]:
        """Which of the deed's records are there."""
        return {
            topic: sorted(
                id for (name, _), ids in contents.items() if name == topic for id in ids if id >= 900
            )
            for topic in self.deed.ids
        }


def check(attempt: Attempt) -> None:
    deed = attempt.deed
    error = attempt.run()
    assert error is None or isinstance(error, StorageError), f"{error!r}"
    found = contents_of(attempt.reader)  # a reader that was there before goes on
    happened = error is None
    told = error.stored_ranges if isinstance(error, StorageError) else {}
    stored = attempt.stored(found)
    if happened:
        assert stored == deed.ids
    elif told:
        assert stored != deed.ids
        assert set().union(*stored.values()) == {
            id for (_, n), ids in found.items() if n in told for id in ids if id >= 900
        }
    else:
        assert not any(stored.values()), f"seen, though it failed with {error!r}"
    if deed.position:
        assert position_of(attempt.reader) == (deed.position if happened else b"old")
    survives(attempt, found)
    attempt.faulty.mend()
    if not happened and not told:
        assert attempt.run() is None, "the next try works"
        found = contents_of(attempt.log)
        assert attempt.stored(found) == deed.ids
        assert contents_of(attempt.reader) == found
    for topic in ("orders", "small", "events", "state"):
        attempt.log.topic(topic).append(rows(800, 1))
    survives(attempt, contents_of(attempt.log))


def survives(attempt: Attempt, found: Contents) -> None:
    """Everything that can be seen is there after power loss; what failed may be too, but not in part."""
    for mode, memory in attempt.losses:
        disk = attempt.disk.after_power_loss(mode=mode, memory=memory, seed=7)
        again = open_log(attempt.home, disk)
        after = contents_of(again)
        for place, ids in found.items():
            if place[0] != "state":
                kept = [id for id in after.get(place, []) if id in ids]
                assert kept == ids, f"{place} after power loss ({mode}): {after.get(place)}"
        stored = attempt.stored(after)
        if attempt.deed.position:
            whole = position_of(again) == attempt.deed.position
            assert stored == (attempt.deed.ids if whole else {topic: [] for topic in stored})


def faults_of(
    deed: Deed, home: Path, prepared: CrashingDisk
) -> Iterator[tuple[Kind, int, dict[str, Any], str]]:
    """Every fault that can meet this deed: at the nth operation of which kind, how, and a description."""
    attempt = Attempt(home, prepared.after_kill(), deed)
    attempt.faulty.operations.clear()
    assert attempt.run() is None
    seen: dict[Kind, int] = {}
    for kind, path in attempt.faulty.operations:
        seen[kind] = seen.get(kind, 0) + 1
        for how in FAULTS[kind]:
            yield kind, seen[kind], how, f"{kind} {path.relative_to(home)} {how}"


@pytest.fixture
def short_ledger(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is rewritten after every atomic append."""
    monkeypatch.setattr(ledger, "_REWRITE_BYTES", 100)


def sweep(
    home: Path, prepared: CrashingDisk, deed: Deed, *, times: int, every: int = 1, thorough: bool = False
) -> None:
    """Fail at every operation (or every n-th) of a deed, in every way, `times` times in a row."""
    for number, (kind, nth, how, told) in enumerate(faults_of(deed, home, prepared)):
        if number % every:
            continue
        losses = LOSSES if thorough else [LOSSES[number // every % len(LOSSES)]]
        attempt = Attempt(home, prepared.after_kill(), deed, losses)
        attempt.faulty.fail(kind, nth=nth, times=times, **how)
        try:
            check(attempt)
        except (AssertionError, PenstockError, OSError, KeyError) as error:
            raise AssertionError(f"{told}: {error!r}") from error


@pytest.mark.usefixtures("short_ledger")
@pytest.mark.parametrize("deed", DEEDS, ids=lambda deed: deed.name)
def test_a_fault_at_every_operation(home: Path, prepared: CrashingDisk, deed: Deed) -> None:
    sweep(home, prepared, deed, times=1)


@pytest.mark.usefixtures("short_ledger")
@pytest.mark.parametrize("deed", DEEDS, ids=lambda deed: deed.name)
def test_a_disk_that_fails_until_it_is_mended(home: Path, prepared: CrashingDisk, deed: Deed) -> None:
    sweep(home, prepared, deed, times=1_000, every=4)


@pytest.mark.crash
@pytest.mark.usefixtures("short_ledger")
@pytest.mark.parametrize("times", [1, 2, 3, 1_000])
@pytest.mark.parametrize("deed", DEEDS, ids=lambda deed: deed.name)
def test_a_fault_at_every_operation_and_every_power_loss_after_it(
    home: Path, prepared: CrashingDisk, deed: Deed, times: int
) -> None:
    sweep(home, prepared, deed, times=times, thorough=True)


# ---- a process that dies, as seen by one that was there before ---------------------------------------


class Killed(BaseException):
    """The process ends: locks are let go, no handler of errors runs."""


class KillingDisk(FaultyDisk):
    """Kills its user before or after one operation."""

    at, when = -1, "before"

    @contextlib.contextmanager
    def doing(self, kind: Kind, path: Path) -> Iterator[Any]:
        self.operations.append((kind, path))
        now = len(self.operations) == self.at + 1
        if now and self.when == "before":
            raise Killed
        try:
            yield None
        finally:
            if now:
                raise Killed


@pytest.mark.usefixtures("short_ledger")
@pytest.mark.parametrize("every", [4, pytest.param(1, marks=pytest.mark.crash)])
@pytest.mark.parametrize("deed", DEEDS, ids=lambda deed: deed.name)
def test_others_go_on_when_a_process_dies_at_any_operation(
    home: Path, prepared: CrashingDisk, deed: Deed, every: int
) -> None:
    """They have files open, settings read and heads mapped, and must not trust any of it too much."""
    for number in range(0, 2_000, every):
        attempt = Attempt(home, prepared.after_kill(), deed, [LOSSES[number // every % 3]])
        killing = KillingDisk(attempt.disk)
        log = open_log(home, killing)
        producer = log.producer("p")
        witness = attempt.reader.producer("q")
        killing.at = len(killing.operations) + number // 2
        killing.when = "before" if number // every % 2 else "after"
        try:
            deed.do(log, producer)
            break  # there are no more operations
        except Killed:
            kind, path = killing.operations[-1]
        try:
            go_on_after_kill(attempt, witness)
        except (AssertionError, PenstockError, OSError, KeyError) as error:
            raise AssertionError(f"{killing.when} {kind} {path.relative_to(home)}: {error!r}") from error
    assert 10 < number < 1_900


def go_on_after_kill(attempt: Attempt, witness: AtomicProducer) -> None:
    deed, reader = attempt.deed, attempt.reader
    if deed.position:
        happened = position_of(reader) == deed.position
        expected = deed.ids if happened else {topic: [] for topic in deed.ids}
        assert attempt.stored(contents_of(reader)) == expected, "whole or not at all"
    found = contents_of(reader)
    for place, ids in attempt.before.items():
        assert place[0] == "state" or [id for id in found[place] if id in ids] == ids
    assert not witness.append({"orders": rows(810, 1), "small": rows(811, 1)}, position=b"w").duplicate
    for topic in ("events", "state", "small"):
        reader.topic(topic).append(rows(800, 1))
    survives(attempt, contents_of(reader))


# ---- syncs that fail ----------------------------------------------------------------------------------


def segment_files(disk: CrashingDisk, home: Path, topic: str) -> list[str]:
    return [name for name in disk.names(home / "topics" / topic / "0") if name.endswith(".arrows")]


def is_segment(path: Path) -> bool:
    return path.suffix == ".arrows"


def is_ledger(path: Path) -> bool:
    return path.name == "commits.log"


def test_after_a_failed_sync_the_next_append_starts_a_fresh_segment(
    home: Path, prepared: CrashingDisk
) -> None:
    """A later sync of the same file would prove nothing: the kernel may call lost pages clean."""
    disk = prepared.after_kill()
    faulty = FaultyDisk(disk)
    log = open_log(home, faulty)
    files = segment_files(disk, home, "events")
    faulty.fail("sync", where=is_segment)
    with pytest.raises(SyncFailed):
        log.topic("events").append(rows(900, 1))
    assert contents_of(log)["events", 0] == [10, 11]
    assert log.topic("events").append(rows(901, 1)).offset == 2
    assert len(segment_files(disk, home, "events")) == len(files) + 1
    after = open_log(home, disk.after_power_loss(mode="synced"))
    assert contents_of(after)["events", 0] == [10, 11, 901]


def test_a_failed_file_is_given_up_even_if_the_disk_is_full_when_that_is_tried(
    home: Path, prepared: CrashingDisk
) -> None:
    disk = prepared.after_kill()
    faulty = FaultyDisk(disk)
    log = open_log(home, faulty)
    files = segment_files(disk, home, "events")
    faulty.fail("sync", where=is_segment)
    with pytest.raises(SyncFailed):
        log.topic("events").append(rows(900, 1))
    faulty.fail("write", times=1_000)
    for _ in range(3):
        with pytest.raises(DiskFull):
            log.topic("events").append(rows(901, 1))
    faulty.mend()
    log.topic("events").append(rows(902, 1))
    assert len(segment_files(disk, home, "events")) == len(files) + 1, "not in the file that failed"
    after = open_log(home, disk.after_power_loss(mode="synced"))
    assert contents_of(after)["events", 0] == [10, 11, 902]


@dataclass
class Pair:
    """Two writers on one disk; the disk fails for the first."""

    home: Path
    disk: CrashingDisk

    def __post_init__(self) -> None:
        self.faulty = FaultyDisk(self.disk)
        self.unlucky = open_log(self.home, self.faulty)
        self.other = open_log(self.home, self.disk)

    def port(self, log: Log) -> EmbeddedLog:
        assert isinstance(log.port, EmbeddedLog)
        return log.port

    def write(self, log: Log, id: int) -> Callable[[], None]:
        """Append, but leave the sync for later: the returned function is the wait for it."""
        topic = log.topic("events")
        part, settings = self.port(log).partition("events", 0), topic.settings
        extent = part.append(frames(settings, topic.encode(rows(id, 1))), settings)
        return lambda: part.finish(extent, settings)

    def after_power_loss(self) -> list[int]:
        return contents_of(open_log(self.home, self.disk.after_power_loss(mode="synced")))["events", 0]


@pytest.fixture
def pair(home: Path, prepared: CrashingDisk) -> Pair:
    return Pair(home, prepared.after_kill())


def test_when_the_sync_of_one_writer_fails_no_other_is_told_that_its_records_are_safe(pair: Pair) -> None:
    first, second = pair.write(pair.unlucky, 900), pair.write(pair.other, 901)
    pair.faulty.fail("sync", where=is_segment)
    with pytest.raises(SyncFailed):
        first()
    with pytest.raises(SyncFailed):
        second()
    assert contents_of(pair.other)["events", 0] == [10, 11]
    pair.other.topic("events").append(rows(902, 1))
    pair.unlucky.topic("events").append(rows(903, 1))
    assert contents_of(pair.unlucky)["events", 0] == [10, 11, 902, 903]
    assert pair.after_power_loss() == [10, 11, 902, 903]


def test_records_synced_before_another_writers_sync_failed_are_safe(pair: Pair) -> None:
    first, second = pair.write(pair.unlucky, 900), pair.write(pair.other, 901)
    second()
    pair.faulty.fail("sync", where=is_segment)
    first()  # the other's sync covered it
    assert contents_of(pair.unlucky)["events", 0] == [10, 11, 900, 901]
    assert pair.after_power_loss() == [10, 11, 900, 901]


def test_records_that_others_can_see_are_not_therefore_synced(pair: Pair) -> None:
    """The topic is altered to durability="os" between an append and the wait for its sync."""
    finish = pair.write(pair.unlucky, 900)
    pair.other.alter_topic("events", durability="os")
    pair.other.topic("events").append(rows(901, 1))
    assert contents_of(pair.other)["events", 0] == [10, 11, 900, 901]
    finish()
    assert 900 in pair.after_power_loss()


def test_a_roll_whose_sync_fails_acknowledges_nothing_of_other_writers(pair: Pair) -> None:
    second = pair.write(pair.other, 901)
    pair.faulty.fail("sync", where=is_segment)
    part, settings = (
        pair.port(pair.unlucky).partition("events", 0),
        pair.port(pair.unlucky).settings("events"),
    )
    with pytest.raises(SyncFailed), part.locked() as head:
        part.roll(head, settings)
    with pytest.raises(SyncFailed):
        second()
    pair.other.topic("events").append(rows(902, 1))
    assert pair.after_power_loss() == [10, 11, 902]


def test_an_atomic_append_whose_sync_fails_acknowledges_nothing_of_other_writers(pair: Pair) -> None:
    producer = pair.unlucky.producer("p")
    second = pair.write(pair.other, 901)
    pair.faulty.fail("sync", where=is_segment)
    with pytest.raises(SyncFailed):
        producer.append({"events": rows(900, 1)}, position=b"new")
    with pytest.raises(SyncFailed):
        second()
    assert position_of(pair.other) == b"old"
    assert producer.append({"events": rows(902, 1)}, position=b"new").sequence == 3
    assert pair.after_power_loss() == [10, 11, 902]


def test_threads_of_one_process_share_the_knowledge_that_a_sync_failed(pair: Pair) -> None:
    """They share the file's handle, on which the kernel reports an error only once."""
    log = pair.unlucky
    first, second = pair.write(log, 900), pair.write(log, 901)
    part = pair.port(log).partition("events", 0)
    pair.faulty.fail("sync", where=is_segment)
    with pytest.raises(SyncFailed):
        part.active(part.head()).sync()  # as in `finish`, just before it marks the failure
    settings = pair.port(log).settings("events")
    with pytest.raises(SyncFailed), part.locked() as head:
        part.roll(head, settings)  # another thread comes in between
    for finish in (first, second):
        with pytest.raises(SyncFailed):
            finish()
    log.topic("events").append(rows(902, 1))
    assert pair.after_power_loss() == [10, 11, 902]


def test_when_a_sync_of_the_ledger_fails_no_other_commit_is_believed(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other's commit record is in the file, not yet synced, when the sync of the first one fails."""
    first, second = pair.unlucky.producer("p"), pair.other.producer("q")
    make_durable = ledger.Ledger._make_durable

    def fail_first(self: ledger.Ledger, appended: Any = None) -> None:
        monkeypatch.setattr(ledger.Ledger, "_make_durable", make_durable)
        pair.faulty.fail("sync", where=is_ledger)
        with pytest.raises(SyncFailed):
            first.append({"orders": rows(900, 1)}, position=b"new")
        make_durable(self, appended)

    monkeypatch.setattr(ledger.Ledger, "_make_durable", fail_first)
    with pytest.raises(SyncFailed):
        second.append({"events": rows(901, 1)}, position=b"new")
    for log in (pair.unlucky, pair.other, open_log(pair.home, pair.disk.after_power_loss(mode="written"))):
        assert position_of(log) == b"old"
        assert log.port.producer_position("q").position is None
        found = contents_of(log)
        assert found["events", 0] == [10, 11]
        assert 900 not in found["orders", 0] + found["orders", 1]
    assert second.append({"events": rows(902, 1)}, position=b"new").sequence == 0
    assert pair.after_power_loss() == [10, 11, 902]


def test_a_ledger_that_cannot_be_put_right_leaves_the_outcome_open_and_readers_go_on(pair: Pair) -> None:
    producer = pair.unlucky.producer("p")
    pair.faulty.fail("sync", where=lambda path: path.name.startswith("commits.log"), times=1_000)
    with pytest.raises(StorageError):
        producer.append({"events": rows(900, 1)}, position=b"new")
    with pytest.raises(StorageError):
        position_of(pair.unlucky)
    assert contents_of(pair.unlucky)["events", 0] == [10, 11]
    pair.faulty.mend()
    assert position_of(pair.unlucky) == b"old"
    assert producer.append({"events": rows(901, 1)}, position=b"new").duplicate is False
    assert contents_of(pair.other)["events", 0] == [10, 11, 901]
    assert pair.after_power_loss() == [10, 11, 901]


# ---- real disks that are full -------------------------------------------------------------------------


def test_a_limit_on_the_size_of_files_is_a_full_disk(tmp_path: Path) -> None:
    program = """
        import resource, signal, sys
        from penstock.errors import DiskFull
        from penstock.opening import open_log

        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        log = open_log(sys.argv[1])
        topic = log.create_topic("t", "id BIGINT NOT NULL, text STRING")
        resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, resource.RLIM_INFINITY))
        stored = failed = 0
        while failed < 5:
            try:
                assert topic.append({"id": stored, "text": "x" * 1000}).offset == stored
                stored += 1
            except DiskFull:
                failed += 1
                assert [row["id"] for row in topic.rows()] == list(range(stored))
        assert stored > 10
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        assert topic.append({"id": stored, "text": "on"}).offset == stored
        assert [row["id"] for row in topic.rows()] == list(range(stored + 1))
        print(stored + 1)
    """
    ran = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), str(tmp_path / "home")],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    with Log(EmbeddedLog(tmp_path / "home")) as log:
        assert len(list(log.topic("t").rows())) == int(ran.stdout)


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own with two megabytes."""
    mounted = tmp_path / "tiny"
    mounted.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(mounted)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("mounting a small tmpfs needs root")
    try:
        yield mounted
    finally:
        subprocess.run(["umount", "-l", str(mounted)], check=False)


def test_a_full_disk_stops_writing_but_not_reading_and_writing_resumes(tiny_disk: Path) -> None:
    log = Log(EmbeddedLog(tiny_disk / "home"))
    topics = [
        log.create_topic(name, "id BIGINT NOT NULL, text STRING", segment_bytes=100_000) for name in "ab"
    ]
    producer = log.producer("p")
    ballast = tiny_disk / "ballast"
    ballast.write_bytes(bytes(1 << 20))
    stored: list[int] = []
    committed, refused, id = -1, 0, 0
    while refused < 40:
        record = {"id": id, "text": "x" * 3_000}
        try:
            if id % 3 == 0:
                producer.append(dict.fromkeys(topics, record), position=str(id).encode())
                committed = id
            else:
                for topic in topics:
                    topic.append(record)
            stored.append(id)
        except DiskFull as error:
            refused += 1
            assert "no space" in str(error)
        if refused == 20:
            ballast.unlink(missing_ok=True)  # there is room again, for a while
        if refused or id % 20 == 0:
            assert_holds(log, stored, committed)
        id += 1
    assert len(stored) > 100
    assert_holds(Log(EmbeddedLog(tiny_disk / "home")), stored, committed)


def assert_holds(log: Log, stored: list[int], committed: int) -> None:
    """Every acknowledged record in order, and the position of the last atomic append."""
    for name in "ab":
        found = [row["id"] for row in log.topic(name).rows()]
        assert [id for id in found if id in set(stored)] == stored
        # A pair of plain appends may have stored its first half.
        assert set(found) - set(stored) <= ({id for id in found if id % 3} if name == "a" else set())
    position = log.port.producer_position("p").position
    assert int(position or -1) == committed
