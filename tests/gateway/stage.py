"""A shop that runs, is fed and is served in the process of the test: what the pages are looked at with."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from tests.gateway.counting import Counting, publish
from tests.waiting import wait_until

import penstock as ps
from penstock.gateway.gateway import Gateway, Settings
from penstock.gateway.serving import Address, Server

HOSTILE = "<script>alert(1)</script>"
PAGES = ("/", "/cart", HOSTILE, "/search")
WAIT_S = 120.0


@dataclass(frozen=True)
class Stage:
    """The app that runs, and where it is served."""

    app: ps.App
    url: str
    page_views: ps.Topic

    def append(self, page: str, *, ago_s: float = 0.0) -> None:
        at = datetime.now(UTC) - timedelta(seconds=ago_s)
        self.page_views.append({"user_id": 1, "page": page, "at": at})


def declare(home: Path) -> ps.App:
    app = ps.App("shop", home=home)
    page_views = app.topic(
        "page_views", "user_id BIGINT, page STRING, at TIMESTAMP", key="user_id", event_time="at",
        lateness="1 second", partitions=2,
    )  # fmt: skip
    clicks = app.topic("clicks", "ad STRING, at TIMESTAMP", event_time="at", lateness="1 second")
    app.table("users", "id BIGINT, name STRING", key="id")
    app.topic("notes")

    @app.view(key=["page", "window"])
    def per_5s() -> object:
        """Page views per page and five seconds."""
        return ps.aggregate(
            page_views.stream(), by="page", window=ps.tumbling("5 seconds"), views=ps.count(),
            late="correct", correct_for="10 minutes",
        )  # fmt: skip

    @app.view(key=["ad", "window"])
    def per_ad() -> object:
        """Clicks per ad and minute."""
        return ps.aggregate(clicks.stream(), by="ad", window=ps.tumbling("1 minute"), clicks=ps.count())

    return app


@contextmanager
def staged(home: Path) -> Iterator[Stage]:
    app = declare(home)
    log = app.log
    log.topic("users").append([{"id": n, "name": name} for n, name in enumerate(("Ann", HOSTILE, "Bob"))])
    now = datetime.now(UTC)
    log.topic("clicks").append([{"ad": f"ad-{n % 2}", "at": now - timedelta(minutes=5)} for n in range(4)])
    _dead_letter(home)
    with _running(app, now), _served(app) as url:
        yield Stage(app, url, log.topic("page_views"))
    app.close()


def _dead_letter(home: Path) -> None:
    with ps.open_queues(home) as queues:
        mail = queues.queue("mail", max_attempts=1)
        for body in ({"to": HOSTILE}, {"to": "b@example.org"}):
            mail.publish(body)
        for delivery in mail.get_many(2, timeout=1):
            delivery.nack("SMTP 550 mailbox unknown")


def _group(log: ps.Log) -> None:
    """One that has read a few records and gone."""
    with log.topic("page_views").consume(group="mailer", follow=False) as consumer:
        for number, _ in enumerate(consumer):
            if number == 4:
                break


@contextmanager
def _running(app: ps.App, now: datetime) -> Iterator[None]:
    """A minute of page views at once, then two batches a second; every few batches a row is late."""
    views = [
        Counting(app, "per_5s", "page_views", "page", timedelta(seconds=5)),
        Counting(app, "per_ad", "clicks", "ad", timedelta(minutes=1)),
    ]
    topic, chance, ended, began = (
        app.log.topic("page_views"),
        random.Random(1),
        threading.Event(),
        time.monotonic(),
    )

    def feed(at: datetime) -> None:
        topic.append([{"user_id": chance.randrange(50), "page": page, "at": at} for page in PAGES])
        for view in views:
            view.step()

    for second in range(60, 0, -1):
        feed(now - timedelta(seconds=second if second % 9 else second + 12))
    _group(app.log)

    def go_on() -> None:
        number = 0
        while not ended.wait(0.5):
            number += 1
            feed(datetime.now(UTC) - timedelta(seconds=20 if number % 8 == 0 else 0))
            publish(app, views, began=began)

    thread = threading.Thread(target=go_on, name="run", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(WAIT_S)


@contextmanager
def _served(app: ps.App) -> Iterator[str]:
    server = Server(Gateway(app, Settings(source="shop.py")), Address())
    thread = threading.Thread(target=server.run, name="server", daemon=True)
    thread.start()
    try:
        wait_until(lambda: server.started, timeout_s=WAIT_S, what="the server")
        yield server.url
    finally:
        server.should_exit = True
        thread.join(WAIT_S)


def past_moment(app: ps.App) -> datetime:
    """Well before now, in the middle of what the view has seen; to the millisecond, as the slider has it."""
    times = sorted({t for b in app.log.topic("per_5s").read() for t in b.column("_timestamp").to_pylist()})
    middle: datetime = times[len(times) // 2]
    return middle.replace(microsecond=middle.microsecond // 1_000 * 1_000) + timedelta(milliseconds=1)
