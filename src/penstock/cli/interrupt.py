"""Ctrl-C that never falls into the middle of an append."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Interrupt:
    """Within `held`, an interrupt waits until the block is left; elsewhere it comes at once.

    Python drops one that falls into the end of a generator: `check` makes it good.
    """

    def __init__(self) -> None:
        self._holding = False
        self._pending = False

    @contextmanager
    def watching(self) -> Iterator[None]:
        before = signal.signal(signal.SIGINT, self._on_signal)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)

    @contextmanager
    def held(self) -> Iterator[None]:
        self._holding = True
        try:
            yield
        finally:
            self._holding = False
        self.check()

    def check(self) -> None:
        if self._pending:
            raise KeyboardInterrupt

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._pending = True
        if not self._holding:
            raise KeyboardInterrupt
