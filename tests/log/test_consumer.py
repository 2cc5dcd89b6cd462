"""One consumer: what it hands out, what it counts as processed, and what a crash repeats or loses."""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pytest
from tests.waiting import wait_until

import penstock as ps
from penstock.clock import ManualClock
from penstock.log.embedded import EmbeddedLog
from penstock.log.event import Event
from penstock.log.port import Assignment

DDL = "k BIGINT, v BIGINT"


@pytest.fixture
def topic(log: ps.Log) -> ps.Topic:
    return log.create_topic("t", DDL, key="k")


def fill(topic: ps.Topic, count: int, *, keys: int = 5, first: int = 0) -> None:
    topic.append([{"k": v % keys, "v": v} for v in range(first, first + count)])


def values(events: Iterator[Event] | ps.Consumer) -> list[int]:
    return [event["v"] for event in events]


def drain(topic: ps.Topic, **options: object) -> list[int]:
    """What a new member of the group gets until the end, then it leaves."""
    with topic.consume(follow=False, **{"group": "g", **options}) as consumer:  # type: ignore[arg-type]
        return values(consumer)


def crash(consumer: ps.Consumer) -> None:
    """What kill -9 leaves behind: nothing more is committed, and the member's lock is free."""
    member = consumer._member
    assert member is not None
    member._alive.release()  # type: ignore[attr-defined]
    member._alive.close()  # type: ignore[attr-defined]
    consumer._member = None


def take_turns(*consumers: ps.Consumer, until: Callable[[], object]) -> None:
    """Let members poll, as they would while they read, until partitions have moved."""

    def settled() -> bool:
        for consumer in consumers:
            consumer._next_poll = 0.0
            consumer.assignment()
        return bool(until())

    wait_until(settled, what="partitions to move")


@contextmanager
def timed_log(home: Path) -> Iterator[tuple[ps.Log, ManualClock]]:
    clock = ManualClock()
    with ps.Log(EmbeddedLog(home, clock=clock)) as log:
        yield log, clock


# ---- at least once -------------------------------------------------------------------------------


def test_every_event_comes_once_and_in_order(topic: ps.Topic) -> None:
    fill(topic, 1_200)
    assert drain(topic) == list(range(1_200))
    assert drain(topic) == []


def test_a_crash_repeats_what_was_not_committed_and_skips_nothing(topic: ps.Topic) -> None:
    fill(topic, 20)
    consumer = topic.consume(group="g", commit_every="1 hour")
    assert [next(consumer)["v"] for _ in range(10)] == list(range(10))
    consumer.commit()
    assert [next(consumer)["v"] for _ in range(5)] == list(range(10, 15))
    crash(consumer)
    assert drain(topic) == list(range(10, 20))


def test_the_event_in_hand_at_a_crash_comes_again(topic: ps.Topic) -> None:
    fill(topic, 3)
    consumer = topic.consume(group="g", commit_every=0)
    assert [next(consumer)["v"] for _ in range(2)] == [0, 1]
    crash(consumer)
    assert drain(topic) == [1, 2]


def test_leaving_a_with_block_counts_the_last_event_as_processed(topic: ps.Topic) -> None:
    fill(topic, 5)
    with topic.consume(group="g") as consumer:
        for event in consumer:
            if event["v"] == 2:
                break
    assert drain(topic) == [3, 4]


def test_an_exception_in_a_with_block_leaves_the_event_in_hand_for_next_time(topic: ps.Topic) -> None:
    fill(topic, 5)
    with pytest.raises(RuntimeError, match="at 2"), topic.consume(group="g") as consumer:
        for event in consumer:
            if event["v"] == 2:
                raise RuntimeError("at 2")
    assert drain(topic) == [2, 3, 4]


def test_a_break_without_with_leaves_the_event_in_hand_for_next_time(topic: ps.Topic) -> None:
    fill(topic, 5)
    consumer = topic.consume(group="g")
    for event in consumer:
        if event["v"] == 2:
            break
    consumer.close()
    assert drain(topic) == [2, 3, 4]


def test_closing_without_commit_repeats_everything_since_the_last_commit(topic: ps.Topic) -> None:
    fill(topic, 5)
    consumer = topic.consume(group="g", commit_every="1 hour")
    assert [next(consumer)["v"] for _ in range(4)] == [0, 1, 2, 3]
    consumer.close(commit=False)
    assert drain(topic) == [0, 1, 2, 3, 4]


