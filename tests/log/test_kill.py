"""kill -9 of producers and of group members at random moments, again and again.

Five rounds in the suite, fifty under `crash`; each run prints what it counted.
(tests/log/test_kill_points.py kills at every single step instead.)
"""

from __future__ import annotations

import contextlib
import random
import signal
import sqlite3
import statistics
import subprocess
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tests.log import workers
from tests.waiting import wait_until

import penstock as ps

Report = Callable[[str], None]

ROUNDS = [pytest.param(5, id="5 rounds"), pytest.param(50, id="50 rounds", marks=pytest.mark.crash)]
PARTITIONS = 4
# On a busy machine a process needs a while to start; what is measured is printed.
START_S, CONTINUE_S = 60.0, 30.0


@contextlib.contextmanager
def ended(processes: dict[str, subprocess.Popen[bytes]]) -> Iterator[None]:
    """Whatever happens, nothing that was started here stays."""
    try:
        yield
    finally:
        for process in processes.values():
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGCONT)
                process.kill()
            process.wait()


# ---- producers -----------------------------------------------------------------------------------

ROLES = {"append": "plain", "send": "plain", "resume": "idempotent", "atomic": "idempotent"}


@pytest.mark.parametrize("rounds", ROUNDS)
@pytest.mark.timeout(900)
def test_killed_producers_lose_nothing_acknowledged_and_idempotent_ones_repeat_nothing(
    in_memory: Path, report: Report, rounds: int
) -> None:
    home, chance = in_memory / "home", random.Random(rounds)
    acks = {role: in_memory / f"{role}.acks" for role in ROLES}
    running: dict[str, subprocess.Popen[bytes]] = {}
    kills = 0
    with ps.open_log(home) as log, ended(running):
        log.create_topic("t", workers.DDL, key="k", partitions=PARTITIONS, segment_bytes=60_000)
        for _ in range(rounds):
            before = {role: workers.last_ack(acks[role]) for role in ROLES}
            for role in ROLES.keys() - running.keys():
                running[role] = workers.start(role, home, "t", role, acks[role])
            wait_until(
                lambda: all(workers.last_ack(acks[role]) > before[role] for role in ROLES),  # noqa: B023
                timeout_s=START_S, what="every producer to be acknowledged",
            )  # fmt: skip
            _let_them_write(acks, chance.randrange(400))
            for role in chance.sample(list(ROLES), chance.randrange(1, 5)):
                process = running.pop(role)
                process.kill()
                assert process.wait() == -signal.SIGKILL
                kills += 1
        _finish(home, acks, running)
        counted = _check_producers(log, acks)
    report(f"kill -9 of 4 producers, {rounds} rounds, {kills} kills: {counted}")


def _let_them_write(acks: dict[str, Path], records: int) -> None:
    """A random moment: not a time, which says nothing on a busy machine, but so many records later."""
    until = sum(map(workers.last_ack, acks.values())) + records
    wait_until(
        lambda: sum(map(workers.last_ack, acks.values())) >= until, timeout_s=START_S, what="more records"
    )


def _finish(home: Path, acks: dict[str, Path], running: dict[str, subprocess.Popen[bytes]]) -> None:
    """The idempotent ones are started again, with the same id, and end by themselves."""
    for role, file in acks.items():
        file.with_name(f"{file.name}.stop").touch()
        if role not in running:
            running[role] = workers.start(role, home, "t", role, file)
    for process in running.values():
        assert process.wait(START_S) == 0


