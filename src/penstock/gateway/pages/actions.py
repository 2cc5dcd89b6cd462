"""What a reader can do on a page. Each answers with a piece of HTML that says what happened."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import APIRouter, Body, Query
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from penstock.errors import BadOption, BadRecord
from penstock.gateway import cookie
from penstock.gateway.facts import groups
from penstock.gateway.json import Json
from penstock.gateway.pages import queues, topics
from penstock.gateway.pages.route import PageRoute, site_of
from penstock.gateway.pages.site import Site
from penstock.gateway.routing import needs
from penstock.log.json_rows import from_json

routes = APIRouter(route_class=PageRoute, include_in_schema=False)
Form = Annotated[dict[str, Any], Body()]
_EXPORT_MAX = 10_000


@routes.get("/parts", **needs("read"))
async def parts(request: Request, path: Annotated[str, Query(max_length=2_000)]) -> Response:
    """The changing parts of a page, once: for a moment on the slider."""
    site, role = site_of(request), request.state.caller.role

    def built() -> dict[str, str]:
        page, look = site.page(path, role)
        return site.parts(page, look, address=path, role=role)

    return Json(await site.gateway.read(built))


@routes.post("/topics/{name}/produce", **needs("write", body=True))
async def produce(request: Request, name: str, form: Form) -> Response:
    """Append one record, as it was written into the form."""
    site = site_of(request)
    position = await site.gateway.write(_append, site, name, _text(form, "record"))
    return HTMLResponse(site.fragment("produced.html", name=name, position=position))


def _append(site: Site, name: str, text: str) -> Any:
    if not topics.is_writable(site, name):
        raise BadOption(f'"{name}" is written by Penstock.', hint="append to a topic that a program declares")
    topic = site.app.log.topic(name)
    try:
        record = json.loads(text)
    except ValueError as error:
        raise BadRecord(f"that is no JSON ({error}).", hint='write an object: {"column": value}') from None
    if not isinstance(record, dict):
        raise BadRecord("a record is a JSON object.", hint='write {"column": value}')
    return topic.append(from_json(topic.schema, record))


@routes.get("/topics/{name}/export", **needs("read"))
async def export(request: Request, name: str) -> Response:
    """What the browser shows, as JSON lines."""
    site, query = site_of(request), request.query_params
    text = query.get("partition", "")
    partition = int(text) if text.isascii() and text.isdecimal() and len(text) < 6 else None
    found = await site.gateway.scan(
        topics.find, site, name, place=query.get("from") or "latest", after=query.get("after", ""),
        partition=partition, filter_=query.get("filter", ""), limit=_EXPORT_MAX,
    )  # fmt: skip
    lines = "".join(f"{message.value}\n" for message in found.messages)
    headers = {"Content-Disposition": f'attachment; filename="{name}.ndjson"'}
    return Response(lines, media_type="application/x-ndjson", headers=headers)


@routes.post("/groups/{group}/{topic}/reset", **needs("admin", body=True))
async def reset(request: Request, group: str, topic: str, form: Form) -> Response:
    """What moving a group would do; with `sure`, do it."""
    site, to, text = site_of(request), _text(form, "to"), _text(form, "partition")
    partition = int(text) if text.isascii() and text.isdecimal() and len(text) < 6 else None
    sure = _text(form, "sure") == "yes"
    found = await site.gateway.write(
        groups.reset, site.app, group, topic, to, partition=partition, dry_run=not sure, now=datetime.now(UTC)
    )
    facts = {"group": group, "topic": topic, "moves": found.partitions, "done": found.moved, "to": to,
             "partition": text}  # fmt: skip
    return HTMLResponse(site.fragment("moves.html", **facts))


@routes.post("/queues/{name}/redrive", **needs("admin", body=True))
async def redrive(request: Request, name: str, form: Form) -> Response:
    """Hand dead letters out again: all of them, or one, edited or not."""
    site, id_, died_us = site_of(request), _text(form, "id"), _text(form, "died_us")
    body = _text(form, "body") if "body" in form else None
    count = await site.gateway.write(queues.redrive, site, name, id_=id_, died_us=died_us, body=body)
    return HTMLResponse(site.fragment("redriven.html", name=name, count=count, verb="handed out again"))


@routes.post("/queues/{name}/discard", **needs("admin", body=True))
async def discard(request: Request, name: str, form: Form) -> Response:
    """Remove a dead letter for good."""
    site, id_, died_us = site_of(request), _text(form, "id"), _text(form, "died_us")
    count = await site.gateway.write(queues.discard, site, name, id_=id_, died_us=died_us)
    return HTMLResponse(site.fragment("redriven.html", name=name, count=count, verb="removed"))


@routes.post("/views/{name}/verify", **needs("write"))
async def verify(request: Request, name: str) -> Response:
    """Begin to recompute a view from the log; the page tells how it goes."""
    site = site_of(request)
    site.app.definition(name)
    job = site.gateway.jobs.verify(name)
    return HTMLResponse(site.fragment("verifying.html", verifying=job, can_write=True, name=name))


# ---- who one is -------------------------------------------------------------------------------------


@routes.get("/login", **needs("public"))
async def login(request: Request) -> Response:
    site = site_of(request)
    theme = request.cookies.get("theme", "")
    return HTMLResponse(
        site.fragment("login.html", theme=theme, to=_local(request.query_params.get("to", "/")))
    )


@routes.post("/login", **needs("public", body=True))
async def enter(request: Request, form: Form) -> Response:
    """Keep a token in a cookie that scripts cannot read and other sites cannot send."""
    site = site_of(request)
    token = _text(form, "token").strip()
    site.gateway.guard.known(token)
    answer = Response(status_code=204, headers={"HX-Redirect": _local(_text(form, "to") or "/")})
    cookie.keep(token, request, answer)
    return answer


@routes.post("/logout", **needs("public"))
async def leave(request: Request) -> Response:
    answer = RedirectResponse("/login", 303)
    cookie.drop(answer)
    return answer


def _local(path: str) -> str:
    """A path of this server, whatever was asked for.

    Browsers leave out tabs and line breaks and take a backslash for a slash: `/\\t/evil` would lead to evil.
    """
    told = quote(path, safe="/?&=%:,;+~!*'()@$[]")
    return told if told.startswith("/") and not told.startswith("//") else "/"


def _text(form: dict[str, Any], name: str) -> str:
    found = form.get(name, "")
    if not isinstance(found, str):
        raise BadOption(f"{name} is no text.", hint="use the form of the page")
    return found
