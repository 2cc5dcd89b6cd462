"""Several processes on one log."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from tests.waiting import wait_until

import penstock as ps
from penstock.log.disk import RealShared
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