def test_closing_twice_is_harmless_and_a_closed_consumer_ends(topic: ps.Topic) -> None:
    fill(topic, 2)
    consumer = topic.consume(group="g")
    consumer.close()
    consumer.close()
    assert values(consumer) == []


def test_progress_is_committed_while_the_loop_runs(log: ps.Log, topic: ps.Topic) -> None:
    fill(topic, 100)
    consumer = topic.consume(group="g", commit_every="10 ms")
    began = time.monotonic()
    while log.port.committed("g", "t").get(0, 0) == 0 and time.monotonic() - began < 10:
        fill(topic, 1)
        next(consumer)
    assert log.port.committed("g", "t")[0] > 0
    consumer.close()


# ---- at most once --------------------------------------------------------------------------------


@pytest.mark.parametrize("commit_every", [0, "1 hour"])
def test_at_most_once_never_repeats_what_was_handed_out_before_a_crash(
    topic: ps.Topic, commit_every: str | float
) -> None:
    fill(topic, 1_200)
    consumer = topic.consume(group="g", delivery="at_most_once", commit_every=commit_every)
    seen = [next(consumer)["v"] for _ in range(20)]
    crash(consumer)
    again = drain(topic, delivery="at_most_once")
    assert not set(seen) & set(again)
    assert again == list(range(500, 1_200)), "one chunk of 500 is lost, no more"


def test_at_most_once_loses_nothing_when_it_leaves_cleanly(topic: ps.Topic) -> None:
    fill(topic, 1_200)
    with topic.consume(group="g", delivery="at_most_once") as consumer:
        seen = [next(consumer)["v"] for _ in range(20)]
    assert seen + drain(topic, delivery="at_most_once") == list(range(1_200))


def test_at_most_once_does_not_repeat_the_event_whose_handler_raised(topic: ps.Topic) -> None:
    fill(topic, 5)
    with pytest.raises(RuntimeError), topic.consume(group="g", delivery="at_most_once") as consumer:
        for event in consumer:
            if event["v"] == 2:
                raise RuntimeError
    assert drain(topic, delivery="at_most_once") == [3, 4]


def test_at_most_once_loses_nothing_when_a_partition_moves_to_another_member(log: ps.Log) -> None:
    topic = log.create_topic("two", DDL, partitions=2)
    for partition in (0, 1):
        topic.append([{"k": 0, "v": 1_000 * partition + v} for v in range(300)], partition=partition)
    first = topic.consume(group="g", delivery="at_most_once", follow=False)
    seen = [next(first)["v"] for _ in range(10)]
    second = topic.consume(group="g", delivery="at_most_once", follow=False)
    take_turns(first, second, until=lambda: len(second.assignment()) == 1)
    everything = Counter([*seen, *values(first), *values(second)])
    first.close()
    second.close()
    assert sorted(everything) == [*range(300), *range(1_000, 1_300)], "nothing is lost"
    assert max(everything.values()) == 1, "and nothing comes twice"


# ---- where to begin ------------------------------------------------------------------------------


def test_a_new_group_may_begin_at_the_end(topic: ps.Topic) -> None:
    fill(topic, 3)
    consumer = topic.consume(group="g", start="latest")
    assert consumer.assignment() == {0: 3}
    fill(topic, 2, first=3)
    assert [next(consumer)["v"] for _ in range(2)] == [3, 4]
    consumer.close()


def test_a_group_that_began_at_the_end_keeps_that_place_without_reading_anything(topic: ps.Topic) -> None:
    fill(topic, 3)
    with topic.consume(group="g", start="latest") as consumer:
        assert consumer.assignment() == {0: 3}
    fill(topic, 2, first=3)
    assert drain(topic, start="latest") == [3, 4]


def test_start_counts_only_for_a_group_without_commits(topic: ps.Topic) -> None:
    fill(topic, 3)
    assert drain(topic, start=1) == [1, 2]
    fill(topic, 1, first=3)
    assert drain(topic, start="earliest") == [3]