def _check_producers(log: ps.Log, acks: dict[str, Path]) -> str:
    stored: dict[str, list[int]] = defaultdict(list)
    for number, (start, end) in log.topic("t").bounds().items():
        events = list(log.topic("t").events(partition=number))
        assert [event.offset for event in events] == list(range(start, end)), "offsets are dense and unique"
        ordered: dict[tuple[str, int], list[int]] = defaultdict(list)
        for event in events:
            stored[event["producer"]].append(event["n"])
            ordered[event["producer"], event["k"]].append(event["n"])
        for (role, _), numbers in ordered.items():
            first_seen = list(dict.fromkeys(numbers))
            assert first_seen == sorted(first_seen), "order per producer and key"
            assert ROLES[role] == "plain" or numbers == first_seen
    lost = {role: set(range(workers.last_ack(acks[role]) + 1)) - set(stored[role]) for role in ROLES}
    repeated = {role: len(stored[role]) - len(set(stored[role])) for role in ROLES}
    assert not any(lost.values()), lost
    for role in (role for role, kind in ROLES.items() if kind == "idempotent"):
        assert sorted(stored[role]) == list(range(len(stored[role]))), role
        assert log.port.producer_position(role).position == b"%d" % max(stored[role])
    acknowledged = sum(workers.last_ack(file) + 1 for file in acks.values())
    again = {kind: sum(n for role, n in repeated.items() if ROLES[role] == kind) for kind in ROLES.values()}
    return (
        f"{acknowledged:,} acknowledged, 0 lost; repeated: {again['plain']} by plain producers, "
        f"{again['idempotent']} by idempotent ones"
    )


# ---- members -------------------------------------------------------------------------------------


@dataclass(slots=True)
class Group:
    """Members of one group as processes, and what they handled."""

    log: ps.Log
    folder: Path
    delivery: str
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    started: int = 0

    @property
    def database(self) -> Path:
        return self.folder / "effects.db"

    def start_member(self) -> None:
        name = f"member-{self.started}"
        self.started += 1
        home = self.folder / "home"
        if self.delivery == "exactly_once":
            self.running[name] = workers.start("once", home, "t", "g", self.database)
        else:
            handled = self.folder / f"{name}.handled"
            self.running[name] = workers.start("read", home, "t", "g", self.delivery, handled)

    def handled(self) -> Counter[tuple[int, int]]:
        if self.delivery != "exactly_once":
            return Counter(workers.handled_in_all(self.folder.glob("*.handled")))
        with contextlib.closing(sqlite3.connect(self.database, timeout=60)) as db:
            return Counter(db.execute("SELECT part, offset FROM effects").fetchall())

    def partitions_of(self, name: str) -> tuple[int, ...]:
        pid = f"{self.running[name].pid}-"
        try:
            members = self.log.group("g", "t").members
        except ps.BadInput:  # nobody has joined yet
            return ()
        return next((info.partitions for info in members if info.member.startswith(pid)), ())

    def feed(self, count: int) -> None:
        self.log.topic("t").append([{"producer": "feeder", "n": n, "k": n} for n in range(count)])

    def wait_for_more(self, partitions: tuple[int, ...], *, what: str) -> None:
        """Until more events of these partitions are handled than now."""
        before = self._handled_of(partitions)
        for part in partitions:
            self.log.topic("t").append({"producer": "feeder", "n": 0, "k": 0}, partition=part)
        wait_until(lambda: self._handled_of(partitions) > before, timeout_s=CONTINUE_S, what=what)

    def _handled_of(self, partitions: tuple[int, ...]) -> int:
        return sum(times for (part, _), times in self.handled().items() if part in partitions)

    def lag(self) -> int:
        return sum(lag.records for lag in self.log.group("g", "t").lag)


@contextlib.contextmanager
def group_of(folder: Path, delivery: str, members: int) -> Iterator[Group]:
    with ps.open_log(folder / "home") as log:
        log.create_topic("t", workers.DDL, key="k", partitions=PARTITIONS)
        group = Group(log, folder, delivery)
        if delivery == "exactly_once":
            with contextlib.closing(sqlite3.connect(group.database)) as db:
                db.execute("PRAGMA journal_mode=WAL")
                db.execute("CREATE TABLE effects (part INTEGER, offset INTEGER)")
        with ended(group.running):
            for _ in range(members):
                group.start_member()
            yield group


