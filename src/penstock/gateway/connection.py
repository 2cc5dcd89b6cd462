"""One client's connection: bounded in what it sends us, and in what waits to be sent to it."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from penstock.errors import PenstockError, as_object
from penstock.gateway.json import dumps
from penstock.gateway.problems import MEANINGS
from penstock.gateway.refusals import BadRequest, Busy

ABORT = "penstock.abort"
_HEADER_BYTES_MAX = 64 << 10
_THROWN_AWAY_BYTES_MAX = 16 << 20  # of a head that is refused, so that who sends it also reads the answer
HEAD_S = 30.0  # from the first byte of a head, or the connection, to its end
_SEND_BYTES = 256 << 10  # the system would hold megabytes for each client that does not read


class Connection(HttpToolsProtocol):
    """As uvicorn has it; with a way to cut a client off that does not read what it is sent.

    One that does not ask within `HEAD_S`, or whose question has no end, is cut off, too.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._header_bytes, self._is_refused = 0, False
        self._head_due = self.loop.call_later(HEAD_S, transport.close)
        listening = transport.get_extra_info("socket")
        if listening is not None:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BYTES)

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_due.cancel()
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._header_bytes = 0
        self._head_due.cancel()
        self._head_due = self.loop.call_later(HEAD_S, self.transport.close)
        scope: Any = self.scope
        scope[ABORT] = self.transport.abort

    def on_url(self, url: bytes) -> None:
        if self._fits(url):
            super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._fits(name, value):
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._head_due.cancel()
        most = self.config.limit_concurrency
        if not self._is_refused and most is not None and len(self.connections) >= most:
            self._is_refused = True
            self.transport.write(_too_many())
        if self._is_refused:
            self.transport.close()
        else:
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        if not self._is_refused:
            super().on_body(body)

    def on_message_complete(self) -> None:
        if not self._is_refused:
            super().on_message_complete()

    def _fits(self, *parts: bytes) -> bool:
        """Ends a connection whose headers do not end: the answer at once, the end when all were sent."""
        self._header_bytes += sum(map(len, parts))
        if self._header_bytes > _HEADER_BYTES_MAX and not self._is_refused:
            self._is_refused = True
            self.transport.write(_too_large())
        if self._header_bytes > _THROWN_AWAY_BYTES_MAX:
            self.transport.close()
        return not self._is_refused


def _too_large() -> bytes:
    refused = BadRequest(431, MEANINGS[431], hint=f"{_HEADER_BYTES_MAX:,} bytes at most")
    return _last_answer(b"431 Request Header Fields Too Large", refused)


def _too_many() -> bytes:
    refused = Busy("too many connections are open", retry_after_s=5)
    return _last_answer(b"429 Too Many Requests\r\nRetry-After: 5", refused)


def _last_answer(head: bytes, error: PenstockError) -> bytes:
    told = dumps({"error": as_object(error)})
    return (
        b"HTTP/1.1 %s\r\nConnection: close\r\n"
        b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (head, len(told), told)
    )
