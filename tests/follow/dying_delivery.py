"""A follower that kills itself with SIGKILL: `dying_delivery.py URL HOME STEP COUNT BATCH`.

It dies at the COUNT-th time that a delivery reaches STEP.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import penstock as ps
from penstock.follow import Follower, spec_of
from penstock.follow.deliveries import Deliveries, Sender
from penstock.follow.mail import Mail
from penstock.follow.positions import Positions
from penstock.follow.webhook import Webhook


def main(url: str, home: str, step: str, count: str, batch: str) -> None:
    left = int(count)

    def watch(reached: str) -> None:
        nonlocal left
        left -= reached == step
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)

    with ps.open_log(Path(home)) as log:
        topic = log.topic("orders")
        spec = spec_of(topic.schema.arrow, (), name="orders")
        sender: Sender = Webhook(url, label="web", headers={}, batch=int(batch), timeout_s=10)
        if url.startswith("smtp:"):
            mail = {"to": ["ann@example.com"], "sender": "shop@example.com"}
            sender = Mail(url, label="mail", subject="Order {id}", body="", timeout_s=10, **mail)  # type: ignore[arg-type]
        positions = Positions(Path(home) / "follow" / "shop.db")
        sink = Deliveries(sender, positions, log, give_up_after_s=60, watch=watch)
        Follower(topic, sink, spec, kind="stream").step(timeout_s=0)


if __name__ == "__main__":
    main(*sys.argv[1:])
