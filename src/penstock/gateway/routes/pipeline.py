"""How the app fares: status, explanations, late rows, dead letters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fastapi import Query
from starlette.responses import Response

from penstock.gateway.facts import pipeline
from penstock.gateway.facts.pipeline import DeadLetters, Explained, Late, PipelineStatus
from penstock.gateway.json import Json
from penstock.gateway.names import ViewName
from penstock.gateway.routing import Routes, Served, needs
from penstock.gateway.wishes import Limit

routes = Routes("pipeline")


@dataclass(frozen=True, slots=True)
class Explanations:
    definitions: tuple[Explained, ...]


@dataclass(frozen=True, slots=True)
class DeadLetterTopics:
    topics: tuple[DeadLetters, ...]


@routes.get("/pipeline", summary="How does it fare?", response_model=PipelineStatus, **needs("read"))
async def status(gateway: Served) -> PipelineStatus:
    """Every query, follower and capture, as the run that goes on (or was the last) has told."""
    return await gateway.read(pipeline.status_of, gateway.app)


@routes.get(
    "/pipeline/explain", summary="Why does nothing come out?", response_model=Explanations, **needs("read")
)
async def explain(
    gateway: Served,
    view: Annotated[str | None, Query(description="Only this view or stream.", max_length=249)] = None,
) -> Response:
    """For each view and stream, what keeps rows back or what it waits for; found without the run's help."""
    names = () if view is None else (view,)
    return Json(Explanations(await gateway.scan(pipeline.explain, gateway.app, names)))


@routes.get("/views/{view}/late", summary="What came too late.", response_model=Late, **needs("read"))
async def late(gateway: Served, view: ViewName, limit: Limit = 100) -> Response:
    """Pairs of row and window that were left out, with the watermark they met; the newest `limit`."""
    return Json(await gateway.scan(pipeline.late, gateway.app, view, limit=limit))


@routes.get(
    "/dead-letters", summary="What could not be delivered.", response_model=DeadLetterTopics, **needs("read")
)
async def dead_letters(gateway: Served, limit: Limit = 100) -> Response:
    """Of every topic where webhooks, mail and outboxes put what they gave up on, the newest `limit`."""
    found = await gateway.scan(
        pipeline.dead_letters, gateway.app, limit=limit, size_bytes_max=gateway.limits.page_bytes
    )
    return Json(DeadLetterTopics(found))
