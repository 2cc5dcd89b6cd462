"""Several of what fills topics from elsewhere at once, each in a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar

from penstock.errors import PenstockError

_END_S = 15.0  # a step under way is stored before one ends


class Runs(Protocol):
    """A capture, or whoever else brings what happens elsewhere into the log."""

    name: str
    last_error: str | None

    def run(self, stop: threading.Event, *, once: bool = False) -> None: ...

    def close(self) -> None: ...


R = TypeVar("R", bound=Runs)


class Running(Generic[R]):
    """Start it, look at those it runs, stop it. One that fails for good leaves the others alone."""

    def __init__(self, all_of_them: Sequence[R]) -> None:
        self.all = list(all_of_them)
        self.failed: dict[str, BaseException] = {}
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []

    @property
    def is_over(self) -> bool:
        """Whether each of them has ended."""
        return not any(thread.is_alive() for thread in self._threads)

    def start(self, *, once: bool = False) -> None:
        for each in self.all:
            thread = threading.Thread(
                target=self._run, args=(each, once), name=f"run-{each.name}", daemon=True
            )
            thread.start()
            self._threads.append(thread)

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(_END_S)

    def raise_failure(self) -> None:
        """The first failure there was, if any."""
        for error in self.failed.values():
            raise error

    def _run(self, each: R, once: bool) -> None:
        try:
            each.run(self._stop, once=once)
        except Exception as error:
            each.last_error = str(error)
            self.failed[each.name] = error
            if not isinstance(error, PenstockError):
                raise
        finally:
            each.close()