def test_a_group_may_begin_at_a_time(home: Path) -> None:
    with timed_log(home) as (log, clock):
        topic = log.create_topic("t", DDL)
        for value in range(4):
            topic.append({"k": 0, "v": value})
            clock.advance(60)
        begin = datetime.fromtimestamp(clock.now_us() / 1e6 - 2 * 60, UTC)
        assert drain(topic, start=begin) == [2, 3]


def test_a_naive_time_is_utc(home: Path) -> None:
    with timed_log(home) as (log, clock):
        topic = log.create_topic("t", DDL)
        topic.append({"k": 0, "v": 0})
        clock.advance(60)
        begin = datetime.fromtimestamp(clock.now_us() / 1e6, UTC).replace(tzinfo=None)
        topic.append({"k": 0, "v": 1})
        assert drain(topic, start=begin) == [1]


def test_a_group_may_begin_at_an_offset_per_partition(log: ps.Log) -> None:
    topic = log.create_topic("two", DDL, partitions=2)
    for partition in (0, 1):
        topic.append([{"k": 0, "v": 10 * partition + v} for v in range(3)], partition=partition)
    assert sorted(drain(topic, start={0: 2})) == [2, 10, 11, 12]


def test_seek_replays_and_skips(topic: ps.Topic) -> None:
    fill(topic, 6)
    consumer = topic.consume(group="g")
    assert [next(consumer)["v"] for _ in range(4)] == [0, 1, 2, 3]
    consumer.seek(1)
    assert [next(consumer)["v"] for _ in range(2)] == [1, 2]
    consumer.seek("latest")
    fill(topic, 1, first=6)
    assert next(consumer)["v"] == 6
    consumer.close()


def test_seek_back_before_the_first_event_is_committed_on_leaving(topic: ps.Topic) -> None:
    fill(topic, 3)
    assert drain(topic) == [0, 1, 2]
    with topic.consume(group="g") as consumer:
        consumer.seek("earliest")
    assert drain(topic) == [0, 1, 2]


def test_seek_in_one_partition_leaves_the_others(log: ps.Log) -> None:
    topic = log.create_topic("two", DDL, partitions=2)
    for partition in (0, 1):
        topic.append([{"k": 0, "v": 10 * partition + v} for v in range(3)], partition=partition)
    with topic.consume(group="g", follow=False) as consumer:
        assert sorted(values(consumer)) == [0, 1, 2, 10, 11, 12]
    with topic.consume(group="g", follow=False) as consumer:
        consumer.seek(1, partition=1)
        assert values(consumer) == [11, 12]


def test_seek_in_a_partition_of_somebody_else_is_refused(topic: ps.Topic) -> None:
    fill(topic, 3)
    with topic.consume(group="g") as owner:
        owner.assignment()
        with topic.consume(group="g") as other, pytest.raises(ps.NotOwner):
            other.seek(0, partition=0)


def test_an_offset_outside_the_topic_is_refused_and_leaves_the_group_as_it_was(topic: ps.Topic) -> None:
    fill(topic, 3)
    for wrong in (99, -1):
        with pytest.raises(ps.OffsetOutOfRange):
            drain(topic, start=wrong)
    assert drain(topic) == [0, 1, 2]


def test_seek_outside_the_topic_is_refused_and_reading_goes_on_where_it_was(topic: ps.Topic) -> None:
    fill(topic, 3)
    with topic.consume(group="g", follow=False) as consumer:
        assert next(consumer)["v"] == 0
        with pytest.raises(ps.OffsetOutOfRange):
            consumer.seek(99)
        assert values(consumer) == [1, 2]


# ---- ends and waits ------------------------------------------------------------------------------


def test_without_follow_the_loop_ends_at_the_end_of_an_empty_topic(topic: ps.Topic) -> None:
    assert drain(topic) == []


def test_with_follow_an_event_appended_later_wakes_the_loop(topic: ps.Topic) -> None:
    consumer = topic.consume(group="g")
    got: list[int] = []
    reading = threading.Thread(target=lambda: got.append(next(consumer)["v"]))
    reading.start()
    wait_until(lambda: consumer.assignment, what="the member to exist")
    fill(topic, 1)
    reading.join(10)
    assert got == [0]
    consumer.close()


# ---- what an event looks like --------------------------------------------------------------------


@dataclass(frozen=True)
class Order:
    id: int
    item: str
    price: float | None = None


