"""Threads for blocking work, so that the event loop never waits for a disk.

A request waits for a thread without holding one, and only so many may wait: the next is told to come back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from penstock.gateway.refusals import Busy

P = ParamSpec("P")
T = TypeVar("T")


class Pool:
    """Used from one event loop."""

    def __init__(self, name: str, *, threads: int, waiting_max: int) -> None:
        self.name = name
        self.under_way = 0
        self._most = threads + waiting_max
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix=f"gateway-{name}")

    async def run(self, work: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
        """What `work` returns or raises. Raises Busy when too many wait already."""
        if self.under_way >= self._most:
            raise Busy(f"too many requests wait for a thread that {self.name}")
        self.under_way += 1
        try:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._threads, lambda: work(*args, **options))
        finally:
            self.under_way -= 1

    def close(self) -> None:
        """What has not begun is left undone; what has is not waited for."""
        self._threads.shutdown(wait=False, cancel_futures=True)
