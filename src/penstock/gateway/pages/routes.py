"""Where the pages are, and how they stay current."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response, StreamingResponse

from penstock.errors import PenstockError
from penstock.gateway.json import Json
from penstock.gateway.pages import (  # noqa: F401  each declares its pages
    actions,
    alerts,
    captures,
    groups,
    history,
    late,
    overview,
    queues,
    tables,
    topics,
    views,
)
from penstock.gateway.pages.health import url
from penstock.gateway.pages.look import Look
from penstock.gateway.pages.page import PAGES
from penstock.gateway.pages.route import PageRoute, address_of, site_of
from penstock.gateway.pages.site import LIVE_MAX, Site
from penstock.gateway.refusals import Busy
from penstock.gateway.routing import needs

_EVERY_S = 1.0
_BEAT_S = 3.0
_OLD_S = 15.0  # what is shown is older than this: a reader is told
routes = APIRouter(route_class=PageRoute, include_in_schema=False)


async def show(request: Request) -> Response:
    """A page; for htmx, the part of it that is to be replaced."""
    site, address, role = site_of(request), address_of(request), request.state.caller.role
    target = request.headers.get("hx-target", "")

    def built() -> str:
        page, look = site.page(address, role)
        if target.startswith("part_"):
            return site.parts(page, look, address=address, role=role).get(target, "")
        theme = request.cookies.get("theme", "")
        return site.render(page, look, address=address, role=role, theme=theme)

    return HTMLResponse(await site.gateway.read(built))


for path in PAGES.paths():
    routes.add_api_route(path, show, methods=["GET"], **needs("read"))
routes.include_router(actions.routes)


@routes.get("/live", **needs("read"))
async def live(request: Request, path: Annotated[str, Query(max_length=2_000)]) -> Response:
    """What changes on a page, as it changes. One who comes when too many look is told to come again."""
    site = site_of(request)
    if site.looking >= LIVE_MAX:
        raise Busy("too many pages are open already", retry_after_s=5)
    return StreamingResponse(
        _changes(request, site, path, request.state.caller.role), media_type="text/event-stream"
    )


async def _changes(request: Request, site: Site, path: str, role: str) -> AsyncIterator[str]:
    site.looking += 1
    known: dict[str, str] = {}
    silent_s, at_us = 0.0, 0
    try:
        yield "retry: 2000\n\n"
        while not site.gateway.ended and not await request.is_disconnected():
            try:
                site.gateway.guard.admit(request, "read")
            except PenstockError:  # its token is not good any more: it comes back, and is told so
                return
            try:
                parts, at_us = await site.gateway.read(_parts, site, path, role)
            except PenstockError as error:
                yield _event("trouble", {"message": error.message})
                parts = known
            changed = {name: html for name, html in parts.items() if known.get(name) != html}
            known = {**known, **changed}
            silent_s = 0.0 if changed else silent_s + _EVERY_S
            if changed:
                yield _event("parts", changed)
            elif (age_s := time.time() - at_us / 1e6) > _OLD_S:
                yield _event("trouble", {"message": "the log answers slowly", "age_s": age_s})
            elif silent_s >= _BEAT_S:
                yield _event("beat", {})
                silent_s = 0.0
            await asyncio.sleep(_EVERY_S)
    finally:
        site.looking -= 1


def _parts(site: Site, path: str, role: str) -> tuple[dict[str, str], int]:
    """The parts of a page, and the moment they are from."""
    page, look = site.page(path, role)
    return site.parts(page, look, address=path, role=role), look.at_us


def _event(name: str, data: object) -> str:
    return f"event: {name}\ndata: {json.dumps(data)}\n\n"


@routes.get("/palette.json", **needs("read"))
async def palette(request: Request) -> Response:
    """Everything that one can go to by its name."""
    site = site_of(request)
    look = await site.gateway.read(site.watcher.look)
    return Json({"places": _places(look)})


def _places(look: Look) -> list[dict[str, str]]:
    def place(name: str, kind: str, *parts: str) -> dict[str, str]:
        return {"name": name, "kind": kind, "href": url(*parts) if parts != ("",) else "/"}

    pages = [("Overview", "")] + [
        (name.capitalize(), name)
        for name in ("pipeline", "topics", "views", "tables", "groups", "queues", "late", "batches",
                     "capture", "alerts")
    ]  # fmt: skip
    found = [place(label, "page", path) for label, path in pages]
    for view in look.views.values():
        found.append(place(view.name, view.kind, "views", view.name))
    for topic in look.topics.values():
        kind = topic.facts.kind
        found.append(place(topic.name, "topic" if kind == "view" else kind, "topics", topic.name))
        found.append(place(f"messages of {topic.name}", "messages", "topics", topic.name, "messages"))
    for group in look.groups:
        info = group.info
        found.append(place(f"{info.group} on {info.topic}", "group", "groups", info.group, info.topic))
        found.append(place(f"reset {info.group} on {info.topic}", "action", "groups", info.group, info.topic))
    for queue in look.queues:
        found.append(place(queue.name, "queue", "queues", queue.name))
    return found
