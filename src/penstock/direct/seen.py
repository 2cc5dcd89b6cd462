"""Which messages came already: the idempotency keys of the last ones."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Literal

State = Literal["new", "under way", "taken"]


class Seen:
    """Thread-safe; bounded; in memory alone. The keys used longest ago are forgotten first."""

    def __init__(self, keys_max: int) -> None:
        self._keys_max = keys_max
        self._taken: OrderedDict[str, bool] = OrderedDict()  # by key: whether its message was taken
        self._lock = threading.Lock()

    def begin(self, key: str) -> State:
        """Of a key that is new, the caller says next how it went: `taken` or `refused`."""
        with self._lock:
            if key in self._taken:
                self._taken.move_to_end(key)
                return "taken" if self._taken[key] else "under way"
            self._taken[key] = False
            while len(self._taken) > self._keys_max:
                self._taken.popitem(last=False)
            return "new"

    def taken(self, key: str) -> None:
        with self._lock:
            if key in self._taken:
                self._taken[key] = True

    def refused(self, key: str) -> None:
        """It may come again."""
        with self._lock:
            self._taken.pop(key, None)
