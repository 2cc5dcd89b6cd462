"""A thread that finishes acks which wait for each other, so that none waits long."""

from __future__ import annotations

import threading
from typing import Protocol

_LINGER_S = 0.01


class Flushing(Protocol):
    def flush_later(self) -> None: ...


class Flusher:
    """Started when first needed. Thread-safe."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: set[Flushing] = set()
        self._thread: threading.Thread | None = None
        self._closed = False

    def soon(self, each: Flushing) -> None:
        """Flush it within milliseconds, once."""
        if each in self._waiting:
            return
        with self._changed:
            self._waiting.add(each)
            if self._thread is None or not self._thread.is_alive():  # a fork leaves no thread behind
                self._thread = threading.Thread(target=self._run, name="penstock-queue-acks", daemon=True)
                self._thread.start()
            self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._waiting and not self._closed:
                    self._changed.wait()
                if self._closed:
                    return
                self._changed.wait(_LINGER_S)  # for company
                due, self._waiting = self._waiting, set()
            for each in due:
                each.flush_later()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._thread is not None and self._thread.is_alive():
            self._thread.join()
