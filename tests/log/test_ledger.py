"""The ledger of atomic appends: one commit point, one position, one producer at a time."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from penstock.clock import ManualClock
from penstock.errors import Fenced, LockTimeout, UnknownTopic
from penstock.log import atomic, ledger, maintenance
from penstock.log.embedded import EmbeddedLog
from penstock.log.ledger import Ledger
from penstock.log.log import AtomicProducer, Log
from penstock.log.partition import Partition
from penstock.opening import open_log as open_real
from penstock.testing.crashing_disk import CrashingDisk


class Killed(BaseException):
    """The process ends here: no handler of errors runs, locks are let go, shared memory stays."""


def killed(*args: object, **options: object) -> Any:
    raise Killed


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "log").mkdir()  # for the groups' SQLite file
    return tmp_path / "log"


@pytest.fixture
def disk(home: Path) -> CrashingDisk:
    return CrashingDisk(home.parent)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def open_log(home: Path, disk: CrashingDisk, clock: ManualClock) -> Callable[..., Log]:
    """Another process, or with another disk another boot, opens the log."""
    return lambda on=None: Log(EmbeddedLog(home, disk=on or disk, clock=clock))


@pytest.fixture
def log(open_log: Callable[..., Log]) -> Log:
    made = open_log()
    made.create_topic("a", "id BIGINT NOT NULL", partitions=2, key="id")
    made.create_topic("b", "id BIGINT NOT NULL")
    return made


def rows(*ids: int) -> list[dict[str, int]]:
    return [{"id": id} for id in ids]


def ids_of(log: Log) -> dict[str, list[int]]:
    return {name: sorted(row["id"] for row in log.topic(name).rows()) for name in log.topics()}


def position_of(log: Log, producer: str = "p") -> bytes | None:
    return log.port.producer_position(producer).position


def port_of(log: Log) -> EmbeddedLog:
    assert isinstance(log.port, EmbeddedLog)
    return log.port


# ---- sequences ---------------------------------------------------------------------------------------


def test_a_sequence_that_was_stored_before_is_dropped(log: Log) -> None:
    producer = log.producer("p")
    first = producer.append({"a": rows(1, 2, 3), "b": rows(4)}, position=b"1")
    again = producer.append({"a": rows(1, 2, 3), "b": rows(4)}, position=b"other", sequence=0)
    assert again.duplicate and not first.duplicate
    assert again.positions == first.positions, "the last append is remembered with its offsets"
    assert ids_of(log) == {"a": [1, 2, 3], "b": [4]}
    assert producer.position() == b"1"


def test_an_older_sequence_is_dropped_too_and_sequences_may_skip(log: Log) -> None:
    producer = log.producer("p")
    for sequence in (0, 5, 9):
        assert not producer.append(
            {"b": rows(sequence)}, position=b"%d" % sequence, sequence=sequence
        ).duplicate
    for sequence in (0, 3, 5, 8, 9):
        assert producer.append({"b": rows(100)}, position=b"no", sequence=sequence).duplicate
    assert ids_of(log)["b"] == [0, 5, 9]
    assert producer.position() == b"9"
    assert producer.next_sequence == 10


def test_a_duplicate_is_known_to_other_processes_after_power_loss_and_to_the_next_epoch(
    log: Log, disk: CrashingDisk, open_log: Callable[..., Log]
) -> None:
    log.producer("p").append({"b": rows(1)}, position=b"1")
    for other in (open_log(), open_log(disk.after_power_loss())):
        producer = other.producer("p")
        assert producer.next_sequence == 1
        assert producer.append({"b": rows(1)}, position=b"again", sequence=0).duplicate
        assert ids_of(other)["b"] == [1]


def test_a_position_alone_can_be_stored(log: Log) -> None:
    producer = log.producer("p")
    assert producer.position() is None
    producer.append({}, position=b"\x00 any bytes \xff")
    assert producer.position() == b"\x00 any bytes \xff"
    producer.append({"b": rows(1)})
    assert producer.position() is None, "the position is that of the last append"


# ---- fencing -------------------------------------------------------------------------------------------


def test_a_newer_instance_fences_the_older(log: Log, open_log: Callable[..., Log]) -> None:
    old = log.producer("p")
    new = open_log().producer("p")
    assert new.epoch == old.epoch + 1
    with pytest.raises(Fenced) as caught:
        old.append({"b": rows(1)}, position=b"old")
    assert (caught.value.epoch, caught.value.current) == (old.epoch, new.epoch)
    assert new.append({"b": rows(2)}, position=b"new").sequence == 0
    assert ids_of(log)["b"] == [2]
    assert old.position() == b"new"


STEPS: list[tuple[Any, str]] = [
    (Ledger, "new_transaction"),
    (Ledger, "may_begin"),
    (Ledger, "check"),
    (Partition, "stage"),
    (Ledger, "commit"),
]


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(("owner", "step"), STEPS, ids=[name for _, name in STEPS])
def test_a_newer_instance_may_come_at_any_moment_of_an_append(
    log: Log, open_log: Callable[..., Log], monkeypatch: pytest.MonkeyPatch, owner: Any, step: str, when: str
) -> None:
    """Either the append counts and the newer one starts behind it, or it is fenced and leaves nothing."""
    old, other = log.producer("p"), open_log()
    taken: list[AtomicProducer] = []
    original = getattr(owner, step)

    def interrupted(*args: Any, **options: Any) -> Any:
        if when == "before" and not taken:
            taken.append(other.producer("p"))
        done = original(*args, **options)
        if when == "after" and not taken:
            with suppress(LockTimeout):  # it waits until what is committed can be read, here in vain
                taken.append(other.producer("p"))
        return done

    monkeypatch.setattr(owner, step, interrupted)
    try:
        old.append({"a": rows(1, 2, 3), "b": rows(4)}, position=b"old")
        happened = True
    except Fenced:
        happened = False
    monkeypatch.undo()
    assert happened == ((step, when) == ("commit", "after"))
    assert ids_of(other) == ({"a": [1, 2, 3], "b": [4]} if happened else {"a": [], "b": []})
    new = taken[0] if taken else other.producer("p")
    assert bool(taken) != happened
    assert new.position() == (b"old" if happened else None)
    assert new.append({"b": rows(5)}, position=b"new").duplicate is False
    with pytest.raises(Fenced):
        old.append({"b": rows(6)}, position=b"late")
    assert ids_of(log)["b"] == ([4, 5] if happened else [5])


# ---- killed on the way ------------------------------------------------------------------------------------


def test_of_two_that_take_over_at_the_same_moment_one_is_fenced(
    log: Log, open_log: Callable[..., Log], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else both would number their appends alike, and of two with one number only the first is stored."""
    others: list[AtomicProducer] = []
    new_epoch = Ledger.new_epoch

    def overtaken(self: Ledger, producer: str) -> int:
        epoch = new_epoch(self, producer)
        with monkeypatch.context() as patch:
            patch.setattr(Ledger, "new_epoch", new_epoch)
            others.append(open_log().producer("p"))
        return epoch

    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "new_epoch", overtaken)
        earlier = log.producer("p")
    others[0].append({"a": rows(1)})
    with pytest.raises(Fenced):
        earlier.append({"a": rows(2)})
    assert ids_of(log)["a"] == [1]


