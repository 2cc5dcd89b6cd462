"""How a running app fares: each query and each follower, at one moment.

Everything is read from what is there anyway: the stored position, the log's bounds, Spark's last progress,
the followers. `Watch` remembers earlier looks, for rates and for what happened since it began. Used by the
thread that looks; the queries go on meanwhile.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from penstock.app.reading import late_count
from penstock.app.watermark import Backlog, Held, backlog, held_back
from penstock.errors import StorageError
from penstock.flow.failure import is_sparks
from penstock.flow.offset import NEVER_US, Ends
from penstock.flow.plan import Scan, beginning
from penstock.flow.query import Query

if TYPE_CHECKING:
    from penstock.app.app import App
    from penstock.app.runner import Runner, Supervised
    from penstock.sourcing.publisher import Publication

State = Literal["starting", "running", "waits to start again", "given up", "ended"]
_RATE_S = 5.0  # rates are over this long
_PHASES_MAX = 60  # batches of each query whose phases are kept


@dataclass(frozen=True, slots=True)
class QueryStatus:
    """One query. Times are microseconds since 1970 UTC."""

    name: str
    definitions: tuple[str, ...]
    state: State
    batch: int | None  # number of the last one stored
    rows: int  # read since the watch began
    rows_per_s: float
    batch_ms: int | None  # the last batch that read something
    watermark_us: int | None
    held_back: Held | None
    state_rows: int
    late: int  # pairs left out, ever; where Spark itself groups, rows that it dropped since the watch began
    lag_records: int
    lag_s: float  # since the oldest unread record was appended
    restarts: int
    rebuilt: int
    last_error: str | None


@dataclass(frozen=True, slots=True)
class FollowerStatus:
    """One copy of a view, or of what is said to go elsewhere: then the name says where to."""

    view: str
    behind: int
    last_error: str | None


@dataclass(frozen=True, slots=True)
class CaptureStatus:
    """One database."""

    capture: str
    phase: str
    changes: int  # stored, ever
    last_error: str | None


@dataclass(frozen=True, slots=True)
class Status:
    """All of it."""

    at_us: int
    running_s: float
    queries: tuple[QueryStatus, ...]
    followers: tuple[FollowerStatus, ...]
    log_error: str | None = None  # the log does not answer: the rest is as it was before
    captures: tuple[CaptureStatus, ...] = ()
    published: tuple[Publication, ...] = ()


@dataclass(frozen=True, slots=True)
class Phases:
    """What took how long in one batch, as Spark tells it, in milliseconds."""

    number: int  # Spark's own, which begins anew with a checkpoint
    at: str  # when it began, ISO 8601
    rows: int
    took_ms: int
    plan_ms: int  # which records it reads, and how
    note_ms: int  # what it will read, in the checkpoint
    compute_ms: int  # compute, and store in one append
    commit_ms: int  # that it is done, in the checkpoint


@dataclass(slots=True)
class _Seen:
    """What earlier looks at a query have told."""

    first: int
    phases: deque[Phases] = field(default_factory=lambda: deque(maxlen=_PHASES_MAX))
    samples: deque[tuple[float, int]] = field(default_factory=deque)
    batch_ms: int | None = None
    state_rows: int = 0
    run: str = ""  # Spark's name for it, another one after a restart
    noted: int = -1  # the last of its batches that was looked at
    dropped: int = 0  # by Spark, behind its watermark

    def rate(self, now: float, read: int) -> float:
        self.samples.append((now, read))
        while len(self.samples) > 2 and now - self.samples[1][0] >= _RATE_S:
            self.samples.popleft()
        began, before = self.samples[0]
        return (read - before) / (now - began) if now > began else 0.0


class Watch:
    """Make one before the runner starts: it counts from what is stored then."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._began = time.monotonic()
        self._last = Status(time.time_ns() // 1_000, 0.0, (), ())
        self._seen = {query.name: _Seen(_read(self._stored(query))) for query in runner.graph.queries()}

    @property
    def phases(self) -> dict[str, tuple[Phases, ...]]:
        """Of each query's newest batches that read something, oldest first."""
        return {name: tuple(seen.phases) for name, seen in self._seen.items()}

    def _stored(self, query: Query) -> Ends:
        if (position := query.stored) is not None:
            return position.batch.end.ends
        return beginning(self._runner.app.log, Scan(query.members[0].topics)).ends

    def look(self) -> Status:
        """How everything fares. A log that is away for a while is no reason to stop looking."""
        try:
            self._last = self._look()
        except StorageError as error:
            self._last = self._still(error)
        return self._last

    def _still(self, error: StorageError) -> Status:
        """What is known without the log."""
        fresh = {supervised.query.name: supervised for supervised in self._runner.supervised}
        queries = tuple(
            replace(
                known,
                state=_state(fresh[known.name]),
                restarts=fresh[known.name].restarts,
                last_error=fresh[known.name].last_error,
            )
            for known in self._last.queries
        )
        running_s = time.monotonic() - self._began
        return replace(
            self._last,
            at_us=time.time_ns() // 1_000,
            running_s=running_s,
            queries=queries,
            log_error=str(error),
        )

    def _look(self) -> Status:
        now_us = time.time_ns() // 1_000
        queries = tuple(self._query(supervised, now_us) for supervised in self._runner.supervised)
        # A copy of the dict: followers are added while the runner starts.
        followers = tuple(
            FollowerStatus(view, follower.lag(), follower.last_error)
            for view, follower in list(self._runner.followers.items())
        )
        captures = tuple(
            CaptureStatus(told["capture"], told["phase"], told["changes"], told["last_error"])
            for told in (capture.status() for capture in self._runner.captures.all)
        )
        published = tuple(publisher.status() for publisher in self._runner.publishers.all)
        running_s = time.monotonic() - self._began
        return Status(now_us, running_s, queries, followers, captures=captures, published=published)

    def _query(self, supervised: Supervised, now_us: int) -> QueryStatus:
        query, log = supervised.query, self._runner.app.log
        member = query.members[0]
        scan = Scan(member.topics, member.clock, settle_us=member.settle_us)
        position = query.position
        point = position.batch.end if position else beginning(log, scan)
        unread, read = backlog(log, point.ends), _read(point.ends)
        seen = self._seen[query.name]
        for progress in _news(supervised, seen):
            _note(seen, progress)
        watermark = point.watermark_us(scan.lateness_us(log))
        return QueryStatus(
            query.name,
            tuple(m.definition.name for m in query.members),
            _state(supervised),
            position.number if position else None,
            read - seen.first,
            seen.rate(time.monotonic(), read),
            seen.batch_ms,
            None if watermark == NEVER_US else watermark,
            None if member.definition.realtime else held_back(log, scan, point, unread=unread, now_us=now_us),
            seen.state_rows,
            _left_out(self._runner.app, query) + seen.dropped,
            unread.records,
            _lag_s(unread, now_us),
            supervised.restarts,
            supervised.rebuilt,
            supervised.last_error,
        )


def _read(ends: Ends) -> int:
    return sum(sum(numbers) for numbers in ends.values())


def _lag_s(unread: Backlog, now_us: int) -> float:
    return max(0.0, (now_us - unread.oldest_us) / 1e6) if unread.oldest_us is not None else 0.0


def _state(supervised: Supervised) -> State:
    if supervised.given_up:
        return "given up"
    running = supervised.query.running
    if running is None:
        return "waits to start again" if supervised.failures else "starting"
    try:
        return "running" if running.isActive else "ended"
    except Exception as error:
        if not is_sparks(error):
            raise
        return "ended"  # and Spark with it


def _left_out(app: App, query: Query) -> int:
    dropped = query.committer.dropped if query.committer is not None else 0
    return late_count(app, [member.definition.name for member in query.members]) + dropped


def _news(supervised: Supervised, seen: _Seen) -> Sequence[Any]:
    """What Spark has said about batches since the last look."""
    running = supervised.query.running
    try:
        last = running.lastProgress if running is not None else None
        if running is None or not last:
            return []
        if last["runId"] != seen.run:
            seen.run, seen.noted = last["runId"], -1
        # The last hundred are slow to fetch, and nearly always the last one is all that is new.
        several = last["batchId"] > seen.noted + 1
        found = running.recentProgress if several else [last]
        # While it waits, Spark says what the next batch will be called.
        return [p for p in found if p["batchId"] > seen.noted and "addBatch" in p["durationMs"]]
    except Exception as error:
        if not is_sparks(error):
            raise
        return []


def _note(seen: _Seen, progress: Any) -> None:
    seen.noted = progress["batchId"]
    operators = progress["stateOperators"]
    seen.dropped += sum(int(operator["numRowsDroppedByWatermark"]) for operator in operators)
    if progress["numInputRows"]:
        seen.batch_ms = int(progress["batchDuration"])
        seen.phases.append(_phases(progress))
    if operators:
        seen.state_rows = sum(int(operator["numRowsTotal"]) for operator in operators)


def _phases(progress: Any) -> Phases:
    took = progress["durationMs"]

    def ms(*names: str) -> int:
        return sum(int(took.get(name, 0)) for name in names)

    return Phases(
        int(progress["batchId"]), str(progress["timestamp"]), int(progress["numInputRows"]),
        int(progress["batchDuration"]), ms("latestOffset", "getBatch", "queryPlanning"), ms("walCommit"),
        ms("addBatch"), ms("commitOffsets"),
    )  # fmt: skip
