"""A topic as it grows, as server-sent events."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from typing import Annotated

from fastapi import Query
from starlette.responses import Response

from penstock.gateway import cursor, sse, tailing, topic_tail
from penstock.gateway.channel import Channel
from penstock.gateway.channels import told
from penstock.gateway.facts import records
from penstock.gateway.facts.records import Page, Wish
from penstock.gateway.gateway import Gateway
from penstock.gateway.names import TopicName
from penstock.gateway.routing import Routes, Served, needs, streaming
from penstock.gateway.sse import chunked
from penstock.gateway.subscriber import Subscriber
from penstock.gateway.wishes import LastEventId, Start, Where

routes = Routes("records")


@routes.get(
    "/topics/{topic}/tail",
    summary="Follow records as they come (SSE).",
    response_class=Response,
    **streaming(needs("read", 410, 416)),
)
async def tail(
    gateway: Served,
    topic: TopicName,
    start: Annotated[Start, Query(alias="from")] = "latest",
    where: Where = None,
    last_event_id: LastEventId = None,
) -> Response:
    """Server-sent events of kind `record`, from a place on and then as they come.

    The id of an event is the place after it: a client that comes back with `Last-Event-ID`, as browsers do,
    misses nothing and hears nothing twice. One that reads too slowly is cut off, and may come back so.
    """
    opened = await tailing.opened(gateway, topic, where)
    begin = last_event_id or start
    places = None
    if begin != "latest":
        found = await gateway.read(gateway.app.log.topic, topic)
        places = await gateway.read(records.places_of, found, begin, None, now=datetime.now(UTC))
    return gateway.channels.answer(
        ("topic", topic, where),
        opened,
        lambda channel, subscriber: _pieces(gateway, topic, where, channel, subscriber, places),
    )


async def _pieces(
    gateway: Gateway,
    topic: str,
    where: str | None,
    channel: Channel,
    subscriber: Subscriber,
    places: dict[int, int] | None,
) -> AsyncIterator[bytes]:
    await channel.begun()
    at = dict(channel.places) if places is None else places
    while not channel.covers(at):
        pieces, at = await _caught_up(gateway, topic, where, at)
        for piece in pieces:
            yield piece
    await channel.reached(at)
    for piece in chunked(topic_tail.replayed(channel.join(subscriber, at), at)):
        yield piece
    async for piece in told(subscriber, channel, heartbeat_s=gateway.limits.heartbeat_s):
        yield piece


async def _caught_up(
    gateway: Gateway, topic: str, where: str | None, at: dict[int, int]
) -> tuple[list[bytes], dict[int, int]]:
    """The next events from a place on, and where they lead. Held for each client that is slow: a little."""
    wish = Wish(cursor.written(at), None, where, 1_000)
    found = await tailing.page(gateway, topic, wish, size_bytes_max=gateway.limits.caught_up_bytes)
    return list(chunked(_encoded(found, at))), cursor.read(found.next)


def _encoded(page: Page, places: dict[int, int]) -> Iterator[bytes]:
    at = dict(places)
    for record in page.records:
        at[record.partition] = record.offset + 1
        yield sse.event("record", record, cursor.written(at))
