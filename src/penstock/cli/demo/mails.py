"""The demo's queue: mails to send once and forget, some of them without an address."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from penstock.cli.demo.shop import MAIL_TRIES
from penstock.cli.demo.shop import mails as declared
from penstock.cli.demo.stage import wait_until
from penstock.queue.delivery import DeadLetter, Delivery
from penstock.queue.opening import open_queues

_EACH_SECOND = 3
_POISON_EVERY_S = 4
_DRAIN_S = 20.0


@dataclass(frozen=True, slots=True)
class Sent:
    """What became of the mails."""

    published: int
    once: int  # sent, and not twice
    poison: int  # had no address
    given_up: int  # of those: dead letters after so many tries, with the cause
    mended: int  # of those: redriven with an address, and sent

    @property
    def holds(self) -> bool:
        return self.once == self.published and self.given_up == self.mended == self.poison


class Mails:
    """`publish` and `finish` are for one thread; the mailer has one of its own."""

    def __init__(self, home: Path) -> None:
        self._queues = open_queues(home)
        self._queue = self._queues.queue(declared.name, max_attempts=MAIL_TRIES)
        self._sent: Counter[str] = Counter()
        self._failed: Counter[str] = Counter()
        self.published = self.poison = 0
        self._consumer = self._queue.consume(idle="250 ms")
        self._ending = threading.Event()
        self._mailer = threading.Thread(target=self._send_all, name="mailer", daemon=True)

    @property
    def sent(self) -> int:
        return self._sent.total()

    @property
    def failed(self) -> int:
        """Tries that failed."""
        return self._failed.total()

    def start(self) -> None:
        self._mailer.start()

    def publish(self, second: int) -> None:
        """What a shop sends in a second; now and then somebody has no address."""
        poison = second % _POISON_EVERY_S == 1
        mails: list[object] = [
            {"to": f"customer{self.published + at}@example.com"} for at in range(_EACH_SECOND)
        ]
        if poison:
            mails[-1] = {"to": None}
        self._queue.publish_many(mails)
        self.published += len(mails)
        self.poison += poison

    def finish(self) -> Sent:
        """Let everything be sent; what was given up and no visitor has mended is mended and sent, too."""
        wait_until(lambda: len(self._sent) + self.dead() >= self.published, timeout_s=_DRAIN_S)
        self._queue.redrive("attempts", edit=_with_an_address)
        wait_until(lambda: self.sent >= self.published, timeout_s=_DRAIN_S)
        # Whoever redrives one without an address lets it be tried as often again.
        given_up = [id for id, times in self._failed.items() if times % MAIL_TRIES == 0]
        mended = sum(id in self._sent for id in given_up)
        once = sum(times == 1 for times in self._sent.values())
        return Sent(self.published, once, self.poison, len(given_up), mended)

    def close(self) -> None:
        self._ending.set()
        if self._mailer.ident is not None:
            self._mailer.join()
        self._consumer.close()
        self._queues.close()

    def dead(self) -> int:
        """Mails that were given up."""
        return self._queue.stats().dead

    def _send_all(self) -> None:
        while not self._ending.is_set():
            for delivery in self._consumer:
                self._send(delivery)

    def _send(self, delivery: Delivery) -> None:
        if delivery.json()["to"] is None:
            self._failed[delivery.id] += 1
            delivery.nack("there is no address", delay="50 ms")
            return
        delivery.ack()
        self._sent[delivery.id] += 1


def _with_an_address(letter: DeadLetter) -> object:
    return {**letter.json(), "to": "info@example.com"}
