"""Throwaway servers: each in a temporary folder, on the loopback, gone at the end of the run."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import socket
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.waiting import wait_until

_START_S = 30.0
_STOP_S = 20.0
_START_RABBITMQ_S = 120.0  # of which it needs 10 on a machine with nothing else to do


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
        _end(self.process, signal.SIGINT)

    def kill(self) -> None:
        """As if the machine had stopped; `started_again` goes on from there."""
        self.process.kill()
        self.process.wait()

    def started_again(self) -> Postgres:
        """The same data on the same port."""
        return _run(self.folder, self.port, self.settings)


@dataclass(frozen=True, slots=True)
class Redis:
    """A running Redis that keeps nothing on disk, without a password unless it was given one."""

    process: subprocess.Popen[bytes]
    port: int

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def stop(self) -> None:
        _end(self.process, signal.SIGTERM)


@dataclass(frozen=True, slots=True)
class RabbitMQ:
    """A running RabbitMQ of one node, with the user guest; what is durable survives `stop` and `kill`."""

    process: subprocess.Popen[bytes]
    folder: Path
    port: int
    clustering_port: int
    names_port: int

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@127.0.0.1:{self.port}/%2F"

    def stop(self) -> None:
        _end_group(self.process, signal.SIGTERM)

    def kill(self) -> None:
        """As if the machine had stopped; `started_again` goes on from there."""
        _end_group(self.process, signal.SIGKILL)

    def started_again(self) -> RabbitMQ:
        """The same data on the same port."""
        return _run_rabbitmq(self.folder, self.port, self.clustering_port, self.names_port)


def start_rabbitmq(folder: Path) -> RabbitMQ:
    """Raises Unavailable."""
    return _run_rabbitmq(folder, free_port(), free_port(), free_port())


def _run_rabbitmq(folder: Path, port: int, clustering_port: int, names_port: int) -> RabbitMQ:
    server = _program("rabbitmq-server", "RabbitMQ")
    said = {
        "HOME": folder,
        "RABBITMQ_NODENAME": f"t{port}@localhost",
        "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
        "RABBITMQ_NODE_PORT": port,
        "RABBITMQ_DIST_PORT": clustering_port,
        "ERL_EPMD_PORT": names_port,
        "ERL_EPMD_ADDRESS": "127.0.0.1",
        "RABBITMQ_MNESIA_BASE": folder / "mnesia",
        "RABBITMQ_LOG_BASE": folder / "log",
        "RABBITMQ_PID_FILE": folder / "pid",
        "RABBITMQ_ENABLED_PLUGINS_FILE": folder / "plugins",
        "RABBITMQ_CONFIG_FILE": folder / "none",
    }
    # Erlang's register of names would stay for good if the server had to start it.
    both = f'"{_program("epmd", "RabbitMQ")}" & exec "{server}"'
    with (folder / "server.log").open("wb") as output:
        process = subprocess.Popen(
            ["/bin/sh", "-c", both], stdout=output, stderr=output, stdin=subprocess.DEVNULL, cwd=folder,
            env={**os.environ, **{name: str(value) for name, value in said.items()}},
            start_new_session=True,  # they start others, which are to end with them
        )  # fmt: skip
    running = RabbitMQ(process, folder, port, clustering_port, names_port)
    _wait_for(running, "RabbitMQ", folder, lambda: _greets(process, port, folder), within_s=_START_RABBITMQ_S)
    return running


def _greets(process: subprocess.Popen[bytes], port: int, folder: Path) -> bool:
    """It listens some time before it answers."""
    import pika  # the tests that need no server need no client

    if not _listens(process, port, "RabbitMQ", folder):
        return False
    try:
        pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port)).close()
    except pika.exceptions.AMQPError:
        return False
    return True


def _end_group(process: subprocess.Popen[bytes], how: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, how)
    try:
        process.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def start_postgres(folder: Path, *, options: Sequence[str] = ()) -> Postgres:
    """`options` are settings such as `wal_level=logical`. Raises Unavailable."""
    initdb = _program("initdb", "PostgreSQL")
    user = _unprivileged(folder, "PostgreSQL", ("postgres", "nobody"))
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
        user = _unprivileged(folder, "PostgreSQL", ("postgres", "nobody"))
        command: list[str | Path] = [
            _program("postgres", "PostgreSQL"),
            "-D",
            folder / "data",
            "-p",
            str(port),
            *said,
        ]
        return Postgres(_started(command, folder, user), folder, port, settings)

    running = [launch()]

    def answers() -> bool:
        """One that was killed leaves processes behind, which hold its memory a little longer."""
        try:
            return _answers(running[0])
        except Unavailable:
            if "still in use" not in _said(folder):
                raise
        running[0] = launch()
        return False

    try:
        wait_until(answers, timeout_s=_START_S, what="PostgreSQL to answer")
    except TimeoutError as error:
        running[0].stop()
        raise Unavailable(f"PostgreSQL: {error}; see {folder / 'server.log'}") from error
    return running[0]


def _said(folder: Path) -> str:
    return (folder / "server.log").read_text(errors="replace")


def start_redis(folder: Path, *, port: int | None = None, password: str | None = None) -> Redis:
    """`port`: where one was before. Raises Unavailable."""
    server = _program("redis-server", "Redis")
    chosen = port or free_port()
    words = ["--port", str(chosen), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
    if password:
        words += ["--requirepass", password]
    process = _started([server, *words], folder, None)
    running = Redis(process, chosen)
    _wait_for(running, "Redis", folder, lambda: _listens(process, chosen, "Redis", folder))
    return running


def _started(command: Sequence[str | Path], folder: Path, user: str | None) -> subprocess.Popen[bytes]:
    with (folder / "server.log").open("wb") as output:
        return subprocess.Popen(
            command, stdout=output, stderr=output, stdin=subprocess.DEVNULL, user=user, cwd=folder
        )


def _wait_for(
    server: Redis | RabbitMQ, name: str, folder: Path, up: Callable[[], bool], *, within_s: float = _START_S
) -> None:
    try:
        wait_until(up, timeout_s=within_s, what=f"{name} to answer")
    except TimeoutError as error:
        server.stop()
        raise Unavailable(f"{name}: {error}; see {folder / 'server.log'}") from error


def _end(process: subprocess.Popen[bytes], how: signal.Signals) -> None:
    process.send_signal(how)
    try:
        process.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def free_port() -> int:
    """A port of the loopback that nobody has now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _program(name: str, server: str) -> Path:
    """Debian keeps server programs off the PATH."""
    debian = [
        *sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), reverse=True),
        Path("/usr/lib/rabbitmq/bin", name),  # the one on the PATH becomes another user
        Path("/usr/sbin", name),
    ]
    on_path = shutil.which(name)
    for found in [*debian, *([Path(on_path)] if on_path else [])]:
        if os.access(found, os.X_OK):
            return found
    raise Unavailable(f"{server}: there is no {name} on this machine (scripts/servers.sh brings one)")


