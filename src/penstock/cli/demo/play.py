"""The demo as it runs: who is on stage, what happens when, and what is proved at the end."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from penstock.cli import words
from penstock.cli.demo import database, proof
from penstock.cli.demo.actors import SCHEMA, TOPIC, TOPIC_OPTIONS
from penstock.cli.demo.stage import Actor, ActorFailed, Place, wait_until
from penstock.errors import TopicExists
from penstock.log.log import Log
from penstock.log.port import GroupInfo

GROUPS = ("mailer", "audit")
PARTITIONS = TOPIC_OPTIONS["partitions"]
_OTHERS = ("imported", *database.TOPICS)
VIEWS = ("views_per_page", "carts_left")
_VIEW_TOPICS = [f"{name}{part}" for name in VIEWS for part in ("", ".batches", ".late")]
_START_S = 120.0
_DRAIN_S = 30.0
_VERIFY_S = 180.0
_PLANS = ("free", "basic", "plus", "team")
_PEOPLE = ("ann", "bob", "cid", "dora", "eve")


@dataclass(slots=True)
class Import:
    """An imaginary file that is imported with atomic appends."""

    line: int = 0
    sent_again: int = 0
    stored_again: int = 0
    position: str = ""


@dataclass(slots=True)
class Story:
    """What has happened so far, in words, with the second it happened."""

    began: float = field(default_factory=time.monotonic)
    lines: list[tuple[float, str]] = field(default_factory=list)

    def seconds(self) -> float:
        return time.monotonic() - self.began

    def tell(self, text: str) -> None:
        self.lines.append((self.seconds(), text))


class Play:
    """Not thread-safe: one thread calls `tick` again and again, then `finish`."""

    def __init__(self, log: Log, place: Place, *, kill_at_s: float, spark: bool) -> None:
        self.log = log
        self.place, self._kill_at_s = place, kill_at_s
        self._token = f"{os.getpid():x}-{time.time_ns():x}"
        for name in (TOPIC, *_OTHERS, *_VIEW_TOPICS):
            if name in log.topics():
                raise TopicExists(name)
        self._page_views = log.create_topic(TOPIC, SCHEMA, **TOPIC_OPTIONS)
        self.with_spark = spark
        self.views: Actor | None = None
        self._database = database.Database(log)
        self._imported = log.create_topic("imported", "line BIGINT, text STRING")
        self._importer = log.producer(f"importer-{self._token}")
        self.producers: list[Actor] = []
        self.members: list[Actor] = []
        self.importing, self.plan_changes = Import(), 0
        self.lag: dict[str, GroupInfo] = {}
        self.story = Story()
        self.taken_over_s: float | None = None
        self._killed_at: float | None = None
        self._next_second = 0
        self._view_seen = False

    def start(self) -> None:
        """Readers first, so that latencies are those of records that were waited for."""
        self._database.start()
        if self.with_spark:  # before the others: with the machine to itself it starts twice as fast
            self.views = views = Actor("views", "views", self.place, title="the Spark job")
            self._wait_for([views], lambda: views.ready)
        for group, number in (("mailer", 1), ("mailer", 2), ("audit", 1)):
            self.members.append(Actor("member", group, self.place, title=f"{group} {number}"))
        self._wait_for(self.members, lambda: all(map(self._is_shared_out, GROUPS)))
        for number in (1, 2):
            self.producers.append(Actor("producer", str(number), self.place, title=f"producer {number}"))
        self._wait_for(self.producers, lambda: all(actor.ready for actor in self.producers))
        self.story = Story()
        self.story.tell("two producers append; groups mailer (two members) and audit (one member) read")

    def _wait_for(self, actors: list[Actor], condition: Callable[[], bool]) -> None:
        def arrived() -> bool:
            for actor in actors:
                actor.check()
            return condition()

        if not wait_until(arrived, timeout_s=_START_S):
            raise ActorFailed(
                "the processes of the demo did not start in time.", hint="look at: penstock doctor"
            )

    def _is_shared_out(self, group: str) -> bool:
        """Every member reads some partitions, and each partition is read by one."""
        owned = [member.owned for member in self.members_of(group) if not member.killed]
        return all(owned) and sum(map(len, owned)) == PARTITIONS

    # ---- while it runs ------------------------------------------------------------------------

    def tick(self) -> None:
        for actor in self._everybody():
            actor.check()
        self._look_for_the_view()
        if self._killed_at is None and self.story.seconds() >= self._kill_at_s:
            self._kill_one()
        self._look_for_takeover()
        while self._next_second <= self.story.seconds():
            self._import_some()
            self._change_a_plan()
            self._next_second += 1
        self.lag = {group: self.log.group(group, TOPIC) for group in GROUPS}

    def _everybody(self) -> list[Actor]:
        return [*self.producers, *self.members, *([self.views] if self.views else [])]

    def _look_for_the_view(self) -> None:
        if self.views and self.views.view.get("windows") and not self._view_seen:
            self._view_seen = True
            self.story.tell("the Spark job shows its first window")

    def members_of(self, group: str) -> list[Actor]:
        return [member for member in self.members if member.name == group]

    def _kill_one(self) -> None:
        victim = next(member for member in self.members_of("mailer") if not member.killed)
        had = words.listed(victim.owned)
        victim.kill()
        self._killed_at = time.monotonic()
        self.story.tell(
            f"{victim.title} (process {victim.pid}) was killed with SIGKILL; it read partitions {had}"
        )

    def _look_for_takeover(self) -> None:
        if self._killed_at is None or self.taken_over_s is not None:
            return
        if self._is_shared_out("mailer"):
            alive = [member for member in self.members_of("mailer") if not member.killed]
            self.taken_over_s = time.monotonic() - self._killed_at
            self.story.tell(
                f"{alive[0].title} has taken over all partitions, {words.span(self.taken_over_s)} later"
            )

    def _import_some(self) -> None:
        """Ten lines and the position after them, all or nothing; now and then sent twice."""
        done = self.importing
        lines = [
            {"line": n, "text": f"line {n} of an imaginary file"} for n in range(done.line, done.line + 10)
        ]
        position, sequence = f"line {done.line + 10}", self._importer.next_sequence
        self._importer.append({self._imported: lines}, position=position.encode(), sequence=sequence)
        done.line += 10
        if self._next_second % 3 == 2:
            again = self._importer.append(
                {self._imported: lines}, position=position.encode(), sequence=sequence
            )
            done.sent_again += 1
            done.stored_again += not again.duplicate
        done.position = (self._importer.position() or b"").decode()

    def _change_a_plan(self) -> None:
        person = _PEOPLE[self._next_second % len(_PEOPLE)]
        self.plan_changes += 1
        leaves = self._next_second % 7 == 6
        plan = _PLANS[(self._next_second // len(_PEOPLE)) % len(_PLANS)]
        self._database.change(person, None if leaves else plan)

    def latest_plans(self) -> dict[str, str]:
        return self._database.in_log()

    # ---- totals ---------------------------------------------------------------------------------

    def acknowledged(self) -> int:
        return sum(producer.acknowledged for producer in self.producers)

    def latencies(self) -> Counter[int]:
        return sum((member.latencies for member in self.members), Counter[int]())

    # ---- the end ------------------------------------------------------------------------------------

    def finish(self) -> Proof:
        """Let everything be read, end all processes, and compare."""
        seconds = self.story.seconds()
        for producer in self.producers:
            producer.stop()
        ended = [producer.wait_ended(10) for producer in self.producers]
        if self.views:
            self.views.stop()
        ends = {number: end for number, (_, end) in self._page_views.bounds().items()}
        wait_until(lambda: self._all_read(ends), timeout_s=_DRAIN_S)
        alive = [member for member in self.members if not member.killed]
        for member in alive:
            member.stop()
        ended += [member.wait_ended(10) for member in alive]
        if self.views:
            ended.append(self.views.wait_ended(_VERIFY_S))
        acknowledged = {int(producer.name): producer.acknowledged for producer in self.producers}
        return Proof(
            seconds=seconds,
            stored=proof.stored(self._page_views, acknowledged),
            delivered=tuple(proof.delivered(group, ends, self._ranges(group)) for group in GROUPS),
            imported=self._imported_once(),
            plans=self._database.finish(),
            views=self.views.verified if self.views else None,
            spark=self.with_spark,
            ended_in_order=all(ended),
            taken_over_s=self.taken_over_s,
            killed=self._killed_at is not None,
        )

    def _all_read(self, ends: dict[int, int]) -> bool:
        return all(proof.delivered(group, ends, self._ranges(group)).lost == 0 for group in GROUPS)

    def _ranges(self, group: str) -> list[tuple[int, int, int]]:
        return [given for member in self.members_of(group) for given in list(member.ranges)]

    def _imported_once(self) -> bool:
        lines = [row["line"] for row in self._imported.rows()]
        told = (self._importer.position() or b"").decode()
        return lines == list(range(self.importing.line)) and told == f"line {self.importing.line}"

    def clear(self) -> None:
        """Remove what the demo stored."""
        for topic in (TOPIC, *_OTHERS, *_VIEW_TOPICS):
            if topic in self.log.topics():
                self.log.delete_topic(topic)

    def close(self) -> None:
        for actor in self._everybody():
            actor.close()
        self._database.close()


@dataclass(frozen=True, slots=True)
class Proof:
    """Everything the demo claims, and whether it holds."""

    seconds: float
    stored: proof.Stored
    delivered: tuple[proof.Delivered, ...]
    imported: bool
    plans: bool
    views: dict[str, dict[str, Any]] | None  # what verify said of each: verdict, rows, late
    spark: bool
    ended_in_order: bool
    taken_over_s: float | None
    killed: bool

    @property
    def holds(self) -> bool:
        intact = not (self.stored.lost or self.stored.twice or self.stored.out_of_order)
        read = not any(group.lost for group in self.delivered)
        took_over = self.taken_over_s is not None or not self.killed
        views = [(self.views or {}).get(name, {}).get("verdict") for name in VIEWS]
        proved = not self.spark or all(verdict == "equal" for verdict in views)
        told = self.imported and self.plans and self.ended_in_order
        return intact and read and took_over and proved and told
