"""Views and tables: their rows now, at a past time, and as they change."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any

import orjson
from fastapi import Query
from starlette.responses import Response

from penstock.errors import BadOption, ViewBehind
from penstock.follow.where import Wanted
from penstock.gateway import feed_tail, filter
from penstock.gateway.channel import Channel
from penstock.gateway.channels import told
from penstock.gateway.facts import views
from penstock.gateway.facts.views import Rows, RowWish, TableFacts, ViewFacts
from penstock.gateway.feed_tail import FeedTail
from penstock.gateway.gateway import Gateway
from penstock.gateway.json import Json
from penstock.gateway.names import TableName, ViewName
from penstock.gateway.refusals import BadRequest
from penstock.gateway.routing import Routes, Served, needs, streaming
from penstock.gateway.sse import chunked
from penstock.gateway.subscriber import Subscriber
from penstock.gateway.wishes import LastEventId, Limit, Where

routes = Routes("views")

_LOOK_AGAIN_S = 0.05


@dataclass(frozen=True, slots=True)
class ViewList:
    views: tuple[ViewFacts, ...]


@dataclass(frozen=True, slots=True)
class TableList:
    tables: tuple[TableFacts, ...]


Key = Annotated[
    str | None,
    Query(
        description="Columns and the values that they must have, as a JSON object; null for none.",
        max_length=4_000,
        examples=['{"page": "/cart"}'],
    ),
]
AsOf = Annotated[
    datetime | None,
    Query(description="As it was then. A time without a zone is UTC.", examples=["2026-01-31T12:00:00Z"]),
]
Skip = Annotated[
    int, Query(description="Leave out so many first: the `next` of an earlier page.", ge=0, le=1_000_000)
]


@routes.get("/views", summary="List views.", response_model=ViewList, **needs("read"))
async def list_views(gateway: Served) -> ViewList:
    """Every view and derived stream of the app."""
    return ViewList(await gateway.read(views.all_of, gateway.app))


@routes.get("/views/{view}", summary="Show a view.", response_model=ViewFacts, **needs("read"))
async def show_view(gateway: Served, view: ViewName) -> ViewFacts:
    """Its columns and key, what it reads, and how far it is."""
    return await gateway.read(views.one_of, gateway.app, view)


@routes.get(
    "/views/{view}/rows",
    summary="Read the rows of a view.",
    response_model=Rows,
    **needs("read", 409, 410, 504),
)
async def view_rows(
    gateway: Served,
    view: ViewName,
    key: Key = None,
    where: Where = None,
    as_of: AsOf = None,
    limit: Limit = 100,
    skip: Skip = 0,
    after: Annotated[
        str | None,
        Query(description="Not before it shows this: what an append called `after`.", max_length=16_300),
    ] = None,
    timeout: Annotated[float, Query(description="For `after`: seconds at most.", ge=0, le=30)] = 5,
) -> Response:
    """In the order of the key. `final` tells which windows will not change any more.

    Pages are of a view that moves on meanwhile; with `as_of` they are of one moment.
    """
    wish = _wish(key, where, as_of, limit, skip)
    if after is not None:
        await _until_shown(gateway, view, after, min(timeout, gateway.limits.wait_s))
    work = gateway.scan if as_of is not None or where is not None else gateway.read
    limits = gateway.limits
    found = await work(
        views.rows_of, gateway.app, view, wish,
        scanned_max=limits.scanned_rows, size_bytes_max=limits.page_bytes,
    )  # fmt: skip
    return Json(found)


@routes.get("/tables", summary="List tables.", response_model=TableList, **needs("read"))
async def list_tables(gateway: Served) -> TableList:
    """Every table that the app declares or captures."""
    return TableList(await gateway.read(views.tables_of, gateway.app))


@routes.get(
    "/tables/{table}/rows", summary="Read the rows of a table.", response_model=Rows, **needs("read", 410)
)
async def table_rows(
    gateway: Served,
    table: TableName,
    key: Key = None,
    where: Where = None,
    as_of: AsOf = None,
    limit: Limit = 100,
    skip: Skip = 0,
) -> Response:
    """Of each key the newest version, or the one that was valid `as_of` a time; in the order of the key."""
    wish = _wish(key, where, as_of, limit, skip)
    limits = gateway.limits
    found = await gateway.scan(
        views.table_rows_of, gateway.app, table, wish,
        scanned_max=limits.scanned_rows, size_bytes_max=limits.page_bytes,
    )  # fmt: skip
    return Json(found)


@routes.get(
    "/views/{view}/changes",
    summary="Follow the rows of a view (SSE).",
    response_class=Response,
    **streaming(needs("read", 410)),
)
async def view_changes(
    gateway: Served, view: ViewName, where: Where = None, last_event_id: LastEventId = None
) -> Response:
    """Every row there is as `insert`, then `current`, then each `insert`, `update` and `delete` as it comes.

    There is no gap between the two. A client that comes back with `Last-Event-ID` is told what changed
    since; if that can no longer be told the answer is 410, and it begins anew without. One that reads too
    slowly is cut off.
    """
    return await _changes(gateway, view, where, last_event_id)


@routes.get(
    "/tables/{table}/changes",
    summary="Follow the rows of a table (SSE).",
    response_class=Response,
    **streaming(needs("read", 410)),
)
async def table_changes(
    gateway: Served, table: TableName, where: Where = None, last_event_id: LastEventId = None
) -> Response:
    """As for a view."""
    return await _changes(gateway, table, where, last_event_id)


def _wish(key: str | None, where: str | None, as_of: datetime | None, limit: int, skip: int) -> RowWish:
    values: Any = None
    if key is not None:
        try:
            values = orjson.loads(key)
        except orjson.JSONDecodeError as error:
            raise BadOption(f"key= is no JSON: {error}.", hint='write key={"column": "value"}') from None
        if not isinstance(values, dict):
            raise BadOption("key= is no object.", hint='write key={"column": "value"}')
    return RowWish(values, where, None if as_of is None else _moment(as_of), limit, skip)


def _moment(as_of: datetime) -> datetime:
    try:
        return (as_of if as_of.tzinfo else as_of.replace(tzinfo=UTC)).astimezone(UTC)
    except OverflowError:
        raise BadOption("as_of= is before or after all time.", hint="2026-01-31T12:00:00Z") from None


async def _until_shown(gateway: Gateway, view: str, after: str, timeout_s: float) -> None:
    """Without holding a thread meanwhile."""
    position = views.position_of(after)
    deadline = time.monotonic() + timeout_s
    while not await gateway.read(views.wait_for, gateway.app, view, position):
        if time.monotonic() >= deadline:
            raise ViewBehind(view, position.topic, read=False)
        await asyncio.sleep(_LOOK_AGAIN_S)


# ---- changes ----------------------------------------------------------------------------------


async def _changes(gateway: Gateway, name: str, text: str | None, last: str | None) -> Response:
    columns = await gateway.read(views.feed_columns, gateway.app, name)
    wanted: Wanted = filter.parse(text, columns) if text and text.strip() else None
    missed: list[bytes] = []
    places = None
    if last is not None:
        # Here and not on the way, so that a position that is lost is a status and no event.
        missed, places = await gateway.scan(_since, gateway, name, wanted, last)
    return gateway.channels.answer(
        ("feed", name, text),
        lambda: FeedTail(
            gateway.app, name, where=wanted,
            rows_max=gateway.limits.feed_rows, bytes_max=gateway.limits.feed_bytes,
        ),
        lambda channel, subscriber: _pieces(gateway, channel, subscriber, missed, places),
    )  # fmt: skip


def _since(gateway: Gateway, name: str, wanted: Wanted, last: str) -> tuple[list[bytes], dict[int, int]]:
    """What changed since a position, and where that leads."""
    found: list[bytes] = []
    size = 0
    with gateway.app.subscribe(name, where=wanted, after=last, follow=False) as feed:
        for change in feed:
            if change.op != "current":
                found.append(feed_tail.piece_of(change))
                size += len(found[-1])
            if size > gateway.limits.replay_bytes:
                raise BadRequest(
                    410,
                    f"more than {gateway.limits.replay_bytes:,} bytes of changes since then.",
                    hint="begin anew, without Last-Event-ID",
                )
        assert feed.position is not None, "it has read to the end"
        return found, feed_tail.places_of(feed.position)


async def _pieces(
    gateway: Gateway,
    channel: Channel,
    subscriber: Subscriber,
    missed: list[bytes],
    places: dict[int, int] | None,
) -> AsyncIterator[bytes]:
    await channel.begun()
    if places is None:
        channel.join(subscriber, channel.places)
        rows, position = list(channel.rows.values()), channel.position
        for piece in chunked(feed_tail.snapshot(rows, position)):
            yield piece
    else:
        for piece in chunked(missed):
            yield piece
        missed.clear()
        await channel.reached(places)
        if not channel.covers(places):
            raise BadOption("too much has changed meanwhile.", hint="come back with Last-Event-ID")
        for piece in chunked(feed_tail.replayed(channel.join(subscriber, places), places)):
            yield piece
    async for piece in told(subscriber, channel, heartbeat_s=gateway.limits.heartbeat_s):
        yield piece