def test_a_topic_declared_with_a_dataclass_hands_out_that_dataclass(log: ps.Log) -> None:
    topic = log.create_topic("orders", Order, key="id")
    orders = [Order(1, "tea", 2.5), Order(2, "jam")]
    topic.append(orders)
    with topic.consume(group="g", follow=False) as consumer:
        events = list(consumer)
    assert [event.value for event in events] == orders
    assert [event["item"] for event in events] == ["tea", "jam"]
    assert [(event.topic, event.partition, event.offset, event.group) for event in events] == [
        ("orders", 0, 0, "g"), ("orders", 0, 1, "g"),
    ]  # fmt: skip
    assert abs((datetime.now(UTC) - events[0].timestamp).total_seconds()) < 60


def test_an_existing_topic_may_be_read_as_a_dataclass(log: ps.Log) -> None:
    log.create_topic("orders", "id BIGINT NOT NULL, item STRING NOT NULL, price DOUBLE").append(
        {"id": 1, "item": "tea"}
    )
    topic = log.topic("orders", record_type=Order)
    with topic.consume(group="g", follow=False) as consumer:
        assert [event.value for event in consumer] == [Order(1, "tea")]


def test_a_deleted_event_says_so_and_has_its_key(log: ps.Log) -> None:
    topic = log.create_topic("orders", Order, key="id", cleanup="compact")
    topic.append(Order(1, "tea"))
    topic.delete({"id": 1})
    with topic.consume(group="g", follow=False) as consumer:
        stored, deleted = list(consumer)
    assert (stored.deleted, stored["id"]) == (False, 1)
    assert (deleted.deleted, deleted["id"]) == (True, 1)
    assert topic.latest() == {}


def test_events_beside_a_delete_in_one_batch_are_still_dataclasses(log: ps.Log) -> None:
    topic = log.create_topic("orders", Order, key="id", cleanup="compact")
    topic.append([Order(1, "tea"), Order(2, "jam")])
    topic.delete({"id": 1})
    with log.port.partition("orders", 0).locked(topic.settings) as head:  # type: ignore[attr-defined]
        log.port.partition("orders", 0).roll(head, topic.settings)  # type: ignore[attr-defined]
    log.port.maintain("orders", 0)  # type: ignore[attr-defined]
    with topic.consume(group="g", follow=False) as consumer:
        shown = [event.value for event in consumer if not event.deleted]
    assert shown == [Order(2, "jam")]


# ---- several at a time ---------------------------------------------------------------------------


def test_parallel_handlers_see_each_key_in_order(topic: ps.Topic) -> None:
    fill(topic, 2_000, keys=17)
    seen: dict[int, list[int]] = defaultdict(list)
    with topic.consume(group="g", follow=False) as consumer:
        assert consumer.process(lambda event: seen[event["k"]].append(event["v"]), parallel=4) == 2_000
    assert {k: sorted(vs) for k, vs in seen.items()} == dict(seen)
    assert sum(map(len, seen.values())) == 2_000
    assert drain(topic) == []


def test_a_blocked_key_holds_back_the_commit_but_not_the_other_keys(log: ps.Log, topic: ps.Topic) -> None:
    fill(topic, 40, keys=4)
    release, others = threading.Event(), []

    def handle(event: Event) -> None:
        if event["v"] == 4:  # the second event of key 0
            release.wait(20)
        elif event["k"] != 0:
            others.append(event["v"])

    consumer = topic.consume(group="g", follow=False, commit_every=0)
    running = threading.Thread(target=lambda: consumer.process(handle, parallel=8))
    running.start()
    try:
        # Key 0 shares its worker with others, if at all, by chance of the hash; those wait with it.
        wait_until(lambda: others, what="another key to be handled")
        assert log.port.committed("g", "t").get(0, 0) <= 4
    finally:
        release.set()
        running.join(20)
    assert log.port.committed("g", "t") == {0: 40}
    consumer.close()


def test_a_crash_with_one_key_blocked_skips_nothing(topic: ps.Topic) -> None:
    fill(topic, 60, keys=6)
    release, handled = threading.Event(), []
    doing = threading.Lock()

    def handle(event: Event) -> None:
        if event["v"] == 7:
            release.wait(20)
        with doing:
            handled.append(event["v"])

    consumer = topic.consume(group="g", commit_every=0)
    running = threading.Thread(target=lambda: consumer.process(handle, parallel=6), daemon=True)
    running.start()
    wait_until(lambda: len(handled) > 7, what="events after the blocked one")
    before = list(handled)
    crash(consumer)
    release.set()
    running.join(20)
    again = drain(topic)
    assert sorted({*before, *again}) == list(range(60))
    assert 7 in again


