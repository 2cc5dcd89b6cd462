"""What the servers of a bench need of this machine: their programs, and free ports."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
from pathlib import Path

from penstock.errors import NotSupported


def program(name: str, server: str, *, package: str, debian: str) -> Path:
    """Debian keeps server programs off the PATH: `debian` is a pattern of where. Raises NotSupported."""
    kept = sorted(Path("/").glob(debian), reverse=True)
    on_path = shutil.which(name)
    for found in [*kept, *([Path(on_path)] if on_path else [])]:
        if os.access(found, os.X_OK):
            return found
    raise NotSupported(
        f"there is no {server} on this machine.", hint=f"install it, as with: apt-get install {package}"
    )


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as held:
        probes = [held.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in probes]
