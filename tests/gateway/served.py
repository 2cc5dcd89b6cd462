"""A gateway on a free port, in a thread of the test, and clients of it."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx
from tests.waiting import wait_until

import penstock as ps
from penstock.gateway.gateway import Gateway, Settings
from penstock.gateway.serving import Address, Server

WAIT_S = 60.0


@dataclass(frozen=True)
class Served:
    """A gateway that runs, and a client without a token."""

    app: ps.App
    gateway: Gateway
    server: Server
    url: str
    http: httpx.Client

    def get(self, path: str, **options: Any) -> httpx.Response:
        return self.http.get(f"/api/v1{path}", **options)

    def post(self, path: str, **options: Any) -> httpx.Response:
        return self.http.post(f"/api/v1{path}", **options)

    def raw(self, path: str) -> tuple[int, str, bytes]:
        """Status, content type and body for a path that no client tidies up on the way."""
        host, port = self.url.removeprefix("http://").split(":")
        connection = http.client.HTTPConnection(host, int(port), timeout=WAIT_S)
        try:
            connection.request("GET", f"/api/v1{path}")
            answer = connection.getresponse()
            return answer.status, answer.headers["content-type"], answer.read()
        finally:
            connection.close()

    def events(self, path: str, **options: Any) -> Events:
        return Events(self, f"{self.url}/api/v1{path}", options)


@contextmanager
def serving(app: ps.App, settings: Settings | None = None) -> Iterator[Served]:
    gateway = Gateway(app, settings)
    server = Server(gateway, Address())
    thread = threading.Thread(target=server.run, name="server", daemon=True)
    thread.start()
    try:
        wait_until(lambda: server.started, timeout_s=WAIT_S, what="the server")
        with httpx.Client(base_url=server.url, timeout=WAIT_S) as http:
            yield Served(app, gateway, server, server.url, http)
    finally:
        server.should_exit = True
        thread.join(WAIT_S)
        assert not thread.is_alive()


@dataclass(frozen=True)
class Event:
    kind: str
    data: Any
    id: str | None


class Events:
    """A stream of server-sent events, read as a browser does. A context manager."""

    def __init__(self, served: Served, url: str, options: dict[str, Any]) -> None:
        self._client = httpx.Client(timeout=WAIT_S)
        self._stream = self._client.stream("GET", url, **options)
        self.last_id: str | None = None

    def __enter__(self) -> Events:
        self.response = self._stream.__enter__()
        self._lines = self._split()
        return self

    def _split(self) -> Iterator[str]:
        """At line feeds alone: httpx would split at whatever Unicode calls a line break."""
        held = b""
        for piece in self.response.iter_bytes():
            *lines, held = (held + piece).split(b"\n")
            yield from (line.decode() for line in lines)

    def __exit__(self, *error: Any) -> None:
        self._stream.__exit__(*error)
        self._client.close()

    def __iter__(self) -> Iterator[Event]:
        kind, data, id = "message", [], None
        for line in self._lines:
            name, _, value = line.partition(": ")
            if name == "event":
                kind = value
            elif name == "data":
                data.append(value)
            elif name == "id":
                id = self.last_id = value
            elif not line:
                if data:
                    yield Event(kind, json.loads("\n".join(data)), id)
                kind, data, id = "message", [], None

    def take(self, count: int) -> list[Event]:
        events = iter(self)
        return [next(events) for _ in range(count)]
