"""Page views: two processes append them, two groups read them. What is proved of the log is proved here."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from datetime import UTC, datetime, timedelta

from penstock.cli.demo import latency
from penstock.cli.demo.actors import say
from penstock.cli.demo.shop import page_views
from penstock.log.event import Event
from penstock.log.port import to_us
from penstock.opening import open_log

PAGES = ("/", "/shop", "/cart", "/checkout", "/help")
_PEOPLE = 1_000
_AT_A_TIME = 30  # who is here at the moment, of each producer
_STAYS = 0.02  # how likely the next view is somebody's last
_BATCH = 20
_PAUSE_S = 0.05
_LATE_ONE_IN = 1_000  # a phone that was in a tunnel
_LATE = timedelta(seconds=20)
_LATENCY_US_MAX = 10_000_000  # an event that is older when it is appended says nothing about us


class _Stop(Exception):
    """The demo is over."""


class Visitors:
    """Who looks at which page. People come, look around for a while, and go."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)
        self._here = [self._chance.randrange(_PEOPLE) for _ in range(_AT_A_TIME)]

    def next_view(self, now: datetime) -> dict[str, object]:
        place = self._chance.randrange(_AT_A_TIME)
        if self._chance.random() < _STAYS:
            self._here[place] = self._chance.randrange(_PEOPLE)
        late = self._chance.randrange(_LATE_ONE_IN) == 0
        return {
            "user_id": self._here[place],
            "page": self._chance.choice(PAGES),
            "at": now - _LATE if late else now,
        }


def produce(name: str, stopping: threading.Event) -> None:
    """Append small batches; report how many records were acknowledged."""
    number, visitors, acknowledged = int(name), Visitors(int(name)), 0
    say(ready=True)
    while not stopping.wait(_PAUSE_S):
        now = datetime.now(UTC)
        page_views.append(
            [
                {"producer": number, "number": acknowledged + at, **visitors.next_view(now)}
                for at in range(_BATCH)
            ]
        )
        acknowledged += _BATCH
        say(acknowledged=acknowledged)


class _Delivered:
    """What was delivered since the last report."""

    def __init__(self) -> None:
        self.ranges: list[list[int]] = []  # partition, first offset, end
        self.latencies: Counter[int] = Counter()

    def add(self, event: Event, now_us: int) -> None:
        last = self.ranges[-1] if self.ranges else None
        if last and last[0] == event.partition and last[2] == event.offset:
            last[2] += 1
        else:
            self.ranges.append([event.partition, event.offset, event.offset + 1])
        took_us = now_us - to_us(event["at"])
        if took_us < _LATENCY_US_MAX:
            self.latencies[latency.bucket_of(took_us)] += 1

    def ends(self) -> dict[int, int]:
        return {partition: end for partition, _, end in self.ranges}


def consume(group: str, stopping: threading.Event) -> None:
    """Read as a member of a group; what was delivered is reported before it is committed."""
    with open_log() as log:
        topic = log.topic(page_views.name)
        delivered = _Delivered()
        with topic.consume(group=group, lease="5 seconds", commit_every="100 ms") as consumer:

            def report() -> None:
                nonlocal delivered
                done, delivered = delivered, _Delivered()
                say(ranges=done.ranges, latencies=done.latencies)
                consumer.mark_done(done.ends())
                say(owned=sorted(consumer.assignment()))
                if stopping.is_set():
                    raise _Stop

            consumer.track_outside(report)
            say(ready=True)
            try:
                for event in consumer:
                    delivered.add(event, time.time_ns() // 1_000)
            except _Stop:
                consumer.track_outside(None)
