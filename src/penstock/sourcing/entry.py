"""An event as it is recorded, a snapshot, and what a command gives back."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any


@dataclass(frozen=True, slots=True)
class Entry:
    """One event of an aggregate: what happened, when, who wanted it, and by which command.

    `version` counts the events of an aggregate from 1.
    """

    id: str
    version: int
    event: Any
    at: datetime
    by: str | None
    command_id: str

    # What the library calls them.
    @property
    def originator_id(self) -> str:
        return self.id

    @property
    def originator_version(self) -> int:
        return self.version


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state of an aggregate at a version: derived, and only there to save time."""

    id: str
    version: int
    state: Any
    at: datetime

    @property
    def originator_id(self) -> str:
        return self.id

    @property
    def originator_version(self) -> int:
        return self.version


@dataclass(frozen=True, slots=True)
class Receipt:
    """What a command has done. `app.read(view, after=receipt)` reads one's own writes.

    `sequence` is where its last event stands among all events of the store. A command that found nothing to
    do has no `entries`, and the sequence of what was recorded by then.
    """

    topic: str
    id: str
    version: int
    entries: tuple[Entry, ...]
    sequence: int
    conflicts: int = 0  # how often somebody else was faster, and it was decided again

    @property
    def events(self) -> tuple[Any, ...]:
        return tuple(entry.event for entry in self.entries)
