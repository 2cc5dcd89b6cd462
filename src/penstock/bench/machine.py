"""What the numbers were taken on."""

from __future__ import annotations

import os
import platform
import statistics
import time
from pathlib import Path

import pyarrow as pa

from penstock.bench.report import Setting

_SYNCS = 50
_PAGE_BYTES = 4096


def describe(folder: Path) -> dict[str, Setting]:
    """The machine, and the disk under `folder`."""
    return {
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "python": platform.python_version(),
        "pyarrow": pa.__version__,
        "kernel": f"{platform.system()} {platform.release()}",
        "fsync_ms_median": round(fsync_ms(folder), 3),
        "file_system": file_system(folder),
    }


def fsync_ms(folder: Path) -> float:
    """The median time to put one more page of a file on the disk."""
    path = folder / "fsync"
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    took_s = []
    try:
        for number in range(_SYNCS):
            os.pwrite(fd, bytes(_PAGE_BYTES), number * _PAGE_BYTES)
            began = time.perf_counter()
            os.fdatasync(fd) if hasattr(os, "fdatasync") else os.fsync(fd)
            took_s.append(time.perf_counter() - began)
    finally:
        os.close(fd)
        path.unlink()
    return statistics.median(took_s) * 1_000


def file_system(folder: Path) -> str:
    """Its type, as the kernel names it; "unknown" where it does not say."""
    try:
        mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    except OSError:
        return "unknown"
    inside = [(len(at), kind) for _, at, kind, *_ in mounts if folder.resolve().is_relative_to(at)]
    return max(inside)[1] if inside else "unknown"
