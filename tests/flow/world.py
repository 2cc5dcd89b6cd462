"""Generated logs for tests of meaning: many small cases interleaved in one topic, under a clock of our own.

Where there are several topics, their partitions are numbered one after another.

A case is a key with habits of its own: how far out of order its events come, how often twice, without a time
or with one far in the future. The watermark is the whole topic's, as it is for users.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from tests.flow import oracle

import penstock as ps
from penstock.app import reading
from penstock.app.app import AppTopic
from penstock.app.graph import Graph
from penstock.app.runner import Runner
from penstock.app.verify import Verified, verify
from penstock.clock import ManualClock
from penstock.flow import history
from penstock.flow.offset import NEVER_US, Offset
from penstock.log.embedded import EmbeddedLog
from penstock.log.log import Log

START = datetime(2026, 11, 1, 10, 0, tzinfo=UTC)
START_US = round(START.timestamp()) * 1_000_000
SECOND = 1_000_000
SCHEMA = "case INT, id STRING, x BIGINT, n BIGINT, at TIMESTAMP"


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def us(moment: datetime) -> int:
    return round((moment - START) / timedelta(microseconds=1)) + START_US


def cut_of(batch: Offset) -> oracle.Cut:
    ends = [end for topic in sorted(batch.end.ends) for end in batch.end.ends[topic]]
    tick = batch.end.clock_us if batch.start.ends == batch.end.ends else None
    return oracle.Cut(tuple(ends), sum(batch.end.declared.values()), tick)


def app_at(name: str, home: Path, clock: ManualClock) -> ps.App:
    """An app whose log goes by this clock."""
    app = ps.App(name, home=home)
    app._log = Log(EmbeddedLog(app.home, clock=clock))  # before it opens one by itself
    return app


@dataclass(frozen=True, slots=True)
class Habits:
    """How the events of a case come."""

    disorder_s: float
    twice: float
    odd: float

    @classmethod
    def of(cls, chance: random.Random) -> Habits:
        return cls(chance.choice([0, 2, 8, 30]), chance.choice([0, 0.3]), chance.choice([0, 0, 0.1]))


@dataclass
class World:
    """An app over one topic, and everything that was written there."""

    home: Path
    seed: int
    cases: int = 40
    partitions: int = 2
    topics: tuple[str, ...] = ("events",)  # in the order of their names
    lateness_s: float = 5
    name: str = "world"
    records: list[oracle.Record] = field(default_factory=list)
    declared: list[oracle.Declared] = field(default_factory=list)
    numbers: dict[tuple[int, int], int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)
        self.clock = ManualClock(START_US)
        self.app = app_at(self.name, self.home, self.clock)
        self.declared_topics = [self.declare_topic(self.app, name) for name in self.topics]
        self.topic = self.declared_topics[0]
        self.habits = [Habits.of(self.chance) for _ in range(self.cases)]

    def declare_topic(self, app: ps.App, name: str = "events") -> AppTopic:
        return app.topic(
            name, SCHEMA, event_time="at", partitions=self.partitions, durability="os",
            lateness=self.lateness_s, idle_after="20 seconds",
        )  # fmt: skip

    # ---- writing ---------------------------------------------------------------------------------

    def write(self, appends: int) -> None:
        """Small appends, ten to partition 0 for one to another, often several at one moment."""
        for _ in range(appends):
            # A few cases at a time are awake: their windows fill, close and are late.
            awake = len(self.records) * self.cases // 900
            rows = [
                row
                for _ in range(self.chance.randint(1, 4))
                for row in self._events((awake + self.chance.randrange(12)) % self.cases)
            ]
            busy = self.chance.random() < 10 / 11
            first = self.partitions * self.chance.randrange(len(self.topics)) if len(self.topics) > 1 else 0
            self.append(rows, partition=first + (0 if busy else self.chance.randrange(1, self.partitions)))
            self.clock.advance(self.chance.choice([0, 0, 0.03, 0.4, 1, 2]))

    def _events(self, case: int) -> list[dict[str, Any]]:
        habits = self.habits[case]
        now = (self.clock.now_us() - START_US) / SECOND
        moment: datetime | None = at(round(now - self.chance.random() * habits.disorder_s, 3))
        if self.chance.random() < habits.odd:
            moment = self.chance.choice([None, at(now + 86_400)])
        x = self.chance.choice([None, *range(10)])
        row = {"case": case, "id": self.chance.choice("abcd"), "x": x, "at": moment}
        return [row, dict(row)] if self.chance.random() < habits.twice else [row]

    def append(self, rows: Sequence[dict[str, Any]], *, partition: int = 0) -> None:
        filled = [{"case": 0, "id": "", "x": 1, **row} for row in rows]
        numbered = [{**row, "n": len(self.records) + i} for i, row in enumerate(filled)]
        topic = self.declared_topics[partition // self.partitions]
        topic.append(numbered, partition=partition % self.partitions)
        first = sum(r.partition == partition for r in self.records)
        for i, row in enumerate(numbered):
            moment = None if row["at"] is None else us(row["at"])
            self.numbers[partition, first + i] = row["n"]
            self.records.append(
                oracle.Record(
                    partition, first + i, self.clock.now_us(), moment, (row["case"],), row["x"], row["id"]
                )
            )

    def declare(self, moment: datetime) -> None:
        self.topic.watermark(moment)
        self.declared.append(oracle.Declared(self.clock.now_us(), us(moment)))

    # ---- running ---------------------------------------------------------------------------------

    def analyse(self, spark: SparkSession) -> None:
        self.graph = Graph(self.app, spark).analyse()

    def once(self, *, rows_max: int = 1_000_000, ticks: bool = False) -> None:
        now_us = self.clock.now_us() if ticks else None
        Runner(self.app, self.graph, rows_max=rows_max, now_us=now_us).once()

    def live(self, spark: SparkSession, *, appends: int = 60) -> None:
        """Appends and batches of all sizes in turn, with a pause in which the topic goes idle."""
        self.analyse(spark)
        self.write(appends)
        self.clock.advance(self.chance.choice([25, 60]))
        self.once(rows_max=self.chance.randint(60, 120), ticks=True)
        self.write(appends)
        self.declare(at((self.clock.now_us() - START_US) / SECOND - 1.234))
        self.write(appends // 5)
        self.once(rows_max=self.chance.randint(90, 150))

    # ---- looking ---------------------------------------------------------------------------------

    def model(self, name: str) -> oracle.Model:
        cuts = [cut_of(batch) for batch in history.batches(self.app.log, f"{name}.batches")]
        read = [record for record in self.records if record.partition < len(cuts[0].ends)]
        return oracle.Model(read, cuts, round(self.lateness_s * SECOND), declared=self.declared)

    def late(self, name: str) -> list[oracle.Late]:
        return late_pairs(self.app, name, topics=self.topics, partitions=self.partitions)

    def verify(self, name: str) -> Verified:
        return verify(self.app, self.graph, name)

    def rows(self, name: str) -> list[dict[str, Any]]:
        """A view as it is stored, times in microseconds."""
        return [plain(row) for row in self.app.read(name)]

    def topic_rows(self, name: str) -> list[dict[str, Any]]:
        return [plain(row) for row in self.app.log.topic(name).rows()]


def plain(row: dict[str, Any]) -> dict[str, Any]:
    return {name: us(value) if isinstance(value, datetime) else value for name, value in row.items()}


def late_pairs(
    app: ps.App, name: str, *, topics: Sequence[str] = ("events",), partitions: int = 0
) -> list[oracle.Late]:
    found = []
    for row in map(plain, reading.late(app, name)):
        window = None if row["window_end"] is None else (row["window_start"], row["window_end"])
        watermark = None if row["watermark"] == NEVER_US else row["watermark"]
        place = topics.index(row["topic"]) * partitions + row["partition"], row["offset"]
        found.append(oracle.Late(place, window, watermark, row["reason"]))
    return found


def aggregates(*, gathered: bool = False) -> dict[str, Any]:
    """`gathered`: only what can be added up before Spark sees it."""
    added = {"many": ps.count(), "total": ps.sum("x")}
    return added if gathered else {**added, "newest": ps.last("x")}


def values_of(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["many"], row["total"], row.get("newest", "gathered")
