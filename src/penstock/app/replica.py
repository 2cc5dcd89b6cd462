"""`penstock follow`: a database kept in sync in another place, with one command.

Its changes are captured into the log, and every table has a follower there: so both can be away for a while,
and go on where they were.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from penstock.capture.engine import Capture
from penstock.capture.outbox import is_outbox
from penstock.capture.running import Running
from penstock.capture.source import Table
from penstock.capture.topics import topic_names
from penstock.errors import BadOption, PenstockError
from penstock.follow.follower import Follower
from penstock.follow.store import Sink
from penstock.follow.table import spec_of
from penstock.follow.target import Site, Target
from penstock.follow.to import targets
from penstock.log.log import Log

_SINKS_MAX = 8
_SQLITE = "sqlite:///"


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
    failed: dict[str, BaseException] = field(default_factory=dict)  # those that have ended for good, and why
    _running: Running[Capture] = field(init=False)
    _stop: threading.Event = field(default_factory=threading.Event)
    _threads: list[threading.Thread] = field(default_factory=list)
    _sinks: list[Sink] = field(default_factory=list)  # shared by the tables
    _turn: int = 0

    def __post_init__(self) -> None:
        self._running = Running([self.capture])

    @property
    def is_over(self) -> bool:
        """Whether the capture has ended by itself, or every follower has failed: nothing is kept in sync."""
        return self._running.is_over or 0 < len(self.followers) == len(self.failed)

    def start(self, *, once: bool = False) -> None:
        _check_elsewhere(self.capture.source.address, self.target.label)
        for table in self.capture.prepare():
            _check_name(self.capture.name, table)
        self._running.start(once=once)
        self.look()

    def look(self) -> None:
        """Follow the tables that have come since."""
        for table in self._tables():
            if table not in self.followers:
                follower = self._follower(table)
                self.followers[table] = follower
                thread = threading.Thread(
                    target=self._follow, args=(table, follower), name=f"follow-{table}", daemon=True
                )
                thread.start()
                self._threads.append(thread)

    def finish(self) -> None:
        """When the capture is at its end: everything that it has stored is also there."""
        self.raise_failure()
        self._end_followers()
        self._close()  # an index has one writer at a time
        for table in self._tables():
            self._follower(table).finish(threading.Event())
        self._close()

    def stop(self) -> None:
        self._running.stop()
        self._end_followers()
        self._close()

    def raise_failure(self) -> None:
        """That of the capture, or of a table: the copy is not what the database is."""
        self._running.raise_failure()
        for error in self.failed.values():
            raise error

    def status(self) -> dict[str, Any]:
        tables = {table: follower.lag() for table, follower in self.followers.items()}
        errors = {table: f.last_error for table, f in self.followers.items() if f.last_error}
        return {**self.capture.status(), "into": self.target.label, "behind": tables, "errors": errors}

    def _tables(self) -> list[str]:
        """Events of an outbox are no rows to keep."""
        return [table for table in self.capture.progress().tables if not is_outbox(table)]

    def _follower(self, table: str) -> Follower:
        sink = self._sink()
        topic = self.log.topic(topic_names(self.capture.name, table)[0])
        name = _copy_name(self.capture.name, table)
        spec = spec_of(topic.settings.schema.arrow, topic.settings.key, name=name)
        return Follower(topic, sink, spec, kind="table")

    def _sink(self) -> Sink:
        """One after the other: with a connection for each table, a server would soon have none left."""
        if len(self._sinks) < _SINKS_MAX:
            self._sinks.append(self.target.open(Site("follow", self.home, self.log)))
            return self._sinks[-1]
        self._turn = (self._turn + 1) % _SINKS_MAX
        return self._sinks[self._turn]

    def _follow(self, table: str, follower: Follower) -> None:
        try:
            follower.run(self._stop)
        except Exception as error:  # shown in the status; the others go on
            follower.last_error, self.failed[table] = str(error), error
            if not isinstance(error, PenstockError):
                raise

    def _end_followers(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(10)

    def _close(self) -> None:
        while self._sinks:
            self._sinks.pop().close()


def _check_elsewhere(source: str, into: str) -> None:
    """Before anything is made there: its copies would be tables of the database, and captured in turn."""
    if _place(source) == _place(into):
        raise BadOption(
            f"{into} is the database that is followed.",
            hint="follow it into another one, --into another address",
        )


def _place(address: str) -> object:
    """The same for the same database, whatever else its address says."""
    if address.startswith(_SQLITE):
        return Path(address.removeprefix(_SQLITE)).resolve()
    found = urlsplit(address.replace("postgres://", "postgresql://", 1))
    return found.scheme, found.hostname, found.port or 5432, found.path


def _check_name(capture: str, table: Table) -> None:
    """Before anything is made in the database: whether a place can have a copy of that name."""
    if is_outbox(table.name):
        return
    try:
        spec_of(table.columns, table.key, name=_copy_name(capture, table.name))
    except PenstockError as error:
        raise BadOption(
            f'there can be no copy of table "{table.name}": {error.message}',
            hint="leave it out: name the tables that you want, each with --table",
        ) from error


def _copy_name(capture: str, table: str) -> str:
    return topic_names(capture, table)[0].removeprefix(f"{capture}.")
