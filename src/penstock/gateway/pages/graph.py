"""The pipeline as nodes and edges: topics and captures, views and streams, and where they go."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from penstock.gateway.pages import words
from penstock.gateway.pages.health import url
from penstock.gateway.pages.look import BEHIND_S, Look, TopicLook, ViewLook


@dataclass(frozen=True, slots=True)
class Node:
    """`state`: "", "holds" (the watermark waits for it), "behind" or "failed"; `mark` says it in words."""

    id: str
    label: str
    sub: str
    href: str = ""
    state: str = ""
    mark: str = ""


@dataclass(frozen=True, slots=True)
class Edge:
    """`width` grows with the rate."""

    source: str
    target: str
    width: float
    state: str = ""


@dataclass(frozen=True, slots=True)
class Graph:
    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]

    @property
    def plain(self) -> dict[str, Any]:
        return asdict(self)

    def into(self, node: Node) -> list[Node]:
        """What feeds a node, for those who see a list."""
        sources = {edge.source for edge in self.edges if edge.target == node.id}
        return [each for each in self.nodes if each.id in sources]


def graph_of(look: Look, *, whole: bool = False) -> Graph:
    """`whole`: also topics that nothing here reads."""
    blockers = {
        view.held.topic
        for view in look.views.values()
        if view.standing == "waiting" and view.held and view.held.topic
    }
    nodes = [*_inputs(look, blockers, whole=whole), *_definitions(look)]
    edges = [*_reads(look, blockers)]
    for name, view in look.views.items():
        for at, label in enumerate(view.to):
            target = f"to {name} {at}"
            nodes.append(Node(target, *_split(label)))
            edges.append(Edge(name, target, _width(view.rate)))
    return Graph(tuple(nodes), tuple(edges))


def _split(label: str) -> tuple[str, str]:
    kind, _, place = label.partition(" ")
    return (place or kind, kind if place else "sink")


def _inputs(look: Look, blockers: set[str], *, whole: bool) -> Iterator[Node]:
    read = {topic for view in look.views.values() for topic in view.topics}
    for topic in look.topics.values():
        declared = topic.facts.kind in ("topic", "table")
        if topic.name in look.views or not (topic.name in read or (declared and (whole or not read))):
            continue
        holds = topic.name in blockers
        yield Node(
            topic.name, topic.name, _said(topic), url("topics", topic.name), "holds" if holds else "",
            "holds the watermark back" if holds else "",
        )  # fmt: skip


def _said(topic: TopicLook) -> str:
    kind = "table, " if topic.facts.kind == "table" else ""
    return f"{kind}{words.rate(topic.rate.now)}"


def _definitions(look: Look) -> Iterator[Node]:
    for view in look.views.values():
        state, mark = _state(view)
        sub = view.window or view.kind
        yield Node(view.name, view.name, sub, url("views", view.name), state, mark)


def _state(view: ViewLook) -> tuple[str, str]:
    if view.standing == "failed":
        return "failed", "failed"
    if view.standing == "behind" or view.lag_s > BEHIND_S:
        return "behind", f"{words.span(view.lag_s)} behind"
    if view.standing == "waiting" and view.windowed:
        return "holds", "waits for the watermark"
    return "", {"not run": "not run yet", "stopped": "stopped"}.get(view.standing, "")


def _reads(look: Look, blockers: set[str]) -> Iterator[Edge]:
    for view in look.views.values():
        for topic in view.topics:
            rate = look.topics[topic].rate.now if topic in look.topics else 0.0
            state = _state(view)[0]
            if state == "holds" and topic not in blockers:
                state = ""
            yield Edge(topic, view.name, _width(rate), state)


def _width(rate: float) -> float:
    """One event a second and less is a hair, a hundred thousand a stream."""
    return round(1.2 + min(6.0, 1.2 * math.log10(1 + max(0.0, rate))), 1)
