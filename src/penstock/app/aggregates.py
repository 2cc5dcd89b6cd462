"""`app.aggregates`: event-sourced aggregates, whose events are a topic that the app's definitions read."""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from penstock.app.app import AppTopic
from penstock.clock import Clock, SystemClock
from penstock.erasure.keys import KeyRing
from penstock.erasure.opening import open_keys
from penstock.errors import BadOption, NotSupported
from penstock.log.log import declared_settings
from penstock.log.port import Position, from_us
from penstock.sourcing.aggregate import Aggregate
from penstock.sourcing.entry import Entry, Receipt
from penstock.sourcing.kinds import Kinds
from penstock.sourcing.published import PRODUCER, check_entries, position_of
from penstock.sourcing.sealing import FieldSeal, marks_of
from penstock.sourcing.store import Listed, check_address, open_store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from penstock.app.app import App
    from penstock.sourcing.book import Book
    from penstock.sourcing.publisher import Publisher

A = TypeVar("A", bound=Aggregate)

_LATENESS = "1 second"  # clocks of programs that record differ a little


class AppAggregates(Generic[A]):
    """Made by `app.aggregates`. Thread-safe; an aggregate that it gives belongs to one thread."""

    def __init__(
        self,
        app: App,
        name: str,
        kind: type[A],
        *,
        store: str | None,
        snapshot_every: int | None,
        retries: int,
        options: dict[str, Any],
    ) -> None:
        check_address(store)
        if snapshot_every is not None and snapshot_every < 1:
            raise BadOption(f"snapshot_every={snapshot_every}.", hint="give a number of events, or None")
        if retries < 0:
            raise BadOption(f"retries={retries}.", hint="0 fails at the first conflict")
        self.app, self.name, self.kinds = app, name, Kinds.of(kind)
        self._marks = marks_of(self.kinds)
        if snapshot_every is not None and any(mark.of for mark in self._marks.values()):
            raise BadOption(
                f"{kind.__name__} has personal fields of others, which a snapshot would keep.",
                hint="say snapshot_every=None, or let every personal field be the aggregate's own",
            )
        self._store, self._every, self._retries = store, snapshot_every, retries
        wanted = declared_settings(
            name,
            self.kinds.columns,
            key="aggregate_id",
            event_time="at",
            personal={name: mark.of or "aggregate_id" for name, mark in self._marks.items()},
            comparable=[name for name, mark in self._marks.items() if mark.comparable],
            **{"lateness": _LATENESS, **options},
        )
        self.topic = PublishedTopic(self, wanted)
        self._opened: tuple[Path, Book[A]] | None = None
        self._opening = threading.Lock()

    def __repr__(self) -> str:
        return f"<AppAggregates {self.name}: {self.kinds.aggregate.__name__}>"

    # ---- aggregates -----------------------------------------------------------------------------

    def __getitem__(self, id: str) -> A:
        """An aggregate as it is now, ready for commands; at version 0 where nothing has happened yet."""
        return self.get(id)

    def get(self, id: str, *, by: str | None = None, retries: int | None = None) -> A:
        """The same, with who gives the commands, and how often they are decided again.

        With `retries=0` a command fails with CommandConflict when anything has happened since this call.
        """
        return self.book.get(id, by=by, retries=retries)

    def state(self, id: str, *, version: int | None = None, as_of: datetime | None = None) -> A:
        """How an aggregate is now, was at a version, or as of a time. Raises UnknownAggregate."""
        return self.book.state(id, version=version, as_of=as_of)

    def history(
        self, id: str, *, first: int = 1, last: int | None = None, limit: int | None = None
    ) -> list[Entry]:
        """The events of an aggregate: what happened, when, by whom. Raises UnknownAggregate."""
        return self.book.history(id, first=first, last=last, limit=limit)

    def list(self, *, limit: int | None = None) -> Iterator[Listed]:
        """The aggregates there are, in the order of their ids, with their versions."""
        return self.book.list(limit=limit)

    # ---- their events ---------------------------------------------------------------------------

    def stream(self, *events: type) -> DataFrame:
        """The published events as a streaming DataFrame, inside a definition; or only such events."""
        found = self.topic.stream()
        if not events:
            return found
        kinds = [self._kind(event) for event in events]
        own = {name for kind in kinds for name in kind.fields}
        others = {name for kind in self.kinds for name in kind.fields} - own
        return found.where(found["event"].isin([kind.name for kind in kinds])).drop(*sorted(others))

    def _kind(self, event: type) -> Any:
        if event not in self.kinds.by_type:
            known = ", ".join(kind.type.__name__ for kind in self.kinds)
            raise BadOption(f"{event!r} is no event of {self.name}.", hint=f"it has {known}")
        return self.kinds.by_type[event]

    @property
    def producer(self) -> str:
        """Under which its events are published."""
        return f"{PRODUCER}{self.app.name}.{self.name}"

    def publisher(self) -> Publisher:
        """Whoever runs it publishes. `penstock run` does, and so does `penstock sourcing publish`."""
        from penstock.sourcing.publisher import Publisher

        topic = self.app.log.topic(self.name).presealed()
        return Publisher(self.app.log, topic, self.book, producer=self.producer)

    def publish(self) -> None:
        """Publish everything that is recorded now, where nobody else does: another publisher would end."""
        self.publisher().run(threading.Event(), once=True)

    def position_of(self, receipt: Receipt, *, timeout_s: float = 0.0) -> Position | None:
        """Where the events of a command are in the topic; None when they are not published in time."""
        return position_of(self.app.log, self.producer, receipt, timeout_s=timeout_s)

    # ---- the store ------------------------------------------------------------------------------

    @property
    def personal(self) -> tuple[str, ...]:
        """The fields of its events that are."""
        return tuple(self._marks)

    @property
    def is_on_server(self) -> bool:
        return self._store is not None and not self.app.is_elsewhere

    @property
    def book(self) -> Book[A]:
        """Opened when it is first needed, and where the app is at the moment."""
        from penstock.sourcing.book import Book

        with self._opening:
            if self._opened is None or self._opened[0] != self.app.home:
                self._close()
                path = self.app.home / "sourcing" / f"{self.app.name}.{self.name}.db"
                address = self._store if self.is_on_server else None
                self._keys = KeyRing(open_keys(self.app.keys_at))
                opened = open_store(address, path=path, table=f"{self.app.name}_{self.name}")
                self._opened = self.app.home, Book(
                    self.name, self.kinds, opened, now=self._now, snapshot_every=self._every,
                    retries=self._retries,
                    check=functools.partial(check_entries, self.kinds, self.topic.declared),
                    seal=FieldSeal(self._marks, self.name, self._keys),
                )  # fmt: skip
            return self._opened[1]

    def close(self) -> None:
        """Close what was opened; it opens again when it is needed."""
        with self._opening:
            self._close()

    def _close(self) -> None:
        if self._opened is not None:
            self._opened[1].store.close()
            self._keys.close()
            self._opened = None

    def _now(self) -> datetime:
        """By the clock of the app's log, where one is open: in tests it may be a virtual one."""
        log = self.app.opened_log
        clock: Clock = getattr(log.port, "clock", None) or _CLOCK if log else _CLOCK
        return from_us(clock.now_us())


_CLOCK = SystemClock()


class PublishedTopic(AppTopic):
    """The topic of an app's aggregates: it is written by whoever publishes, and by nobody else."""

    keeps_columns = True  # of events that were published before, and have other fields now

    def __init__(self, aggregates: AppAggregates[Any], declared: Any) -> None:
        doc = inspect.cleandoc(aggregates.kinds.aggregate.__doc__ or "")
        if doc.startswith(f"{aggregates.kinds.aggregate.__name__}("):  # a dataclass without a sentence
            doc = ""
        super().__init__(aggregates.app, declared, record_type=None, doc=doc)

    def append(self, records: Any, *, partition: int | None = None) -> Any:
        raise NotSupported(
            f'topic "{self.name}" has the events of aggregates.', hint="give one of them a command"
        )
