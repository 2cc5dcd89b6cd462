"""Consumer groups: who reads what, how partitions move, and how far a group is."""

from __future__ import annotations

import itertools
import random
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.waiting import wait_until

import penstock as ps
from penstock.clock import ManualClock
from penstock.log.balance import balanced
from penstock.log.disk import RealDisk
from penstock.log.embedded import EmbeddedLog
from penstock.log.event import Event
from penstock.log.group import GroupStore
from penstock.log.port import Assignment, Member
from penstock.log.settings import TopicSettings
from penstock.schema import RecordSchema

DDL = "k BIGINT, v BIGINT"


class Restarted(RealDisk):
    """The same disk after the machine started anew."""

    def boot_id(self) -> str:
        return "another boot"


@contextmanager
def timed_log(home: Path, *, disk: RealDisk | None = None) -> Iterator[tuple[ps.Log, ManualClock]]:
    clock = ManualClock()
    with ps.Log(EmbeddedLog(home, clock=clock, disk=disk)) as log:
        yield log, clock


def port_of(log: ps.Log) -> EmbeddedLog:
    assert isinstance(log.port, EmbeddedLog)
    return log.port


def partitioned(log: ps.Log, partitions: int, *, each: int = 0) -> ps.Topic:
    """Record v of partition p is 1000 p + v."""
    topic = log.create_topic("t", DDL, partitions=partitions)
    for number in range(partitions if each else 0):
        topic.append([{"k": number, "v": 1_000 * number + v} for v in range(each)], partition=number)
    return topic


def owned(*members: Member) -> list[set[int]]:
    """What each member may read, after all have polled and let go until nothing moves any more."""
    before: list[set[int]] | None = None
    for _ in range(10):
        now = [_poll(member) for member in members]
        if now == before:
            return now
        before = now
    raise AssertionError(f"partitions still move: {before}")


def _poll(member: Member) -> set[int]:
    partitions = member.poll().partitions
    revoked = [number for number, part in partitions.items() if part.revoked]
    if revoked:
        member.release(revoked)
    return set(partitions) - set(revoked)


# ---- the rule ------------------------------------------------------------------------------------

MEMBERS = st.lists(st.sampled_from("abcdefg"), unique=True, max_size=6)
CURRENT = st.lists(st.none() | st.sampled_from("abcdefgxyz"), max_size=12)


@given(MEMBERS, CURRENT)
@settings(deadline=None)
def test_every_partition_has_one_owner_and_nobody_has_two_more_than_another(
    members: list[str], current: list[str | None]
) -> None:
    wanted = balanced(range(len(current)), members, dict(enumerate(current)))
    assert list(wanted) == list(range(len(current)))
    if not members:
        assert set(wanted.values()) <= {None}
        return
    held = Counter(dict.fromkeys(members, 0))
    held.update(owner for owner in wanted.values() if owner)
    assert set(held) == set(members)
    assert max(held.values()) - min(held.values()) <= 1


@given(
    st.lists(st.sampled_from("abc"), unique=True, min_size=1),
    st.lists(st.none() | st.sampled_from("abcx"), max_size=5),
)
@settings(deadline=None)
def test_no_even_assignment_moves_fewer_partitions(members: list[str], current: list[str | None]) -> None:
    wanted = balanced(range(len(current)), members, dict(enumerate(current)))
    moved = sum(wanted[part] != owner for part, owner in enumerate(current))
    each, odd = divmod(len(current), len(members))
    even = (
        chosen
        for chosen in itertools.product(members, repeat=len(current))
        if sorted(chosen.count(m) for m in members) == [each] * (len(members) - odd) + [each + 1] * odd
    )
    fewest = min(sum(a != b for a, b in zip(chosen, current, strict=True)) for chosen in even)
    assert moved == fewest


