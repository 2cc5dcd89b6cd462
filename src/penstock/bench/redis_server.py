"""A Redis for one bench: in a temporary folder, on a free port, gone at the end."""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from penstock.bench import programs
from penstock.errors import StorageError

_START_S = 30.0


@contextlib.contextmanager
def throwaway(parent: Path) -> Iterator[str]:
    """Its address, while the block runs; nothing is kept on disk. Raises NotSupported where there is none."""
    server = program()
    (port,) = programs.free_ports(1)
    words = ["--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
    with (parent / "redis.log").open("wb") as said:
        process = subprocess.Popen(
            [server, *words], stdin=subprocess.DEVNULL, stdout=said, stderr=said, cwd=parent
        )
    try:
        yield _answering(f"redis://127.0.0.1:{port}/0", process)
    finally:
        process.terminate()
        process.wait()


def _answering(url: str, process: subprocess.Popen[bytes]) -> str:
    import redis

    until = time.monotonic() + _START_S
    with redis.Redis.from_url(url) as client:
        while True:
            try:
                client.ping()
            except redis.ConnectionError as error:
                if time.monotonic() > until or process.poll() is not None:
                    raise StorageError(
                        f"Redis does not start: {error}.", hint="is the machine busy?"
                    ) from error
                time.sleep(0.05)
            else:
                return url


def program() -> Path:
    return programs.program("redis-server", "Redis", package="redis-server", debian="usr/bin/redis-server")
