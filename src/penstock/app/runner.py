"""Runs an app: every query and every follower, until told to stop or until all there is is done.

A failed query is started again with growing pauses. One that fails again at its first batch, or whose
checkpoint does not fit the log, gets its state built anew from the log.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from penstock.app import failures, reading
from penstock.app.failures import Failure
from penstock.app.following import followers_of
from penstock.app.graph import Graph
from penstock.capture.running import Running
from penstock.errors import PenstockError, QueryFailed, StorageError, Unreachable
from penstock.flow import failure
from penstock.flow.query import Query
from penstock.follow.follower import Follower
from penstock.follow.store import Sink

if TYPE_CHECKING:
    from penstock.app.app import App
    from penstock.capture.engine import Capture
    from penstock.sourcing.publisher import Publisher

_PAUSE_S = 0.5
_PAUSE_S_MAX = 30.0
_FAILURES_MAX = 5
_LOOK_S = 0.1
# Spark gives the Python process of each source ten seconds to answer. Where many are started at once on a
# small machine, none of them makes it.
_COMING_UP_MAX = 2
_BUSY = "a Python process of Spark's did not come up within ten seconds: the machine is busy"
_TOO_SLOW, _SLOW_FACTOR = "Python worker failed to connect back", 4


@dataclass(slots=True)
class Supervised:
    """One query and how it fares."""

    query: Query
    depth: int
    failures: int = 0  # in a row, without a batch in between
    restarts: int = 0
    rebuilt: int = 0
    retry_at: float = 0.0
    last_error: str | None = None
    given_up: bool = False
    begun: bool = False  # it was started, or has been tried to
    up: bool = False  # since it was started last
    stored: int = -1  # number of the last batch when it was last looked at

    @property
    def names(self) -> list[str]:
        return [member.definition.name for member in self.query.members]


@dataclass(slots=True)
class Runner:
    """Use as a context manager, or `run`."""

    app: App
    graph: Graph
    every: str | None = None
    rows_max: int | None = None  # about how many a batch may have
    now_us: int | None = None  # a virtual clock, for tests
    failures_max: int = _FAILURES_MAX  # in a row, then a query is given up
    supervised: list[Supervised] = field(default_factory=list)
    followers: dict[str, Follower] = field(default_factory=dict)
    captures: Running[Capture] = field(default_factory=lambda: Running([]))
    publishers: Running[Publisher] = field(default_factory=lambda: Running([]))
    stopping: threading.Event = field(default_factory=threading.Event)
    _sinks: list[Sink] = field(default_factory=list)
    _threads: list[threading.Thread] = field(default_factory=list)
    _is_slow: bool = False  # the machine: one query after the other then

    def once(self) -> None:
        """Everything there is now, stage after stage; raises QueryFailed if one cannot be finished.

        Ends early, and then not everything is delivered, when `stopping` is set meanwhile.
        """
        self._supervise()
        for supervised in self.supervised:
            supervised.query.check()
        self._fill_once()
        for depth in sorted({s.depth for s in self.supervised}):
            stage = [s for s in self.supervised if s.depth == depth]
            self._start_some(stage, once=True)
            while not all(supervised.begun and self._finished(supervised) for supervised in stage):
                self._start_some(stage, once=True)
                if self.stopping.wait(_LOOK_S / 2):
                    self.stop()
                    return
        for name, found in self.graph.analysed.items():
            if found.output.kind == "view":
                reading.catch_up(self.app, reading.spec(self.app, name))
        self._catch_up_targets()

    def start(self) -> None:
        self._supervise()
        for supervised in self.supervised:
            supervised.query.check()  # all of them, before one is started
        self._open_captures().start()
        self._open_publishers().start()
        self._start_some(self.supervised, once=False)
        for name, found in self.graph.analysed.items():
            if found.output.kind == "view":
                self._follow(name, self._follower_of_view(name))
        for name, follower, sink in followers_of(self.app):
            self._sinks.append(sink)
            self._follow(name, follower)

    def run(self, *, show: Callable[[Runner], None] | None = None) -> None:
        """Until `stopping` is set; `show` is called several times a second.

        Raises QueryFailed when a query was given up, after the others were stopped.
        """
        try:
            self.start()
            while not self.stopping.wait(_LOOK_S) and not self._given_up():
                self.look()
                if show:
                    show(self)
        finally:
            self.stop()
        for supervised in self._given_up():
            raise QueryFailed(supervised.query.name, supervised.last_error or "it stopped")

    def _given_up(self) -> list[Supervised]:
        return [supervised for supervised in self.supervised if supervised.given_up]

    def look(self) -> None:
        """Start what waits for others to come up, and again what has failed and may be tried again."""
        for supervised in self.supervised:
            if not supervised.begun:
                continue
            running = supervised.query.running
            if running is not None and running.isActive:
                self._note_progress(supervised)
            elif not supervised.given_up:
                self._look_at_failed(supervised)
        self._start_some(self.supervised, once=False)

    def _look_at_failed(self, supervised: Supervised) -> None:
        if supervised.query.running is not None:
            self._failed(supervised)
        due = time.monotonic() >= supervised.retry_at
        if not supervised.given_up and due and self._may_start():
            supervised.restarts += 1
            self._start(supervised, once=False)

    def stop(self) -> None:
        """Between batches where that can be had soon: a batch cut off is computed again at the next start."""
        self.stopping.set()
        for supervised in self.supervised:
            _stop_between_batches(supervised.query)
        for thread in self._threads:
            thread.join(timeout=10)
        self.captures.stop()
        self.publishers.stop()
        self._close_sinks()

    def _open_captures(self) -> Running[Capture]:
        self.captures = Running([capture.open() for capture in self.app.captures.values()])
        return self.captures

    def _open_publishers(self) -> Running[Publisher]:
        self.publishers = Running([aggregates.publisher() for aggregates in self.app.sourced.values()])
        return self.publishers

    def _fill_once(self) -> None:
        """Everything that the databases have now, and everything that aggregates have recorded."""
        for filling in (self._open_captures(), self._open_publishers()):
            filling.start(once=True)
            while not filling.is_over and not self.stopping.wait(_LOOK_S / 2):
                pass
            filling.raise_failure()

    # ---- one query ----------------------------------------------------------------------------

    def _supervise(self) -> None:
        self.supervised = [
            Supervised(query, max(self.graph.depth(m.definition.name) for m in query.members))
            for query in self.graph.queries()
        ]

    def _start_some(self, supervised: Iterable[Supervised], *, once: bool) -> None:
        """As many as may come up at a time, in order; `look` goes on with it."""
        for each in supervised:
            if each.begun:
                continue
            if not self._may_start():
                return
            self._start(each, once=once)

    def _may_start(self) -> bool:
        coming_up_max = 1 if self._is_slow else _COMING_UP_MAX
        return sum(_comes_up(each) for each in self.supervised) < coming_up_max

    def _start(self, supervised: Supervised, *, once: bool) -> None:
        supervised.query.running, supervised.begun, supervised.up = None, True, False
        try:
            supervised.query.start(every=self.every, once=once, rows_max=self.rows_max, now_us=self.now_us)
        except Exception as error:
            supervised.last_error = failure.gist(str(error)) if failure.is_sparks(error) else str(error)
            if not failure.is_passing(error):
                self._note_failure(supervised)
                raise
            self._count_failure(supervised, outage=isinstance(error, Unreachable))
            return
        if (position := supervised.query.position) is not None:  # what it starts from is no progress
            supervised.stored = max(supervised.stored, position.number)

    def _finished(self, supervised: Supervised) -> bool:
        """For a run to the end: whether it is there; starts a failed one again."""
        running = supervised.query.running
        if running is not None and running.isActive:
            return False
        if running is not None and running.exception() is None:
            _look_at(supervised.query, last=True)
            failures.settle(self.app, supervised.names)
            return True
        if running is not None:  # else it could not be started, which was counted
            self._failed(supervised)
        if supervised.given_up:
            raise QueryFailed(supervised.query.name, supervised.last_error or "")
        time.sleep(max(0.0, supervised.retry_at - time.monotonic()))
        supervised.restarts += 1
        self._start(supervised, once=True)
        return False

    def _failed(self, supervised: Supervised) -> None:
        running = supervised.query.running
        error = running.exception() if running is not None else None
        text = str(error) if error else supervised.last_error or "it stopped"
        self._note_progress(supervised)
        supervised.last_error = _BUSY if _TOO_SLOW in text else failure.gist(text)
        supervised.query.running = None
        slow = _TOO_SLOW in text
        self._is_slow = self._is_slow or slow
        outage = slow or f"{Unreachable.__name__}:" in text
        self._count_failure(supervised, diverged="Diverged" in text, outage=outage, slow=slow)

    def _count_failure(
        self, supervised: Supervised, *, diverged: bool = False, outage: bool, slow: bool = False
    ) -> None:
        """`outage`: the log was away, and what it did not answer says nothing about the query's state.

        `slow`: nothing is wrong but that the machine has other things to do.
        """
        supervised.failures += 1
        suspect = diverged or (supervised.failures == 2 and not outage)
        if suspect and _can_replay(supervised.query):
            supervised.query.forget_state()
            supervised.rebuilt += 1
        patience = _SLOW_FACTOR if slow else 1
        supervised.given_up = supervised.failures >= self.failures_max * patience
        pause = min(_PAUSE_S * 2 ** (supervised.failures - 1), _PAUSE_S_MAX)
        supervised.retry_at = time.monotonic() + (0 if diverged else pause)
        self._note_failure(supervised)

    def _note_failure(self, supervised: Supervised) -> None:
        """Where `penstock explain` finds it."""
        error = supervised.last_error or "it stopped"
        found = Failure(
            supervised.query.name, error, time.time_ns() // 1_000, supervised.failures,
            supervised.given_up, supervised.stored,
        )  # fmt: skip
        failures.record(self.app, supervised.names, found)

    def _note_progress(self, supervised: Supervised) -> None:
        _look_at(supervised.query)
        position = supervised.query.position
        number = position.number if position else -1
        if number > supervised.stored:
            supervised.stored, supervised.failures = number, 0
            failures.settle(self.app, supervised.names, stored=number)

    # ---- followers ----------------------------------------------------------------------------

    def _catch_up_targets(self) -> None:
        """All of them; then raises what one of them could not do."""
        errors: list[PenstockError] = []
        for name, follower, sink in followers_of(self.app):
            self._sinks.append(sink)
            self.followers[name] = follower
            try:
                follower.finish(self.stopping)
            except PenstockError as error:
                errors.append(error)
        self._close_sinks()
        if errors:
            raise errors[0]

    def _close_sinks(self) -> None:
        while self._sinks:
            self._sinks.pop().close()

    def _follower_of_view(self, view: str) -> Follower:
        return Follower(self.app.log.topic(view), self.app.store, reading.spec(self.app, view))

    def _follow(self, name: str, follower: Follower) -> None:
        self.followers[name] = follower
        thread = threading.Thread(
            target=_follow, args=(follower, self.stopping), name=f"follow-{name}", daemon=True
        )
        thread.start()
        self._threads.append(thread)


def _comes_up(supervised: Supervised) -> bool:
    supervised.up = supervised.up or supervised.query.is_up
    return supervised.query.running is not None and not supervised.up


def _look_at(query: Query, *, last: bool = False) -> None:
    try:
        query.look(last=last)
    except Exception as error:
        if not failure.is_passing(error):
            raise  # else there will be another time


def _can_replay(query: Query) -> bool:
    try:
        return query.can_replay()
    except StorageError:  # nobody can tell now
        return False


def _follow(follower: Follower, stopping: threading.Event) -> None:
    try:
        follower.run(stopping)
    except Exception as error:  # shown in the status; the query goes on without this store
        follower.last_error = str(error)


def _stop_between_batches(query: Query, *, wait_s: float = 10.0) -> None:
    running = query.running
    if running is None or not running.isActive:
        query.stop()  # what else there is of it
        return
    deadline = time.monotonic() + wait_s
    while query.ends_batches and running.status["isTriggerActive"] and time.monotonic() < deadline:
        time.sleep(0.005)
    query.stop()
