"""Bridges between queues and topics: everything arrives, with queues in a file just once."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.queue import dying_bridge
from tests.waiting import wait_until

import penstock as ps
from penstock.clock import ManualClock
from penstock.log.embedded import EmbeddedLog

IDS = range(30)


@pytest.fixture
def queues(home: Path) -> Iterator[ps.Queues]:
    with ps.open_queues(home) as opened:
        yield opened


def rows(topic: ps.Topic) -> list[int]:
    return [row["id"] for row in topic.rows()]


def drained(queue: ps.Queue) -> list[int]:
    found = []
    while (delivery := queue.get()) is not None:
        found.append(delivery.json()["id"])
        delivery.ack()
    return found


# ---- kill -9 at each step -----------------------------------------------------------------------


def die(home: Path, direction: str, step: str, count: int) -> None:
    done = subprocess.run(
        [sys.executable, dying_bridge.__file__, home, direction, step, str(count)],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == -signal.SIGKILL, done.stderr


@pytest.mark.parametrize("step", ["received", "appended", "removed"])
def test_a_bridge_into_the_log_that_is_killed_neither_loses_nor_repeats(in_memory: Path, step: str) -> None:
    with ps.open_log(in_memory) as log, ps.open_queues(in_memory) as queues:
        topic = log.create_topic("work", "id BIGINT", partitions=2)
        queue = queues.queue("work", max_attempts=100)
        queue.publish_many([{"id": number} for number in IDS])
        for count in (1, 2):
            die(in_memory, "into the log", step, count)
        with ps.bridge(queue, topic) as bridge:
            assert bridge.exactly_once
            bridge.run(once=True)
        stats = queue.stats()
        assert sorted(rows(topic)) == list(IDS)
        assert (stats.ready, stats.unacked, stats.dead) == (0, 0, 0)


@pytest.mark.parametrize("step", ["read", "moved"])
def test_a_bridge_into_a_queue_that_is_killed_neither_loses_nor_repeats(in_memory: Path, step: str) -> None:
    with ps.open_log(in_memory) as log, ps.open_queues(in_memory) as queues:
        topic = log.create_topic("work", "id BIGINT", partitions=2)
        queue = queues.queue("work")
        for number in IDS:
            topic.append({"id": number}, partition=number % 2)
        for count in (1, 2):
            die(in_memory, "into a queue", step, count)
        with ps.bridge(topic, queue) as bridge:
            assert bridge.exactly_once
            bridge.run(once=True)
        assert sorted(drained(queue)) == list(IDS)


def test_messages_that_died_appended_are_no_dead_letters_either(in_memory: Path) -> None:
    """The last attempt ended between the append and the removal."""
    with ps.open_log(in_memory) as log, ps.open_queues(in_memory) as queues:
        topic = log.create_topic("work", "id BIGINT")
        queue = queues.queue("work", max_attempts=1)
        queue.publish_many([{"id": number} for number in range(dying_bridge.BATCH)])
        die(in_memory, "into the log", "appended", 1)
        wait_until(lambda: queue.stats().unacked == 0 or queue.get() is None, what="its death to be noticed")
        with ps.bridge(queue, topic) as bridge:
            bridge.run(once=True)
        assert rows(topic) == list(range(dying_bridge.BATCH))
        assert queue.dead_letters() == []


# ---- from a queue into a topic ------------------------------------------------------------------


def test_an_older_bridge_that_is_still_alive_can_append_no_more(log: ps.Log, queues: ps.Queues) -> None:
    topic, queue = log.create_topic("work", "id BIGINT"), queues.queue("work")
    queue.publish_many([{"id": number} for number in IDS])
    old = ps.bridge(queue, topic, batch=4)
    assert old.step() == 4
    with ps.bridge(queue, topic, batch=4) as new:
        with pytest.raises(ps.Fenced):
            old.step()
        old.close()
        new.run(once=True)
    assert sorted(rows(topic)) == list(IDS)


def test_an_older_bridge_that_has_appended_and_not_removed_repeats_nothing(
    log: ps.Log, queues: ps.Queues
) -> None:
    topic, queue = log.create_topic("work", "id BIGINT"), queues.queue("work")
    queue.publish_many([{"id": number} for number in IDS])

    class Stuck(Exception):
        pass

    def stop(step: str) -> None:
        if step == "appended":
            raise Stuck

    old = ps.bridge(queue, topic, batch=4, watch=stop)
    with pytest.raises(Stuck):
        old.step()
    with ps.bridge(queue, topic, batch=4) as new:
        new.run(once=True)
        old.close()  # which gives back what it held
        new.run(once=True)
    assert sorted(rows(topic)) == list(IDS)


@pytest.mark.parametrize("step", ["append", "remove"])
def test_a_bridge_that_goes_on_after_an_error_neither_loses_nor_repeats(
    log: ps.Log, queues: ps.Queues, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """What the error was about may have been stored: a bridge that took it for lost lost what came next."""
    topic, queue = log.create_topic("work", "id BIGINT"), queues.queue("work")
    queue.publish_many([{"id": number} for number in IDS])
    owner, name = (log.port, "append_atomically") if step == "append" else (queues.port, "remove")
    really = getattr(owner, name)

    def lost_on_its_way_back(*words: object) -> None:
        really(*words)
        raise ps.Unreachable("the log", "no answer")

    def lost_on_its_way(*_: object) -> None:
        raise ps.Unreachable("the queues", "no answer")

    with ps.bridge(queue, topic, batch=4) as bridge:
        with monkeypatch.context() as patched:
            patched.setattr(owner, name, lost_on_its_way_back if step == "append" else lost_on_its_way)
            with pytest.raises(ps.Unreachable):
                bridge.step()
        bridge.run(once=True)
    assert sorted(rows(topic)) == list(IDS)
    assert queue.stats().ready == queue.stats().unacked == 0


def test_a_body_that_is_no_record_of_the_topic_is_a_dead_letter_and_takes_no_other_with_it(
    log: ps.Log, queues: ps.Queues
) -> None:
    topic, queue = log.create_topic("work", "id BIGINT NOT NULL"), queues.queue("work")
    queue.publish_many([{"id": 1}, "no json", [2], {"id": "three"}, {"id": 4}])
    with ps.bridge(queue, topic) as bridge:
        assert bridge.run(once=True) == 2
    letters = queue.dead_letters()
    assert rows(topic) == [1, 4]
    assert [(letter.cause, letter.message.text) for letter in letters] == [
        ("rejected", "no json"),
        ("rejected", "[2]"),
        ("rejected", '{"id":"three"}'),
    ]
    assert all(letter.reason for letter in letters)


def test_a_topic_of_bytes_takes_any_body_with_its_key_and_headers(log: ps.Log, queues: ps.Queues) -> None:
    topic, queue = log.create_topic("raw"), queues.queue("raw")
    id = queue.publish(b"\x00\xff", key="a.b", headers={"colour": "red"})
    with ps.bridge(queue, topic) as bridge:
        bridge.run(once=True)
    (row,) = topic.rows()
    assert (row["key"], row["value"]) == (b"a.b", b"\x00\xff")
    assert dict(row["headers"]) == {"colour": b"red", "message-id": id.encode()}


def test_what_a_message_becomes_can_be_said(log: ps.Log, queues: ps.Queues) -> None:
    topic, queue = log.create_topic("work", "id BIGINT, said STRING"), queues.queue("work")
    queue.publish("hello", key="7")
    with ps.bridge(queue, topic, decode=lambda one: {"id": int(one.key), "said": one.text}) as bridge:
        bridge.run(once=True)
    assert list(topic.rows()) == [{"id": 7, "said": "hello"}]


def test_another_file_of_queues_begins_anew(log: ps.Log, home: Path, tmp_path: Path) -> None:
    """Its numbers are the same, and mean other messages."""
    topic = log.create_topic("work", "id BIGINT")
    for at, place in enumerate((home, tmp_path / "other")):
        with ps.open_queues(place) as queues:
            queue = queues.queue("work")
            queue.publish({"id": at}, id="the same")
            with ps.bridge(queue, topic) as bridge:
                bridge.run(once=True)
    assert rows(topic) == [0, 1]


# ---- from a topic into a queue ------------------------------------------------------------------


def test_records_become_messages_in_order_with_an_id_of_their_place(log: ps.Log, queues: ps.Queues) -> None:
    topic, queue = log.create_topic("work", "id BIGINT", key="id"), queues.queue("work")
    topic.append([{"id": number} for number in IDS])
    with ps.bridge(topic, queue, batch=7) as bridge:
        assert bridge.run(once=True) == len(IDS)
        assert bridge.run(once=True) == 0
    deliveries = queue.get_many(100)
    assert [delivery.json()["id"] for delivery in deliveries] == list(IDS)
    assert deliveries[3].key == "3"
    assert deliveries[3].id == f"{topic.settings.id}-0-3"


def test_two_bridges_of_one_name_publish_each_record_once(log: ps.Log, queues: ps.Queues) -> None:
    topic, queue = log.create_topic("work", "id BIGINT"), queues.queue("work")
    topic.append([{"id": number} for number in IDS])
    with ps.bridge(topic, queue, batch=4) as one, ps.bridge(topic, queue, batch=4) as two:
        assert one.step() == 4
        with pytest.raises(ps.Contended, match="another instance"):
            two.step()
        one.run(once=True)
    assert drained(queue) == list(IDS)


def test_a_bridge_into_a_queue_goes_on_after_an_error(
    log: ps.Log, queues: ps.Queues, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, queue = log.create_topic("work", "id BIGINT"), queues.queue("work")
    topic.append([{"id": number} for number in IDS])
    really = queues.port.publish_at  # type: ignore[attr-defined]

    def published_and_interrupted(*words: object, **more: object) -> None:
        really(*words, **more)
        raise KeyboardInterrupt

    with ps.bridge(topic, queue, batch=4) as bridge:
        with monkeypatch.context() as patched:
            patched.setattr(queues.port, "publish_at", published_and_interrupted)
            with pytest.raises(KeyboardInterrupt):
                bridge.run(once=True)
        bridge.run(once=True)
    assert drained(queue) == list(IDS)


def test_a_full_queue_makes_the_bridge_wait(log: ps.Log, queues: ps.Queues) -> None:
    topic = log.create_topic("work", "id BIGINT")
    queue = queues.queue("work", max_length=4, overflow="reject")
    topic.append([{"id": number} for number in IDS])
    found: list[int] = []
    with ps.bridge(topic, queue, batch=4) as bridge:
        thread = threading.Thread(target=lambda: bridge.run(once=True))
        thread.start()

        def all_found() -> bool:
            found.extend(drained(queue))
            return len(found) == len(IDS)

        wait_until(all_found, what="all of them")
        thread.join(30)
    assert found == list(IDS)


def test_a_batch_that_has_no_room_goes_in_smaller_ones(log: ps.Log, queues: ps.Queues) -> None:
    """It waited for ever for what could not be, and where others publish too, for all of the queue."""
    topic = log.create_topic("work", "id BIGINT")
    queue = queues.queue("work", max_length=4)
    topic.append([{"id": number} for number in IDS])
    queue.publish_many([{"id": "of another"}] * 3)  # which nobody takes
    with ps.bridge(topic, queue) as bridge:
        for _ in range(5):  # of 30, 15, 7, 3 and 1
            with contextlib.suppress(ps.QueueFull):
                bridge.step()
        assert (bridge.moved, queue.stats().ready) == (1, 4)
        queue.purge()
        assert bridge.step() == 2
    assert drained(queue) == [1, 2]


def test_more_at_once_than_a_queue_takes_is_told_as_that(queues: ps.Queues) -> None:
    with pytest.raises(ps.QueueFull, match="takes at most 4 messages, and these are 5"):
        queues.queue("work", max_length=4).publish_many(["x"] * 5)


def test_a_bridge_may_begin_at_the_end(log: ps.Log, queues: ps.Queues) -> None:
    topic, queue = log.create_topic("work", "id BIGINT"), queues.queue("work")
    topic.append({"id": 1})
    with ps.bridge(topic, queue, start="latest") as bridge:
        topic.append({"id": 2})
        bridge.run(once=True)
    assert drained(queue) == [2]


def test_a_topic_that_was_created_anew_is_read_from_its_beginning(log: ps.Log, queues: ps.Queues) -> None:
    queue = queues.queue("work")
    for number in (1, 2):
        topic = log.create_topic("work", "id BIGINT")
        topic.append({"id": number})
        with ps.bridge(topic, queue) as bridge:
            bridge.run(once=True)
        log.delete_topic("work")
    assert drained(queue) == [1, 2]


def test_records_that_retention_took_are_told_with_a_way_to_go_on(home: Path, queues: ps.Queues) -> None:
    clock, queue = ManualClock(), queues.queue("work")
    with ps.Log(EmbeddedLog(home / "aged", clock=clock)) as log:
        topic = log.create_topic("work", "id BIGINT", retention="1 hour")
        topic.append({"id": 1})
        with ps.bridge(topic, queue) as bridge:
            bridge.run(once=True)
        topic.append({"id": 2})
        clock.advance(4_000)
        log.port.maintain("work", 0)  # type: ignore[attr-defined]
        topic.append({"id": 3})
        with ps.bridge(topic, queue) as bridge, pytest.raises(ps.RecordsLost) as lost:
            bridge.run(once=True)
        assert lost.value.missed == 1
        assert "another id" in lost.value.hint and "on_lost" not in lost.value.hint  # which a bridge has not
        with ps.bridge(topic, queue, id="work-again", start="earliest") as bridge:
            bridge.run(once=True)
    assert drained(queue) == [1, 3]


def test_a_delete_says_so(log: ps.Log, queues: ps.Queues) -> None:
    topic = log.create_topic("work", "id BIGINT, v STRING", key="id", cleanup="compact")
    queue = queues.queue("work")
    topic.append({"id": 1, "v": "x"})
    topic.delete({"id": 1})
    with ps.bridge(topic, queue) as bridge:
        bridge.run(once=True)
    assert [dict(delivery.headers) for delivery in queue.get_many(10)] == [{}, {"deleted": True}]


# ---- both ---------------------------------------------------------------------------------------


def test_a_bridge_that_runs_moves_what_comes_and_stops_when_it_is_told(
    log: ps.Log, queues: ps.Queues
) -> None:
    topic, queue = log.create_topic("work", "id BIGINT"), queues.queue("work")
    with ps.bridge(queue, topic) as bridge:
        thread = threading.Thread(target=bridge.run)
        thread.start()
        queue.publish({"id": 1})
        wait_until(lambda: rows(topic) == [1], what="the record")
        bridge.stop()
        thread.join(30)
    assert not thread.is_alive()


@pytest.mark.parametrize("ends", [lambda q, t: (q, q), lambda q, t: (t, t)], ids=["queues", "topics"])
def test_a_bridge_has_a_queue_at_one_end_and_a_topic_at_the_other(
    log: ps.Log, queues: ps.Queues, ends: Callable[[ps.Queue, ps.Topic], tuple[ps.Queue, ps.Queue]]
) -> None:
    with pytest.raises(ps.BadOption, match="leads from a queue to a topic"):
        ps.bridge(*ends(queues.queue("work"), log.create_topic("work", "id BIGINT")))
