"""The carts at the end of the demo: is each of their events in the topic, once and in order?"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import penstock as ps
from penstock.cli.demo import shop
from penstock.opening import is_kafka


@dataclass(frozen=True, slots=True)
class Recorded:
    """What the carts have recorded against what was published of it."""

    carts: int
    events: int
    holds: bool


def compared(home: Path, address: str) -> Recorded:
    """Publishes what is left, when nobody else does any more."""
    app = ps.App(shop.app.name, home=home, log=address if is_kafka(address) else None)
    carts = app.aggregates(shop.carts.name, shop.Cart, lateness=shop.LATENESS)
    try:
        carts.publish()
        listed = list(carts.list())
        entries = [entry for each in listed for entry in carts.history(each.id)]
        rows = list(app.log.topic(carts.name).rows())
    finally:
        app.close()
    recorded = sorted((entry.id, entry.version, entry.command_id) for entry in entries)
    published = sorted((row["aggregate_id"], row["version"], row["command_id"]) for row in rows)
    in_order = all(one["sequence"] < next_one["sequence"] for one, next_one in pairwise(rows))
    return Recorded(len(listed), len(entries), recorded == published and in_order)
