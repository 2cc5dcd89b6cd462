"""The one place where an event, or a snapshot, becomes stored bytes, and back.

A stored event is JSON: {"at", "by", "command", "data"}, under a topic "ItemAdded:2", its name and version.
A seal may make some of the data unreadable on its way in, and readable again on its way out.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from eventsourcing.persistence import JSONTranscoder, Mapper, StoredEvent

from penstock.errors import BadRecord, UnreadableEvent
from penstock.sourcing.data import Data
from penstock.sourcing.entry import Entry, Snapshot
from penstock.sourcing.kinds import EventKind, Kinds


class Seal(Protocol):
    """Stands between data and what is stored of it. What is published stays sealed. Thread-safe."""

    def seal(self, id: str, data: Data) -> Data:
        """The data of an event of the aggregate `id`, as it may be stored. Raises SubjectForgotten."""

    def open(self, id: str, data: Data) -> Data:
        """The same, readable again as far as it can be. Raises ValueError for what was sealed elsewhere."""

    def seal_state(self, id: str, data: Data) -> Data:
        """The state of a snapshot as it may be stored. Raises SubjectForgotten."""

    def open_state(self, id: str, data: Data) -> Data | None:
        """The same, readable again; None where it can never be."""

    def withheld(self) -> Seal:
        """One that opens nothing, as if every subject were forgotten."""


class StateUnreadable(Exception):
    """A snapshot of a state that nobody can read any more, or not with these keys."""


class Unsealed:
    """Everybody may read it."""

    def seal(self, id: str, data: Data) -> Data:
        return data

    def open(self, id: str, data: Data) -> Data:
        return data

    seal_state = open_state = open

    def withheld(self) -> Seal:
        return self


@dataclass(frozen=True, slots=True)
class StoredEntry:
    """An entry as it is stored, brought to the newest version of its kind, and still sealed."""

    kind: EventKind
    data: Data
    at: str
    by: str | None
    command_id: str


class EntryMapper(Mapper[str]):
    """Entries of one kind of aggregate."""

    def __init__(self, kinds: Kinds, seal: Seal | None = None) -> None:
        super().__init__(JSONTranscoder())
        self._kinds, self._seal = kinds, seal or Unsealed()

    def to_stored_event(self, domain_event: Any) -> StoredEvent:
        entry: Entry = domain_event
        kind = self._kinds.by_type[type(entry.event)]
        data = kind.form.write(entry.event)
        stored = {
            "at": entry.at.isoformat(),
            "by": entry.by,
            "command": entry.command_id,
            "data": self._seal.seal(entry.id, data),
        }
        return StoredEvent(entry.id, entry.version, f"{kind.name}:{kind.version}", _bytes(stored))

    def to_domain_event(self, stored_event: StoredEvent) -> Any:
        found = self.stored(stored_event)
        id = str(stored_event.originator_id)
        try:
            data = self._seal.open(id, found.data)
        except ValueError as error:
            hint = "say where its keys are: keys=…, or $PENSTOCK_KEYS"
            raise _unreadable(stored_event, str(error), hint) from error
        try:
            event = found.kind.form.read(data)
        except (TypeError, BadRecord) as error:
            raise _unreadable(
                stored_event,
                f"its data does not fit the class ({error})",
                "raise its version with @event(version=...), and say in upcast what became of it",
            ) from error
        at = datetime.fromisoformat(found.at)
        return Entry(id, stored_event.originator_version, event, at, found.by, found.command_id)

    def stored(self, stored_event: StoredEvent) -> StoredEntry:
        """For those who pass it on. Raises UnreadableEvent where its class is not declared any more."""
        name, _, version = stored_event.topic.rpartition(":")
        kind = self._kinds.by_name.get(name)
        if kind is None:
            raise _unreadable(
                stored_event,
                f"{self._kinds.aggregate.__name__} applies no such event any more",
                f'apply it again (with `pass`, if it means nothing now), or say @event(was="{name}") '
                "where it has another name now",
            )
        if int(version) > kind.version:
            raise _unreadable(
                stored_event,
                f"a newer program stored it, and this one knows version {kind.version}",
                "run the newer program",
            )
        found: Mapping[str, Any] = json.loads(stored_event.state)
        try:
            data = kind.upcast(found["data"], int(version))
        except Exception as error:  # the program's own
            reason = f"its upcast from version {version} says {type(error).__name__}: {error}"
            raise _unreadable(stored_event, reason, f"mend upcast of {kind.type.__qualname__}") from error
        return StoredEntry(kind, data, found["at"], found["by"], found["command"])


class SnapshotMapper(Mapper[str]):
    """Snapshots of one form of an aggregate's state; those of another have other ids, and are not found."""

    def __init__(self, kinds: Kinds, seal: Seal | None = None) -> None:
        super().__init__(JSONTranscoder())
        self._kinds, self._seal = kinds, seal or Unsealed()
        self._prefix = f"{kinds.snapshot_form}:"

    def to_stored_event(self, domain_event: Any) -> StoredEvent:
        snapshot: Snapshot = domain_event
        data = self._kinds.state.write(snapshot.state)
        stored = {
            "at": snapshot.at.isoformat(),
            "data": self._seal.seal_state(snapshot.id, data),
        }
        return StoredEvent(self.stored_id(snapshot.id), snapshot.version, "snapshot", _bytes(stored))

    def to_domain_event(self, stored_event: StoredEvent) -> Any:
        found = json.loads(stored_event.state)
        id = str(stored_event.originator_id).removeprefix(self._prefix)
        try:
            data = self._seal.open_state(id, found["data"])
        except ValueError:  # its events tell what is wrong, if it is
            data = None
        if data is None:
            raise StateUnreadable
        state = self._kinds.state.read(data)
        return Snapshot(id, stored_event.originator_version, state, datetime.fromisoformat(found["at"]))

    def stored_id(self, id: str) -> str:
        return f"{self._prefix}{id}"


def _bytes(stored: Mapping[str, Any]) -> bytes:
    return json.dumps(stored, ensure_ascii=False, separators=(",", ":")).encode()


def _unreadable(stored: StoredEvent, reason: str, hint: str) -> UnreadableEvent:
    return UnreadableEvent(
        stored.topic, str(stored.originator_id), stored.originator_version, reason=reason, hint=hint
    )
