"""What a page says in words about what it shows, and what a stream has given."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from tests.gateway.served import serving

import penstock as ps
from penstock.gateway.facts.topics import kind_of
from penstock.gateway.pages.plans import documented
from penstock.sourcing import Aggregate, applies


@dataclass(frozen=True)
class Opened:
    by: str


@dataclass
class Cart(Aggregate):
    """A cart, and what happened to it."""

    by: str = ""

    @applies
    def _opened(self, event: Opened) -> None:
        self.by = event.by


@dataclass
class Plain(Cart):
    by: str = ""


@pytest.fixture
def app(home: Path) -> ps.App:
    return ps.App("shop", home=home)


def test_a_topic_is_shown_with_its_sentence(app: ps.App) -> None:
    app.topic("page_views", "page STRING", doc="Who looks at which page.")
    app.table("users", "id BIGINT", key="id", doc="Who has an account.")
    with serving(app) as served:
        assert "Who looks at which page." in httpx.get(f"{served.url}/topics/page_views").text
        assert "Who looks at which page." in httpx.get(f"{served.url}/topics").text
        assert "Who has an account." in httpx.get(f"{served.url}/tables/users").text
    app.close()


def test_a_queue_is_shown_with_its_sentence(app: ps.App) -> None:
    app.queue("mails", doc="Mails to send once and forget.").publish(b"hello")
    with serving(app) as served:
        assert "Mails to send once and forget." in httpx.get(f"{served.url}/queues/mails").text
    app.close()


def test_what_a_capture_fills_says_what_it_is(app: ps.App, tmp_path: Path) -> None:
    sqlite3.connect(tmp_path / "shop.db").close()
    app.capture("db", tmp_path / "shop.db")
    assert documented(app, "db.customers").startswith("The rows of the table customers in sqlite ")
    assert documented(app, "db.customers.changes").startswith("Every change of the table customers in ")
    assert documented(app, "db.known") == documented(app, "other.customers") == ""
    assert kind_of(app, "db.known", compacted=True) == "internal"
    assert kind_of(app, "other.known", compacted=True) == "table"


def test_events_of_aggregates_say_of_what(app: ps.App) -> None:
    app.aggregates("carts", Cart)
    app.aggregates("plain", Plain)
    assert documented(app, "carts") == "A cart, and what happened to it."
    assert documented(app, "plain") == ""


def test_a_stream_shows_what_it_gave_last(app: ps.App) -> None:
    topic = app.topic("logins", "user_id BIGINT")
    app.stream(name="alarms")(topic.stream)
    with serving(app) as served:
        assert "Nothing has come out yet" in httpx.get(f"{served.url}/views/alarms").text
        app.log.create_topic("alarms", "user_id BIGINT").append([{"user_id": n} for n in range(900, 920)])
        page = httpx.get(f"{served.url}/views/alarms").text
    assert "919" in page
    assert "908" in page
    assert "907" not in page
    app.close()
