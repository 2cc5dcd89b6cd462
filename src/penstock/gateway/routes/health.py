"""Whether the server lives, and whether it can work."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from starlette.requests import Request

from penstock.errors import PenstockError
from penstock.gateway.json import Json
from penstock.gateway.routing import Routes, Served, needs

routes = Routes("health", prefix="")


@dataclass(frozen=True, slots=True)
class Health:
    """`reason` says what is missing where it is not ready."""

    status: Literal["live", "ready", "not ready"]
    reason: str | None = None


@routes.get("/health/live", summary="Is it alive?", response_model=Health, **needs("public"))
async def live() -> Health:
    """Answers as long as the server runs. Touches nothing."""
    return Health("live")


@routes.get("/health/ready", summary="Can it work?", response_model=Health, **needs("public", 503))
async def ready(gateway: Served) -> Any:
    """Whether the log answers; 503 and the reason where it does not."""
    try:
        await gateway.read(gateway.app.log.topics)
    except PenstockError as error:
        return Json({"status": "not ready", "reason": type(error).__name__}, status_code=503)
    return Health("ready")


@routes.get("/api/v1/openapi.json", summary="This document.", include_in_schema=False, **needs("read"))
async def document(request: Request) -> Json:
    return Json(request.app.openapi())
