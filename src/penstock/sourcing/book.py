"""The aggregates of one kind in one store: loading them, deciding, recording.

Optimistic: a command is decided against the state it has seen, and recorded at the version after it. Of two
that saw the same version one is recorded, and the other decides again with the newer state, or fails.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import random
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, Generic, Self, TypeVar

from eventsourcing.application import AggregateNotFoundError, Repository
from eventsourcing.persistence import EventStore, IntegrityError

from penstock.errors import (
    BadOption,
    CommandConflict,
    CommandRefused,
    PenstockError,
    SubjectForgotten,
    UnknownAggregate,
    VersionOutOfRange,
)
from penstock.sourcing.aggregate import Aggregate
from penstock.sourcing.entry import Entry, Receipt, Snapshot
from penstock.sourcing.failures import told
from penstock.sourcing.kinds import Kinds
from penstock.sourcing.mapper import EntryMapper, Seal, SnapshotMapper, StateUnreadable, StoredEntry, Unsealed
from penstock.sourcing.store import Listed, Store

A = TypeVar("A", bound=Aggregate)

_PAUSE_S = 0.002  # before deciding again, and more each time
_ID_BYTES_MAX = 500
_PAGE = 1_000

Check = Callable[[Sequence[Entry]], None]
"""Raises for events that could be recorded and never published."""


class Book(Generic[A]):
    """Thread-safe; an aggregate that it gives belongs to one thread."""

    def __init__(
        self,
        name: str,
        kinds: Kinds,
        store: Store,
        *,
        now: Callable[[], datetime],
        snapshot_every: int | None,
        retries: int,
        check: Check = lambda _entries: None,
        seal: Seal | None = None,
    ) -> None:
        self.name, self.kinds, self.store = name, kinds, store
        self._now, self._check = now, check
        self._every, self._retries = snapshot_every, retries
        self._open_with(seal or Unsealed())

    def _open_with(self, seal: Seal) -> None:
        self._seal, self.mapper = seal, EntryMapper(self.kinds, seal)
        self._entries: EventStore[str] = EventStore(self.mapper, self.store.recorder)
        self._snapshots = _Snapshots(self.kinds, self.store, seal)
        self._repository: Repository[str] = Repository(
            self._entries, snapshot_store=self._snapshots if self._every else None
        )

    def withheld(self) -> Self:
        """The same for who may not read what is personal: it is None, as if everybody were forgotten."""
        same = copy.copy(self)
        same._open_with(self._seal.withheld())
        return same

    # ---- reading --------------------------------------------------------------------------------

    def get(self, id: str, *, by: str | None = None, retries: int | None = None) -> A:
        """An aggregate as it is now, ready for commands; at version 0 where nothing has happened yet."""
        found = self._load(_checked(id)) or self._new(id)
        found._decides, found._by = self, by
        found._retries = self._retries if retries is None else retries
        return found

    def state(self, id: str, *, version: int | None = None, as_of: datetime | None = None) -> A:
        """How an aggregate is now, was at a version, or as of a time. Such a state takes no commands."""
        _checked(id)
        if version is not None and as_of is not None:
            raise BadOption("version and as_of contradict each other.", hint="choose one of them")
        if as_of is not None:
            version = self._version_at(id, as_of)
        elif version is not None:
            newest = self._newest(id)
            if not 1 <= version <= newest:
                raise VersionOutOfRange(self.name, id, version, newest=newest)
        found = self._load(id, version)
        if found is None:
            raise UnknownAggregate(self.name, id)
        return found

    def history(
        self, id: str, *, first: int = 1, last: int | None = None, limit: int | None = None
    ) -> list[Entry]:
        """The events of an aggregate, in order."""
        _checked(id)
        with self._told():
            found = list(self._entries.get(id, gt=first - 1, lte=last, limit=limit))
        if not found and not self._newest(id):
            raise UnknownAggregate(self.name, id)
        return found  # type: ignore[return-value]

    def stored(self, id: str, *, limit: int | None = None) -> list[tuple[int, StoredEntry]]:
        """The same with their versions, as they are stored: what is personal is sealed."""
        _checked(id)
        with self._told():
            found = self.store.recorder.select_events(id, limit=limit)
        if not found:
            raise UnknownAggregate(self.name, id)
        return [(each.originator_version, self.mapper.stored(each)) for each in found]

    def list(self, *, limit: int | None = None) -> Iterator[Listed]:
        """The aggregates there are, by their ids."""
        after, left = "", limit
        while left is None or left > 0:
            page = self.store.list(after=after, limit=_PAGE if left is None else min(left, _PAGE))
            yield from page
            if not page:
                return
            after, left = page[-1].id, None if left is None else left - len(page)

    def recorded(self) -> int:
        """The sequence of the last event there is; 0 before the first."""
        with self._told():
            return self.store.recorder.max_notification_id() or 0

    # ---- deciding -------------------------------------------------------------------------------

    def execute(self, aggregate: A, decide: Callable[[A], object], *, command: str) -> Receipt:
        """Decide and record, again with the newer state where somebody else was faster."""
        command_id, conflicts = str(uuid.uuid4()), 0
        if aggregate._is_ahead:
            self._renew(aggregate)
        while True:
            entries = self._decided(aggregate, decide, command, command_id)
            if not entries:
                return Receipt(self.name, aggregate.id, aggregate.version, (), self.recorded(), conflicts)
            sequence = self._happen(aggregate, entries)
            if sequence is not None:
                break
            if conflicts == aggregate._retries:
                self._renew(aggregate, entries[0].version - 1)  # what the program has seen
                raise CommandConflict(
                    self.name, aggregate.id, command, version=aggregate.version, retries=conflicts
                )
            conflicts += 1
            time.sleep(random.random() * _PAUSE_S * conflicts)
            self._renew(aggregate)
        self._snapshot_if_due(aggregate.id, entries[0].version - 1, aggregate.version)
        return Receipt(self.name, aggregate.id, aggregate.version, tuple(entries), sequence, conflicts)

    def _decided(
        self, aggregate: A, decide: Callable[[A], object], command: str, command_id: str
    ) -> Sequence[Entry]:
        decided = decide(aggregate)
        events = list(decided) if isinstance(decided, Iterable) else [] if decided is None else [decided]
        for event in events:
            if type(event) not in self.kinds.by_type:
                raise CommandRefused(
                    # Not what it is: there may be something personal in it.
                    f"{command} of {self.kinds.aggregate.__name__} decided for something of type "
                    f"{type(event).__name__}, which is no event of it.",
                    hint="return an event that a method under @applies takes, a list of them, or None",
                )
        at = max(self._now(), aggregate.changed_at or datetime.min.replace(tzinfo=UTC))
        entries = [
            Entry(aggregate.id, aggregate.version + number, event, at, aggregate._by, command_id)
            for number, event in enumerate(events, start=1)
        ]
        self._check(entries)
        return entries

    def _happen(self, aggregate: A, entries: Sequence[Entry]) -> int | None:
        """Apply, then record: what its aggregate cannot take would stop every later load of it."""
        try:
            for entry in entries:
                self._apply(aggregate, entry)
            return self._record(entries)
        except BaseException:
            aggregate._is_ahead = True
            with contextlib.suppress(PenstockError):  # else the next command does it
                self._renew(aggregate, entries[0].version - 1)
            raise

    def _record(self, entries: Sequence[Entry]) -> int | None:
        """The sequence of the last of them; None when somebody else was faster."""
        try:
            with self._told():
                recorded = self._entries.put(entries)
        except IntegrityError:
            return self._recorded_by_us(entries)
        return recorded[-1].notification.id

    def _recorded_by_us(self, entries: Sequence[Entry]) -> int | None:
        """Where the connection broke after the commit, the library tries again and meets what it recorded."""
        first = entries[0]
        with self._told():
            there = list(self._entries.get(first.id, gt=first.version - 1, lte=first.version))
        if there and there[0].command_id == first.command_id:  # type: ignore[attr-defined]
            return self.recorded()
        return None

    # ---- state ----------------------------------------------------------------------------------

    def _new(self, id: str) -> A:
        made: A = self.kinds.aggregate()  # type: ignore[assignment]
        made._id = id
        return made

    def _load(self, id: str, version: int | None = None) -> A | None:
        try:
            with self._told():
                found: A = self._repository.get(id, version=version, projector_func=self._project)
                return found
        except AggregateNotFoundError:
            return None

    def _project(self, initial: A | None, entries: Iterable[Any]) -> A | None:
        found = initial
        for entry in entries:
            if isinstance(entry, Snapshot):
                found = entry.state
                assert found is not None
                found._id, found._version, found._changed_at = entry.id, entry.version, entry.at
            else:
                found = found or self._new(entry.id)
                self._apply(found, entry)
        return found

    def _apply(self, aggregate: A, entry: Entry) -> None:
        getattr(aggregate, self.kinds.by_type[type(entry.event)].handler)(entry.event)
        aggregate._version, aggregate._changed_at = entry.version, entry.at

    def _renew(self, aggregate: A, version: int | None = None) -> None:
        """Bring an aggregate, in the program's hands, to what is recorded now, or was at a version."""
        newer = (version != 0 and self._load(aggregate.id, version)) or self._new(aggregate.id)
        for each in dataclasses.fields(aggregate):  # type: ignore[arg-type]
            setattr(aggregate, each.name, getattr(newer, each.name))
        aggregate._version, aggregate._changed_at = newer.version, newer.changed_at
        aggregate._is_ahead = False

    def _snapshot_if_due(self, id: str, before: int, after: int) -> None:
        """Of a state that is loaded for it: one that a command has spoilt must not be kept."""
        if not self._every or before // self._every == after // self._every:
            return
        # The command has been recorded, and says so; without this one, loading takes longer until the next.
        with contextlib.suppress(PenstockError), self._told():
            state = self._load(id, after)
            assert state is not None and state.changed_at is not None
            self._snapshots.keep(Snapshot(id, state.version, state, state.changed_at))

    def _newest(self, id: str) -> int:
        """Raises UnknownAggregate."""
        with self._told():
            found = self.store.recorder.select_events(id, desc=True, limit=1)
        if not found:
            raise UnknownAggregate(self.name, id)
        return found[0].originator_version

    def _version_at(self, id: str, moment: datetime) -> int:
        """The last version that had happened by then: times of an aggregate never go back."""
        if not isinstance(moment, datetime):
            raise BadOption(f"as_of={moment!r} is no time.", hint="give a datetime")
        aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        low, high = 0, self._newest(id)
        while low < high:
            middle = (low + high + 1) // 2
            if self._happened(id, middle) <= aware:
                low = middle
            else:
                high = middle - 1
        if not low:
            raise UnknownAggregate(self.name, id, as_of=aware, began=self._happened(id, 1))
        return low

    def _happened(self, id: str, version: int) -> datetime:
        with self._told():
            (found,) = self.store.recorder.select_events(id, gt=version - 1, lte=version)
        return datetime.fromisoformat(self.mapper.stored(found).at)

    def _told(self) -> Any:
        return told(self.store.address, server=self.store.is_server)