@given(MEMBERS, CURRENT)
@settings(deadline=None)
def test_a_balanced_assignment_stays_as_it_is(members: list[str], current: list[str | None]) -> None:
    once = balanced(range(len(current)), members, dict(enumerate(current)))
    assert balanced(range(len(current)), members, once) == once


# ---- members -------------------------------------------------------------------------------------


@pytest.fixture
def store(tmp_path: Path) -> Iterator[tuple[GroupStore, ManualClock]]:
    clock = ManualClock()
    opened = GroupStore(tmp_path / "groups.db", clock, "boot")
    yield opened, clock
    opened.close()


def join(store: GroupStore, *, partitions: int = 2, lease_s: float = 30.0) -> Member:
    topic = TopicSettings("t", RecordSchema.of(DDL), partitions=partitions)
    return store.join("g", "t", lease_s=lease_s, settings=lambda: topic)


def test_a_newcomer_gets_its_share_after_the_owner_let_go(store: tuple[GroupStore, ManualClock]) -> None:
    first = join(store[0])
    assert owned(first) == [{0, 1}]
    second = join(store[0])
    assert set(second.poll().partitions) == set(), "not before the owner has committed"
    assert not second.poll().waiting, "but it is expecting one"
    assert sorted(map(len, owned(first, second))) == [1, 1]


def test_an_owner_may_commit_until_it_lets_go_and_not_after(store: tuple[GroupStore, ManualClock]) -> None:
    first, second = join(store[0], partitions=1), join(store[0], partitions=1)
    first.poll()
    first.commit({0: 3})
    first.leave()
    assert set(second.poll().partitions) == {0}
    with pytest.raises(ps.NotOwner):
        first.commit({0: 9})
    assert second.poll().partitions[0].committed == 3


def test_a_commit_that_is_refused_for_one_partition_commits_none(
    store: tuple[GroupStore, ManualClock],
) -> None:
    first, second = join(store[0]), join(store[0])
    first.poll()
    second.poll()
    (kept,), (moved,) = owned(first, second)
    with pytest.raises(ps.NotOwner) as refused:
        first.commit({kept: 5, moved: 5})
    assert refused.value.partitions == (moved,)
    assert store[0].committed("g", "t") == {}
    first.commit({kept: 5})
    assert store[0].committed("g", "t") == {kept: 5}


def test_a_member_whose_lease_ran_out_is_refused_and_the_other_reads_on(
    store: tuple[GroupStore, ManualClock],
) -> None:
    groups, clock = store
    slow, quick = join(groups, partitions=1, lease_s=10), join(groups, partitions=1, lease_s=100)
    slow.poll()
    slow.commit({0: 4})
    quick.poll()
    clock.advance(11)
    assert quick.poll().partitions[0].committed == 4
    with pytest.raises(ps.NotOwner):
        slow.commit({0: 5})
    quick.commit({0: 6})
    assert groups.committed("g", "t") == {0: 6}


def test_a_member_that_comes_back_with_nobody_in_between_keeps_its_partitions(
    store: tuple[GroupStore, ManualClock],
) -> None:
    groups, clock = store
    only = join(groups, partitions=1, lease_s=10)
    only.poll()
    clock.advance(1_000)
    only.commit({0: 1})
    assert owned(only) == [{0}]


def test_a_partition_handed_to_a_member_that_just_left_is_not_lost(
    store: tuple[GroupStore, ManualClock],
) -> None:
    """The owner lets go of what somebody wanted who is gone by then."""
    first = join(store[0])
    assert owned(first) == [{0, 1}]
    second = join(store[0])
    second.poll()
    (revoked,) = [part for part, had in first.poll().partitions.items() if had.revoked]
    second.leave()
    first.release([revoked])
    assert owned(first) == [{0, 1}]


