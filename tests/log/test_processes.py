"""Several processes on one log."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.waiting import wait_until

import penstock as ps
from penstock.log.disk import RealFile, RealLock, RealShared
from penstock.log.embedded import EmbeddedLog
from penstock.log.log import Log

FORK = multiprocessing.get_context("fork")

_WRITER = """
import sys, penstock as ps
topic = ps.open_log(sys.argv[1]).topic("t")
for number in range(int(sys.argv[3])):
    topic.append({"writer": int(sys.argv[2]), "n": number})
"""

_HOLDER = """
import sys, penstock as ps
log = ps.open_log(sys.argv[1])
with log.port.partition("t", 0).locked():
    print("held", flush=True)
    sys.stdin.read()
"""


def python(code: str, *words: object, **options: int) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", code, *map(str, words)], text=True, **options)  # type: ignore[call-overload,no-any-return]


def by_writer(topic: ps.Topic) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for row in topic.rows():
        found.setdefault(row["writer"], []).append(row["n"])
    return found


@pytest.fixture
def topic(log: ps.Log) -> ps.Topic:
    return log.create_topic("t", "writer BIGINT, n BIGINT", key="writer", partitions=2)


def test_four_processes_write_one_topic_and_nothing_is_lost_or_mixed_up(log: ps.Log, home: Path) -> None:
    topic = log.create_topic("t", "writer BIGINT, n BIGINT", segment_bytes=50_000)
    writers = [python(_WRITER, home, number, 100) for number in range(4)]
    assert [writer.wait(60) for writer in writers] == [0] * 4
    assert by_writer(topic) == {number: list(range(100)) for number in range(4)}
    offsets = [event.offset for event in topic.events()]
    assert offsets == list(range(400))


def test_a_waiting_reader_is_woken_by_another_process(topic: ps.Topic, home: Path) -> None:
    ends = {0: 0, 1: 0}
    woken = threading.Event()

    def wait() -> None:
        assert topic.wait(ends, 30)
        woken.set()

    waiter = threading.Thread(target=wait)
    waiter.start()
    assert python(_WRITER, home, 1, 1).wait(30) == 0
    assert woken.wait(10)
    waiter.join()


def test_a_waiting_reader_sleeps_instead_of_looking_again_and_again(
    topic: ps.Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = 0
    sleep = RealShared.wait

    def counted(self: RealShared, word: int, seen: int, timeout_s: float) -> None:
        nonlocal looks
        looks += 1
        sleep(self, word, seen, timeout_s)

    monkeypatch.setattr(RealShared, "wait", counted)
    assert not topic.wait({0: 0, 1: 0}, 1.5)
    assert looks <= 4


def test_a_forked_child_and_its_parent_both_write(topic: ps.Topic) -> None:
    topic.append({"writer": 0, "n": 0})

    def child() -> None:
        for number in range(50):
            topic.append({"writer": 1, "n": number})
        os._exit(0)

    process = FORK.Process(target=child)
    process.start()
    for number in range(1, 50):
        topic.append({"writer": 0, "n": number})
    process.join(60)
    assert process.exitcode == 0
    assert by_writer(topic) == {0: list(range(50)), 1: list(range(50))}


def test_a_lock_held_by_a_stopped_process_is_an_error_in_bounded_time(topic: ps.Topic, home: Path) -> None:
    holder = python(_HOLDER, home, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    holder.send_signal(signal.SIGSTOP)
    with Log(EmbeddedLog(home)) as other:
        part = other.port.partition("t", 0)  # type: ignore[attr-defined]
        part._lock_timeout_s = 0.1
        with pytest.raises(ps.LockTimeout, match=f"process {holder.pid}"):
            other.topic("t").append({"writer": 1, "n": 1}, partition=0)
        assert other.topic("t").append({"writer": 1, "n": 1}, partition=1).offset == 0
    holder.kill()
    holder.communicate()
    assert topic.append({"writer": 1, "n": 2}, partition=0).offset == 0


def test_a_topic_altered_elsewhere_is_written_in_its_new_form(topic: ps.Topic, home: Path) -> None:
    topic.append({"writer": 1, "n": 1})
    with ps.open_log(home) as elsewhere:
        elsewhere.alter_topic("t", schema="writer BIGINT, n BIGINT, note STRING", partitions=4)
        topic.append([{"writer": number, "n": 2, "note": "new"} for number in range(20)])
        assert len(elsewhere.topic("t").bounds()) == 4
        assert sorted({b.num_columns for b in elsewhere.topic("t").read()}) == [6]
    assert {row["note"] for row in topic.rows()} == {None, "new"}


def test_a_topic_deleted_elsewhere_is_gone_here(log: ps.Log, topic: ps.Topic, home: Path) -> None:
    topic.append({"writer": 1, "n": 1})
    with ps.open_log(home) as elsewhere:
        elsewhere.delete_topic("t")
    for use in (lambda: topic.append({"writer": 1, "n": 2}), topic.bounds, lambda: log.topic("t")):
        with pytest.raises(ps.UnknownTopic):
            use()
    assert log.topics() == []


def test_a_topic_created_again_elsewhere_is_another_topic(topic: ps.Topic, home: Path) -> None:
    topic.append({"writer": 1, "n": 1})
    with ps.open_log(home) as elsewhere:
        elsewhere.delete_topic("t")
        elsewhere.create_topic("t", "writer BIGINT, n BIGINT", key="writer", partitions=2)
        elsewhere.topic("t").append({"writer": 2, "n": 7})
    topic.append({"writer": 2, "n": 8})
    assert by_writer(topic) == {2: [7, 8]}


def test_a_topic_is_altered_while_others_write_it(topic: ps.Topic, log: ps.Log, home: Path) -> None:
    writers = [python(_WRITER, home, number, 150) for number in range(3)]
    wait_until(lambda: sum(end for _, end in topic.bounds().values()) > 10, what="the writers to begin")
    for width in range(3):
        columns = "".join(f", c{number} STRING" for number in range(width + 1))
        log.alter_topic("t", schema="writer BIGINT, n BIGINT" + columns, partitions=2 * 2 ** (width + 1))
    assert [writer.wait(60) for writer in writers] == [0] * 3
    assert {writer: sorted(numbers) for writer, numbers in by_writer(topic).items()} == {
        number: list(range(150)) for number in range(3)
    }


def test_a_delete_by_somebody_who_knows_an_older_form_stays_a_delete(log: ps.Log, home: Path) -> None:
    topic = log.create_topic("c", "id BIGINT NOT NULL, text STRING NOT NULL", key="id", cleanup="compact")
    topic.append([{"id": 1, "text": "a"}, {"id": 2, "text": "b"}])
    with ps.open_log(home) as elsewhere, before_append(log, lambda: widened(elsewhere)):
        topic.delete({"id": 1})
    assert [event.deleted for event in topic.events()] == [False, False, True]
    assert topic.latest() == {2: {"id": 2, "text": "b", "more": None}}


def widened(log: ps.Log) -> None:
    log.alter_topic("c", schema=f"{log.topic('c').settings.schema.ddl}, more STRING")


@contextlib.contextmanager
def before_append(log: ps.Log, do: Callable[[], None]) -> Iterator[None]:
    """Somebody does something between our encoding and our appending, once."""
    append = log.port.append

    def late(settings: Any, parts: Any) -> Any:
        log.port.append = append  # type: ignore[method-assign]
        do()
        return append(settings, parts)

    log.port.append = late  # type: ignore[method-assign]
    yield


def test_a_topic_deleted_and_made_again_all_the_time_is_there_or_unknown_and_nothing_else(
    log: ps.Log, home: Path
) -> None:
    """Whoever writes or reads meanwhile gets records, UnknownTopic, or a place that is gone."""
    churner = python(_CHURNER, home, stdin=subprocess.PIPE)
    reached: Counter[str] = Counter()
    try:
        topic = None
        while reached["stored"] < 30 or reached["unknown"] < 3:
            try:
                topic = topic or log.topic("t")
                assert topic.append({"writer": 1, "n": 1}).ends
                for row in topic.rows():
                    assert row == {"writer": 1, "n": 1}
                reached["stored"] += 1
            except ps.UnknownTopic:
                reached["unknown"] += 1
                topic = None
            except (ps.OffsetOutOfRange, ps.Damaged) as error:
                assert "t" not in log.topics() or is_another(log, error)
                topic = None
            assert churner.poll() is None
    finally:
        churner.communicate()
    assert churner.returncode == 0


def test_who_knows_a_deleted_topic_leaves_one_that_is_being_made_alone(log: ps.Log, home: Path) -> None:
    """The new one has its name and its folder, but not its settings, which come last."""
    log.create_topic("t", "n BIGINT", partitions=2).append({"n": 1}, partition=0)
    assert isinstance(log.port, EmbeddedLog)
    known = log.port._topic("t")  # with partition 1 not opened yet
    with ps.open_log(home) as elsewhere:
        elsewhere.delete_topic("t")
        settings = elsewhere.create_topic("t", "n BIGINT", partitions=2).settings
    folder = home / "topics" / "t"
    for made in (folder / "topic.json", folder / "1" / "manifest.json"):
        made.unlink()
    before = sorted((folder / "1").iterdir())
    with pytest.raises(ps.UnknownTopic):
        known.partition(1).manifest()
    left = [path for path in sorted((folder / "1").iterdir()) if path.name not in ("head", "lock")]
    assert [path for path in before if path.name not in ("head", "lock")] == left
    assert settings.partitions == 2


def test_records_for_a_topic_that_is_another_by_now_are_fitted_to_it_or_refused(
    log: ps.Log, home: Path
) -> None:
    """Deleted and made again, with other columns, between encoding and appending."""
    topic = log.create_topic("c", "id BIGINT, text STRING")
    with (
        ps.open_log(home) as elsewhere,
        before_append(log, lambda: remade(elsewhere, "id BIGINT, size DOUBLE")),
    ):
        with pytest.raises(ps.BadInput):
            topic.append({"id": 1, "text": "a"})
        assert elsewhere.topic("c").append({"id": 2, "size": 0.5}).offset == 0
        assert list(elsewhere.topic("c").rows()) == [{"id": 2, "size": 0.5}]
    with ps.open_log(home) as elsewhere:
        remade(elsewhere, "id BIGINT, text STRING")
        with before_append(log, lambda: remade(elsewhere, "id BIGINT, text STRING, more STRING")):
            topic.append({"id": 1, "text": "a"})
        assert list(elsewhere.topic("c").rows()) == [{"id": 1, "text": "a", "more": None}]


def remade(log: ps.Log, ddl: str) -> None:
    log.delete_topic("c")
    log.create_topic("c", ddl)


def is_another(log: ps.Log, error: ps.PenstockError) -> bool:
    """The topic that the error is about was deleted; the one there is now is whole."""
    return all(isinstance(row["n"], int) for row in log.topic("t").rows())


_CHURNER = """
import sys, threading, penstock as ps
log = ps.open_log(sys.argv[1])
over = threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), over.set()), daemon=True).start()
while not over.wait(0.01):
    if "t" in log.topics():
        log.delete_topic("t")
    log.create_topic("t", "writer BIGINT, n BIGINT", key="writer", partitions=2)
