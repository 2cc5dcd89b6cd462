"""What every request passes first and every answer last: names, origins, and headers for browsers.

A page of another site must not use a server on this machine through its reader's browser. Two ways lead
there: a name of that site that points to this machine (DNS rebinding), which the check of `Host` closes; and
plain cross-site requests, which the checks of `Origin` and `Sec-Fetch-Site` close.
"""

from __future__ import annotations

import ipaddress
import re
import time
from collections.abc import Iterable

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from penstock.gateway.measures import Measures
from penstock.gateway.problems import answer
from penstock.gateway.refusals import ForeignRequest

_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' data:; font-src 'self'; connect-src 'self'; manifest-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
}
_HSTS = "max-age=31536000"
_HOST = re.compile(r"(\[[0-9a-fA-F:.]+\]|[\w.-]+)(:\d{0,5})?")
_LOCAL = frozenset({"localhost", "127.0.0.1", "::1"})


class Doorway:
    """ASGI middleware, the outermost."""

    def __init__(self, app: ASGIApp, *, names: Iterable[str], measures: Measures) -> None:
        self._app, self._measures = app, measures
        self._names = _LOCAL | {name.lower() for name in names}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, status = time.perf_counter(), 500

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                _add_headers(MutableHeaders(scope=message), secure=scope["scheme"] == "https")
            await send(message)

        try:
            self._check(scope)
        except ForeignRequest as error:
            await answer(error)(scope, receive, send_with_headers)
        else:
            await self._app(scope, receive, send_with_headers)
        finally:
            route = scope.get("route")
            self._measures.answered(
                scope["method"], getattr(route, "path", ""), status, time.perf_counter() - began
            )

    def _check(self, scope: Scope) -> None:
        headers = Headers(scope=scope)
        hosts, origins = headers.getlist("host"), headers.getlist("origin")
        host = hosts[0] if len(hosts) == 1 else ""
        if not _is_known(host, self._names):
            raise ForeignRequest(
                f"this server is not called {', '.join(hosts)!r}.",
                hint="ask it by its address, or name it with: penstock serve --name NAME",
            )
        own = f"{scope['scheme']}://{host}".lower()
        if any(origin.lower() != own for origin in origins):
            raise ForeignRequest(
                f"a page of {', '.join(origins)!r} cannot use this server.",
                hint="use it from its own pages, or without a browser",
            )
        # A link that leads here is harmless; nothing else from there is. Another port is the same site.
        if headers.get("sec-fetch-site") in ("cross-site", "same-site") and not _is_a_visit(scope, headers):
            raise ForeignRequest("a page of another site cannot use this server.", hint="open its own pages")


def _is_a_visit(scope: Scope, headers: Headers) -> bool:
    return (
        scope["method"] in ("GET", "HEAD")
        and headers.get("sec-fetch-mode") == "navigate"
        and not scope["path"].startswith("/api/")
    )


def _is_known(host: str, names: frozenset[str]) -> bool:
    found = _HOST.fullmatch(host)
    return found is not None and found[1].strip("[]").lower().rstrip(".") in names


def is_loopback(host: str) -> bool:
    """Whether an address to bind to can be reached from this machine alone."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _add_headers(headers: MutableHeaders, *, secure: bool) -> None:
    for name, value in _HEADERS.items():
        headers[name] = value
    headers.setdefault("Cache-Control", "no-store")
    if secure:
        headers["Strict-Transport-Security"] = _HSTS
