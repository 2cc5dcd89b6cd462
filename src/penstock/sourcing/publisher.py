"""Store to log: events and the position they lead to, in one atomic append.

So every event is in the topic once and in order, whatever is killed when: the store's own order says what
comes next, and the log what has come.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

from penstock.errors import Contended, EventsLost, PenstockError, StorageError
from penstock.log.log import AtomicProducer, Log
from penstock.log.topic import Topic
from penstock.sourcing.book import Book
from penstock.sourcing.failures import told
from penstock.sourcing.published import command_of, position_at, published, record_of

_AT_ONCE = 1_000
_WAIT_S = 0.25
_PAUSE_S = 0.2
_PAUSE_S_MAX = 10.0
_TRIES_ONCE = 5


@dataclass(frozen=True, slots=True)
class Publication:
    """How far the events of an app's aggregates are, as sequences of the last ones."""

    aggregates: str
    recorded: int
    published: int
    last_error: str | None


class Publisher:
    """The events of one book into one topic. `run` belongs to one thread; the rest may be asked by others.

    Two of them do not harm each other: the later one takes over, and the earlier ends with Fenced.
    """

    def __init__(self, log: Log, topic: Topic, book: Book[Any], *, producer: str) -> None:
        self.name = book.name
        self._log, self._topic, self._book, self._producer = log, topic, book, producer
        self.last_error: str | None = None
        self.retries = 0

    def published(self) -> int:
        """The sequence of the last event that is in the topic, by whoever."""
        return published(self._log.port.producer_position(self._producer).position)

    def status(self) -> Publication:
        return Publication(self.name, self._book.recorded(), self.published(), self.last_error)

    def run(self, stop: threading.Event, *, once: bool = False) -> None:
        """Until `stop` is set, or with `once` until everything that is recorded now is published.

        A store or log that is away is tried again and again. Raises what another try cannot mend.
        """
        pause_s = _PAUSE_S
        while not stop.is_set():
            try:
                self._run(stop, once)
            except (StorageError, Contended) as error:
                self.last_error, self.retries = str(error), self.retries + 1
                if once and self.retries >= _TRIES_ONCE:
                    raise
                stop.wait(pause_s)
                pause_s = min(pause_s * 2, _PAUSE_S_MAX)
            except PenstockError as error:
                self.last_error = str(error)
                raise
            else:
                return

    def close(self) -> None:
        """Nothing is open between two runs."""

    def _run(self, stop: threading.Event, once: bool) -> None:
        waker = self._book.store.waker()
        try:
            with self._log.producer(self._producer) as producer:
                done = published(producer.position())
                self._check_whole(done, command_of(producer.position()))
                until = self._book.recorded() if once else None
                while not stop.is_set() and (until is None or done < until):
                    done = self._publish_all(producer, done, stop)
                    self.last_error, self.retries = None, 0
                    if until is None:
                        waker.wait(_WAIT_S)
        finally:
            waker.close()

    def _publish_all(self, producer: AtomicProducer, done: int, stop: threading.Event) -> int:
        """Everything after `done` that there is now."""
        while not stop.is_set():
            with told(self._book.store.address, server=self._book.store.is_server):
                found = self._book.store.recorder.select_notifications(
                    done, _AT_ONCE, inclusive_of_start=False
                )
            if not found:
                break
            records = [record_of(self._book.mapper, notification) for notification in found]
            done = found[-1].id
            producer.append({self._topic: records}, position=position_at(done, records[-1]["command_id"]))
        return done

    def _check_whole(self, done: int, command: str | None) -> None:
        """A store that was put back to an older copy gives numbers again that the topic has already."""
        recorded = self._book.recorded()
        if recorded < done or (command and self._command_at(done) != command):
            raise EventsLost(self.name, self._book.store.address, recorded=recorded, published=done)

    def _command_at(self, sequence: int) -> str | None:
        with told(self._book.store.address, server=self._book.store.is_server):
            found = self._book.store.recorder.select_notifications(sequence, 1)
        return command_of(found[0].state) if found and found[0].id == sequence else None