def test_a_partition_handed_to_a_member_that_died_meanwhile_is_not_lost(
    store: tuple[GroupStore, ManualClock],
) -> None:
    groups, clock = store
    first = join(groups, lease_s=1_000)
    assert owned(first) == [{0, 1}]
    second = join(groups, lease_s=10)
    second.poll()
    (revoked,) = [part for part, had in first.poll().partitions.items() if had.revoked]
    clock.advance(11)
    assert [info.member for info in groups.members("g", "t")] == [first.member], "somebody looks at the group"
    first.release([revoked])
    assert owned(first) == [{0, 1}]


def test_members_of_an_earlier_boot_are_gone(home: Path) -> None:
    with timed_log(home) as (log, _):
        topic = partitioned(log, 1, each=3)
        left_open = topic.consume(group="g")
        next(left_open)
        left_open.commit()
        with timed_log(home, disk=Restarted()) as (later, _), later.topic("t").consume(group="g") as consumer:
            assert consumer.assignment() == {0: 1}
        left_open.close()


def test_more_members_than_partitions_stand_by_and_the_group_says_so(log: ps.Log) -> None:
    topic = partitioned(log, 2, each=1)
    with ExitStack() as stack:
        first, second, third = (stack.enter_context(topic.consume(group="g")) for _ in range(3))
        share(first, second, third)
        assert sorted(len(c.assignment()) for c in (first, second, third)) == [0, 1, 1]
        assert [c.waiting for c in (first, second, third)] == [False, False, True]
        shown = log.group("g", "t")
        assert sorted((info.partitions, info.waiting) for info in shown.members) == [
            ((), True), ((0,), False), ((1,), False),
        ]  # fmt: skip
        second.close()
        share(first, third)
        assert len(third.assignment()) == 1
        assert not third.waiting


def share(*consumers: ps.Consumer) -> None:
    """Let members poll until nothing moves any more, as they do while they read."""
    before: list[dict[int, int]] | None = None
    for _ in range(10):
        now = []
        for consumer in consumers:
            consumer._next_poll = 0.0
            now.append(consumer.assignment())
        if now == before:
            return
        before = now
    raise AssertionError("partitions still move")


def test_a_member_that_leaves_is_replaced_at_once_and_nothing_comes_twice(log: ps.Log) -> None:
    topic = partitioned(log, 1, each=10)
    first, second = topic.consume(group="g"), topic.consume(group="g", follow=False)
    share(first, second)
    assert [next(first)["v"] for _ in range(4)] == [0, 1, 2, 3]
    first.commit()
    first.close()
    second._next_poll = 0.0
    assert [event["v"] for event in second] == [4, 5, 6, 7, 8, 9]
    second.close()


# ---- storms --------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
def test_members_that_come_and_go_cleanly_share_every_event_exactly_once(log: ps.Log, seed: int) -> None:
    topic = partitioned(log, 4, each=400)
    expected = 4 * 400
    seen: Counter[int] = Counter()
    counting = threading.Lock()

    def visit(visitor: int) -> None:
        chance = random.Random(seed * 10 + visitor)
        while sum(seen.values()) < expected:
            with topic.consume(group="g", follow=False) as consumer:
                consumer._poll_every_s = 0.01
                for event in itertools.islice(consumer, chance.randrange(1, 250)):
                    with counting:
                        seen[event["v"]] += 1

    in_threads(4, visit)
    assert len(seen) == expected
    assert set(seen.values()) == {1}
    assert log.port.committed("g", "t") == dict.fromkeys(range(4), 400)


def test_members_that_process_in_parallel_share_every_event_exactly_once(log: ps.Log) -> None:
    topic = partitioned(log, 4, each=300)
    seen: Counter[int] = Counter()
    counting, pause = threading.Lock(), threading.Event()

    def handle(event: Event) -> None:
        with counting:
            seen[event["v"]] += 1
        pause.wait(0.002)

    def visit(_: int) -> None:
        with topic.consume(group="g", follow=False) as consumer:
            consumer._poll_every_s = 0.01
            consumer.process(handle, parallel=3)

    in_threads(3, visit, apart_s=0.1)
    assert len(seen) == 1_200
    assert set(seen.values()) == {1}


