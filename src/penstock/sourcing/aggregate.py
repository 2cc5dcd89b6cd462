"""What a program writes: an aggregate's state, its commands, and what events do to the state.

A command looks at the state and decides: it returns the event, or events, that happen, or None, or it
raises. It changes nothing itself. What an event does to the state is said once, under `@applies`, and is the
same when it happens and when it is replayed years later.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from datetime import datetime
from typing import Any, ClassVar, Concatenate, ParamSpec, Protocol, TypeVar

from penstock.errors import NotSupported
from penstock.sourcing.entry import Receipt

P = ParamSpec("P")
A = TypeVar("A", bound="Aggregate")
H = TypeVar("H", bound=Callable[..., None])

COMMAND = "__penstock_command__"
APPLIES = "__penstock_applies__"


class Decides(Protocol):
    """Who records what an aggregate's commands decide."""

    def execute(self, aggregate: Any, decide: Callable[[Any], object], *, command: str) -> Receipt: ...


class Aggregate:
    """The base of an aggregate's state: subclass it as a dataclass whose fields all have defaults.

    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True)
    ... class Counted:
    ...     amount: int
    >>> @dataclass
    ... class Counter(Aggregate):
    ...     total: int = 0
    ...     @command
    ...     def count(self, amount: int) -> Counted:
    ...         return Counted(amount)
    ...     @applies
    ...     def _counted(self, event: Counted) -> None:
    ...         self.total += event.amount
    """

    state_version: ClassVar[int] = 1
    """Raise it when what events do to the state changes: older snapshots are then left aside."""

    _id = ""
    _version = 0
    _changed_at: datetime | None = None
    _decides: Decides | None = None
    _by: str | None = None
    _retries = 0
    _is_ahead = False  # of what is recorded

    @property
    def id(self) -> str:
        return self._id

    @property
    def version(self) -> int:
        """How many events it has; 0 where nothing has happened yet."""
        return self._version

    @property
    def changed_at(self) -> datetime | None:
        """When its last event happened."""
        return self._changed_at


def command(method: Callable[Concatenate[A, P], object]) -> Callable[Concatenate[A, P], Receipt]:
    """Decorate a method that decides: the event or events it returns are recorded, all of them or none.

    When somebody else was faster, it is called again with the newer state, a bounded number of times.
    """

    @functools.wraps(method)
    def run(self: A, /, *args: P.args, **kwargs: P.kwargs) -> Receipt:
        if self._decides is None:
            raise NotSupported(
                f"this {type(self).__name__} takes no commands: it is a past state, or of no store.",
                hint="get it as it is now from what app.aggregates(...) gave",
            )
        return self._decides.execute(
            self, lambda current: method(current, *args, **kwargs), command=method.__name__
        )

    setattr(run, COMMAND, True)
    return run


def applies(handler: H) -> H:
    """Decorate a method that says what an event does to the state; its annotation says which event.

    It may not ask, and not fail: an event that it cannot apply is not recorded.
    """
    setattr(handler, APPLIES, True)
    return handler