def _unprivileged(folder: Path, server: str, accounts: Sequence[str]) -> str | None:
    """Some refuse to run as root: the account to use, which then owns `folder`."""
    if os.geteuid() != 0:
        return None
    for name in accounts:
        with contextlib.suppress(KeyError):
            account = pwd.getpwnam(name)
            os.chown(folder, account.pw_uid, account.pw_gid)
            return name
    raise Unavailable(f"{server}: it does not run as root, and there is no other account")


def _check_runs(process: subprocess.Popen[bytes], server: str, folder: Path) -> None:
    if process.poll() is not None:
        last = (folder / "server.log").read_text(errors="replace").strip().splitlines()[-1:]
        raise Unavailable(f"{server} stopped: {' '.join(last)}")


def _listens(process: subprocess.Popen[bytes], port: int, server: str, folder: Path) -> bool:
    _check_runs(process, server, folder)
    try:
        socket.create_connection(("127.0.0.1", port), timeout=2).close()
    except OSError:
        return False
    return True


def _answers(server: Postgres) -> bool:
    import psycopg  # the tests that need no server need no driver

    _check_runs(server.process, "PostgreSQL", server.folder)
    try:
        psycopg.connect(server.dsn, connect_timeout=2).close()
    except psycopg.OperationalError:
        return False
    return True
