"""Serving a gateway: where it listens, and what it refuses to listen on."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import uvicorn

from penstock.errors import BadOption
from penstock.gateway.application import create
from penstock.gateway.connection import Connection
from penstock.gateway.doorway import is_loopback
from penstock.gateway.gateway import Gateway


@dataclass(frozen=True, slots=True)
class Address:
    """Where to listen; port 0 for any that is free. TLS with both files or without any."""

    host: str = "127.0.0.1"
    port: int = 0
    certificate: Path | None = None
    key: Path | None = None

    @property
    def scheme(self) -> str:
        return "https" if self.certificate else "http"


class Server(uvicorn.Server):
    """One gateway on one address. `run` blocks until a signal, or until `should_exit` is set."""

    def __init__(
        self, gateway: Gateway, address: Address, *, on_ready: Callable[[str], None] | None = None
    ) -> None:
        check(gateway, address)
        self.gateway, self.address, self._on_ready = gateway, address, on_ready
        if not is_loopback(address.host):  # also if its tokens are removed while it runs
            gateway.guard.open_to_all = False
        super().__init__(
            uvicorn.Config(
                create(gateway), host=address.host, port=address.port, http=Connection, ws="none",
                loop="asyncio", lifespan="on", log_level="warning", access_log=False, server_header=False,
                proxy_headers=False, limit_concurrency=gateway.limits.connections, timeout_keep_alive=30,
                timeout_graceful_shutdown=5, ssl_certfile=address.certificate, ssl_keyfile=address.key,
            )
        )  # fmt: skip

    @property
    def url(self) -> str:
        """Once it is started."""
        listening: socket.socket = self.servers[0].sockets[0]
        host, port = listening.getsockname()[:2]
        return f"{self.address.scheme}://{f'[{host}]' if ':' in host else host}:{port}"

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started and self._on_ready is not None:
            self._on_ready(self.url)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self.gateway.end_streams()  # else it would wait for subscribers, which never leave
        await super().shutdown(sockets)


def check(gateway: Gateway, address: Address) -> None:
    """Refuses what cannot work, and an address that others can reach, unless who asks is known and nobody
    can listen in."""
    if (address.certificate is None) != (address.key is None):
        raise BadOption("TLS needs a certificate and its key.", hint="give both: --certificate and --key")
    for file in (address.certificate, address.key):
        if file is not None and not file.is_file():
            raise BadOption(f"there is no file {file}.", hint="give PEM files: --certificate and --key")
    _check_tls(address)
    _check_reach(gateway, address)
    _check_free(address)


def _check_tls(address: Address) -> None:
    if address.certificate is None or address.key is None:
        return
    try:  # with a password, so that nobody is asked for one
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(address.certificate, address.key, password="")
    except ssl.SSLError as error:
        raise BadOption(
            f"{address.certificate} and {address.key} cannot be used for TLS ({error.reason or error}).",
            hint="give a certificate and the key that belongs to it, both PEM, the key without a password",
        ) from error


def _check_free(address: Address) -> None:
    """Whoever takes the address between this and its use gets a plainer error."""
    try:
        family, _, _, _, place = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)[0]
        socket.create_server(place[:2], family=family).close()
    except OSError as error:
        raise BadOption(
            f"{address.host} port {address.port} cannot be listened on ({error.strerror or error}).",
            hint="choose another with --host and --port; port 0 is any that is free",
        ) from error


def _check_reach(gateway: Gateway, address: Address) -> None:
    if is_loopback(address.host):
        return
    if address.certificate is None:
        raise BadOption(
            f"{address.host} can be reached from other machines, which could listen in without TLS.",
            hint="give --certificate FILE and --key FILE, or stay on 127.0.0.1",
        )
    if not gateway.tokens.exist():
        raise BadOption(
            f"{address.host} can be reached from other machines, and there is no token.",
            hint="make one first: penstock token create NAME --role read",
        )
