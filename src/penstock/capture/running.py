"""Several captures at once, each in a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from penstock.capture.engine import Capture
from penstock.errors import PenstockError

_END_S = 15.0  # a step under way is stored before a capture ends


class Running:
    """Start it, look at its captures, stop it. One that fails for good leaves the others alone."""

    def __init__(self, captures: Sequence[Capture]) -> None:
        self.captures = list(captures)
        self.failed: dict[str, BaseException] = {}
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []

    @property
    def is_over(self) -> bool:
        """Whether each of them has ended."""
        return not any(thread.is_alive() for thread in self._threads)

    def start(self, *, once: bool = False) -> None:
        for capture in self.captures:
            thread = threading.Thread(
                target=self._run, args=(capture, once), name=f"capture-{capture.name}", daemon=True
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

    def _run(self, capture: Capture, once: bool) -> None:
        try:
            capture.run(self._stop, once=once)
        except Exception as error:
            capture.last_error = str(error)
            self.failed[capture.name] = error
            if not isinstance(error, PenstockError):
                raise
        finally:
            capture.source.close()