def test_who_takes_over_sees_what_was_committed_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the older instance is on the way from its commit to showing it."""
    seen: list[int] = []

    def take_over() -> None:
        with open_real(tmp_path / "real") as other:
            other.producer("p")
            seen.append(other.topic("a").bounds()[0][1])

    publish = Partition.publish
    newer = threading.Thread(target=take_over)

    def slow(self: Partition, staged: Any) -> None:
        newer.start()
        newer.join(0.3)  # it waits for us, so this takes as long
        publish(self, staged)

    with open_real(tmp_path / "real") as older:
        older.create_topic("a", "id BIGINT")
        producer = older.producer("p")
        monkeypatch.setattr(Partition, "publish", slow)
        producer.append({"a": rows(1)})
        newer.join(30)
    assert seen == [1]


def test_a_kill_between_the_commit_and_showing_the_records_loses_nothing(
    log: Log, disk: CrashingDisk, open_log: Callable[..., Log], monkeypatch: pytest.MonkeyPatch
) -> None:
    producer = log.producer("p")
    monkeypatch.setattr(Partition, "publish", killed)
    with pytest.raises(Killed):
        producer.append({"a": rows(1, 2, 3), "b": rows(4)}, position=b"1")
    monkeypatch.undo()
    expected = {"a": [1, 2, 3], "b": [4]}
    for other in (
        open_log(disk.after_power_loss()),
        open_log(disk.after_power_loss(mode="torn", memory="mixed")),
    ):
        assert position_of(other) == b"1"
        assert ids_of(other) == expected
    readers = open_log(disk.after_kill())
    assert ids_of(readers) == expected, "readers see them"
    assert position_of(open_log()) == b"1"
    assert ids_of(open_log()) == expected
    assert log.producer("p").append({"b": rows(5)}, position=b"2").sequence == 1


@pytest.mark.parametrize("shown", [1, 2])
def test_a_kill_while_showing_the_records_shows_the_rest(
    log: Log, open_log: Callable[..., Log], monkeypatch: pytest.MonkeyPatch, shown: int
) -> None:
    producer, publish, counter = log.producer("p"), Partition.publish, itertools.count()

    def interrupted(self: Partition, staged: Any) -> None:
        if next(counter) == shown:
            raise Killed
        publish(self, staged)

    monkeypatch.setattr(Partition, "publish", interrupted)
    with pytest.raises(Killed):
        producer.append({"a": rows(1, 2, 3), "b": rows(4)}, position=b"1")
    monkeypatch.undo()
    assert ids_of(open_log()) == {"a": [1, 2, 3], "b": [4]}
    assert position_of(log) == b"1"


def test_asking_for_the_position_shows_the_records_it_speaks_of(
    log: Log, open_log: Callable[..., Log], monkeypatch: pytest.MonkeyPatch
) -> None:
    producer = log.producer("p")
    monkeypatch.setattr(Partition, "publish", killed)
    with pytest.raises(Killed):
        producer.append({"b": rows(4)}, position=b"1")
    monkeypatch.undo()
    other = open_log()
    assert position_of(other) == b"1"
    head = port_of(other).partition("b", 0)._head.read()
    assert head is not None
    assert (head.transaction, head.visible_offset) == (b"", 1)


@pytest.mark.parametrize("step", ["stage", "commit"])
def test_a_kill_before_the_commit_leaves_nothing(
    log: Log, disk: CrashingDisk, open_log: Callable[..., Log], monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    log.topic("b").append(rows(0))
    producer = log.producer("p")
    stage, counter = Partition.stage, itertools.count()

    def second_stage(self: Partition, *args: Any) -> Any:
        return killed() if next(counter) == 1 else stage(self, *args)

    if step == "stage":
        monkeypatch.setattr(Partition, "stage", second_stage)
    else:
        monkeypatch.setattr(Ledger, "commit", killed)
    with pytest.raises(Killed):
        producer.append({"a": rows(1, 2, 3), "b": rows(4)}, position=b"1")
    monkeypatch.undo()
    others = [open_log(), open_log(disk.after_kill())]
    others += [open_log(disk.after_power_loss(mode=mode)) for mode in ("synced", "written", "torn")]
    for other in others:
        assert position_of(other) is None
        assert ids_of(other) == {"a": [], "b": [0]}
    assert log.topic("b").append(rows(5)).offset == 1
    again = open_log(disk.after_power_loss(mode="written", memory="kept"))
    assert ids_of(again) == {"a": [], "b": [0, 5]}


def test_a_record_of_a_commit_that_never_counted_does_not_come_back_after_power_loss(
    log: Log, disk: CrashingDisk, open_log: Callable[..., Log], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed with the record written and the head not moved: its records are cut, so it must go for good."""
    producer, other = log.producer("p"), open_log()
    assert position_of(other) is None  # it has read the ledger
    append = Ledger._append

    def without_head(self: Ledger, head: Any, record: Any) -> Any:
        with monkeypatch.context() as patch:
            patch.setattr(type(self._head), "write", killed)
            return append(self, head, record)

    monkeypatch.setattr(Ledger, "_append", without_head)
    with pytest.raises(Killed):
        producer.append({"b": rows(1)}, position=b"1")
    monkeypatch.undo()
    assert ids_of(other)["b"] == []
    for seed in range(60):
        after = open_log(disk.after_power_loss(mode="torn", memory="mixed", seed=seed))
        assert (position_of(after), ids_of(after)["b"]) == (None, [])