@pytest.mark.parametrize("rounds", ROUNDS)
@pytest.mark.parametrize("delivery", ["at_most_once", "at_least_once", "exactly_once"])
@pytest.mark.timeout(900)
def test_killed_members_are_replaced_and_each_delivery_keeps_its_promise(
    in_memory: Path, report: Report, delivery: str, rounds: int
) -> None:
    chance = random.Random(rounds)
    waits: list[float] = []
    with group_of(in_memory, delivery, members=3) as group:
        for _ in range(rounds):
            victim = _somebody_at_work(group, chance)
            had = group.partitions_of(victim)
            group.running[victim].kill()
            died = time.monotonic()
            assert group.running.pop(victim).wait() == -signal.SIGKILL
            group.wait_for_more(had, what="somebody to go on")
            waits.append(time.monotonic() - died)
            group.start_member()
        lost, repeated, total = _settle(group)
    report(
        f"kill -9, members, {delivery}, {rounds} kills, {total:,} events: {lost} lost, {repeated} repeated; "
        f"the group went on after {statistics.median(waits):.2f} s (median), {max(waits):.2f} s (slowest)"
    )


@pytest.mark.parametrize("rounds", [pytest.param(1, id="once"), pytest.param(10, marks=pytest.mark.crash)])
@pytest.mark.parametrize("delivery", ["at_most_once", "at_least_once"])
@pytest.mark.timeout(600)
def test_a_member_that_stood_still_longer_than_its_lease_breaks_no_promise(
    in_memory: Path, report: Report, delivery: str, rounds: int
) -> None:
    """SIGSTOP: the process is alive, so only its lease tells the others."""
    chance = random.Random(rounds)
    waits: list[float] = []
    with group_of(in_memory, delivery, members=2) as group:
        for _ in range(rounds):
            victim = _somebody_at_work(group, chance)
            had = group.partitions_of(victim)
            process = group.running[victim]
            process.send_signal(signal.SIGSTOP)
            stopped = time.monotonic()
            group.wait_for_more(had, what="the lease to run out")
            waits.append(time.monotonic() - stopped)
            process.send_signal(signal.SIGCONT)
        lost, repeated, total = _settle(group)
    report(
        f"SIGSTOP of members (lease 2 s), {delivery}, {rounds} times, {total:,} events: {lost} lost, "
        f"{repeated} repeated; the group went on after {max(waits):.2f} s (slowest)"
    )


def _somebody_at_work(group: Group, chance: random.Random) -> str:
    """A member, at a moment when all have partitions and are in the middle of reading."""
    found: list[str] = []

    def at_work() -> bool:
        found[:] = [name for name in group.running if group.partitions_of(name)]
        return len(found) == len(group.running)

    wait_until(at_work, timeout_s=START_S, what="every member to have partitions")
    until = group.handled().total() + chance.randrange(1, 2_000)
    group.feed(3_000)
    wait_until(lambda: group.handled().total() >= until, timeout_s=START_S, what="more to be handled")
    for name, process in group.running.items():
        assert process.poll() is None, f"{name} ended by itself"
    return chance.choice(found)


def _settle(group: Group) -> tuple[int, int, int]:
    """Lost, repeated and all events, after the members read everything and left."""
    wait_until(lambda: group.lag() == 0, timeout_s=START_S, what="the group to read everything")
    for process in group.running.values():
        process.terminate()
    for process in group.running.values():
        assert process.wait(START_S) in {0, -signal.SIGTERM}  # it may not have got as far as to expect it
    bounds = group.log.topic("t").bounds()
    everything = {(part, offset) for part, (_, end) in bounds.items() for offset in range(end)}
    handled = group.handled()
    lost, repeated = len(everything - handled.keys()), handled.total() - len(handled)
    assert handled.keys() <= everything
    assert group.delivery == "at_most_once" or lost == 0
    assert group.delivery == "at_least_once" or repeated == 0
    return lost, repeated, len(everything)


def test_the_lock_of_a_killed_process_is_free_at_once(in_memory: Path) -> None:
    with ps.open_log(in_memory / "home") as log:
        topic = log.create_topic("t", workers.DDL, key="k", partitions=1)
        acks = in_memory / "acks"
        running = {"append": workers.start("append", in_memory / "home", "t", "append", acks)}
        with ended(running):
            wait_until(lambda: workers.last_ack(acks) >= 0, timeout_s=START_S, what="the producer")
            running["append"].kill()
            running["append"].wait()
            began = time.monotonic()
            topic.append({"producer": "test", "n": 0, "k": 0})
            assert time.monotonic() - began < 5