"""


# ---- fork ----------------------------------------------------------------------------------------


def test_a_lock_of_a_killed_process_is_free_although_a_forked_child_lives(
    topic: ps.Topic, home: Path
) -> None:
    """The child inherits the descriptor, and must not keep what only its parent held."""
    parent = python(_FORKING_HOLDER, home, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    try:
        parent.kill()
        parent.wait()
        began = time.monotonic()
        topic.append({"writer": 1, "n": 1}, partition=0)
        with topic.consume(group="g", lease="1 hour") as consumer:
            wait_until(lambda: len(consumer.assignment()) == 2, what="the member that died to be replaced")
        assert time.monotonic() - began < 5
    finally:
        os.kill(child, signal.SIGKILL)
        parent.communicate()


_FORKING_HOLDER = """
import os, sys, time, penstock as ps
log = ps.open_log(sys.argv[1])
consumer = log.topic("t").consume(group="g", lease="1 hour")
consumer.assignment()
with log.port.partition("t", 0).locked():
    child = os.fork()
    if child == 0:
        time.sleep(600)
    print(child, flush=True)
    sys.stdin.read()
"""


def test_a_group_goes_on_in_a_forked_child_and_no_commit_is_lost(log: ps.Log, topic: ps.Topic) -> None:
    """SQLite forbids a connection on both sides of a fork: closing one took the commits of the other."""
    topic.append([{"writer": 1, "n": number} for number in range(20)])
    (part,) = [number for number, (_, end) in topic.bounds().items() if end]
    with topic.consume(group="parent", follow=False) as consumer:
        assert len(list(consumer)) == 20
    heard_here, tell_parent = FORK.Pipe(duplex=False)
    heard_there, tell_child = FORK.Pipe(duplex=False)

    def child() -> None:
        consumer = topic.consume(group="child", commit_every="1 hour")
        next(consumer)
        consumer.commit()
        tell_parent.send("committed")
        assert heard_there.poll(30)
        for offset in range(2, 10):
            next(consumer)
            consumer.commit()
            assert topic._port.committed("child", "t")[part] == offset
        os._exit(0)

    process = FORK.Process(target=child)
    process.start()
    assert heard_here.poll(30), process.exitcode
    log.close()  # the last connection of this process: SQLite checkpoints and removes its log
    tell_child.send("go on")
    process.join(60)
    assert process.exitcode == 0
    with ps.open_log(log.port.home) as again:  # type: ignore[attr-defined]
        assert again.port.committed("child", "t")[part] == 9
        assert again.port.committed("parent", "t")[part] == 20


_FORKED = """
import multiprocessing, os, sys
import penstock as ps