def test_a_partition_does_not_move_while_its_events_are_being_processed(log: ps.Log) -> None:
    topic = partitioned(log, 2, each=20)
    release, handling = threading.Event(), threading.Event()

    def handle(event: Event) -> None:
        handling.set()
        release.wait(20)

    first = topic.consume(group="g")
    first._poll_every_s = 0.01
    working = threading.Thread(target=lambda: first.process(handle, parallel=2), daemon=True)
    working.start()
    assert handling.wait(10)
    polls = count_polls(first)
    wait_until(lambda: len(polls) > 5, what="the owner to have events of both in hand")
    with topic.consume(group="g") as second:
        second.assignment()
        known = len(polls)
        wait_until(lambda: len(polls) > known + 5, what="the owner to learn of the other")
        share(second)
        assert second.assignment() == {}, "the owner has its events in hand"
        release.set()
        wait_until(lambda: shared(second), what="the partition to move")
        assert list(second.assignment().values()) == [20], "after its events are processed"
        first._follow = False
        working.join(10)
    first.close()


def shared(consumer: ps.Consumer) -> dict[int, int]:
    share(consumer)
    return consumer.assignment()


def count_polls(consumer: ps.Consumer) -> list[None]:
    polls: list[None] = []
    member = consumer._member
    assert member is not None
    poll = member.poll

    def counted() -> Assignment:
        polls.append(None)
        return poll()

    member.poll = counted  # type: ignore[method-assign]
    return polls


def in_threads(count: int, work: Callable[[int], None], *, apart_s: float = 0.0) -> None:
    """Run `work(0)` to `work(count - 1)` at once; what one of them raises is raised here."""
    failures: list[BaseException] = []
    pause = threading.Event()

    def run(number: int) -> None:
        try:
            pause.wait(apart_s * number)
            work(number)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive(), "a member hangs"
    if failures:
        raise failures[0]


# ---- a topic that grows --------------------------------------------------------------------------


def grow(log: ps.Log, before: int, after: int) -> ps.Topic:
    """A keyed topic with 20 records for each of 12 keys before it grows, and 20 after."""
    topic = log.create_topic("t", DDL, key="k", partitions=before)
    topic.append([{"k": k, "v": v} for v in range(20) for k in range(12)])
    log.alter_topic("t", partitions=after)
    topic.append([{"k": k, "v": v} for v in range(20, 40) for k in range(12)])
    assert all(end > 0 for _, end in topic.bounds().values())
    return topic


@pytest.mark.parametrize(("before", "after"), [(2, 4), (1, 3), (1, 2)])
def test_a_group_reads_every_key_in_order_across_growth_to_a_multiple(
    log: ps.Log, before: int, after: int
) -> None:
    topic = grow(log, before, after)
    seen: dict[int, list[int]] = defaultdict(list)
    with topic.consume(group="g", follow=False) as consumer:
        for event in consumer:
            seen[event["k"]].append(event["v"])
    assert seen == {k: list(range(40)) for k in range(12)}


def test_a_group_with_parallel_handlers_reads_every_key_in_order_across_growth(log: ps.Log) -> None:
    topic = grow(log, 2, 4)
    seen: dict[int, list[int]] = defaultdict(list)
    counting = threading.Lock()

    def handle(event: Event) -> None:
        with counting:
            seen[event["k"]].append(event["v"])

    with topic.consume(group="g", follow=False) as consumer:
        assert consumer.process(handle, parallel=3) == 12 * 40
    assert seen == {k: list(range(40)) for k in range(12)}


def test_several_members_read_every_key_in_order_across_growth_to_a_multiple(log: ps.Log) -> None:
    topic = grow(log, 2, 4)
    seen: dict[int, list[int]] = defaultdict(list)
    counting = threading.Lock()

    def visit(_: int) -> None:
        while sum(map(len, seen.values())) < 12 * 40:
            with topic.consume(group="g", follow=False, commit_every=0) as consumer:
                consumer._poll_every_s = 0.01
                for event in consumer:
                    with counting:
                        seen[event["k"]].append(event["v"])

    in_threads(3, visit)
    assert seen == {k: list(range(40)) for k in range(12)}


