"""Looks at an app about once a second, remembers a little, and gives everybody the same look."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from penstock.app import failures, proofs, published, reading
from penstock.app.published import Published
from penstock.app.status import QueryStatus
from penstock.app.watermark import Backlog, Held, backlog, held_back
from penstock.errors import PenstockError
from penstock.flow.commit import producer_of
from penstock.flow.definition import Definition
from penstock.flow.plan import Scan
from penstock.gateway.facts import topics as topic_facts
from penstock.gateway.pages.batches import Batches
from penstock.gateway.pages.look import (
    BEHIND_S,
    QUIET_S,
    GroupLook,
    Look,
    Standing,
    TopicLook,
    Trend,
    ViewLook,
)
from penstock.gateway.pages.plans import documented, waits_for_time, window_of
from penstock.gateway.pages.queueing import Queueing
from penstock.gateway.pages.samples import Samples, Series, together

if TYPE_CHECKING:
    from penstock.app.app import App

_LOG = logging.getLogger(__name__)
_EVERY_S = 1.0
_SLOW_S = 1.0
_REST = 3.0  # after a look that took long, so many times as long
_GROUPS_MAX = 200
_LATE_US = 3_600_000_000  # an hour


class Watcher:
    """`look` may be called by any thread; looks are made by one thread of its own, or by `look` itself."""

    def __init__(self, app: App, *, on_look: Callable[[Look], None] | None = None) -> None:
        self._app, self._on_look = app, on_look
        self.queueing = Queueing(app)
        self._batches: dict[str, Batches] = {}
        self._topics, self._lags, self._groups = Samples(), Samples(), Samples()
        self._late, self._slowest, self._waits = Series(), Series(), Series()
        self._mutex = threading.Lock()
        self._ended, self._wanted = threading.Event(), threading.Event()
        self._took_s = 0.0
        self._thread: threading.Thread | None = None
        self._last: Look | None = None

    def start(self) -> None:
        """Look also while nobody reads, so that trends are there when somebody comes."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._go_on, name="watcher", daemon=True)
            self._thread.start()

    def close(self) -> None:
        self._ended.set()
        self._wanted.set()
        if self._thread is not None:
            self._thread.join(timeout=5)

    def _go_on(self) -> None:
        while not self._ended.is_set():
            self._wanted.clear()
            try:
                self._looked(age_s=0.0)
            except Exception:  # alerts must outlive one look that failed
                _LOG.exception("the log could not be looked at; trying again")
            self._ended.wait(_EVERY_S)
            self._wanted.wait(max(0.0, _REST * self._took_s - _EVERY_S))  # sooner when somebody reads

    def look(self, *, age_s: float = _EVERY_S) -> Look:
        """A look that is no older than `age_s`; while another thread makes one, the one before it.

        A log that answers slowly keeps no reader waiting but the first: the others get what was seen last.
        """
        last = self._last
        if last is None or self._thread is None or self._took_s < _SLOW_S:
            return self._looked(age_s=age_s)
        self._wanted.set()
        return last

    def _looked(self, *, age_s: float) -> Look:
        asked_us, began = time.time_ns() // 1_000, time.monotonic()
        before = self._last
        if not self._mutex.acquire(blocking=before is None):
            assert before is not None
            return before
        try:
            last = self._last
            if last is not None and last.at_us >= asked_us - age_s * 1e6:
                return last
            self._last = made = self._made(last)
            self._took_s = time.monotonic() - began
        finally:
            self._mutex.release()
        if self._on_look is not None:
            self._on_look(made)
        return made

    def _made(self, last: Look | None) -> Look:
        try:
            return self._look()
        except PenstockError as error:
            if last is None:
                raise
            return replace(last, at_us=time.time_ns() // 1_000, error=error.message)

    def _look(self) -> Look:
        now_us, now_s = time.time_ns() // 1_000, time.monotonic()
        told = published.last(self._app)
        running = told is not None and told.is_live(now_us)
        topics = self._look_at_topics(now_s)
        views = {
            name: self._view(definition, topics, told if running else None, now_us)
            for name, definition in self._app.definitions.items()
        }
        self._lags.note(now_s, {name: view.lag_s for name, view in views.items()})
        self._late.note(now_s, sum(view.late for view in views.values()))
        self._slowest.note(now_s, max((view.lag_s for view in views.values()), default=0.0))
        waits = [view.wait_s for view in views.values() if view.wait_s is not None]
        self._waits.note(now_s, max(waits, default=0.0))
        written = [topic for topic in topics.values() if topic.facts.kind in ("topic", "table")]
        series = together(topic.rate.before for topic in written)
        return Look(
            now_us, topics, views, self._look_at_groups(now_s), self.queueing.looks(), told, running,
            Trend(sum(topic.rate.now for topic in written), series),
            Trend(self._late.points[-1][1], self._late.rates()),
            Trend(self._slowest.points[-1][1], self._slowest.values()),
            Trend(max(waits, default=0.0), self._waits.values()),
            sum(reading.late_since(self._app, name, now_us - _LATE_US) for name in views),
            frozenset(producer_of(self._app.name, name) for name in views),
        )  # fmt: skip

    # ---- topics, groups, queues -----------------------------------------------------------------

    def _look_at_topics(self, now_s: float) -> dict[str, TopicLook]:
        found = topic_facts.all_of(self._app)
        self._topics.note(now_s, {facts.name: float(facts.records) for facts in found})
        looks = {}
        for facts in found:
            series = self._topics.of(facts.name)
            trend = Trend(series.rate(), series.rates())
            looks[facts.name] = TopicLook(facts, documented(self._app, facts.name), trend)
        return looks

    def _look_at_groups(self, now_s: float) -> tuple[GroupLook, ...]:
        found = []
        for group, topic in self._app.log.groups()[:_GROUPS_MAX]:
            try:
                found.append(self._app.log.group(group, topic))
            except PenstockError:  # its topic was deleted meanwhile
                continue
        lags = {f"{info.group} {info.topic}": float(sum(lag.records for lag in info.lag)) for info in found}
        self._groups.note(now_s, lags)
        return tuple(
            GroupLook(
                info,
                sum(lag.records for lag in info.lag),
                max((lag.seconds for lag in info.lag), default=0.0),
                self._groups.of(f"{info.group} {info.topic}").values(),
            )
            for info in found
        )

    # ---- views ------------------------------------------------------------------------------------

    def _view(
        self, definition: Definition, topics: Mapping[str, TopicLook], told: Published | None, now_us: int
    ) -> ViewLook:
        app, name = self._app, definition.name
        batches = self._batches.setdefault(name, Batches(name))
        batches.look(app.log)
        query = _query_of(told, name)
        known = published.last(app)
        plan = known.plans.get(name) if known else None
        read = tuple(batches.last.end.ends) if batches.last else (plan.topics if plan else ())
        unread, held = self._reading(batches, now_us)
        quiet_us = max((topics[t].facts.last_us or 0 for t in read if t in topics), default=0) or None
        lag_s = max(0.0, (now_us - unread.oldest_us) / 1e6) if unread and unread.oldest_us else 0.0
        failure = failures.last(app, name)
        facts = topics.get(name)
        windowed = facts is not None and any(column.name == "window_end" for column in facts.facts.columns)
        newest = batches.newest
        standing: Standing = "failed" if failure is not None else "not run"
        if failure is None and newest is not None:
            waits_for = held if waits_for_time(plan) else None
            standing = _standing(lag_s, waits_for, quiet_us, now_us) if told is not None else "stopped"
        return ViewLook(
            name, definition.kind, documented(app, name), definition.key, window_of(plan), windowed, read,
            standing,
            facts.facts.records if facts is not None and definition.kind == "stream" else None,
            batches.rate(now_us), newest, tuple(batches.kept), newest.watermark_us if newest else None,
            unread.records if unread else 0, lag_s, self._lags.of(name).values(), batches.wait_s(now_us),
            held, quiet_us, query.state_rows if query else None, reading.late_count(app, [name]), query,
            failure, proofs.last(app, name), self._copy_behind(definition, facts),
            tuple(target.label for target in app.followed.get(name, ())),
        )  # fmt: skip

    def _reading(self, batches: Batches, now_us: int) -> tuple[Backlog | None, Held | None]:
        """What it has not read, and what its watermark waits for."""
        if batches.last is None:
            return None, None
        point = batches.last.end
        unread = backlog(self._app.log, point.ends)
        scan = Scan(tuple(point.ends))
        return unread, held_back(self._app.log, scan, point, unread=unread, now_us=now_us)

    def _copy_behind(self, definition: Definition, facts: TopicLook | None) -> int:
        if definition.kind != "view" or facts is None:
            return 0
        try:
            progress = self._app.store.progress(definition.name)
        except PenstockError:
            return 0
        return max(
            0, self._app.log.port.bounds(definition.name, 0)[1] - (progress.next_offset if progress else 0)
        )


def _query_of(told: Published | None, name: str) -> QueryStatus | None:
    queries = told.status.queries if told else ()
    return next((query for query in queries if name in query.definitions), None)


def _standing(lag_s: float, held: Held | None, quiet_us: int | None, now_us: int) -> Standing:
    if lag_s > BEHIND_S:
        return "behind"
    quiet = quiet_us is not None and now_us - quiet_us > QUIET_S * 1e6
    return "waiting" if quiet and held is not None and held.kind in ("newer event", "idle") else "live"