with ps.open_log(sys.argv[1]) as log, log.topic("t").producer(linger=0) as producer:
    producer.send({"writer": 0, "n": 0})
    producer.flush()

    def child():
        try:
            producer.send({"writer": 1, "n": 1})
            producer.flush()
        except ps.BadOption:
            os._exit(3)
        os._exit(0)

    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    process.join(20)
    print(process.exitcode, flush=True)
    process.kill()
    process.join()
"""


def test_a_producer_taken_through_a_fork_stores_what_the_child_sends(topic: ps.Topic, home: Path) -> None:
    """Its thread stays with the parent; the child must not wait for it for ever.

    In a process of its own: that of the tests has threads of other clients, which a fork does not suit.
    """
    said = python(_FORKED, home, stdout=subprocess.PIPE)
    told, _ = said.communicate(timeout=60)
    assert told.strip() in {"0", "3"}, "it hangs"
    assert (1 in by_writer(topic)) == (told.strip() == "0")


def test_a_producer_with_a_position_taken_through_a_fork_is_refused_there(
    log: ps.Log, topic: ps.Topic
) -> None:
    """Both would number their appends alike, and one of each two would pass for a repetition."""
    producer = log.producer("p")
    producer.append({topic: {"writer": 0, "n": 0}}, position=b"0")

    def child() -> None:
        try:
            producer.append({topic: {"writer": 1, "n": 1}}, position=b"1")
        except ps.BadOption:
            os._exit(3)
        os._exit(0)

    process = FORK.Process(target=child)
    process.start()
    process.join(20)
    assert process.exitcode == 3
    assert not producer.append({topic: {"writer": 0, "n": 1}}, position=b"1").duplicate
    assert by_writer(topic) == {0: [0, 1]}


def test_a_consumer_taken_through_a_fork_is_refused_there(topic: ps.Topic) -> None:
    topic.append({"writer": 0, "n": 0})
    consumer = topic.consume(group="g")
    next(consumer)

    def child() -> None:
        try:
            consumer.commit()
        except ps.BadOption:
            consumer.close(commit=False)
            os._exit(3)
        os._exit(0)

    process = FORK.Process(target=child)
    process.start()
    process.join(20)
    assert process.exitcode == 3
    consumer.commit()
    assert sum(topic._port.committed("g", "t").values()) == 1
    consumer.close()


def test_many_processes_join_a_new_group_at_once(topic: ps.Topic, home: Path) -> None:
    """The first of them makes the table of groups."""
    code = (
        "import sys, penstock as ps\n"
        "with ps.open_log(sys.argv[1]).topic('t').consume(group='g') as consumer: consumer.assignment()"
    )
    members = [python(code, home) for _ in range(6)]
    assert [member.wait(60) for member in members] == [0] * 6


# ---- reading what another process rewrites -------------------------------------------------------


_REWRITER = """
import random, sys, threading, penstock as ps
from penstock.log import maintenance
log, chance = ps.open_log(sys.argv[1]), random.Random(int(sys.argv[2]))
over = threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), over.set()), daemon=True).start()
port, topics, n = log.port, [log.topic("all"), log.topic("last")], 0
while not over.is_set():
    for topic in topics:
        rows = [{"k": number % 7, "n": number} for number in range(n, n + 20)]
        for at in range(0, 20, 5):
            topic.append(rows[at : at + 5])
        part, wanted = port.partition(topic.name, 0), topic.settings
        with part.locked() as head:
            part.roll(head, wanted)
        archive = chance.random() < 0.3 and topic.name == "all"
        maintenance.run(part, wanted, port.groups_store(), force=True, archive_now=archive)
    n += 20