def test_a_new_partition_waits_for_the_one_its_keys_came_from(log: ps.Log) -> None:
    topic = grow(log, 2, 4)
    with topic.consume(group="g") as consumer:
        assert set(consumer.assignment()) == {0, 1}
        consumer.seek("latest", partition=0)
        consumer.commit()
        share(consumer)
        assert set(consumer.assignment()) == {0, 1, 2}, "2 gets its keys from 0; 3 still waits for 1"


def test_growth_to_no_multiple_holds_nothing_back(log: ps.Log) -> None:
    topic = grow(log, 2, 3)
    with topic.consume(group="g") as consumer:
        assert set(consumer.assignment()) == {0, 1, 2}


def test_a_running_group_notices_growth(log: ps.Log) -> None:
    topic = log.create_topic("t", DDL, key="k", partitions=2)
    with topic.consume(group="g") as consumer:
        assert set(consumer.assignment()) == {0, 1}
        log.alter_topic("t", partitions=4)
        share(consumer)
        assert set(consumer.assignment()) == {0, 1, 2, 3}


# ---- how far a group is --------------------------------------------------------------------------


def test_lag_is_shown_in_records_and_in_seconds(home: Path) -> None:
    with timed_log(home) as (log, clock):
        topic = log.create_topic("t", DDL)
        for value in range(4):
            topic.append({"k": 0, "v": value})
            clock.advance(60)
        with topic.consume(group="g") as consumer:
            assert [next(consumer)["v"] for _ in range(2)] == [0, 1]
            consumer.commit()
            (lag,) = log.group("g", "t").lag
            (member,) = log.group("g", "t").members
            assert lag.owner == member.member
        assert (lag.committed, lag.start, lag.end, lag.records) == (2, 0, 4, 2)
        assert lag.seconds == 120.0, "the age of record 2"
        assert lag.expires_in_s is None


def test_a_group_that_read_everything_has_no_lag(home: Path) -> None:
    with timed_log(home) as (log, clock):
        topic = log.create_topic("t", DDL)
        topic.append({"k": 0, "v": 0})
        with topic.consume(group="g", follow=False) as consumer:
            assert len(list(consumer)) == 1
        clock.advance(3_600)
        (lag,) = log.group("g", "t").lag
        assert (lag.records, lag.seconds, lag.expires_in_s, lag.owner) == (0, 0.0, None, None)


def test_it_is_shown_how_long_until_retention_takes_the_next_record(home: Path) -> None:
    with timed_log(home) as (log, clock):
        topic = log.create_topic("t", DDL, retention="1 hour")
        topic.append({"k": 0, "v": 0})
        with topic.consume(group="g") as consumer:
            consumer.assignment()
        clock.advance(600)
        (lag,) = log.group("g", "t").lag
        assert lag.expires_in_s == 3_000.0
        clock.advance(3_001)
        (lag,) = log.group("g", "t").lag
        assert lag.expires_in_s == 0.0


def test_records_that_expired_before_they_were_read_are_no_lag(home: Path) -> None:
    with timed_log(home) as (log, clock):
        topic = log.create_topic("t", DDL, retention="1 hour")
        topic.append([{"k": 0, "v": v} for v in range(5)])
        with topic.consume(group="g") as consumer:
            consumer.assignment()
        clock.advance(4_000)
        port_of(log).maintain("t", 0)
        topic.append({"k": 0, "v": 5})
        (lag,) = log.group("g", "t").lag
        assert (lag.committed, lag.start, lag.end, lag.records) == (0, 5, 6, 1)


