"""Records: appending them, and reading them a page at a time."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Header, Query
from starlette.requests import Request
from starlette.responses import Response

from penstock.errors import BadOption
from penstock.gateway import appending, bodies, cursor, tailing
from penstock.gateway.appending import ARROW, NDJSON, TYPES
from penstock.gateway.facts.records import Page, Wish
from penstock.gateway.gateway import Gateway
from penstock.gateway.json import Json, dumps
from penstock.gateway.keys import fingerprint
from penstock.gateway.names import TopicName
from penstock.gateway.refusals import BadMediaType
from penstock.gateway.routing import Routes, Served, needs
from penstock.gateway.wishes import Limit, Partition, Start, Where
from penstock.log.port import Position

routes = Routes("records")

_EXAMPLE = {"user_id": 7, "page": "/cart", "at": "2026-01-31T12:00:00Z"}
_BODY = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {"anyOf": [{"type": "object"}, {"type": "array", "items": {"type": "object"}}]},
                "example": [_EXAMPLE],
            },
            NDJSON: {"schema": {"type": "string"}, "example": '{"user_id": 7}\n{"user_id": 8}\n'},
            ARROW: {"schema": {"type": "string", "format": "binary"}},
        },
    }
}
_PAGE = {
    "content": {
        NDJSON: {"schema": {"type": "string"}},
        "application/json": {"schema": {"$ref": "#/components/schemas/Page"}},
    }
}


@dataclass(frozen=True, slots=True)
class Place:
    first: int
    end: int


@dataclass(frozen=True, slots=True)
class Appended:
    """Where the records are: for each partition, the offset of the first and one past the last.

    `after` is what a view can be asked to show (`?after=`). `duplicate`: the idempotency key had been
    there, and nothing was stored now; where the records are is then only known as long as the server runs.
    """

    topic: str
    records: int
    partitions: dict[str, Place]
    after: str
    duplicate: bool = False


Key = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        description="Sent again with the same key within a day, the records are not stored again.",
        min_length=1,
        max_length=255,
        pattern=r"^[\x21-\x7e]+$",
    ),
]


def _needs() -> dict[str, Any]:
    found = needs("write", 409, 507, streamed=True, body=True)
    return {**found, "openapi_extra": {**found["openapi_extra"], **_BODY}}


@routes.post("/topics/{topic}/records", summary="Append records.", response_model=Appended, **_needs())
async def append(
    request: Request, gateway: Served, topic: TopicName, partition: Partition = None, key: Key = None
) -> Response:
    """One record, many, JSON lines or an Arrow stream. All are checked before any is stored.

    On return they are as durable as the topic promises. Times are ISO 8601, BINARY is text or
    `{"base64": "…"}`, decimals are text.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind not in TYPES:
        raise BadMediaType(kind, TYPES)
    if key is not None and partition is not None:
        raise BadOption("a keyed append goes where the records belong.", hint="leave partition= away")
    with gateway.room_for(request):
        limits = gateway.limits
        body = await bodies.read(request, size_bytes_max=limits.body_bytes, silent_s_max=limits.body_silent_s)
        if key is None and partition is None and gateway.together.takes(topic, kind, body):
            stored = await gateway.together.append(topic, kind, body)
            found = _at(topic, stored.records, stored.position)
        else:
            found = await gateway.write(_append, gateway, topic, kind, body, partition, key)
    gateway.measures.appended += 0 if found.duplicate else found.records
    gateway.measures.duplicates += found.duplicate
    return Json(found)


def _append(
    gateway: Gateway, name: str, kind: str, body: bytes, partition: int | None, key: str | None
) -> Appended:
    topic = appending.writable(gateway.app, name)
    gateway.together.learn(topic)
    if partition is not None and partition >= topic.settings.partitions:
        raise BadOption(
            f'topic "{name}" has no partition {partition}.',
            hint=f"choose 0 to {topic.settings.partitions - 1}",
        )
    found = appending.records_of(kind, body, topic.schema)
    count = len(found)
    if key is None:
        return _at(name, count, topic.append(found, partition=partition) if count else None)
    stored = gateway.keys.append(topic, found, key=key, body=fingerprint(kind, body))
    return _placed(name, count, stored.known.firsts, stored.known.ends, duplicate=stored.duplicate)


def _at(name: str, count: int, placed: Position | None) -> Appended:
    return _placed(name, count, placed.firsts if placed else {}, placed.ends if placed else {})


def _placed(name: str, count: int, firsts: Any, ends: Any, *, duplicate: bool = False) -> Appended:
    places = {str(number): Place(firsts[number], ends[number]) for number in sorted(ends)}
    return Appended(name, count, places, f"{name}@{cursor.written(ends)}" if ends else "", duplicate)


@routes.get(
    "/topics/{topic}/records",
    summary="Read records.",
    response_model=Page,
    **{**needs("read", 410, 416), "responses": {**needs("read", 410, 416)["responses"], 200: _PAGE}},
)
async def read(
    request: Request,
    gateway: Served,
    topic: TopicName,
    start: Annotated[Start, Query(alias="from")] = "earliest",
    partition: Partition = None,
    where: Where = None,
    limit: Limit = 100,
    last: Annotated[int | None, Query(description="The newest so many instead.", ge=1, le=10_000)] = None,
    wait: Annotated[
        float, Query(description="Wait so many seconds for records, if there are none yet.", ge=0, le=30)
    ] = 0,
) -> Response:
    """A page of records, by append time over all partitions. The next page begins at `next`.

    With `Accept: application/x-ndjson`, one record per line; `next` is then in the header `Penstock-Next`.
    """
    wish = Wish(start, partition, where, limit, last)
    found = await tailing.page(gateway, topic, wish)
    if not found.records and wait and last is None:
        found = await _later(gateway, topic, wish, found, min(wait, gateway.limits.wait_s))
    if NDJSON in request.headers.get("accept", ""):
        lines = b"".join(dumps(record) + b"\n" for record in found.records)
        return Response(lines, media_type=NDJSON, headers={"Penstock-Next": found.next})
    return Json(found)


async def _later(gateway: Gateway, topic: str, wish: Wish, found: Page, wait_s: float) -> Page:
    """The next records that come, without holding a thread meanwhile."""
    key, opened = ("topic", topic, wish.where), await tailing.opened(gateway, topic, wish.where)
    channel = gateway.channels.use(key, opened)
    try:
        async with asyncio.timeout(wait_s):
            while not found.records:
                await channel.begun()  # raises what it has failed with meanwhile: no more would come
                changed = channel.changed
                found = await tailing.page(
                    gateway, topic, Wish(found.next, wish.partition, wish.where, wish.limit)
                )
                if not found.records:
                    await changed.wait()
    except TimeoutError:
        pass
    finally:
        gateway.channels.release(key, channel)
    return found
