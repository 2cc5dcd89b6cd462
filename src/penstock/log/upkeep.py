"""Upkeep of sealed segments beside the appends, so that none of them waits for a compaction.

The thread lives while there is something to do. It is no daemon: a program that ends, or closes its log, ends
when the upkeep is done, as it would if the append itself had done it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

Place = tuple[str, int]
"""A topic and the number of a partition."""


class Upkeep:
    """Thread-safe."""

    def __init__(self, maintain: Callable[[str, int], None], *, beside: bool) -> None:
        """`beside`: in a thread; else at once, by whoever asks."""
        self._maintain, self._beside = maintain, beside
        self._mutex = threading.Lock()
        self._due: dict[Place, None] = {}
        self._thread: threading.Thread | None = None

    def ask(self, places: Iterable[Place]) -> None:
        if not self._beside:
            for topic, number in places:
                self._maintain(topic, number)
            return
        with self._mutex:
            self._due |= dict.fromkeys(places)
            # One that died of a bug has said so; it must not be the end of all upkeep.
            if self._due and not (self._thread and self._thread.is_alive()):
                self._thread = threading.Thread(target=self._work, name="penstock-upkeep", daemon=False)
                self._thread.start()

    def finish(self) -> None:
        """Wait until all that was asked for is done."""
        with self._mutex:
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _work(self) -> None:
        while (place := self._next()) is not None:
            self._maintain(*place)

    def _next(self) -> Place | None:
        with self._mutex:
            if not self._due:
                self._thread = None  # whoever asks from now on starts another one
                return None
            place = next(iter(self._due))
            del self._due[place]
            return place
