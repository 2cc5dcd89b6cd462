"""Queues: publish, get, ack, nack, reject, redrive."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from fastapi import Body, Path
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import Response

from penstock.gateway.facts import queues
from penstock.gateway.facts.queues import Letter, QueueFacts
from penstock.gateway.gateway import Gateway
from penstock.gateway.json import Json
from penstock.gateway.names import QueueName
from penstock.gateway.routing import Routes, Served, needs
from penstock.gateway.wishes import Limit
from penstock.log.json_rows import to_json
from penstock.log.port import from_us

if TYPE_CHECKING:
    from penstock.queue.delivery import Delivery

routes = Routes("queues")
_LOOK_AGAIN_S = 0.05

Receipt = Annotated[str, Path(description="What getting the message gave.", pattern="^[0-9a-f]{32}$")]


@dataclass(frozen=True, slots=True)
class QueueList:
    queues: tuple[QueueFacts, ...]


@dataclass(frozen=True, slots=True)
class Published:
    id: str


@dataclass(frozen=True, slots=True)
class Handed:
    """A message, and the receipt to settle it with within five minutes."""

    receipt: str
    id: str
    key: str
    body: Any
    headers: dict[str, Any]
    attempts: int
    redelivered: bool
    published: str | None


@dataclass(frozen=True, slots=True)
class HandedList:
    messages: tuple[Handed, ...]


@dataclass(frozen=True, slots=True)
class LetterList:
    queue: str
    letters: tuple[Letter, ...]


@dataclass(frozen=True, slots=True)
class Redriven:
    redriven: int


class Publishing(BaseModel):
    """`body` is anything that JSON can say."""

    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"example": {"body": {"to": "ann@example.org"}}}
    )

    body: Any
    key: str = Field("", max_length=255)
    headers: dict[str, str | int | float | bool] = Field(default_factory=dict, max_length=64)
    priority: int = Field(0, ge=0, le=255)
    id: str | None = Field(None, max_length=255, description="A message id of your own.")
    delay_s: float = Field(0, ge=0, le=31_536_000, description="Not before so many seconds from now.")
    ttl_s: float | None = Field(None, ge=0.001, le=31_536_000, description="Not after so many.")


class Getting(BaseModel):
    model_config = ConfigDict(extra="forbid")

    limit: int = Field(1, ge=1, le=100)
    wait_s: float = Field(0, ge=0, le=30, description="Wait so long for the first, if there is none.")


class Refusing(BaseModel):
    model_config = ConfigDict(extra="forbid")

    reason: str = Field("", max_length=1_000)
    delay_s: float = Field(0, ge=0, le=31_536_000, description="Of nack: not again before so many seconds.")


class Redriving(BaseModel):
    """Which dead letters: all, those of a cause, or those with these message ids."""

    model_config = ConfigDict(extra="forbid")

    cause: Literal["rejected", "expired", "attempts", "dropped"] | None = None
    ids: list[str] | None = Field(None, max_length=1_000)
    limit: int | None = Field(None, ge=1, le=1_000_000)


@routes.get("/queues", summary="List queues.", response_model=QueueList, **needs("read"))
async def list_queues(gateway: Served) -> QueueList:
    """Each with how many messages are ready, delayed, delivered and dead."""
    return QueueList(await gateway.read(queues.all_of, gateway.handed))


@routes.get("/queues/{queue}", summary="Show a queue.", response_model=QueueFacts, **needs("read"))
async def show_queue(gateway: Served, queue: QueueName) -> QueueFacts:
    """Its settings, and how many messages there are."""
    return await gateway.read(queues.one_of, gateway.handed, queue)


@routes.post(
    "/queues/{queue}/messages",
    summary="Publish.",
    response_model=Published,
    **needs("write", 409, 507, body=True),
)
async def publish(gateway: Served, queue: QueueName, publishing: Publishing) -> Published:
    """Durable on return. 429 when the queue is full."""

    def work() -> str:
        return gateway.handed.queues.open_queue(queue).publish(
            publishing.body, key=publishing.key, headers=publishing.headers, priority=publishing.priority,
            id=publishing.id, delay=publishing.delay_s, ttl=publishing.ttl_s, timeout=0,
        )  # fmt: skip

    return Published(await gateway.write(work))


@routes.post(
    "/queues/{queue}/get",
    summary="Get messages.",
    response_model=HandedList,
    **needs("write", 409, body=True),
)
async def get(
    request: Request,
    gateway: Served,
    queue: QueueName,
    getting: Annotated[Getting, Body(default_factory=Getting)],
) -> Response:
    """Up to `limit` messages. One that is not settled by its receipt comes again after five minutes."""
    deadline = time.monotonic() + min(getting.wait_s, gateway.limits.wait_s)
    found = await _taken(gateway, queue, getting.limit)
    while not found and time.monotonic() < deadline:
        await asyncio.sleep(_LOOK_AGAIN_S)
        if await request.is_disconnected():  # else the next message would go to nobody, for five minutes
            break
        found = await _taken(gateway, queue, getting.limit)
    return Json(HandedList(tuple(found)))


async def _taken(gateway: Gateway, queue: str, limit: int) -> list[Handed]:
    found = await gateway.write(gateway.handed.take, queue, limit)
    return [
        Handed(
            receipt, each.id, each.key, queues.body_of(each.body, each.content_type), dict(each.headers),
            each.attempts, each.redelivered,
            str(to_json(from_us(each.published_us))) if each.published_us is not None else None,
        )
        for receipt, each in found
    ]  # fmt: skip


@routes.post(
    "/queues/{queue}/deliveries/{receipt}/ack", summary="Ack.", status_code=204, **needs("write", 409)
)
async def ack(gateway: Served, queue: QueueName, receipt: Receipt) -> None:
    """Done: the message is gone. 409 when its lease had ended."""
    await gateway.write(gateway.handed.settle, queue, receipt, lambda delivery: delivery.ack())


@routes.post(
    "/queues/{queue}/deliveries/{receipt}/nack",
    summary="Nack.",
    status_code=204,
    **needs("write", 409, body=True),
)
async def nack(
    gateway: Served,
    queue: QueueName,
    receipt: Receipt,
    refusing: Annotated[Refusing, Body(default_factory=Refusing)],
) -> None:
    """Not done: it is delivered again, or a dead letter after the last attempt."""

    def deed(delivery: Delivery) -> None:
        delivery.nack(refusing.reason, delay=refusing.delay_s)

    await gateway.write(gateway.handed.settle, queue, receipt, deed)


@routes.post(
    "/queues/{queue}/deliveries/{receipt}/reject",
    summary="Reject.",
    status_code=204,
    **needs("write", 409, body=True),
)
async def reject(
    gateway: Served,
    queue: QueueName,
    receipt: Receipt,
    refusing: Annotated[Refusing, Body(default_factory=Refusing)],
) -> None:
    """Cannot be done: a dead letter at once."""
    await gateway.write(
        gateway.handed.settle, queue, receipt, lambda delivery: delivery.reject(refusing.reason)
    )


@routes.post(
    "/queues/{queue}/deliveries/{receipt}/extend", summary="Extend.", status_code=204, **needs("write", 409)
)
async def extend(gateway: Served, queue: QueueName, receipt: Receipt) -> None:
    """Five more minutes."""
    await gateway.write(gateway.handed.extend, queue, receipt)


@routes.get(
    "/queues/{queue}/dead", summary="Look at dead letters.", response_model=LetterList, **needs("read")
)
async def dead(gateway: Served, queue: QueueName, limit: Limit = 100) -> Response:
    """The oldest first, with the cause and the reason. They stay where they are."""
    return Json(LetterList(queue, await gateway.read(queues.dead_of, gateway.handed, queue, limit=limit)))


@routes.post(
    "/queues/{queue}/redrive", summary="Redrive.", response_model=Redriven, **needs("admin", 409, body=True)
)
async def redrive(
    gateway: Served, queue: QueueName, redriving: Annotated[Redriving, Body(default_factory=Redriving)]
) -> Redriven:
    """Publish dead letters anew, with no attempts behind them."""
    ids = None if redriving.ids is None else frozenset(redriving.ids)

    def work() -> int:
        return gateway.handed.queues.open_queue(queue).redrive(
            lambda letter: (
                (ids is None or letter.message.id in ids) and redriving.cause in (None, letter.cause)
            ),
            limit=redriving.limit,
        )

    return Redriven(await gateway.scan(work))
