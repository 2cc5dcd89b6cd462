"""What `penstock doctor` looks at on the machine: software, and the disk under the log."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

from penstock.cli import words
from penstock.cli.doctor import Finding

_REQUIRED = ("pyarrow", "numpy", "xxhash", "typer", "rich")
_OPTIONAL = {
    "psycopg": "to capture PostgreSQL and keep views there: pip install 'penstock[postgres]'",
}
_FREE_BYTES_MIN = 1 << 30
_SYNCS = 20
_SYNC_MS_SLOW = 50.0
_UNFIT = {
    "nfs": "its locks and syncs are not those of a local disk",
    "nfs4": "its locks and syncs are not those of a local disk",
    "cifs": "its locks and syncs are not those of a local disk",
    "9p": "its locks and syncs are not those of a local disk",
    "fuse.sshfs": "its locks and syncs are not those of a local disk",
    "overlay": "it is a container's own layer and goes with the container",
    "tmpfs": "it is memory: everything is gone after a restart",
    "ramfs": "it is memory: everything is gone after a restart",
}


def software() -> list[Finding]:
    return [
        _python(),
        *map(_required, _REQUIRED),
        *(_optional(name, why) for name, why in _OPTIONAL.items()),
    ]


def _python() -> Finding:
    told = f"{platform.python_version()} at {sys.executable}"
    return Finding("software", "python", "ok", told, required=True)


def _required(package: str) -> Finding:
    try:
        return Finding("software", package, "ok", importlib.metadata.version(package), required=True)
    except importlib.metadata.PackageNotFoundError:
        return Finding(
            "software", package, "missing", "not installed", f"pip install {package}", required=True
        )


def _optional(package: str, why: str) -> Finding:
    try:
        return Finding("software", package, "ok", importlib.metadata.version(package))
    except importlib.metadata.PackageNotFoundError:
        return Finding("software", package, "missing", "not installed, and not needed for the log", why)


# ---- storage ----------------------------------------------------------------------------------------


def storage(home: Path) -> list[Finding]:
    """The disk under `home`, or under the folder where it would be created."""
    folder = next((one for one in (home, *home.absolute().parents) if one.is_dir()), Path("/"))
    return [_free_space(folder), _file_system(folder), _sync(folder), _notification()]


def _free_space(folder: Path) -> Finding:
    free = shutil.disk_usage(folder).free
    told = f"{words.size(free)} at {folder.absolute()}"
    if free < _FREE_BYTES_MIN:
        return Finding("storage", "free space", "warning", told, "free some, or shorten retention")
    return Finding("storage", "free space", "ok", told)


def _file_system(folder: Path) -> Finding:
    kind = file_system_of(folder)
    if kind in _UNFIT:
        return Finding(
            "storage",
            "file system",
            "warning",
            f"{kind}: {_UNFIT[kind]}",
            "put the log on a local disk with --home",
        )
    return Finding("storage", "file system", "ok", kind or "unknown")


def file_system_of(folder: Path) -> str:
    """The type of the file system, as the kernel calls it; empty where that cannot be known."""
    try:
        lines = Path("/proc/self/mountinfo").read_text().splitlines()
    except OSError:
        return ""
    mounts: dict[str, str] = {}
    for line in lines:
        fields = line.split()
        mounts[fields[4].replace("\\040", " ")] = fields[fields.index("-") + 1]
    path = folder.resolve()
    return next((mounts[str(one)] for one in (path, *path.parents) if str(one) in mounts), "")


def _sync(folder: Path) -> Finding:
    try:
        times_ms = _sync_times_ms(folder)
    except OSError as error:
        todo = "choose a --home that can be written"
        return Finding("storage", "fsync", "problem", f"{folder}: {error.strerror}", todo, required=True)
    median = statistics.median(times_ms)
    told = f"median {median:.2f} ms, slowest of {_SYNCS} {max(times_ms):.2f} ms"
    if median > _SYNC_MS_SLOW:
        todo = "a faster disk, larger batches, or topics with durability os"
        return Finding("storage", "fsync", "warning", told, todo, required=True)
    return Finding("storage", "fsync", "ok", told, required=True)


def _sync_times_ms(folder: Path) -> list[float]:
    times = []
    with tempfile.TemporaryFile(dir=folder) as file:
        for _ in range(_SYNCS):
            file.write(b"x" * 4096)
            file.flush()
            began = time.perf_counter()
            os.fdatasync(file.fileno())
            times.append((time.perf_counter() - began) * 1e3)
    return times


def _notification() -> Finding:
    if sys.platform == "linux" and platform.machine() in ("x86_64", "aarch64", "arm64"):
        return Finding(
            "storage", "notification", "ok", "futex: readers in other processes wake within microseconds"
        )
    return Finding("storage", "notification", "ok", "no futex here: waiting readers look every 2 ms")
