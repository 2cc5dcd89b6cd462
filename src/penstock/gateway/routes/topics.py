"""Topics: which there are, and what each is like."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.gateway.facts import topics
from penstock.gateway.facts.topics import TopicDetail, TopicFacts
from penstock.gateway.names import TopicName
from penstock.gateway.routing import Routes, Served, needs

routes = Routes("topics")


@dataclass(frozen=True, slots=True)
class TopicList:
    topics: tuple[TopicFacts, ...]


@routes.get("/topics", summary="List topics.", response_model=TopicList, **needs("read"))
async def list_topics(gateway: Served) -> TopicList:
    """Every topic of the log, those that Penstock keeps for itself included (`kind` is "internal")."""
    return TopicList(await gateway.read(topics.all_of, gateway.app))


@routes.get("/topics/{topic}", summary="Show a topic.", response_model=TopicDetail, **needs("read"))
async def show_topic(gateway: Served, topic: TopicName) -> TopicDetail:
    """Its settings, its schema, each of its partitions, and the groups that read it."""
    return await gateway.read(topics.one_of, gateway.app, topic)
