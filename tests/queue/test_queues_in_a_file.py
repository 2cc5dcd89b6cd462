"""What queues in a file do beyond the contract: threads, processes, waking, and a disk that says no."""

from __future__ import annotations

import errno
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.waiting import wait_until

import penstock as ps
from penstock.clock import ManualClock
from penstock.queue.embedded import EmbeddedQueues
from penstock.queue.file import _Job
from penstock.queue.port import QueueStats
from penstock.queue.queues import Queues
from penstock.queue.settings import Binding


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def queues(home: Path, clock: ManualClock) -> Iterator[ps.Queues]:
    with ps.open_queues(home, clock=clock) as opened:
        yield opened


def _port(queues: Queues) -> EmbeddedQueues:
    assert isinstance(queues.port, EmbeddedQueues)
    return queues.port


def test_threads_that_publish_together_share_syncs(
    queues: ps.Queues, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue, syncs = queues.queue("jobs"), []

    with ps.open_queues(home) as elsewhere:

        def slow_disk() -> None:
            syncs.append(1)
            wait_until(lambda: elsewhere.open_queue("jobs").stats().ready == 16, what="all to have come")

        monkeypatch.setattr(_port(queues).file, "sync_log", slow_disk)
        with ThreadPoolExecutor(16) as pool:
            list(pool.map(lambda n: queue.publish(str(n)), range(16)))
    assert len(syncs) <= 2  # of whoever came first, and of all others


def test_a_queue_that_is_deleted_and_made_again_at_once_is_not_that_of_an_old_consumer(
    queues: ps.Queues,
) -> None:
    queue = queues.queue("jobs")
    with queue.consume() as consumer:
        assert consumer.get() is None
        _port(queues).delete_queue("jobs")  # as another process would
        again = queues.queue("jobs")
        again.publish("new")
        with pytest.raises(ps.UnknownQueue):
            consumer.get(timeout=0.1)
    found = again.get()
    assert found is not None and found.text == "new"


def test_one_publication_that_is_refused_does_not_hinder_those_beside_it(queues: ps.Queues) -> None:
    queue = queues.queue("jobs", max_message_bytes=10)

    def publish(n: int) -> bool:
        try:
            queue.publish(b"x" * (n % 20))
        except ps.MessageTooLarge:
            return False
        return True

    with ThreadPoolExecutor(16) as pool:
        stored = sum(pool.map(publish, range(200)))
    assert stored == queue.stats().ready == sum(n % 20 <= 10 for n in range(200))


def test_a_waiting_consumer_is_woken_and_does_not_poll(home: Path) -> None:
    with ps.open_queues(home) as queues, ps.open_queues(home) as elsewhere:
        queue = queues.queue("jobs")
        got: list[tuple[str, float]] = []

        def wait() -> None:
            with queue.consume() as consumer:
                delivery = consumer.get(timeout=60)
                assert delivery is not None
                got.append((delivery.text, time.monotonic()))
                delivery.ack()

        waiter = threading.Thread(target=wait)
        waiter.start()
        wait_until(lambda: queue.stats().consumers == 1, what="the consumer")
        elsewhere.open_queue("jobs").publish("now")
        waiter.join(60)
        assert [text for text, _ in got] == ["now"]


def test_a_message_that_was_delivered_before_travels_alone(queues: ps.Queues) -> None:
    queue = queues.queue("jobs", max_attempts=3)
    queue.publish_many(["poison", "b", "c"])
    doomed = Queues(EmbeddedQueues(_port(queues).file.folder, clock=_port(queues).file.clock))
    with doomed.open_queue("jobs").consume(prefetch=3) as consumer:
        assert consumer.get() is not None
        _port(doomed).abandon()  # three messages have used an attempt
    with queue.consume(prefetch=3) as consumer:
        first = consumer.get()
        assert first is not None
        assert (first.text, queue.stats().unacked) == ("poison", 1)
        first.reject()


def test_a_message_with_one_attempt_is_not_given_up_unseen(home: Path, queues: ps.Queues) -> None:
    queue = queues.queue("jobs", max_attempts=1)
    queue.publish_many(["a", "b", "c"])
    doomed = EmbeddedQueues(home / "queues")
    consumer = Queues(doomed).open_queue("jobs").consume()
    assert consumer.get() is not None
    doomed.abandon()
    assert [each.text for each in queue.get_many()] == ["b", "c"]
    assert [each.message.text for each in queue.dead_letters()] == ["a"]


def test_what_was_fetched_ahead_and_never_handed_out_has_used_no_attempt(queues: ps.Queues) -> None:
    queue = queues.queue("jobs")
    queue.publish_many(["a", "b"])
    with queue.consume(prefetch=2) as consumer:
        first = consumer.get()
        assert first is not None
        first.ack()
    second = queue.get()
    assert second is not None
    assert (second.text, second.attempts, second.redelivered) == ("b", 1, False)


def test_a_consumer_that_stands_still_with_messages_ahead_gets_only_what_is_still_its_own(
    queues: ps.Queues, clock: ManualClock
) -> None:
    queue = queues.queue("jobs")
    queue.publish_many(["a", "b"])
    with queue.consume(prefetch=2, lease=10) as slow:
        assert slow.get() is not None
        clock.advance(11)
        taken = queue.get_many(2)  # by somebody else
        assert [each.text for each in taken] == ["a", "b"]
        assert slow.get() is None
        for each in taken:
            each.ack()


def test_what_was_fetched_ahead_expires_too(queues: ps.Queues, clock: ManualClock) -> None:
    queue = queues.queue("jobs")
    queue.publish("a")
    queue.publish("b", ttl=5)
    queue.publish("c")
    with queue.consume(prefetch=3) as consumer:
        assert consumer.get() is not None
        clock.advance(6)
        got = consumer.get()
        assert got is not None
        assert got.text == "c"
    (letter,) = queue.dead_letters()
    assert (letter.message.text, letter.cause, letter.attempts) == ("b", "expired", 0)


def test_a_settlement_that_could_not_be_stored_can_be_tried_again(
    queues: ps.Queues, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue, file = queues.queue("jobs"), _port(queues).file
    queue.publish_many(["a", "b"])
    consumer = queue.consume()
    held = consumer.get_many(2)

    def full(*_: object, **__: object) -> None:
        raise ps.DiskFull(file.folder)

    with monkeypatch.context() as patched:
        patched.setattr(file, "write", full)
        for settle in (held[0].ack, held[0].nack, held[0].reject, lambda: consumer.ack(held)):
            with pytest.raises(ps.DiskFull):
                settle()
    consumer.ack(held)
    assert queue.stats().unacked == 0


def test_queues_are_closed_also_when_acks_came_too_late(home: Path, clock: ManualClock) -> None:
    queues = ps.open_queues(home, clock=clock)
    queue = queues.queue("jobs")
    queue.publish_many(["a", "b"])
    late, other = queue.consume(acks="together", lease=10, prefetch=1), queue.consume(prefetch=1)
    delivery = late.get()
    assert delivery is not None
    assert other.get() is not None
    clock.advance(11)
    with pytest.raises(ps.DeliveryExpired):
        delivery.ack()
        queues.close()
    queues.close()
    with ps.open_queues(home, clock=clock) as opened:
        stats = opened.open_queue("jobs").stats()
        assert (stats.ready, stats.unacked, stats.consumers) == (2, 0, 0)


def test_of_several_priorities_the_lowest_is_dropped_first(queues: ps.Queues) -> None:
    queue = queues.queue("jobs", max_priority=5, max_length=2, overflow="drop_oldest")
    for body, priority in [("a", 5), ("b", 0), ("c", 0), ("d", 1), ("e", 1)]:
        queue.publish(body, priority=priority)
    queue.publish_many([ps.message("f", priority=5), ps.message("g", priority=5)])
    assert [letter.message.text for letter in queue.dead_letters()] == ["a", "b", "c", "d", "e"]
    assert [each.text for each in queue.get_many(5)] == ["f", "g"]


def test_letters_are_redriven_as_there_is_room_for_them(queues: ps.Queues) -> None:
    queue = queues.queue("jobs", max_length=2)
    for text in "abc":
        queue.publish(text)
        queue.get_many()[0].reject()
    with pytest.raises(ps.QueueFull):
        queue.redrive()
    assert [each.message.text for each in queue.dead_letters()] == ["c"]
    assert [each.text for each in queue.get_many()] == ["a", "b"]


def test_who_waits_for_room_waits_for_as_much_as_goes_into_that_queue(queues: ps.Queues) -> None:
    exchange = queues.exchange("work")
    for name in ("a", "b"):
        exchange.bind(queues.queue(name, max_length=2, overflow="block"), name)
    full = queues.queue("a")
    full.publish("early")
    bodies = [ps.message("x", key=key) for key in ("a", "a", "b", "b")]
    later = [ps.message("x", key="a", delay=60) for _ in range(3)]
    with ThreadPoolExecutor(1) as pool:
        published = pool.submit(exchange.publish_many, [*bodies, *later], timeout=30)
        wait_until(lambda: published.done() or full.get(timeout=0.1), what="the first message")
        assert len(published.result()) == 7


def test_a_request_waits_no_longer_than_it_says(queues: ps.Queues) -> None:
    queue = queues.queue("jobs", max_length=1, overflow="block")
    queue.publish("early")
    with ThreadPoolExecutor(1) as pool:
        began = time.monotonic()
        asked = pool.submit(queue.request, "?", timeout=1)
        wait_until(lambda: time.monotonic() > began + 0.7, what="most of its time to be over")
        assert queue.get() is not None  # now there is room for the question
        assert isinstance(asked.exception(30), ps.NoReply)
        assert time.monotonic() - began < 1.6


def test_acks_together_that_come_too_late_are_told(queues: ps.Queues, clock: ManualClock) -> None:
    queue = queues.queue("jobs")
    queue.publish("a")
    consumer = queue.consume(acks="together", lease=10)
    delivery = consumer.get()
    assert delivery is not None
    clock.advance(11)
    with pytest.raises(ps.DeliveryExpired):
        delivery.ack()
        consumer.flush()
    consumer.close()


def test_after_a_failed_sync_nothing_more_is_acknowledged(
    queues: ps.Queues, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue, file = queues.queue("jobs"), _port(queues).file

    def broken_disk() -> None:
        raise OSError(errno.EIO, "broken")

    monkeypatch.setattr(file, "sync_log", broken_disk)
    with pytest.raises(ps.SyncFailed):
        queue.publish("a")
    monkeypatch.undo()
    with pytest.raises(ps.SyncFailed):  # the system may have dropped what it could not write
        queue.publish("b")


def test_who_waits_for_the_disk_is_served_although_the_file_is_closed_meanwhile(queues: ps.Queues) -> None:
    """A fork closes it too, and it opens again: the message is stored, and nothing else may be said of it."""
    queue, file, synced = queues.queue("jobs"), _port(queues).file, []
    really = file.sync_log

    def sync_log() -> None:
        really()
        synced.append(1)

    file.sync_log = sync_log  # type: ignore[method-assign]
    with ThreadPoolExecutor(1) as pool:
        with file._syncing:
            published = pool.submit(queue.publish, "stored")
            wait_until(lambda: queue.stats().ready == 1, what="the commit")
            with file._mutex:
                file._close()
        assert published.result(20)
    assert synced == [1]


@pytest.mark.parametrize("moment", ["begun", "letting go"])
def test_after_an_interrupt_in_the_middle_of_a_transaction_all_goes_on(
    queues: ps.Queues, home: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    queue, file = queues.queue("jobs"), _port(queues).file
    monkeypatch.setattr("penstock.queue.file._BUSY_S", 0.2)
    owner, name = (file.clock, "now_us") if moment == "begun" else (file._lock, "release")
    with monkeypatch.context() as patched:
        patched.setattr(owner, name, _interrupted)
        with pytest.raises(KeyboardInterrupt):
            queue.publish("interrupted")
    queue.publish("and on")
    with ps.open_queues(home) as elsewhere:
        elsewhere.open_queue("jobs").publish("there too")
    assert [each.text for each in queue.get_many()][-2:] == ["and on", "there too"]


def test_the_interrupt_of_one_thread_is_not_that_of_another_whose_work_it_was_doing(
    queues: ps.Queues,
) -> None:
    queue, file = queues.queue("jobs"), _port(queues).file
    with ThreadPoolExecutor(1) as pool:
        with file._mutex:
            published = pool.submit(queue.publish, "of another")
            wait_until(lambda: file._waiting, what="the other thread to wait")
            with pytest.raises(KeyboardInterrupt):
                file._run([file._waiting.popleft(), _Job(_interrupted, False)])
        assert published.result(20)
    assert queue.stats().ready == 1


def _interrupted(*_: object) -> Any:
    raise KeyboardInterrupt


def test_a_dead_holder_is_not_kept_alive_by_whoever_could_not_end_it(
    home: Path, queues: ps.Queues, monkeypatch: pytest.MonkeyPatch
) -> None:
    doomed = EmbeddedQueues(home / "queues")
    Queues(doomed).queue("jobs").publish("x")
    assert Queues(doomed).open_queue("jobs").get() is not None
    doomed.abandon()
    with monkeypatch.context() as patched:
        patched.setattr("penstock.queue.holders._end", _full)
        with pytest.raises(ps.DiskFull):
            queues.open_queue("jobs").stats()
    assert queues.open_queue("jobs").stats().ready == 1


def _full(*_: object, **__: object) -> None:
    raise sqlite3.OperationalError("database or disk is full")


def test_what_is_remembered_of_attempts_without_end_has_an_end(
    queues: ps.Queues, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.queue.moves.ATTEMPTS_MAX", 3)
    queue = queues.queue("jobs", max_attempts=None)
    queue.publish("x")
    for _ in range(5):
        (delivery,) = queue.get_many()
        delivery.nack()
    (delivery,) = queue.get_many()
    delivery.reject()
    (letter,) = queue.dead_letters()
    assert [each.number for each in letter.history] == [4, 5, 6]


def test_settings_can_be_altered_and_everything_listed(queues: ps.Queues) -> None:
    queue = queues.queue("jobs", max_length=1)
    queue.publish("a")
    with pytest.raises(ps.QueueFull):
        queue.publish("b")
    queues.alter("jobs", max_length=2)
    queue.publish("b")
    exchange = queues.exchange("events", "topic")
    exchange.bind(queue, "a.#")
    assert (queues.names(), [each.name for each in queues.exchanges()]) == (["jobs"], ["events"])
    assert queues.bindings() == [Binding("events", "jobs", "a.#")]


def test_what_a_backend_lacks_is_refused(queues: ps.Queues) -> None:
    queues.require("atomic", "sequence")
    with pytest.raises(ps.NotSupported, match="sharding"):
        queues.require("sharding")


def test_fan_out_to_a_full_queue_stores_nothing_anywhere(queues: ps.Queues) -> None:
    small, large = queues.queue("small", max_length=1), queues.queue("large")
    exchange = queues.exchange("all", "fanout")
    exchange.bind(small)
    exchange.bind(large)
    with pytest.raises(ps.QueueFull):
        exchange.publish_many(["a", "b"])
    assert (small.stats().ready, large.stats().ready) == (0, 0)


_FORKING = """
import contextlib, multiprocessing, os, sys
import penstock as ps

def work_in_child(queue, questions):
    assert questions.request("and you?", timeout=30).text == "me too"
    queue.publish("for the child")
    queue.get(timeout=20).ack()
    queue.publish("from the child")
    os._exit(0)

with ps.open_queues(sys.argv[1]) as queues:
    queue, questions = queues.queue("jobs"), queues.queue("questions")
    queue.publish("from the parent")
    assert queue.get() is not None  # it holds one, which is not the child's
    with contextlib.suppress(ps.NoReply):
        questions.request("is anybody there?", timeout="1 ms")
    child = multiprocessing.get_context("fork").Process(target=work_in_child, args=(queue, questions))
    child.start()
    question = questions.get(timeout=20)
    question.reply("me too")
    question.ack()
    child.join(60)
    assert child.exitcode == 0, child.exitcode
    print(queue.get(timeout=20).text)
"""


def test_queues_that_are_open_survive_a_fork(home: Path) -> None:
    """In a process of its own: what else runs in that of the tests may not survive one."""
    done = subprocess.run(
        [sys.executable, "-c", _FORKING, str(home)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.stdout == "from the child\n", done.stderr


def test_who_only_looks_sees_that_a_consumer_died(home: Path) -> None:
    """Nobody consumes any more: what a dead process held is told as it is, and can be looked after."""
    doomed = EmbeddedQueues(home / "queues")
    tried = Queues(doomed).queue("jobs", max_attempts=1)
    tried.publish("last attempt")
    assert Queues(doomed).queue("others").publish("first attempt")
    assert tried.get() is not None
    assert Queues(doomed).open_queue("others").get() is not None
    doomed.abandon()
    with ps.open_queues(home) as queues:
        jobs, others = queues.open_queue("jobs"), queues.open_queue("others")
        assert others.stats() == QueueStats("others", ready=1, dead=0, unacked=0, delayed=0, consumers=0)
        assert jobs.redrive() == 1
        assert jobs.stats().ready == 1


def test_an_address_that_is_neither_is_refused() -> None:
    with pytest.raises(ps.BadOption, match="amqp"):
        ps.open_queues("redis://localhost")


def test_closed_queues_say_so(home: Path) -> None:
    queues = ps.open_queues(home)
    queue = queues.queue("jobs")
    consumer = queue.consume()
    queues.close()
    for ask in (lambda: queue.publish("late"), queue.stats, consumer.get, lambda: next(iter(consumer))):
        with pytest.raises(ps.StorageError, match="closed"):
            ask()


def test_the_write_ahead_log_is_laid_out_before_it_is_needed(home: Path) -> None:
    """A sync of a file that grows waits for the file system's journal too."""
    with ps.open_queues(home) as queues:
        queue = queues.queue("jobs")
        (wal,) = home.rglob("queues.db-wal")
        lengths = set()
        for _ in range(100):
            queue.publish(bytes(10_000))
            lengths.add(wal.stat().st_size)
        whole = {length for length in lengths if length % 2**20 == 0}
        assert len(whole) > 1
        assert len(lengths - whole) <= len(whole)  # once for each block, by whoever wrote past its end


def test_a_disk_without_room_for_more_log_is_told_by_whoever_stores(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.pwrite", full)
    with ps.open_queues(home) as queues:
        queues.queue("jobs").publish("job")
        assert queues.queue("jobs").stats().ready == 1


@pytest.mark.parametrize("how", ["ack", "purge", "delete"])
def test_a_number_is_not_given_again_when_its_message_is_gone(tmp_path: Path, how: str) -> None:
    given: list[int] = []
    for _ in range(2):
        with ps.open_queues(tmp_path) as queues:
            queue = queues.queue("jobs")
            for _ in range(3):
                queue.publish("once")
                given += [row[0] for row in _port(queues).file.read("SELECT seq FROM messages")]
                if how == "ack":
                    found = queue.get()
                    assert found is not None
                    found.ack()
                elif how == "purge":
                    queue.purge()
                else:
                    queue.delete()
                    queue = queues.queue("jobs")
    assert given == sorted(set(given)) and len(given) == 6


def test_a_message_that_stays_keeps_the_numbers_of_those_before_it(tmp_path: Path) -> None:
    with ps.open_queues(tmp_path) as queues:
        urgent, late = queues.queue("urgent"), queues.queue("late")
        late.publish("stays")
        urgent.publish("goes")
        found = urgent.get()
        assert found is not None
        (highest,) = _port(queues).file.read("SELECT max(seq) FROM messages")[0]
        found.ack()
    with ps.open_queues(tmp_path) as queues:
        queues.open_queue("urgent").publish("new")
        (new,) = _port(queues).file.read("SELECT max(seq) FROM messages")[0]
    assert new > highest