def test_asking_for_a_group_that_nobody_joined_names_those_there_are(log: ps.Log) -> None:
    topic = partitioned(log, 1, each=1)
    with topic.consume(group="mailer") as consumer:
        consumer.assignment()
    with pytest.raises(ps.BadInput) as raised:
        log.group("mailre", "t")
    assert "mailer" in raised.value.hint
    assert log.groups() == [("mailer", "t")]


# ---- records that retention took -----------------------------------------------------------------


def overtaken(log: ps.Log, clock: ManualClock) -> ps.Topic:
    """Group g is at offset 2; retention took 0 to 4; 5 to 7 are there."""
    topic = log.create_topic("t", DDL, retention="1 hour")
    topic.append([{"k": 0, "v": v} for v in range(5)])
    with topic.consume(group="g") as consumer:
        assert [next(consumer)["v"] for _ in range(2)] == [0, 1]
    clock.advance(4_000)
    port_of(log).maintain("t", 0)
    topic.append([{"k": 0, "v": v} for v in range(5, 8)])
    return topic


def test_lost_records_are_an_error_that_counts_them(home: Path) -> None:
    with timed_log(home) as (log, clock):
        topic = overtaken(log, clock)
        with topic.consume(group="g") as consumer, pytest.raises(ps.RecordsLost) as lost:
            next(consumer)
        assert (lost.value.missed, lost.value.offset, lost.value.start, lost.value.end) == (3, 2, 5, 8)
        assert "on_lost" in lost.value.hint


@pytest.mark.parametrize(("mode", "values", "missed"), [("earliest", [5, 6, 7], 3), ("latest", [], 6)])
def test_a_consumer_may_go_on_after_lost_records_and_knows_how_many(
    home: Path, mode: str, values: list[int], missed: int
) -> None:
    with timed_log(home) as (log, clock):
        topic = overtaken(log, clock)
        with topic.consume(group="g", on_lost=mode, follow=False) as consumer:  # type: ignore[arg-type]
            assert [event["v"] for event in consumer] == values
            assert consumer.missed == missed
        assert log.port.committed("g", "t") == {0: 8}


# ---- groups beside each other --------------------------------------------------------------------


def test_a_stalled_consumer_holds_back_nobody(log: ps.Log) -> None:
    topic = partitioned(log, 2, each=700)
    stalled = topic.consume(group="stalled")
    next(stalled)  # and sits in the middle of its iteration, for as long as it likes
    with topic.consume(group="other", follow=False) as other:
        assert sum(1 for _ in other) == 1_400
    topic.append({"k": 0, "v": 99}, partition=0)
    with topic.consume(group="other", follow=False) as other:
        assert [event["v"] for event in other] == [99]
    assert log.group("stalled", "t").lag[0].records > 0
    stalled.close()


def test_groups_have_their_own_places(log: ps.Log) -> None:
    topic = partitioned(log, 1, each=3)
    for group in ("a", "b"):
        with topic.consume(group=group, follow=False) as consumer:
            assert [event["v"] for event in consumer] == [0, 1, 2]
    assert log.groups() == [("a", "t"), ("b", "t")]


def test_a_group_with_members_cannot_be_moved_and_one_without_can(log: ps.Log) -> None:
    topic = partitioned(log, 1, each=3)
    with topic.consume(group="g", follow=False) as consumer:
        assert len(list(consumer)) == 3
        with pytest.raises(ps.Contended) as refused:
            log.port.reset("g", "t", {0: 0})
        assert "stop" in refused.value.hint
    log.port.reset("g", "t", {0: 1})
    with topic.consume(group="g", follow=False) as consumer:
        assert [event["v"] for event in consumer] == [1, 2]


def test_deleting_a_topic_forgets_its_groups(log: ps.Log) -> None:
    topic = partitioned(log, 1, each=3)
    with topic.consume(group="g", follow=False) as consumer:
        assert len(list(consumer)) == 3
    log.delete_topic("t")
    assert log.groups() == []
    assert log.create_topic("t", DDL).append({"k": 0, "v": 7}).offset == 0
    with log.topic("t").consume(group="g", follow=False) as consumer:
        assert [event["v"] for event in consumer] == [7]


