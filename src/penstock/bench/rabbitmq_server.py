"""A RabbitMQ for one bench: in a temporary folder, on free ports, gone at the end."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from penstock.bench import programs
from penstock.errors import NotSupported, StorageError

_START_S = 90.0
_STOP_S = 20.0


@contextlib.contextmanager
def throwaway(parent: Path) -> Iterator[str]:
    """Its address, while the block runs; its data is in `parent`. Raises NotSupported where there is none."""
    server = program()
    with tempfile.TemporaryDirectory(prefix="rabbitmq-", dir=parent) as text:
        folder = Path(text).resolve()  # it runs in there
        port, between, mapper = programs.free_ports(3)
        environment = _environment(folder, port, between, mapper)
        with (folder / "server.log").open("wb") as said:
            process = subprocess.Popen(
                [server], env=environment, stdin=subprocess.DEVNULL,
                stdout=said, stderr=said, cwd=folder, start_new_session=True,
            )  # fmt: skip
        try:
            yield _answering(port, process, folder)
        finally:
            _end(process, environment)


def _environment(folder: Path, port: int, between: int, mapper: int) -> dict[str, str]:
    own = {
        "HOME": str(folder),
        "RABBITMQ_NODENAME": f"bench{port}@localhost",
        "RABBITMQ_MNESIA_BASE": str(folder / "data"),
        "RABBITMQ_LOG_BASE": str(folder / "log"),
        "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
        "RABBITMQ_NODE_PORT": str(port),
        "RABBITMQ_DIST_PORT": str(between),
        "RABBITMQ_PID_FILE": str(folder / "pid"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "plugins"),
        "ERL_EPMD_PORT": str(mapper),
        "ERL_EPMD_ADDRESS": "127.0.0.1",
    }
    return {**os.environ, **own}


def _answering(port: int, process: subprocess.Popen[bytes], folder: Path) -> str:
    import pika
    from pika.exceptions import AMQPError

    url = f"amqp://guest:guest@127.0.0.1:{port}/"
    until = time.monotonic() + _START_S
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=2).close()  # pika complains at length
            pika.BlockingConnection(pika.URLParameters(url)).close()
        except (AMQPError, OSError) as error:
            if time.monotonic() > until or process.poll() is not None:
                said = (folder / "server.log").read_text(errors="replace").split("\n")
                last = next((line.strip() for line in reversed(said) if line.strip()), "it said nothing")
                raise StorageError(
                    f"RabbitMQ does not start: {last}.", hint="is the machine busy?"
                ) from error
            time.sleep(0.2)
        else:
            return url


def _end(process: subprocess.Popen[bytes], environment: dict[str, str]) -> None:
    """With everything it started: what is in its session, and Erlang's port mapper, which has left it."""
    for how in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, how)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_STOP_S)
    with contextlib.suppress(FileNotFoundError):
        subprocess.run(["epmd", "-kill"], env=environment, capture_output=True, check=False)


def program() -> Path:
    try:
        import pika  # noqa: F401
    except ImportError as error:
        raise NotSupported(
            "RabbitMQ is spoken with pika, which is not installed.", hint='pip install "penstock[rabbitmq]"'
        ) from error
    return programs.program(
        "rabbitmq-server",
        "RabbitMQ",
        package="rabbitmq-server",
        debian="usr/lib/rabbitmq/bin/rabbitmq-server",
    )
