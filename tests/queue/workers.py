"""Processes that publish and consume until they are killed, and write down what happened."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from penstock.queue.message import Message
from penstock.queue.opening import open_queues

POISON = b"poison"


def publish(home: Path, queue: str, notes: Path, first: int, count: int, poison_every: int) -> None:
    """In batches; an id is noted when its publication has returned."""
    with open_queues(home) as queues, notes.open("a", buffering=1) as noted:
        target = queues.open_queue(queue)
        for start in range(first, first + count, 100):
            batch = [
                Message(POISON if n % poison_every == 0 else b"work", id=f"m{n}")
                for n in range(start, min(start + 100, first + count))
            ]
            ids = target.publish_many(batch)
            noted.write("".join(f"{id}\n" for id in ids))


def consume(home: Path, queue: str, notes: Path) -> None:
    """A line before the work on each message, and one after its ack. A poisonous message kills."""
    with (
        open_queues(home) as queues,
        notes.open("a", buffering=1) as noted,
        queues.open_queue(queue).consume(prefetch=20) as consumer,
    ):
        for delivery in consumer:
            noted.write(f"got {delivery.id} {time.monotonic_ns()} {os.getpid()}\n")
            if delivery.body == POISON:
                os.kill(os.getpid(), signal.SIGKILL)
            delivery.ack()
            noted.write(f"acked {delivery.id} {time.monotonic_ns()} {os.getpid()}\n")
