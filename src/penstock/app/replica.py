"""`penstock follow`: a database kept in sync in another place, with one command.

Its changes are captured into the log, and every table has a follower there: so both can be away for a while,
and go on where they were.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from penstock.capture.engine import Capture
from penstock.capture.outbox import is_outbox
from penstock.capture.running import Running
from penstock.capture.topics import topic_names
from penstock.errors import BadOption, PenstockError
from penstock.follow.follower import Follower
from penstock.follow.store import Sink
from penstock.follow.table import spec_of
from penstock.follow.target import Site, Target
from penstock.follow.to import targets
from penstock.log.log import Log


def replica_target(address: str) -> Target:
    """Where rows are held by their key. Raises BadOption for anything else."""
    (found,) = targets(address, name="the replica", kind="table", key=())
    if not found.keyed:
        raise BadOption(
            f"{found.label} holds no rows by their key.",
            hint='follow into "postgresql://…", "sqlite:///…", "redis://…", "search:///…" or "delta:///…"',
        )
    return found


@dataclass(slots=True)
class Replica:
    """Use `start`, `look` now and then, and `stop`; or `once`."""

    log: Log
    home: Path
    capture: Capture
    target: Target
    followers: dict[str, Follower] = field(default_factory=dict)  # by table
    _running: Running[Capture] = field(init=False)
    _stop: threading.Event = field(default_factory=threading.Event)
    _threads: list[threading.Thread] = field(default_factory=list)
    _sinks: list[Sink] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._running = Running([self.capture])

    @property
    def is_over(self) -> bool:
        """Whether the capture has ended by itself."""
        return self._running.is_over

    def start(self, *, once: bool = False) -> None:
        self.capture.prepare()
        self._running.start(once=once)
        self.look()

    def look(self) -> None:
        """Follow the tables that have come since."""
        for table in self._tables():
            if table not in self.followers:
                follower = self._follower(table)
                self.followers[table] = follower
                thread = threading.Thread(
                    target=_follow, args=(follower, self._stop), name=f"follow-{table}", daemon=True
                )
                thread.start()
                self._threads.append(thread)

    def finish(self) -> None:
        """When the capture is at its end: everything that it has stored is also there."""
        self._running.raise_failure()
        self._end_followers()
        for table in self._tables():
            self._follower(table).finish(threading.Event())
        self._close()

    def stop(self) -> None:
        self._running.stop()
        self._end_followers()
        self._close()

    def raise_failure(self) -> None:
        self._running.raise_failure()

    def status(self) -> dict[str, Any]:
        tables = {table: follower.lag() for table, follower in self.followers.items()}
        errors = {table: f.last_error for table, f in self.followers.items() if f.last_error}
        return {**self.capture.status(), "into": self.target.label, "behind": tables, "errors": errors}

    def _tables(self) -> list[str]:
        """Events of an outbox are no rows to keep."""
        return [table for table in self.capture.progress().tables if not is_outbox(table)]

    def _follower(self, table: str) -> Follower:
        sink = self.target.open(Site("follow", self.home, self.log))
        self._sinks.append(sink)
        topic = self.log.topic(topic_names(self.capture.name, table)[0])
        spec = spec_of(topic.settings.schema.arrow, topic.settings.key, name=topic.name.partition(".")[2])
        return Follower(topic, sink, spec, kind="table")

    def _end_followers(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(10)

    def _close(self) -> None:
        while self._sinks:
            self._sinks.pop().close()


def _follow(follower: Follower, stop: threading.Event) -> None:
    try:
        follower.run(stop)
    except PenstockError as error:  # shown in the status; the others go on
        follower.last_error = str(error)
