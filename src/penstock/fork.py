"""What open things do when the process forks: they are told, and begin anew in the child.

A child has its parent's memory but none of its threads, and it shares its open files. So a mutex
that another thread held would stay held for ever, a file lock would outlive the parent that died
with it, and a database connection that both use loses commits.
"""

from __future__ import annotations

import os
import threading
import weakref
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import sqlite3


class Forking:
    """Something that a child cannot just inherit."""

    def before_fork(self) -> None:
        """In the parent, right before. Followed by one of the other two."""

    def after_fork_in_parent(self) -> None: ...

    def after_fork_in_child(self) -> None:
        """Before anything else runs in the child."""


class Connected(Forking):
    """Has one connection to SQLite, used with `_mutex` held, and none while the process forks.

    SQLite's locks do not survive a fork, and with a connection open on both sides commits get lost.
    """

    def __init__(self) -> None:
        self._mutex = threading.RLock()
        self._db: sqlite3.Connection | None = None
        tell(self)

    def close(self) -> None:
        with self._mutex:
            if self._db is not None:
                self._db.close()
            self._db = None

    def before_fork(self) -> None:
        self._mutex.acquire()
        self.close()

    def after_fork_in_parent(self) -> None:
        self._mutex.release()

    def after_fork_in_child(self) -> None:
        self._mutex = threading.RLock()


_forking = threading.Lock()  # from before a fork until after it
_mutex = threading.Lock()
_open: weakref.WeakSet[Forking] = weakref.WeakSet()
_told: dict[int, Forking] = {}


def tell(each: Forking) -> None:
    """Tell it about forks from now on, as long as it lives."""
    with _mutex:
        _open.add(each)


def _before() -> None:
    _forking.acquire()
    _mutex.acquire()
    while new := [each for each in _open if id(each) not in _told]:
        # Who has what they now wait for may itself be about to open something, and to tell us.
        _mutex.release()
        try:
            for each in new:
                _told[id(each)] = each
                each.before_fork()
        finally:
            _mutex.acquire()


def _in_parent() -> None:
    while _told:
        _told.popitem()[1].after_fork_in_parent()
    _mutex.release()
    _forking.release()


def _in_child() -> None:
    _mutex.release()  # what begins anew is told of the next fork
    while _told:
        _told.popitem()[1].after_fork_in_child()
    _forking.release()


os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
