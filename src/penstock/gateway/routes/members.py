"""Consuming as a member of a group, by requests: join, poll, commit, leave."""

from __future__ import annotations

import asyncio
import time
from typing import Annotated, Literal

from fastapi import Body, Path
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from penstock.gateway import tailing
from penstock.gateway.gateway import Gateway
from penstock.gateway.json import Json
from penstock.gateway.members import Joined, Polled
from penstock.gateway.names import GroupName, TopicName
from penstock.gateway.routing import Routes, Served, needs

routes = Routes("groups")

Member = Annotated[str, Path(description="What joining gave.", pattern="^[0-9a-f]{32}$")]
Partition = Annotated[str, Field(pattern=r"^(0|[1-9]\d{0,3})$")]
Offset = Annotated[int, Field(ge=0, le=2**62)]


class Joining(BaseModel):
    model_config = ConfigDict(extra="forbid")

    start: Literal["earliest", "latest"] = Field(
        "earliest", description="Where a group begins that has not committed."
    )
    lease_s: float = Field(30, ge=1, le=600, description="A member that does not poll for so long is out.")


class Polling(BaseModel):
    model_config = ConfigDict(extra="forbid")

    limit: int = Field(100, ge=1, le=10_000, description="At most so many records.")
    wait_s: float = Field(0, ge=0, le=30, description="Wait so long for records if there are none.")
    start: dict[Partition, Offset] | None = Field(
        None,
        alias="from",
        max_length=10_000,
        description="Read on from here: the `partitions` of the last answer that came. Without it, what the "
        "last poll read does not come again, also if its answer was lost on the way.",
    )


class Committing(BaseModel):
    """For each partition, the offset after the last record that was processed."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"example": {"offsets": {"0": 15}}})

    offsets: dict[Partition, Offset] = Field(min_length=1, max_length=10_000)


@routes.post(
    "/groups/{group}/topics/{topic}/members",
    summary="Join a group.",
    response_model=Joined,
    **needs("write", 409, body=True),
)
async def join(
    gateway: Served,
    group: GroupName,
    topic: TopicName,
    joining: Annotated[Joining, Body(default_factory=Joining)],
) -> Joined:
    """Become a member, which the group gives some of the partitions. Poll at least once per lease."""
    return await gateway.write(
        gateway.members.join, group, topic, start=joining.start, lease_s=joining.lease_s
    )


@routes.post(
    "/members/{member}/poll",
    summary="Poll.",
    response_model=Polled,
    **needs("write", 409, 410, 416, body=True),
)
async def poll(
    gateway: Served, member: Member, polling: Annotated[Polling, Body(default_factory=Polling)]
) -> Response:
    """Renew the lease, and get the next records of this member's partitions."""
    deadline = time.monotonic() + min(polling.wait_s, gateway.limits.wait_s)
    start = None if polling.start is None else {int(n): offset for n, offset in polling.start.items()}
    found = await gateway.read(gateway.members.poll, member, limit=polling.limit, start=start)
    while not found.records and (left_s := deadline - time.monotonic()) > 0:
        await _news(gateway, member, found, left_s)
        found = await gateway.read(gateway.members.poll, member, limit=polling.limit)
    return Json(found)


async def _news(gateway: Gateway, member: str, found: Polled, left_s: float) -> None:
    """Until there may be something for a member, and no longer than half a second."""
    topic = gateway.members.topic_of(member)
    key, opened = ("topic", topic, None), await tailing.opened(gateway, topic, None)
    channel = gateway.channels.use(key, opened)
    try:
        async with asyncio.timeout(min(left_s, 0.5)):
            await channel.begun()
            changed = channel.changed
            if all(channel.places.get(int(n), 0) <= at for n, at in found.partitions.items()):
                await changed.wait()
    except TimeoutError:
        pass
    finally:
        gateway.channels.release(key, channel)


@routes.post(
    "/members/{member}/commit", summary="Commit.", status_code=204, **needs("write", 409, 416, body=True)
)
async def commit(gateway: Served, member: Member, committing: Committing) -> None:
    """The group goes on from these offsets after a crash. 409 if a partition went to another member."""
    offsets = {int(number): offset for number, offset in committing.offsets.items()}
    await gateway.write(gateway.members.commit, member, offsets)


@routes.delete("/members/{member}", summary="Leave a group.", status_code=204, **needs("write"))
async def leave(gateway: Served, member: Member) -> None:
    """Others take over at once."""
    await gateway.write(gateway.members.leave, member)
