"""The world around the shop: customers, a thief, phones with wrong clocks. The same seed is the same world.

Nothing here knows of a log or of the time of day: who asks says what time it is, and gets what happens.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

Row = dict[str, Any]
Happened = tuple[str, Row]  # in which topic, and what

CUSTOMERS = 200
COUNTRIES = ("CH", "DE", "FR", "IT", "AT")
PRODUCTS = ("garden chair", "garden hose", "desk lamp", "tea pot", "wool socks", "rain coat")
_ADS = ("spring sale", "free delivery", "new: tea pots")
_QUERIES = ("chair", "lamp", "tea", "socks")
_ENDPOINTS = {"/api/cart": 20.0, "/api/search": 60.0, "/api/pay": 120.0}  # typical milliseconds
_SCREENS = ("home", "offers", "basket")
_OPINIONS = ("sturdy and light", "broke after a week", "lovely in the garden", "too small", "would buy again")
_TUNNEL_EVERY_S, _TUNNEL_S = 15.0, 8.0
_THIEF_EVERY_S = 7.0


@dataclass(frozen=True, slots=True)
class Phone:
    """`ahead`: how far its clock is off."""

    name: str
    ahead: timedelta
    in_tunnels: bool = False


PHONES = (
    Phone("phone-ann", timedelta(0)),
    Phone("phone-bob", timedelta(minutes=3)),
    Phone("phone-cid", -timedelta(hours=2)),
    Phone("phone-dora", timedelta(seconds=-20), in_tunnels=True),
)


class World:
    """`until(now)` gives what arrives since the last time it was asked, in the order of arrival."""

    def __init__(self, seed: int, began: datetime) -> None:
        self._chance = random.Random(seed)
        self._numbers = itertools.count()
        # Beside what is due: a number, since rows cannot be put in order.
        self._due: list[tuple[datetime, int, str, Row]] = []
        self._sources = [
            _Source(began, rate, act)
            for rate, act in (
                (20.0, self._request), (12.0, self._impression), (3.0, self._search), (4.0, self._login),
                (5.0, self._purchase), (12.0, self._tap), (2.0, self._review),
                (1 / _THIEF_EVERY_S, self._thief),
            )
        ]  # fmt: skip
        self._began = began

    def until(self, now: datetime) -> Iterator[Happened]:
        for source in self._sources:
            for at in source.times(now):
                source.act(at)
        while self._due and self._due[0][0] <= now:
            _, _, topic, row = heapq.heappop(self._due)
            yield topic, row

    def _arrives(self, topic: str, row: Row, at: datetime, *, after_s: float | None = None) -> None:
        """`at`: when it happens; it arrives a moment later, and so not in order."""
        delay = self._chance.expovariate(8.0) if after_s is None else after_s
        heapq.heappush(self._due, (at + timedelta(seconds=delay), next(self._numbers), topic, row))

    def _customer(self) -> int:
        return self._chance.randrange(CUSTOMERS)

    def _later(self, at: datetime, low_s: float, high_s: float) -> datetime:
        return at + timedelta(seconds=self._chance.uniform(low_s, high_s))

    # ---- one of each ----------------------------------------------------------------------------

    def _request(self, at: datetime) -> None:
        endpoint = self._chance.choice(list(_ENDPOINTS))
        took_ms = self._chance.lognormvariate(0, 0.6) * _ENDPOINTS[endpoint]
        self._arrives("requests", {"endpoint": endpoint, "took_ms": round(took_ms, 2), "at": at}, at)

    def _impression(self, at: datetime) -> None:
        """Some are clicked on; now and then the click overtakes its impression."""
        ad, user = self._chance.choice(_ADS), self._customer()
        number = next(self._numbers)
        self._arrives("impressions", {"impression_id": number, "ad": ad, "user_id": user, "shown_at": at}, at)
        if self._chance.random() < (0.1 + 0.15 * _ADS.index(ad)):
            clicked = self._later(at, 0.05, 4)
            self._arrives("clicks", {"ad": ad, "user_id": user, "clicked_at": clicked}, clicked)

    def _search(self, at: datetime) -> None:
        query, user = self._chance.choice(_QUERIES), self._customer()
        self._arrives("searches", {"user_id": user, "query": query, "searched_at": at}, at)
        if self._chance.random() < 0.6:
            found = self._later(at, 0.5, 4)
            product = next((name for name in PRODUCTS if query in name), PRODUCTS[0])
            row = {"user_id": user, "query": query, "product": product, "found_at": found}
            self._arrives("result_clicks", row, found)

    def _login(self, at: datetime) -> None:
        user = self._customer()
        row = {"user_id": user, "ok": self._chance.random() > 0.1, "country": home_of(user), "at": at}
        self._arrives("logins", row, at)

    def _purchase(self, at: datetime) -> None:
        user = self._customer()
        self._buys(user, home_of(user), self._chance.uniform(5, 80), at)

    def _buys(self, user: int, country: str, amount: float, at: datetime) -> None:
        """One in six clients gets no answer in time and sends it again."""
        row = {
            "purchase_id": f"p{next(self._numbers)}", "user_id": user, "country": country,
            "amount": round(amount, 2), "at": at,
        }  # fmt: skip
        self._arrives("purchases", row, at)
        if self._chance.random() < 1 / 6:
            self._arrives("purchases", row, at, after_s=self._chance.uniform(0.3, 1.5))

    def _thief(self, at: datetime) -> None:
        """Guesses a password, logs in from far away and buys something dear, while the customer is here."""
        user = self._customer()
        guesses = self._chance.randrange(3, 6)
        for number in range(guesses + 1):
            tried = at + timedelta(seconds=0.4 * number)
            row = {"user_id": user, "ok": number == guesses, "country": "XX", "at": tried}
            self._arrives("logins", row, tried)
        here = at + timedelta(seconds=3)
        row = {"user_id": user, "ok": True, "country": home_of(user), "at": here}
        self._arrives("logins", row, here)
        self._buys(user, "XX", self._chance.uniform(400, 900), at + timedelta(seconds=5))

    def _tap(self, at: datetime) -> None:
        """By the phone's own clock: when it happened, when it was sent. In a tunnel it waits with sending."""
        phone = self._chance.choice(PHONES)
        sent = at + timedelta(milliseconds=20)
        into = (at - self._began).total_seconds() % _TUNNEL_EVERY_S
        if phone.in_tunnels and into < _TUNNEL_S:
            sent = at + timedelta(seconds=_TUNNEL_S - into)
        row = {
            "device": phone.name, "screen": self._chance.choice(_SCREENS),
            "occurred_at": at + phone.ahead, "sent_at": sent + phone.ahead,
        }  # fmt: skip
        self._arrives("taps", row, sent, after_s=0.02)

    def _review(self, at: datetime) -> None:
        row = {
            "product": self._chance.choice(PRODUCTS), "text": self._chance.choice(_OPINIONS),
            "stars": self._chance.randrange(1, 6), "at": at,
        }  # fmt: skip
        self._arrives("reviews", row, at)


class _Source:
    """Something that happens so many times a second, evenly."""

    def __init__(self, began: datetime, per_second: float, act: Any) -> None:
        self._next, self._every, self.act = began, timedelta(seconds=1 / per_second), act

    def times(self, now: datetime) -> Iterator[datetime]:
        while self._next <= now:
            yield self._next
            self._next += self._every


def home_of(customer: int) -> str:
    return COUNTRIES[customer % len(COUNTRIES)]