"""


def test_readers_go_on_while_another_process_merges_compacts_and_archives(log: ps.Log, home: Path) -> None:
    everything = log.create_topic("all", "k BIGINT, n BIGINT")
    newest = log.create_topic("last", "k BIGINT, n BIGINT", key="k", cleanup="compact")
    rewriter = python(_REWRITER, home, 1, stdin=subprocess.PIPE)
    known: dict[int, int] = {}
    try:
        reads = 0
        while reads < 40 or (known.get(0) or 0) < 400:
            rows = [(event.offset, event["n"]) for event in everything.events()]
            assert rows == [(number, number) for number in range(len(rows))], "nothing missing, nothing twice"
            middle = len(rows) // 2
            again = [event["n"] for event in everything.events(start=middle)]
            assert again[: len(rows) - middle] == list(range(middle, len(rows)))
            if rows:
                event = next(everything.events(start=middle))
                at = everything.offset_of(0, event.timestamp)
                assert at <= middle
                assert next(everything.events(start=at)).time_us == event.time_us
                assert everything.offset_of(0, datetime.now(UTC) + timedelta(days=1)) >= len(rows)
            offsets = [event.offset for event in newest.events()]
            assert offsets == sorted(set(offsets))
            latest = {key: row["n"] for key, row in newest.latest().items()}
            assert all(latest[key] >= number for key, number in known.items()), "never an older value again"
            known, reads = latest, reads + 1
            assert rewriter.poll() is None
    finally:
        rewriter.communicate()
    assert rewriter.returncode == 0


_EXPIRING = """
import sys, threading, penstock as ps
log = ps.open_log(sys.argv[1])
over = threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), over.set()), daemon=True).start()
topic, n = log.topic("short"), 0
while not over.is_set():
    topic.append([{"n": number} for number in range(n, n + 50)])
    n += 50
