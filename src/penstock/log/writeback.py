"""Asking the kernel to begin writing a file out, so that a later sync has little left to wait for.

Nothing is promised by it: only `fdatasync` makes bytes durable, and it still reports every
error that the early writing met. Where the call is missing (not Linux), nothing happens.
"""

from __future__ import annotations

import ctypes
import sys

_WRITE = 2  # begin, and wait for nothing

_libc = ctypes.CDLL(None) if sys.platform == "linux" else None
_begin = getattr(_libc, "sync_file_range", None)
if _begin is not None:
    _begin.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)


def begin(fd: int, position: int, length: int) -> None:
    """Start to write this part of the file to the disk; returns at once."""
    if _begin is not None:
        _begin(fd, position, length, _WRITE)
