"""One client's connection: bounded in what it sends us, and in what waits to be sent to it."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

ABORT = "penstock.abort"
_HEADER_BYTES_MAX = 64 << 10
_TOO_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
_SEND_BYTES = 256 << 10  # the system would hold megabytes for each client that does not read


class Connection(HttpToolsProtocol):
    """As uvicorn has it; with a way to cut a client off that does not read what it is sent."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._header_bytes, self._is_refused = 0, False
        listening = transport.get_extra_info("socket")
        if listening is not None:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BYTES)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._header_bytes = 0
        scope: Any = self.scope
        scope[ABORT] = self.transport.abort

    def on_url(self, url: bytes) -> None:
        if self._fits(url):
            super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._fits(name, value):
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if not self._is_refused:
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        if not self._is_refused:
            super().on_body(body)

    def on_message_complete(self) -> None:
        if not self._is_refused:
            super().on_message_complete()

    def _fits(self, *parts: bytes) -> bool:
        """Ends a connection whose headers do not end."""
        self._header_bytes += sum(map(len, parts))
        if self._header_bytes > _HEADER_BYTES_MAX and not self._is_refused:
            self._is_refused = True
            self.transport.write(_TOO_LARGE)
            self.transport.close()
        return not self._is_refused
