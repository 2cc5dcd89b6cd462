"""Consumer groups: which there are, how far they are, and moving them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from pydantic import BaseModel, ConfigDict, Field

from penstock.gateway.facts import groups
from penstock.gateway.facts.groups import GroupFacts, Reset
from penstock.gateway.names import GroupName, TopicName
from penstock.gateway.routing import Routes, Served, needs
from penstock.log.port import GroupInfo

routes = Routes("groups")


@dataclass(frozen=True, slots=True)
class GroupList:
    groups: tuple[GroupFacts, ...]


@dataclass(frozen=True, slots=True)
class GroupDetail:
    group: str
    topics: tuple[GroupInfo, ...]


class Place(BaseModel):
    """Where a group is to go on."""

    model_config = ConfigDict(extra="forbid")

    to: str = Field(
        description="earliest, latest, an offset, or a time: 2026-01-31T12:00Z, -5m.",
        max_length=100,
        examples=["earliest"],
    )
    partition: int | None = Field(None, description="Only this one.", ge=0, le=9_999)
    dry_run: bool = Field(False, description="Say what would happen, and change nothing.")


@routes.get("/groups", summary="List consumer groups.", response_model=GroupList, **needs("read"))
async def list_groups(gateway: Served) -> GroupList:
    """Each group on each topic, with its lag in records and seconds."""
    return GroupList(await gateway.read(groups.all_of, gateway.app))


@routes.get("/groups/{group}", summary="Show a group.", response_model=GroupDetail, **needs("read"))
async def show_group(gateway: Served, group: GroupName) -> GroupDetail:
    """Its members, and how far it is in every partition."""
    return GroupDetail(group, await gateway.read(groups.one_of, gateway.app, group))


@routes.post(
    "/groups/{group}/topics/{topic}/reset",
    summary="Move a group.",
    response_model=Reset,
    **needs("admin", 409, 416, body=True),
)
async def reset_group(gateway: Served, group: GroupName, topic: TopicName, place: Place) -> Reset:
    """Of a group that has no members: it reads on from there. 409 while it has some."""
    return await gateway.write(
        groups.reset, gateway.app, group, topic, place.to, partition=place.partition, dry_run=place.dry_run,
        now=datetime.now(UTC),
    )  # fmt: skip
