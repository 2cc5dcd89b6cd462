"""A PostgreSQL for one bench: in a temporary folder, on a free port, gone at the end."""

from __future__ import annotations

import contextlib
import os
import pwd
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from penstock.bench import programs
from penstock.errors import StorageError

_START_S = 60.0
_SETTINGS = (
    "wal_level=logical",
    "max_replication_slots=10",
    "max_wal_senders=10",
    "listen_addresses=127.0.0.1",
)


@contextlib.contextmanager
def throwaway() -> Iterator[str]:
    """Its address, while the block runs. Raises NotSupported where there is no PostgreSQL."""
    server, initdb = program(), program("initdb")
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as text:
        folder, user = Path(text), _unprivileged(Path(text))
        data = folder / "data"
        subprocess.run(
            [initdb, "-D", data, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-locale", "--no-sync"],
            stdout=subprocess.DEVNULL, user=user, cwd=folder, check=True,
        )  # fmt: skip
        (port,) = programs.free_ports(1)
        settings = [word for one in (*_SETTINGS, f"unix_socket_directories={folder}") for word in ("-c", one)]
        with (folder / "server.log").open("wb") as said:
            process = subprocess.Popen(
                [server, "-D", data, "-p", str(port), *settings],
                stdout=said,
                stderr=said,
                user=user,
                cwd=folder,
            )
        try:
            yield _answering(f"postgresql://postgres@127.0.0.1:{port}/postgres")
        finally:
            process.send_signal(signal.SIGINT)
            process.wait()


def _answering(url: str) -> str:
    import psycopg

    until = time.monotonic() + _START_S
    while True:
        try:
            psycopg.connect(url, connect_timeout=2).close()
        except psycopg.OperationalError as error:
            if time.monotonic() > until:
                raise StorageError(
                    f"PostgreSQL does not start: {error}.", hint="is the machine busy?"
                ) from error
            time.sleep(0.1)
        else:
            return url


def program(name: str = "postgres") -> Path:
    return programs.program(
        name, "PostgreSQL", package="postgresql", debian=f"usr/lib/postgresql/*/bin/{name}"
    )


def _unprivileged(folder: Path) -> str | None:
    """PostgreSQL refuses to run as root: the account to use, which then owns `folder`."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            account = pwd.getpwnam(name)
            os.chown(folder, account.pw_uid, account.pw_gid)
            return name
    return None
