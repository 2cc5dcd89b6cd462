"""One webhook as HTTP: what is asked of a request before it is read, and how it is answered."""

from __future__ import annotations

import hmac
import io
import json
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler
from types import MappingProxyType
from typing import Any, cast

from penstock.direct.connections import Connections, TimedReader
from penstock.direct.message import Received

_KEY_LENGTH_MAX = 512
_DISCARD_BYTES_MAX = 8 << 20
_DISCARD_S = 2.0
_PIECE = 64 << 10


class Refusal(Exception):
    """An answer other than "taken". `retry_after_s`: when the same request may do better."""

    def __init__(self, status: int, reason: str, *, retry_after_s: int | None = None) -> None:
        super().__init__(reason)
        self.status, self.reason, self.retry_after_s = status, reason, retry_after_s


@dataclass(frozen=True, slots=True)
class Rules:
    """What is taken, and whom from."""

    body_bytes_max: int
    token: str | None
    request_s: float


class RequestServer(Connections):
    """`take` is called by the thread of a connection: a message is taken, or it raises Refusal."""

    def __init__(
        self,
        address: tuple[str, int],
        take: Callable[[Received], None],
        rules: Rules,
        *,
        connections_max: int,
    ) -> None:
        self.take, self.rules = take, rules
        super().__init__(address, _Handler, connections_max=connections_max)


class _Handler(BaseHTTPRequestHandler):
    """The requests of one connection, one after the other."""

    protocol_version = "HTTP/1.1"
    server_version, sys_version = "penstock", ""
    disable_nagle_algorithm = True

    @property
    def owner(self) -> RequestServer:
        return cast(RequestServer, self.server)

    def setup(self) -> None:
        super().setup()
        self.rfile.close()
        self._reader = TimedReader(self.connection)
        self.rfile = io.BufferedReader(self._reader)

    def handle_one_request(self) -> None:
        self._reader.allow(self.owner.rules.request_s)
        super().handle_one_request()

    def handle_expect_100(self) -> bool:
        """A sender that asks before it sends the body is refused before it does."""
        try:
            self._check()
        except Refusal as refusal:
            self._refuse(refusal, body_read=False)
            return False
        return super().handle_expect_100()

    def do_POST(self) -> None:
        read = False
        try:
            length = self._check()
            body = self.rfile.read(length)
            if len(body) < length:  # the sender left in the middle of it
                self.close_connection = True
                return
            read = True
            self.owner.take(self._message(body))
        except Refusal as refusal:
            self._refuse(refusal, body_read=read)
        else:
            self._answer(202, {"accepted": True})

    def _other(self) -> None:
        self._refuse(Refusal(405, "only POST is taken"), body_read=False)

    do_GET = do_HEAD = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = _other

    # ---- checks --------------------------------------------------------------------------------------

    def _check(self) -> int:
        """The length of the body. Raises Refusal, before a byte of the body was read."""
        rules = self.owner.rules
        if "Origin" in self.headers:  # any page could post to the loopback of whoever looks at it
            raise Refusal(403, "pages in a browser may not send here")
        if rules.token is not None and not _equal(
            self.headers.get("Authorization", ""), f"Bearer {rules.token}"
        ):
            raise Refusal(401, "the token is missing or wrong")
        if "Transfer-Encoding" in self.headers:
            raise Refusal(411, "a body needs a Content-Length")
        lengths = self.headers.get_all("Content-Length") or []
        if not lengths:
            raise Refusal(411, "a body needs a Content-Length")
        if len(lengths) > 1 or not (lengths[0].isascii() and lengths[0].isdecimal()) or len(lengths[0]) > 18:
            raise Refusal(400, "Content-Length is no number")
        if int(lengths[0]) > rules.body_bytes_max:
            raise Refusal(413, f"a body has at most {rules.body_bytes_max} bytes")
        if len(self.headers.get("Idempotency-Key", "")) > _KEY_LENGTH_MAX:
            raise Refusal(400, f"an Idempotency-Key has at most {_KEY_LENGTH_MAX} characters")
        return int(lengths[0])

    def _message(self, body: bytes) -> Received:
        headers = {name.lower(): value for name, value in self.headers.items()}
        headers.pop("authorization", None)
        return Received(self.path, body, headers.get("idempotency-key"), MappingProxyType(headers))

    # ---- answers -------------------------------------------------------------------------------------

    def _refuse(self, refusal: Refusal, *, body_read: bool) -> None:
        if not body_read:
            self.close_connection = True  # what follows on it is a body that nobody wants
        wait = {} if refusal.retry_after_s is None else {"Retry-After": str(refusal.retry_after_s)}
        allow = {"Allow": "POST"} if refusal.status == 405 else {}
        self._answer(refusal.status, {"error": refusal.reason}, **wait, **allow)
        if not body_read:
            self._discard()

    def _answer(self, status: int, said: dict[str, Any], **headers: str) -> None:
        body = json.dumps(said).encode()
        self.connection.settimeout(self.owner.rules.request_s)
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _discard(self) -> None:
        """Let the answer arrive: closing while the sender still sends would make it unreadable there."""
        with suppress(OSError):
            self.connection.shutdown(socket.SHUT_WR)
            self._reader.allow(_DISCARD_S)
            left = _DISCARD_BYTES_MAX
            while left > 0 and (piece := self.rfile.read1(_PIECE)):
                left -= len(piece)

    def log_message(self, format: str, *args: Any) -> None:
        """A program has its own place for that."""


def _equal(given: str, wanted: str) -> bool:
    return hmac.compare_digest(given.encode(errors="replace"), wanted.encode())
