"""Throwaway servers: each in a temporary folder, on the loopback, gone at the end of the run."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import socket
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.waiting import wait_until

_START_S = 30.0
_STOP_S = 20.0


class Unavailable(Exception):
    """This server cannot be had on this machine, in one line."""


@dataclass(frozen=True, slots=True)
class Postgres:
    """A running PostgreSQL with fsync on; one database, `postgres`, without a password."""

    process: subprocess.Popen[bytes]
    folder: Path
    port: int
    settings: Sequence[str] = ()

    @property
    def dsn(self) -> str:
        return f"host={self.folder} port={self.port} user=postgres dbname=postgres"

    def stop(self) -> None:
        """Fast shutdown: open connections are cut."""
        self.process.send_signal(signal.SIGINT)
        try:
            self.process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def kill(self) -> None:
        """As if the machine had stopped; `started_again` goes on from there."""
        self.process.kill()
        self.process.wait()

    def started_again(self) -> Postgres:
        """The same data on the same port."""
        return _run(self.folder, self.port, self.settings)


def start_postgres(folder: Path, *, options: Sequence[str] = ()) -> Postgres:
    """`options` are settings such as `wal_level=logical`. Raises Unavailable."""
    initdb = _program("initdb")
    user = _unprivileged(folder)
    data = folder / "data"
    made = subprocess.run(
        [initdb, "-D", data, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-locale", "--no-sync"],
        capture_output=True, text=True, user=user, cwd=folder, check=False,
    )  # fmt: skip
    if made.returncode:
        raise Unavailable(
            f"PostgreSQL: initdb failed: {(made.stderr or made.stdout).strip().splitlines()[-1]}"
        )
    settings = [f"unix_socket_directories={folder}", "listen_addresses=127.0.0.1", "fsync=on", *options]
    return _run(folder, free_port(), settings)


def _run(folder: Path, port: int, settings: Sequence[str]) -> Postgres:
    said = [word for setting in settings for word in ("-c", setting)]

    def launch() -> Postgres:
        with (folder / "server.log").open("ab") as output:
            process = subprocess.Popen(
                [_program("postgres"), "-D", folder / "data", "-p", str(port), *said],
                stdout=output, stderr=output, stdin=subprocess.DEVNULL,
                user=_unprivileged(folder), cwd=folder,
            )  # fmt: skip
        return Postgres(process, folder, port, settings)

    running = [launch()]

    def answers() -> bool:
        """One that was killed leaves processes behind, which hold its memory a little longer."""
        if running[0].process.poll() is not None and "still in use" in _last_lines(folder):
            running[0] = launch()
        return _answers(running[0])

    try:
        wait_until(answers, timeout_s=_START_S, what="PostgreSQL to answer")
    except TimeoutError as error:
        running[0].stop()
        raise Unavailable(f"PostgreSQL: {error}; see {folder / 'server.log'}") from error
    return running[0]


def _last_lines(folder: Path) -> str:
    return "\n".join((folder / "server.log").read_text(errors="replace").strip().splitlines()[-3:])


def free_port() -> int:
    """A port of the loopback that nobody has now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _program(name: str) -> Path:
    """Debian keeps server programs off the PATH."""
    debian = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), reverse=True)
    on_path = shutil.which(name)
    for found in [*debian, *([Path(on_path)] if on_path else [])]:
        if os.access(found, os.X_OK):
            return found
    raise Unavailable(f"PostgreSQL: there is no {name} on this machine (scripts/servers.sh brings one)")


def _unprivileged(folder: Path) -> str | None:
    """PostgreSQL refuses to run as root: the account to use, which then owns `folder`."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            account = pwd.getpwnam(name)
            os.chown(folder, account.pw_uid, account.pw_gid)
            return name
    raise Unavailable("PostgreSQL: it does not run as root, and there is no other account")


def _answers(server: Postgres) -> bool:
    import psycopg  # the tests that need no server need no driver

    if server.process.poll() is not None:
        last = (server.folder / "server.log").read_text(errors="replace").strip().splitlines()[-1:]
        raise Unavailable(f"PostgreSQL stopped: {' '.join(last)}")
    try:
        psycopg.connect(server.dsn, connect_timeout=2).close()
    except psycopg.OperationalError:
        return False
    return True