"""


def test_a_consumer_overtaken_by_retention_counts_exactly_what_it_missed(log: ps.Log, home: Path) -> None:
    """What it got and what it missed is everything, however often retention was faster."""
    topic = log.create_topic("short", "n BIGINT", segment_bytes=2_000, retention_bytes=6_000, durability="os")
    writer = python(_EXPIRING, home, stdin=subprocess.PIPE)
    got = 0
    try:
        with topic.consume(group="g", on_lost="earliest") as consumer:
            last = -1
            for event in consumer:
                assert event["n"] == event.offset > last
                last, got = event.offset, got + 1
                if got % 400 == 0:  # be slow for once
                    end = topic.bounds()[0][1]
                    wait_until(lambda: topic.bounds()[0][0] > end, what="retention to overtake")  # noqa: B023
                if got >= 4_000:
                    break
            assert consumer.missed > 0
            assert got + consumer.missed == last + 1
    finally:
        writer.communicate()
    assert writer.returncode == 0


def test_a_commit_in_doubt_is_found_out_by_whoever_comes_next(
    log: ps.Log, topic: ps.Topic, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process takes the ledger and stands still, right after our record in it was synced."""
    monkeypatch.setattr("penstock.log.ledger.LOCK_TIMEOUT_S", 0.1)
    producer = log.producer("p")
    holder = RealLock(home / "ledger" / "lock", "the ledger")
    sync = RealFile.sync

    def stolen(self: RealFile) -> None:
        sync(self)
        if self.path.name == "commits.log":
            holder.acquire(1.0)

    monkeypatch.setattr(RealFile, "sync", stolen)
    with pytest.raises(ps.LockTimeout):
        producer.append({topic: [{"writer": n, "n": 0} for n in range(8)]}, position=b"1")
    monkeypatch.setattr(RealFile, "sync", sync)
    holder.release()
    with ps.open_log(home) as other:
        stored = other.port.producer_position("p").position == b"1"
        assert len(by_writer(other.topic("t"))) == (8 if stored else 0), "position and records agree"
        topic.append({"writer": 99, "n": 0}, partition=0)
    again = producer.append({topic: [{"writer": n, "n": 0} for n in range(8)]}, position=b"1")
    assert again.duplicate == stored
    assert by_writer(topic) == {n: [0] for n in (*range(8), 99)}
    holder.close()


