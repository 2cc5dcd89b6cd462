"""Routes that know who may use them, and how much they read before they know it.

Every endpoint names a role; one that does not cannot be made. The role is checked when the route is known and
before a byte of the body is read.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends
from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response

from penstock.gateway import bodies
from penstock.gateway.gateway import Gateway
from penstock.gateway.problems import documented
from penstock.gateway.sse import EventStream

Role = Literal["public", "read", "write", "admin"]
_ALWAYS = (400, 401, 403, 404, 408, 422, 429, 431, 503)
_WITH_BODY = (413, 415)


def gateway_of(request: Request) -> Gateway:
    found: Gateway = request.app.state.gateway
    return found


async def _served(request: Request) -> Gateway:
    """FastAPI would give a plain function a thread of its own."""
    return gateway_of(request)


Served = Annotated[Gateway, Depends(_served)]
"""The gateway, as an argument of an endpoint."""


class Guarded(APIRoute):
    """An endpoint behind the guard."""

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        extra = options.get("openapi_extra") or {}
        assert "x-role" in extra, f"{path} does not say who may use it: **needs(...)"
        self.role: Role = extra["x-role"]
        self.reads_itself: bool = extra.get("x-streamed", False)
        super().__init__(path, endpoint, **options)

    def get_route_handler(self) -> Callable[[Request], Awaitable[Response]]:  # type: ignore[override]
        handle = super().get_route_handler()

        async def guarded(request: Request) -> Response:
            gateway = gateway_of(request)
            limits = gateway.limits
            request.state.caller = gateway.guard.admit(request, self.role)
            if not self.reads_itself:
                request = await bodies.read_first(
                    request, size_bytes_max=limits.question_bytes, silent_s_max=limits.body_silent_s
                )
            answer = await handle(request)
            if isinstance(answer, EventStream):  # it may outlive the token that it was begun with
                answer.admit = lambda: gateway.guard.admit(request, self.role)
            return answer

        return guarded


class Routes(APIRouter):
    """A router of guarded endpoints."""

    def __init__(self, tag: str, *, prefix: str = "/api/v1") -> None:
        super().__init__(prefix=prefix, tags=[tag], route_class=Guarded)


def streaming(declared: dict[str, Any]) -> dict[str, Any]:
    """The same for an endpoint that answers with server-sent events."""
    events = {"description": "Events.", "content": {"text/event-stream": {"schema": {"type": "string"}}}}
    return {**declared, "responses": {**declared["responses"], 200: events}}


def needs(role: Role, *more: int, streamed: bool = False, body: bool = False) -> dict[str, Any]:
    """What an endpoint is declared with: who may use it, and which statuses besides the usual it has.

    `streamed`: it reads the body itself, and bounds it.
    """
    extra: dict[str, Any] = {"x-role": role}
    if streamed:
        extra["x-streamed"] = True
    if role != "public":
        extra["security"] = [{"token": []}]
    statuses = {*_ALWAYS, *more, *(_WITH_BODY if body else ())}
    return {"openapi_extra": extra, "responses": documented(*sorted(statuses))}
