"""What customers do besides looking: everything of the world around the shop, told to its topics."""

from __future__ import annotations

import itertools
import random
import threading
from collections import defaultdict
from datetime import UTC, datetime
from typing import Any

import penstock as ps
from penstock.cli.demo import shop
from penstock.cli.demo.actors import say
from penstock.cli.demo.database import Clerk
from penstock.cli.demo.world import PRODUCTS, World

_SEED = 11
_PAUSE_S = 0.1
_SEARCHES = (
    {"owner": "ann", "query": "garden"},
    {"owner": "bob", "query": "(broke"},  # cannot be read: it goes aside, with the reason
    {"owner": "eve", "query": "stars:<3 chair"},
)
_NEXT_SEARCHES = ("lovely OR sturdy", "tea pot", "garden -hose", 'text:"buy again"')


def run(_name: str, stopping: threading.Event) -> None:
    """Report how many events were acknowledged, and what became of the carts."""
    world, shoppers = World(_SEED, datetime.now(UTC)), Shoppers(_SEED)
    clerk = Clerk(shop.app.home / "shop.db", _SEED)
    shop.saved_searches.append([*_SEARCHES])
    acknowledged = len(_SEARCHES)
    say(ready=True)
    for turn in itertools.count():
        if stopping.wait(_PAUSE_S):
            break
        acknowledged += _append(world)
        if turn % 3 == 0:
            clerk.change_something()
            shoppers.do_something()
        if turn % 50 == 49:
            query = _NEXT_SEARCHES[turn // 50 % len(_NEXT_SEARCHES)]
            shop.saved_searches.upsert({"owner": "ann", "query": query})
            acknowledged += 1
        say(acknowledged=acknowledged + shoppers.events, changes=clerk.changes, carts=shoppers.facts())
    clerk.close()
    shop.app.close()


def _append(world: World) -> int:
    rows: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for topic, row in world.until(datetime.now(UTC)):
        rows[topic].append(row)
    for topic, found in rows.items():
        shop.app.topics[topic].append(found)
    return sum(map(len, rows.values()))


class Shoppers:
    """They fill carts; most are checked out, and some are left. Now and then one tries what is refused."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)
        self._open: list[str] = []
        self.events = self.begun = self.checked_out = self.refused = 0

    def do_something(self) -> None:
        if not self._open or self._chance.random() < 0.4:
            self.begun += 1
            self._open.append(f"cart-{self.begun}")
        cart = shop.carts[self._chance.choice(self._open[-4:])]
        try:
            if cart.version > 1 and self._chance.random() < 0.6:
                cart.check_out(paid=round(self._chance.uniform(5, 90), 2))
                self.checked_out += 1
                if self._chance.random() < 0.8:  # some try to add to it even so
                    self._open.remove(cart.id)
            else:
                cart.add(self._chance.choice(PRODUCTS))
            self.events += 1
        except ps.CommandRefused:
            self.refused += 1

    def facts(self) -> dict[str, int]:
        return {"begun": self.begun, "checked_out": self.checked_out, "refused": self.refused}