# ---- the database --------------------------------------------------------------------------------


def test_a_commit_that_met_a_full_disk_can_be_repeated(tmp_path: Path) -> None:
    """A failed COMMIT must not leave the connection inside its transaction."""
    clock = ManualClock()
    store = GroupStore(tmp_path / "groups.db", clock, "boot")
    member = join(store, partitions=1)
    member.poll()
    member.commit({0: 1})
    with store._reading() as db:
        pages = db.execute("PRAGMA page_count").fetchone()[0]
        db.execute(f"PRAGMA max_page_count={pages}")
    with pytest.raises(ps.StorageError):
        store.hold("x" * 100_000, "t", {0: 0}, reason="too much for this disk")
    member.commit({0: 2})
    assert store.committed("g", "t") == {0: 2}
    store.close()


def test_a_file_that_is_no_database_is_named(home: Path) -> None:
    with ps.open_log(home) as log:
        partitioned(log, 1, each=1)
    (home / "groups.db").write_bytes(b"nothing of the kind" * 100)
    with ps.open_log(home) as log, pytest.raises(ps.StorageError, match=r"groups\.db"):
        log.groups()


def test_waiting_for_the_table_of_groups_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.log.group._BUSY_S", 0.1)
    store, other = (GroupStore(tmp_path / "groups.db", ManualClock(), "boot") for _ in range(2))
    store.committed("g", "t")
    with other._writing(durable=True), pytest.raises(ps.LockTimeout) as refused:
        store.reset("g", "t", {0: 1})
    assert refused.value.waited_s == 0.1
    store.reset("g", "t", {0: 1})
    assert store.committed("g", "t") == {0: 1}
    store.close()
    other.close()


def test_holds_are_kept_most_demanding_first(tmp_path: Path) -> None:
    store = GroupStore(tmp_path / "groups.db", ManualClock(), "boot")
    store.hold("view", "t", {0: 7, 1: 3}, reason="it needs them")
    store.hold("asof", "t", {0: 5}, reason="history")
    assert store.holds("t", 0) == [("asof", 5, "history"), ("view", 7, "it needs them")]
    store.let_go("asof")
    assert store.holds("t", 0) == [("view", 7, "it needs them")]
    store.close()


def test_a_wait_for_a_member_is_over_when_the_process_is_gone(tmp_path: Path) -> None:
    """Not after the lease: its lock is free."""
    store = GroupStore(tmp_path / "groups.db", ManualClock(), "boot")
    dying, waiting = join(store, partitions=1, lease_s=1e9), join(store, partitions=1)
    dying.poll()
    assert waiting.poll().waiting
    dying._alive.release()  # type: ignore[attr-defined]
    assert wait_until(lambda: 0 in waiting.poll().partitions, timeout_s=5) < 1
    store.close()


# ---- loops that were left ---------------------------------------------------------------------------


def test_a_loop_left_by_break_does_not_keep_the_partitions(log: ps.Log) -> None:
    topic = log.create_topic("left", "n BIGINT", partitions=2)
    topic.append([{"n": n} for n in range(4_000)])
    for _ in topic.consume(group="g", follow=False):
        break
    assert sum(1 for _ in topic.consume(group="g", follow=False)) == 4_000


def test_a_loop_left_by_an_exception_does_not_keep_the_partitions(log: ps.Log) -> None:
    topic = log.create_topic("left", "n BIGINT", partitions=2)
    topic.append([{"n": n} for n in range(10)])

    def fail(event: ps.Event) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        for event in topic.consume(group="g", follow=False, lease="1 hour"):
            fail(event)
    with pytest.raises(ZeroDivisionError):
        topic.consume(group="g", follow=False, lease="1 hour").process(fail, parallel=2)
    assert sum(1 for _ in topic.consume(group="g", follow=False)) == 10
