"""Who gets deliveries in tests: a web server and a mail server that fail as they are told."""

from __future__ import annotations

import json
import socket
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from email import message_from_bytes, policy
from email.message import EmailMessage
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from aiosmtpd.controller import Controller
from aiosmtpd.smtp import AuthResult
from tests.servers import free_port

CUT = "cut"  # the request is taken, and the connection closed without an answer

Answer = int | str | tuple[int, Mapping[str, str]]


@dataclass
class WebServer:
    """Answers as scripted, then 200. `taken` is every request, also those that got no good answer."""

    port: int = 0
    script: deque[Answer] = field(default_factory=deque)
    taken: list[tuple[str, Any]] = field(default_factory=list)  # key and body
    headers: list[Mapping[str, str]] = field(default_factory=list)
    good: list[str] = field(default_factory=list)  # keys that were answered with 200
    at_the_end: list[Callable[[], None]] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook"

    @property
    def keys(self) -> list[str]:
        return [key for key, _ in self.taken]

    def offsets(self) -> list[int]:
        return [int(key.rpartition("-")[2]) for key in self.keys]


@contextmanager
def web_server(port: int = 0) -> Iterator[WebServer]:
    told = WebServer()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            key = self.headers["Idempotency-Key"]
            told.taken.append((key, body))
            told.headers.append(dict(self.headers))
            answer = told.script.popleft() if told.script else 200
            if answer == CUT:
                self.close_connection = True
                self.connection.shutdown(socket.SHUT_RDWR)
                return
            status, headers = answer if isinstance(answer, tuple) else (int(answer), {})
            if status == 200:
                told.good.append(key)
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"ok")

        def log_message(self, format: str, *args: Any) -> None:
            """Not into the output of the tests."""

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    server.daemon_threads = True
    told.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield told
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@dataclass
class MailServer:
    """Answers as scripted, then takes the mail."""

    port: int = 0
    script: deque[str] = field(default_factory=deque)
    mails: list[EmailMessage] = field(default_factory=list)
    logins: list[tuple[str, str]] = field(default_factory=list)
    refusals: dict[str, deque[str]] = field(default_factory=dict)  # by recipient
    recipients: list[list[str]] = field(default_factory=list)  # of each mail

    async def handle_RCPT(
        self, server: Any, session: Any, envelope: Any, address: str, rcpt_options: Any
    ) -> str:
        if self.refusals.get(address):
            return self.refusals[address].popleft()
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:
        if self.script:
            return self.script.popleft()
        mail = message_from_bytes(envelope.content, policy=policy.default)
        assert isinstance(mail, EmailMessage)
        self.mails.append(mail)
        self.recipients.append(list(envelope.rcpt_tos))
        return "250 taken"

    def login(self, server: Any, session: Any, envelope: Any, mechanism: str, data: Any) -> AuthResult:
        self.logins.append((data.login.decode(), data.password.decode()))
        return AuthResult(success=data.password == b"right", handled=False)


@contextmanager
def mail_server() -> Iterator[MailServer]:
    told = MailServer(free_port())
    controller = Controller(
        told, hostname="127.0.0.1", port=told.port, authenticator=told.login, auth_require_tls=False
    )
    controller.start()
    try:
        yield told
    finally:
        controller.stop()
