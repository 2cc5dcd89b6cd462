"""Waking readers in other processes: a futex on a word of shared memory.

A reader that waits costs nothing, and a writer wakes it within microseconds.
Where there is no futex (not Linux), the waiter looks at the word every few milliseconds.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
import sys
import time

_SYSCALL = {"x86_64": 202, "aarch64": 98, "arm64": 98}.get(platform.machine())
_AVAILABLE = sys.platform == "linux" and _SYSCALL is not None and sys.maxsize > 2**32
_FUTEX_WAIT, _FUTEX_WAKE = 0, 1
_POLL_S = 0.002


class _TimeSpec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


_libc = ctypes.CDLL(None, use_errno=True) if _AVAILABLE else None


def address_of(memory: mmap.mmap) -> int:
    """Where the mapping starts in this process."""
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


def wait(address: int, view: memoryview, word: int, seen: int, timeout_s: float) -> None:
    """Sleep while the word equals `seen`, at most `timeout_s`. May return early."""
    if _libc is None:
        _poll(view, word, seen, timeout_s)
        return
    limit = _TimeSpec(int(timeout_s), int(timeout_s % 1 * 1e9))
    _libc.syscall(
        _SYSCALL, ctypes.c_void_p(address), _FUTEX_WAIT, ctypes.c_uint32(seen), ctypes.byref(limit), None, 0
    )


def wake(address: int) -> None:
    """Wake everyone who waits on the word."""
    if _libc is not None:
        _libc.syscall(
            _SYSCALL, ctypes.c_void_p(address), _FUTEX_WAKE, ctypes.c_uint32(2**31 - 1), None, None, 0
        )


def _poll(view: memoryview, word: int, seen: int, timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while view.cast("B").cast("I")[word] == seen and time.monotonic() < deadline:
        time.sleep(_POLL_S)


def stamp() -> int:
    """A 32-bit word that differs from the last one, whoever wrote it."""
    return (time.monotonic_ns() ^ (os.getpid() << 20)) & 0xFFFFFFFF
