"""The demo as it runs: who is on stage, what happens when, and what is proved at the end."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from penstock.cli import words
from penstock.cli.demo import carts, database, proof
from penstock.cli.demo.importing import Import
from penstock.cli.demo.mails import Mails
from penstock.cli.demo.memory import Memory, used
from penstock.cli.demo.proof import Proof
from penstock.cli.demo.shop import app as shop
from penstock.cli.demo.shop import page_views
from penstock.cli.demo.stage import Actor, ActorFailed, Parts, Place, wait_until
from penstock.log.log import Log
from penstock.log.port import GroupInfo

GROUPS = ("mailer", "audit")
TOPIC = page_views.name
PARTITIONS = page_views.declared.partitions
_START_S = 120.0
_DRAIN_S = 30.0
_PROVE_S = 400.0
_MEMORY_EVERY_S = 3.0


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

    def __init__(self, log: Log, place: Place, parts: Parts, *, kill_at_s: float) -> None:
        self.log, self.place, self.parts, self._kill_at_s = log, place, parts, kill_at_s
        for topic in shop.topics.values():
            log.port.create_topic(topic.declared)
        self._page_views = log.topic(TOPIC)
        place.home.mkdir(parents=True, exist_ok=True)
        self._database = place.home / "shop.db"
        database.create(self._database)
        self.importing = Import(log)
        self.mails = Mails(place.home)
        self.producers: list[Actor] = []
        self.members: list[Actor] = []
        self.customers: Actor | None = None
        self.queries: Actor | None = None
        self.page: Actor | None = None
        self.lag: dict[str, GroupInfo] = {}
        self.story = Story()
        self.taken_over_s: float | None = None
        self.memory: Memory | None = None
        self.memory_max = 0
        self.lags_s: list[float] = []  # of each query, at each look
        self._killed_at: float | None = None
        self._next_second = 0
        self._next_memory_s = 0.0
        self._seen: set[str] = set()

    def start(self, show: Callable[[str], None]) -> None:
        """The page first, which answers at once; the queries meanwhile, which take a while."""
        self.mails.start()
        if self.parts.page:
            self.page = self._actor("page", str(self.parts.port), "the page")
        if self.parts.spark:
            self.queries = self._actor("queries", "queries", "the Spark job")
        if self.page:
            self._wait_for([self.page], lambda: "address" in self._told(self.page))
            show(self.address)
        for group, number in (("mailer", 1), ("mailer", 2), ("audit", 1)):
            self.members.append(self._actor("member", group, f"{group} {number}"))
        self._wait_for(self.members, lambda: all(map(self._is_shared_out, GROUPS)))
        self.customers = self._actor("customers", "customers", "the customers")
        for number in (1, 2):
            self.producers.append(self._actor("producer", str(number), f"producer {number}"))
        appending = [*self.producers, self.customers]
        self._wait_for(appending, lambda: all(actor.ready for actor in appending))
        self.story = Story()
        self.story.tell(
            "customers are in the shop; groups mailer (two members) and audit (one) read page views"
        )

    def _actor(self, role: str, name: str, title: str) -> Actor:
        return Actor(role, name, self.place, title=title)

    def _wait_for(self, actors: Iterable[Actor], condition: Callable[[], bool]) -> None:
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
        self._look_at_queries()
        if self._killed_at is None and self.story.seconds() >= self._kill_at_s:
            self._kill_one()
        self._look_for_takeover()
        while self._next_second <= self.story.seconds():
            self.importing.go_on()
            self.mails.publish(self._next_second)
            self._next_second += 1
        self.lag = {group: self.log.group(group, TOPIC) for group in GROUPS}
        self._measure()

    def _everybody(self) -> list[Actor]:
        others = [self.customers, self.queries, self.page]
        return [*self.producers, *self.members, *(actor for actor in others if actor is not None)]

    def members_of(self, group: str) -> list[Actor]:
        return [member for member in self.members if member.name == group]

    def _look_at_queries(self) -> None:
        stage = self._told(self.queries).get("stage")
        if stage and stage not in self._seen:
            self._seen.add(stage)
            self.story.tell(f"{stage} …")
        found = self.query_facts()
        if found and self.is_whole and "whole" not in self._seen:
            self._seen.add("whole")
            self.story.tell(f"all {len(found)} queries have results")
        self.lags_s += [query["lag_s"] for query in found if self.is_whole]

    def query_facts(self) -> list[dict[str, Any]]:
        """Of each query, as the Spark job told last."""
        return list(self._told(self.queries).get("queries", ()))

    @property
    def definitions(self) -> tuple[str, ...]:
        return tuple(shop.definitions)

    @property
    def is_whole(self) -> bool:
        """Whether everything that belongs to it has shown something."""
        found = self.query_facts()
        return self.queries is None or bool(found and all(query["begun"] for query in found))

    @property
    def address(self) -> str:
        return str(self._told(self.page).get("address", ""))

    def _told(self, actor: Actor | None) -> dict[str, Any]:
        return actor.told if actor else {}

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

    def _measure(self) -> None:
        if time.monotonic() < self._next_memory_s:
            return
        self._next_memory_s = time.monotonic() + _MEMORY_EVERY_S
        self.memory = used()
        self.memory_max = max(self.memory_max, self.memory.bytes if self.memory else 0)

    # ---- totals ---------------------------------------------------------------------------------

    def acknowledged(self) -> int:
        """Events of everybody."""
        return sum((actor.acknowledged for actor in self._appending()), self.importing.line)

    def per_second(self) -> float:
        return sum(actor.per_second() for actor in self._appending())

    def _appending(self) -> list[Actor]:
        return [*self.producers, *([self.customers] if self.customers else ())]

    def latencies(self) -> Counter[int]:
        return sum((member.latencies for member in self.members), Counter[int]())

    # ---- the end ------------------------------------------------------------------------------------

    def finish(self, show: Callable[[dict[str, dict[str, Any]]], None], *, interrupted: bool) -> Proof:
        """Let everything be read, end all processes, and compare. `show` is told what is proved meanwhile."""
        seconds, events = self.story.seconds(), self.acknowledged()
        cut_short = interrupted and not self.is_whole
        ended = self._end(self._appending())
        if self.queries:
            self.queries.stop()
        ends = {number: end for number, (_, end) in self._page_views.bounds().items()}
        wait_until(lambda: self._all_read(ends), timeout_s=_DRAIN_S)
        ended += self._end([member for member in self.members if not member.killed])
        ended += self._await_queries(show)
        ended += self._end([self.page] if self.page else [])
        acknowledged = {int(producer.name): producer.acknowledged for producer in self.producers}
        return Proof(
            seconds=seconds,
            events=events,
            cut_short=cut_short,
            stored=proof.stored(self._page_views, acknowledged),
            delivered=tuple(proof.delivered(group, ends, self._ranges(group)) for group in GROUPS),
            imported=self.importing.is_whole(),
            carts=carts.compared(self.place.home, self.place.address),
            mails=self.mails.finish(),
            captured=database.is_captured(self._database, self.log),
            views=self.queries.verified if self.queries else None,
            ended_in_order=all(ended),
            taken_over_s=self.taken_over_s,
            killed=self._killed_at is not None,
        )

    def _end(self, actors: list[Actor]) -> list[bool]:
        for actor in actors:
            actor.stop()
        return [actor.wait_ended(20) for actor in actors]

    def _await_queries(self, show: Callable[[dict[str, dict[str, Any]]], None]) -> list[bool]:
        """It reads what is left, and proves one definition after the other."""
        job = self.queries
        if job is None:
            return []

        def over() -> bool:
            show(job.verified)
            self._measure()
            return job.has_ended

        wait_until(over, timeout_s=_PROVE_S, pause_s=0.2)
        return [job.wait_ended(5)]

    def _all_read(self, ends: dict[int, int]) -> bool:
        return all(proof.delivered(group, ends, self._ranges(group)).lost == 0 for group in GROUPS)

    def _ranges(self, group: str) -> list[tuple[int, int, int]]:
        return [given for member in self.members_of(group) for given in list(member.ranges)]

    def close(self) -> None:
        for actor in self._everybody():
            actor.close()
        self.mails.close()