def test_a_lock_that_is_not_free_leaves_the_outcome_to_whoever_comes_next(
    log: Log, disk: CrashingDisk, open_log: Callable[..., Log], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commit record is synced when the lock for noting that is refused: it has happened."""
    producer = log.producer("p")
    show = Ledger._show

    def refused(self: Ledger, seen: Any) -> None:
        monkeypatch.setattr(Ledger, "_show", show)
        raise LockTimeout("the ledger", waited_s=10)

    monkeypatch.setattr(Ledger, "_show", refused)
    with pytest.raises(LockTimeout):
        producer.append({"a": rows(1, 2), "b": rows(3)}, position=b"1")
    for other in (open_log(disk.after_power_loss()), open_log()):
        assert position_of(other) == b"1"
        assert ids_of(other) == {"a": [1, 2], "b": [3]}
    again = producer.append({"a": rows(1, 2), "b": rows(3)}, position=b"1")
    assert again.duplicate, "trying again is safe"


# ---- positions outlive records ---------------------------------------------------------------------------


def test_a_position_survives_retention_and_compaction_of_what_it_was_stored_with(
    log: Log, disk: CrashingDisk, open_log: Callable[..., Log], clock: ManualClock
) -> None:
    log.create_topic("short", "id BIGINT NOT NULL", retention=60)
    log.create_topic("keyed", "id BIGINT NOT NULL", key="id", cleanup="compact", tombstone_ms=0)
    log.producer("p").append({"short": rows(1, 2), "keyed": rows(1)}, position=b"kept")
    log.topic("keyed").delete({"id": 1})
    clock.advance(600)
    port = port_of(log)
    for topic in ("short", "keyed"):
        part, settings = port.partition(topic, 0), port.settings(topic)
        with part.locked() as head:
            part.roll(head, settings)
        for _ in range(2):  # a delete goes after what it hides
            maintenance.run(part, settings, port.groups_store(), force=True)
    assert (ids_of(log)["short"], ids_of(log)["keyed"]) == ([], [])
    for other in (log, open_log(), open_log(disk.after_power_loss())):
        assert position_of(other) == b"kept"
        assert other.producer("p").next_sequence == 1


def test_a_position_survives_the_deletion_of_its_topics_and_smaller_ones_of_the_same_name(
    log: Log, disk: CrashingDisk, open_log: Callable[..., Log]
) -> None:
    log.producer("p").append({"a": rows(1, 2, 3), "b": rows(4)}, position=b"kept")
    log.delete_topic("a")
    log.delete_topic("b")
    assert position_of(log) == b"kept"
    log.create_topic("a", "id BIGINT NOT NULL", partitions=1)
    for other in (log, open_log(), open_log(disk.after_power_loss())):
        assert position_of(other) == b"kept"
        assert ids_of(other) == {"a": []}
        with pytest.raises(UnknownTopic):
            other.topic("b")
    log.producer("p").append({"a": rows(5)}, position=b"on")
    assert ids_of(open_log(disk.after_power_loss())) == {"a": [5]}


# ---- rewriting -------------------------------------------------------------------------------------------


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger, "_REWRITE_BYTES", 300)


def generation_of(log: Log) -> int:
    head = port_of(log).ledger._head.read()
    assert head is not None
    return head.generation


@pytest.mark.usefixtures("short")
def test_a_rewritten_ledger_keeps_every_producer(
    log: Log, disk: CrashingDisk, open_log: Callable[..., Log]
) -> None:
    producers = [log.producer(f"p{n}") for n in range(5)]
    log.producer("idle")
    before = generation_of(log)
    for n in range(40):
        producers[n % 5].append({"b": rows(n)}, position=b"%d" % n)
    assert generation_of(log) > before + 2
    for other in (log, open_log(), open_log(disk.after_power_loss())):
        assert [position_of(other, f"p{n}") for n in range(5)] == [b"35", b"36", b"37", b"38", b"39"]
        assert position_of(other, "idle") is None
        assert ids_of(other)["b"] == list(range(40))
        assert other.producer("p3").next_sequence == 8


@pytest.mark.usefixtures("short")
def test_processes_that_write_in_turn_follow_each_others_rewriting(
    log: Log, open_log: Callable[..., Log]
) -> None:
    logs = [log, open_log(), open_log()]
    producers = [opened.producer(f"p{n}") for n, opened in enumerate(logs)]
    before = generation_of(log)
    for n in range(60):
        producers[n % 3].append({"a": rows(n), "b": rows(n)}, position=b"%d" % n)
        reader = logs[(n + 1) % 3]
        assert position_of(reader, f"p{n % 3}") == b"%d" % n
    assert generation_of(log) > before + 3
    for opened in logs:
        assert ids_of(opened) == {"a": list(range(60)), "b": list(range(60))}


@pytest.mark.usefixtures("short")
def test_an_append_that_began_before_a_rewriting_is_not_taken_for_committed(
    log: Log, disk: CrashingDisk, open_log: Callable[..., Log], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has its id, then the ledger is shortened and says: all ids up to here are settled."""
    slow, quick = log.producer("slow"), open_log().producer("quick")
    new_transaction, ids = Ledger.new_transaction, []

    def overtaken(self: Ledger) -> str:
        ids.append(new_transaction(self))
        if len(ids) == 1:
            monkeypatch.setattr(Ledger, "new_transaction", new_transaction)
            before = generation_of(log)
            while generation_of(log) == before:
                quick.append({"a": rows(1)}, position=b"q")
        return ids[0]

    monkeypatch.setattr(Ledger, "new_transaction", overtaken)
    monkeypatch.setattr(atomic, "_stage_and_commit", _stage_and_die)
    with pytest.raises(Killed):
        slow.append({"b": rows(2)}, position=b"s")
    monkeypatch.undo()
    for mode in ("synced", "written"):
        after = open_log(disk.after_power_loss(mode=mode))
        assert (position_of(after, "slow"), ids_of(after)["b"]) == (None, [])
    assert ids_of(open_log())["b"] == []


_stage_and_commit = atomic._stage_and_commit


def _stage_and_die(ledger_: Ledger, held: Any, producer: str, state: Any) -> Any:
    if producer != "slow":
        return _stage_and_commit(ledger_, held, producer, state)
    for place in held:
        place.partition.stage(place.head, place.frames, state.transaction)
    raise Killed


@pytest.mark.usefixtures("short")
def test_a_ledger_is_rewritten_under_concurrent_producers(tmp_path: Path) -> None:
    """On real files, each producer with a log of its own, as processes would have."""
    home, threads, each = tmp_path / "real", 4, 40
    with Log(EmbeddedLog(home)) as log:
        log.create_topic("a", "id BIGINT NOT NULL")
        log.create_topic("b", "id BIGINT NOT NULL", partitions=2, key="id")
        log.producer("p0")
        before = generation_of(log)
        failures: list[BaseException] = []

        def produce(number: int) -> None:
            try:
                with Log(EmbeddedLog(home)) as mine:
                    producer = mine.producer(f"p{number}")
                    for n in range(each):
                        id = number * 1_000 + n
                        producer.append({"a": rows(id), "b": rows(id)}, position=b"%d" % n)
                        assert producer.position() == b"%d" % n
                        assert mine.port.producer_position(f"p{(number + 1) % threads}").epoch <= 2
            except BaseException as error:
                failures.append(error)

        running = [threading.Thread(target=produce, args=(number,)) for number in range(threads)]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join(timeout=60)
        assert failures == []
        assert generation_of(log) > before + 5
        expected = sorted(number * 1_000 + n for number in range(threads) for n in range(each))
        assert ids_of(log) == {"a": expected, "b": expected}
        for number in range(threads):
            own = [row["id"] for row in log.topic("a").rows() if row["id"] // 1_000 == number]
            assert own == sorted(own), "each producer's records in its order"
