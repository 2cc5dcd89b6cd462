"""Rates, rolling averages, percentiles and distinct counts, against values counted in plain Python."""

from __future__ import annotations

import math
import random
import statistics
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from tests.flow.world import START_US, app_at, at, plain

import penstock as ps
from penstock.app.graph import Graph
from penstock.app.runner import Runner
from penstock.app.verify import verify
from penstock.clock import ManualClock

EVENTS = 6_000
MINUTE = 60_000_000
ERROR = 0.02
ACCURACY = 200


class Requests:
    """Response times of two endpoints over four minutes, more or less in order."""

    def __init__(self, home: Path) -> None:
        self.clock = ManualClock(START_US)
        self.app = app_at("analytics", home, self.clock)
        self.topic = self.app.topic(
            "requests", "endpoint STRING, user BIGINT, ms DOUBLE, at TIMESTAMP", event_time="at",
            lateness="5 seconds", durability="os",
        )  # fmt: skip
        chance = random.Random(7)
        self.rows = [
            {
                "endpoint": chance.choice(["/", "/", "/", "/buy"]),
                "user": chance.randrange(3_000),
                "ms": round(chance.lognormvariate(3, 1), 3),
                "at": at(round(number * 240 / EVENTS + chance.random() * 3, 3)),
            }
            for number in range(EVENTS)
        ]

    def run(self, spark: SparkSession) -> Graph:
        graph = Graph(self.app, spark).analyse()
        for number in range(0, EVENTS, 1_000):
            self.topic.append(self.rows[number : number + 1_000])
            self.clock.advance(40)
        Runner(self.app, graph, rows_max=2_000).once()
        return graph

    def by_minute(self) -> dict[tuple[str, int], list[dict[str, Any]]]:
        found: dict[tuple[str, int], list[dict[str, Any]]] = defaultdict(list)
        for row in map(plain, self.rows):
            found[row["endpoint"], row["at"] // MINUTE * MINUTE].append(row)
        return found


def rank_error(values: list[float], found: float, quantile: float) -> float:
    """How far from the wanted rank a value is, as a share of all values."""
    low, high = sum(v < found for v in values), sum(v <= found for v in values)
    wanted = quantile * len(values)
    return max(0.0, low - wanted, wanted - high) / len(values)


def test_aggregates_over_minutes_are_exact_or_within_their_stated_error(
    home: Path, spark: SparkSession
) -> None:
    requests = Requests(home)

    @requests.app.view(key=["endpoint", "window"])
    def per_minute() -> DataFrame:
        return ps.aggregate(
            requests.topic.stream(),
            by="endpoint",
            window=ps.tumbling("1 minute"),
            per_second=ps.rate("1 second"),
            average=ps.mean("ms"),
            median=ps.percentile("ms", 0.5),
            p99=ps.percentile("ms", 0.99),
            about_p95=ps.approx_percentile("ms", 0.95, accuracy=ACCURACY),
            users=ps.approx_distinct("user", error=ERROR),
        )

    graph = requests.run(spark)
    wanted = requests.by_minute()
    found = [plain(row) for row in requests.app.read("per_minute")]
    assert {(row["endpoint"], row["window_start"]) for row in found} == set(wanted)
    for row in found:
        rows = wanted[row["endpoint"], row["window_start"]]
        times = sorted(each["ms"] for each in rows)
        assert row["per_second"] == pytest.approx(len(rows) / 60, rel=1e-12)
        assert row["average"] == pytest.approx(statistics.fmean(times), rel=1e-9)
        assert row["median"] == pytest.approx(statistics.median(times), rel=1e-12)
        assert row["p99"] == pytest.approx(_between(times, 0.99), rel=1e-12)
        # One value of the column may stand for one rank.
        assert rank_error(times, row["about_p95"], 0.95) <= 1 / ACCURACY + 1 / len(times)
        users = len({each["user"] for each in rows})
        # Three standard deviations: with this data it is no matter of luck.
        assert abs(row["users"] - users) <= 3 * ERROR * users
    verified = verify(requests.app, graph, "per_minute")
    assert verified.differing == 0, verified.differences[:2]
    # Its error is one of ranks: two right answers may be different values, which prove nothing.
    assert verified.verdict == "not verifiable"
    assert verified.reason.startswith('approximate "about_p95"')


def _between(ordered: list[float], quantile: float) -> float:
    place = quantile * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])


def test_a_rolling_average_is_that_of_the_time_up_to_each_event(home: Path, spark: SparkSession) -> None:
    requests = Requests(home)

    @requests.app.view(key=["endpoint", "at", "event"])
    def rolling() -> DataFrame:
        return ps.aggregate(
            requests.topic.stream(),
            by="endpoint",
            window=ps.sliding("30 seconds"),
            average=ps.mean("ms"),
            per_second=ps.rate("1 second"),
            p90=ps.percentile("ms", 0.9),
        )

    graph = requests.run(spark)
    found = [plain(row) for row in requests.app.read("rolling")]
    assert len(found) > EVENTS * 0.9, "what the watermark has reached has come out"
    by_endpoint: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in map(plain, requests.rows):
        by_endpoint[row["endpoint"]].append(row)
    for row in random.Random(1).sample(found, 150):
        times = sorted(
            each["ms"]
            for each in by_endpoint[row["endpoint"]]
            if row["at"] - 30_000_000 < each["at"] <= row["at"]
        )
        assert row["average"] == pytest.approx(statistics.fmean(times), rel=1e-9)
        assert row["per_second"] == pytest.approx(len(times) / 30, rel=1e-12)
        assert row["p90"] == pytest.approx(_between(times, 0.9), rel=1e-12)
    assert verify(requests.app, graph, "rolling").verdict == "equal"
