"""Processes of their own: `python -m tests.sourcing.shop publish|write HOME NAME STORE SEED`."""

from __future__ import annotations

import random
import sys
import threading
import time
from pathlib import Path

from tests.sourcing.carts import Place

import penstock as ps

IDS = 5
_PAUSE_S = 0.002  # so that others get on too


def main(what: str, home: str, name: str, store: str, seed: str) -> None:
    place = Place("any", None if store == "-" else store, name)
    with place.carts(Path(home), retries=1_000, snapshot_every=20) as carts:
        if what == "publish":
            carts.publisher().run(threading.Event())
            return
        dice = random.Random(int(seed))
        while not (Path(home) / "enough").exists():
            cart = carts.get(f"{dice.randrange(IDS)}", by=seed)
            try:
                cart.remove("apple") if "apple" in cart.items else cart.add("apple", dice.randrange(1, 9))
            except ps.CommandRefused:
                continue
            time.sleep(_PAUSE_S)


if __name__ == "__main__":
    main(*sys.argv[1:])
