"""Waiting for something to become true, never longer than a bound."""

from __future__ import annotations

import time
from collections.abc import Callable

_PAUSE_S = 0.005


def wait_until(
    condition: Callable[[], object], *, timeout_s: float = 60.0, what: str = "", pause_s: float = _PAUSE_S
) -> float:
    """Returns how many seconds it took. Raises TimeoutError when it did not come true."""
    began = time.monotonic()
    while not condition():
        if time.monotonic() - began > timeout_s:
            raise TimeoutError(f"waited {timeout_s:g} s for {what or 'a condition'}")
        time.sleep(pause_s)
    return time.monotonic() - began
