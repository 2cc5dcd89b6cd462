"""The processes of the demo: producers, group members, a Spark job. Each reports on stdout in JSON lines.

An actor ends when its stdin is closed, so none outlives the demo, however that ends.
"""

from __future__ import annotations

import json
import random
import sys
import threading
import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

from penstock.cli.demo import latency
from penstock.log.event import Event
from penstock.log.port import to_us
from penstock.opening import open_log

TOPIC = "page_views"
SCHEMA = "producer INT, number BIGINT, user_id BIGINT NOT NULL, page STRING, at TIMESTAMP"
TOPIC_OPTIONS: dict[str, Any] = {
    "key": "user_id",
    "event_time": "at",
    "partitions": 4,
    "lateness": "2 seconds",
}
PAGES = ("/", "/shop", "/cart", "/checkout", "/help")
USERS = 1_000
_BATCH = 25
_PAUSE_S = 0.01
_LATE_ONE_IN = 1_000  # a phone that was in a tunnel
_LATE = timedelta(seconds=20)
_LATENCY_US_MAX = 10_000_000  # an event that is older when it is appended says nothing about us


class _Stop(Exception):
    """The demo is over."""


def main() -> None:
    role, home, address, name = sys.argv[1:5]
    stopping = threading.Event()
    threading.Thread(target=_watch_stdin, args=(stopping,), daemon=True).start()
    if role == "producer":
        produce(address, int(name), stopping)
    elif role == "views":
        from penstock.cli.demo import views

        views.run(home, address, stopping)
    else:
        consume(address, name, stopping)


def _watch_stdin(stopping: threading.Event) -> None:
    sys.stdin.read()
    stopping.set()


def say(**facts: object) -> None:
    print(json.dumps(facts), flush=True)


def produce(address: str, number: int, stopping: threading.Event) -> None:
    """Append small batches; report how many records were acknowledged."""
    chance = random.Random(number)
    with open_log(address) as log:
        topic = log.topic(TOPIC)
        say(ready=True)
        acknowledged = 0
        while not stopping.wait(_PAUSE_S):
            now = datetime.now(UTC)
            topic.append(
                [
                    {
                        "producer": number,
                        "number": acknowledged + at,
                        "user_id": chance.randrange(USERS),
                        "page": chance.choice(PAGES),
                        "at": now if chance.randrange(_LATE_ONE_IN) else now - _LATE,
                    }
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


def consume(address: str, group: str, stopping: threading.Event) -> None:
    """Read as a member of a group; what was delivered is reported before it is committed."""
    with open_log(address) as log:
        topic = log.topic(TOPIC)
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


if __name__ == "__main__":
    main()