def test_a_handler_that_raises_stops_and_commits_what_went_before(log: ps.Log, topic: ps.Topic) -> None:
    fill(topic, 100, keys=1)

    def handle(event: Event) -> None:
        if event["v"] == 42:
            raise RuntimeError("no 42")

    consumer = topic.consume(group="g", follow=False, commit_every="1 hour")
    with pytest.raises(RuntimeError, match="no 42"):
        consumer.process(handle, parallel=4)
    assert log.port.committed("g", "t") == {0: 42}
    consumer.close()
    assert drain(topic) == list(range(42, 100))


def test_a_handler_that_raises_commits_only_the_stretch_without_a_gap(log: ps.Log, topic: ps.Topic) -> None:
    fill(topic, 100, keys=8)
    handled: set[int] = set()

    def handle(event: Event) -> None:
        if event["v"] == 30:
            raise RuntimeError
        handled.add(event["v"])

    consumer = topic.consume(group="g", follow=False)
    with pytest.raises(RuntimeError):
        consumer.process(handle, parallel=8)
    committed = log.port.committed("g", "t")[0]
    assert committed <= 30
    assert set(range(committed)) <= handled
    consumer.close()
    assert handled | set(drain(topic)) == set(range(100))


def test_exactly_once_on_several_threads_is_refused(topic: ps.Topic) -> None:
    """`once` remembers one offset per partition, so events must come to it in order."""
    fill(topic, 10)
    with topic.consume(group="g", delivery="exactly_once", follow=False) as consumer:
        with pytest.raises(ps.BadInput, match="exactly_once"):
            consumer.process(lambda event: None, parallel=2)
        assert consumer.process(lambda event: None, parallel=1) == 10


def test_a_lease_is_kept_while_slow_handlers_finish(topic: ps.Topic) -> None:
    """The loop is over, but what is queued may take longer than the lease."""
    fill(topic, 24, keys=2)
    release, polls = threading.Event(), 0
    consumer = topic.consume(group="g", follow=False, lease="300 ms")
    member = consumer._member
    assert member is not None
    poll = member.poll

    def counted() -> Assignment:
        nonlocal polls
        polls += 1
        return poll()

    member.poll = counted  # type: ignore[method-assign]
    running = threading.Thread(target=lambda: consumer.process(lambda _: release.wait(20), parallel=2))
    running.start()
    wait_until(lambda: sum(r.handed for r in consumer._readings.values()) == 24, what="all to be handed out")
    before = polls
    wait_until(lambda: polls > before + 3, what="the member to poll meanwhile")
    release.set()
    running.join(20)
    consumer.close()
    assert drain(topic) == []


def test_a_commit_of_a_member_that_lost_its_partition_is_refused_aloud(log: ps.Log, topic: ps.Topic) -> None:
    fill(topic, 10)
    slow = topic.consume(group="g", lease="50 ms", commit_every="1 hour")
    assert next(slow)["v"] == 0
    with topic.consume(group="g", lease="50 ms") as quick:
        wait_until(lambda: 0 in quick.assignment(), what="the lease to run out")
        assert next(quick)["v"] == 0
        with pytest.raises(ps.NotOwner):
            slow.commit()
        assert next(quick)["v"] == 1
    slow.close()


@pytest.mark.parametrize(
    "options", [{"delivery": "twice"}, {"on_lost": "ignore"}, {"lease": "soon"}, {"lease": 0}]
)
def test_an_option_that_makes_no_sense_is_refused(topic: ps.Topic, options: dict[str, object]) -> None:
    with pytest.raises(ps.BadOption) as raised:
        topic.consume(group="g", **options)  # type: ignore[arg-type]
    assert raised.value.hint


@pytest.mark.parametrize("parallel", [0, -1])
def test_fewer_than_one_handler_is_refused(topic: ps.Topic, parallel: int) -> None:
    with topic.consume(group="g", follow=False) as consumer, pytest.raises(ps.BadOption):
        consumer.process(lambda event: None, parallel=parallel)