class _Snapshots(EventStore[str]):
    """Those of another form of the state are as if they were not there."""

    def __init__(self, kinds: Kinds, store: Store, seal: Seal) -> None:
        mapper = SnapshotMapper(kinds, seal)
        super().__init__(mapper, store.snapshots)
        self._stored_id = mapper.stored_id

    def keep(self, snapshot: Snapshot) -> None:
        # Somebody else has just taken the same; or it may not be kept, since its subject was forgotten.
        with contextlib.suppress(IntegrityError, SubjectForgotten):
            self.put([snapshot])

    def get(self, originator_id: str, **bounds: Any) -> Iterator[Any]:
        with contextlib.suppress(StateUnreadable):  # its events are all that there is
            yield from super().get(self._stored_id(originator_id), **bounds)


def _checked(id: Any) -> str:
    if not isinstance(id, str) or not 0 < _length(id) <= _ID_BYTES_MAX or "\0" in id:
        raise BadOption(f"{id!r} is no id of an aggregate.", hint=f"use text of 1 to {_ID_BYTES_MAX} bytes")
    return id


def _length(id: str) -> int:
    """In bytes; 0 where UTF-8 cannot say it, as an argument of a command that is no text."""
    try:
        return len(id.encode())
    except UnicodeEncodeError:
        return 0
