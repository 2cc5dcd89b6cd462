"""Eight processes on one queue, killed at random: nothing is lost, and what was acked does not come again."""

from __future__ import annotations

import multiprocessing
import random
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import pytest
from tests.queue import workers

import penstock as ps

ATTEMPTS = 4
PUBLISHERS = 2
CONSUMERS = 6


@dataclass
class Notes:
    """What the processes wrote down."""

    published: set[str] = field(default_factory=set)
    got: dict[str, list[tuple[int, int]]] = field(default_factory=dict)  # id: when and by whom
    acked: dict[str, list[int]] = field(default_factory=dict)
    last: dict[int, str] = field(default_factory=dict)  # process: the message it got last

    @classmethod
    def read(cls, folder: Path) -> Notes:
        notes = cls()
        for path in folder.glob("published-*"):
            notes.published |= set(path.read_text().split())
        for line in _lines(folder):
            what, id, at, process = line.split()
            if what == "got":
                notes.got.setdefault(id, []).append((int(at), int(process)))
                notes.last[int(process)] = id
            else:
                notes.acked.setdefault(id, []).append(int(at))
        return notes


def _lines(folder: Path) -> Iterator[str]:
    for path in sorted(folder.glob("consumed-*")):
        for line in path.read_text().splitlines():
            if line.count(" ") == 3:  # a process may die in the middle of one
                yield line


class Crowd:
    """Processes that are started again when they are killed."""

    def __init__(self, home: Path, queue: str, notes: Path) -> None:
        self._home, self._queue, self._notes = home, queue, notes
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["tests.queue.workers"])
        self.consumers: list[ForkServerProcess] = []
        self.killed: set[int] = set()
        self.started = 0

    def publisher(self, first: int, count: int, poison_every: int) -> ForkServerProcess:
        notes = self._notes / f"published-{first}"
        arguments = (self._home, self._queue, notes, first, count, poison_every)
        return self._run(workers.publish, arguments)

    def refill(self) -> None:
        """As many consumers as there should be; those that are gone were killed, or killed themselves."""
        for process in [each for each in self.consumers if not each.is_alive()]:
            assert process.exitcode == -signal.SIGKILL, f"a consumer ended with {process.exitcode}"
            assert process.pid is not None
            self.killed.add(process.pid)
            self.consumers.remove(process)
        while len(self.consumers) < CONSUMERS:
            self.started += 1
            arguments = (self._home, self._queue, self._notes / f"consumed-{self.started}")
            self.consumers.append(self._run(workers.consume, arguments))

    def _run(self, target: Callable[..., None], arguments: tuple[object, ...]) -> ForkServerProcess:
        process = self._context.Process(target=target, args=arguments)
        process.start()
        return process

    def end(self) -> None:
        for process in self.consumers:
            process.kill()
            process.join()
            assert process.pid is not None
            self.killed.add(process.pid)


def _run(folder: Path, *, messages: int, kills: int, poison_every: int, patience_s: float, seed: int) -> str:
    home, notes, chance = folder / "home", folder / "notes", random.Random(seed)
    notes.mkdir()
    with ps.open_queues(home) as queues:
        queue = queues.queue("jobs", max_attempts=ATTEMPTS)
        crowd = Crowd(home, "jobs", notes)
        share = messages // PUBLISHERS
        publishers = [crowd.publisher(n * share, share, poison_every) for n in range(PUBLISHERS)]
        poisoned = sum(n % poison_every == 0 for n in range(messages))
        try:
            random_kills = _until_done(queue, crowd, publishers, poisoned, kills, patience_s, chance)
        finally:
            crowd.end()
            for publisher in publishers:
                publisher.kill()
                publisher.join()
        found = Notes.read(notes)
        assert len(found.published) == messages
        _check(queue, found, crowd.killed, poisoned, poison_every)
    return f"{messages:,} messages, {random_kills} random kills, {len(crowd.killed)} consumers killed in all"


def _until_done(
    queue: ps.Queue, crowd: Crowd, publishers: list[ForkServerProcess], poisoned: int, kills: int,
    patience_s: float, chance: random.Random,
) -> int:  # fmt: skip
    """Kills at random moments, until all messages are gone but the poisonous ones."""
    deadline, done = time.monotonic() + patience_s, 0
    while True:
        crowd.refill()
        stats = queue.stats()
        if not any(each.is_alive() for each in publishers) and not stats.ready and not stats.unacked:
            assert [each.exitcode for each in publishers] == [0] * len(publishers)
            return done
        assert time.monotonic() < deadline, f"not done in {patience_s:g} s: {stats}"
        time.sleep(chance.uniform(0.0, 0.1))
        if done < kills:
            chance.choice(crowd.consumers).kill()
            done += 1


def _check(queue: ps.Queue, found: Notes, killed: set[int], poisoned: int, poison_every: int) -> None:
    letters = {letter.id: letter for letter in queue.dead_letters(100_000)}
    poison = {id for id in found.published if int(id[1:]) % poison_every == 0}
    assert poison <= set(letters), "a poisonous message is not given up"
    for letter in letters.values():
        assert (letter.cause, letter.attempts, len(letter.history)) == ("attempts", ATTEMPTS, ATTEMPTS)
    # Whoever was killed between the ack and the note of it could not tell.
    silent = found.published - set(found.acked) - set(letters)
    last = {found.last[process] for process in killed if process in found.last}
    assert silent <= last, f"lost: {sorted(silent - last)[:5]}"
    for id, moments in found.acked.items():
        assert len(moments) == 1, f"{id} was acked {len(moments)} times"
        assert max(at for at, _ in found.got[id]) <= moments[0], f"{id} was delivered after its ack"
        assert id not in letters, f"{id} was acked and given up"
    assert poisoned == len(poison)
    assert queue.redrive(edit=lambda letter: b"mended") == len(letters)
    again = []
    while batch := queue.get_many(1_000):
        again += [delivery.id for delivery in batch]
        for delivery in batch:
            delivery.ack()
    assert sorted(again) == sorted(letters)
    stats = queue.stats()
    assert (stats.ready, stats.unacked, stats.dead) == (0, 0, 0)


def test_killed_consumers_lose_nothing_and_nothing_comes_after_its_ack(
    in_memory: Path, report: Callable[[str], None]
) -> None:
    report("queue, kill -9: " + _run(
        in_memory, messages=3_000, kills=8, poison_every=3_000, patience_s=240, seed=1
    ))  # fmt: skip


@pytest.mark.crash
@pytest.mark.timeout(3_600)
def test_killed_consumers_lose_nothing_of_a_hundred_thousand(
    in_memory: Path, report: Callable[[str], None]
) -> None:
    report("queue, kill -9: " + _run(
        in_memory, messages=100_000, kills=200, poison_every=10_000, patience_s=3_000, seed=2
    ))  # fmt: skip
