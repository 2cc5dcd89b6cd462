"""What can go wrong with commands and the events they record."""

from __future__ import annotations

from datetime import datetime

from penstock.errors.roots import BadInput, Contended, PenstockError


class CommandRefused(BadInput):
    """For the commands of an aggregate to raise: its state does not allow what was asked."""


class UnknownAggregate(BadInput):
    def __init__(
        self, aggregates: str, id: str, *, as_of: datetime | None = None, began: datetime | None = None
    ) -> None:
        self.aggregates, self.id, self.as_of, self.began = aggregates, id, as_of, began
        if as_of is not None and began is not None:
            super().__init__(
                f'there was no "{id}" in {aggregates} as of {as_of.isoformat()}.',
                hint=f"its first event is of {began.isoformat()}",
            )
            return
        super().__init__(
            f'there is no "{id}" in {aggregates}.',
            hint="penstock sourcing list APP has those there are",
        )


class VersionOutOfRange(BadInput):
    def __init__(self, aggregates: str, id: str, version: int, *, newest: int) -> None:
        self.aggregates, self.id, self.version, self.newest = aggregates, id, version, newest
        super().__init__(
            f'"{id}" in {aggregates} has no version {version}.', hint=f"it has versions 1 to {newest}"
        )


class UnreadableEvent(BadInput):
    """A stored event is kept as it is; the classes that the program declares do not fit it."""

    def __init__(self, event: str, id: str, version: int, *, reason: str, hint: str) -> None:
        self.event, _, number = event.rpartition(":")
        self.event_version = int(number)
        self.id, self.version, self.reason = id, version, reason
        super().__init__(
            f'version {version} of "{id}" is event "{self.event}" version {number}, '
            f"which cannot be read: {reason}.",
            hint=hint,
        )


class EventsLost(PenstockError):
    """A store of events has not all that was published from it: it was put back to an older copy."""

    def __init__(self, aggregates: str, store: str, *, recorded: int, published: int) -> None:
        self.aggregates, self.store = aggregates, store
        self.recorded, self.published = recorded, published
        fewer = f"has events up to {recorded} in {store}, but those up to {published} were published."
        other = f"has another event {published} in {store} than the one that was published."
        super().__init__(
            f'"{aggregates}" {fewer if recorded < published else other}',
            hint="bring back the newer copy of the store; the missing events are in the topic",
        )


class CommandConflict(Contended):
    def __init__(self, aggregates: str, id: str, command: str, *, version: int, retries: int) -> None:
        self.aggregates, self.id, self.command = aggregates, id, command
        self.version, self.retries = version, retries
        again = f", also when it was decided again {retries} times" if retries else ""
        super().__init__(
            f'{command} of "{id}" in {aggregates} was decided at version {version}, '
            f"and others were faster{again}; nothing was recorded.",
            hint="get it anew and decide again, or allow more retries",
        )