def test_two_homes_know_nothing_of_each_other(tmp_path: Path) -> None:
    with ps.open_log(tmp_path / "a") as a, ps.open_log(tmp_path / "b") as b:
        a.create_topic("t").append({"key": b"a", "value": b"1"})
        assert b.topics() == []
        b.create_topic("t").append({"key": b"b", "value": b"2"})
        assert [row["value"] for row in a.topic("t").rows()] == [b"1"]


def test_opening_a_new_home_at_the_same_time_makes_one_log(home: Path) -> None:
    code = "import sys, penstock as ps; ps.open_log(sys.argv[1]).create_topic('t', if_missing=True)"
    starters = [python(code, home) for _ in range(4)]
    assert [starter.wait(60) for starter in starters] == [0] * 4
    with ps.open_log(home) as log:
        assert log.topics() == ["t"]
        assert log.topic("t").append({"key": b"k", "value": b"v"}).offset == 0


def test_who_opens_something_while_the_process_forks_does_not_stop_both() -> None:
    """As a consumer that looks for dead ones: it opens their locks, and has what the fork waits for."""
    done = subprocess.run(
        [sys.executable, "-c", _OPENS_MEANWHILE], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout == "opened\n", done.stderr


_OPENS_MEANWHILE = """
import os, threading
from penstock import fork

forking, opened, found = threading.Event(), threading.Event(), []

class Held(fork.Forking):
    def before_fork(self):
        forking.set()
        found.append(opened.wait(20))

def open_one():
    forking.wait()
    fork.tell(fork.Forking())
    opened.set()

held = Held()
fork.tell(held)
threading.Thread(target=open_one).start()
if os.fork() == 0:
    os._exit(0)
os.wait()
print("opened" if found == [True] else "stopped")
"""
