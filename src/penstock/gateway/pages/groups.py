"""Consumer groups: how far behind they are, and moving them."""

from __future__ import annotations

from penstock.gateway.pages import words
from penstock.gateway.pages.health import LAG_S, Sentence, Words
from penstock.gateway.pages.look import GroupLook, Look
from penstock.gateway.pages.page import PAGES, Asked, Page
from penstock.gateway.pages.site import Site


@PAGES.at("/groups")
def groups(site: Site, look: Look, asked: Asked) -> Page:
    return Page("groups.html", "Groups", {"sentence": _all(look)})


def _all(look: Look) -> Sentence:
    if not look.groups:
        return (Words("There are no groups yet.", strong=True),)
    slowest = max(look.groups, key=lambda group: group.seconds)
    if not slowest.records:
        return (Words("All groups have read everything.", strong=True),)
    waits = f"{words.count(slowest.records, 'record')}, the oldest waits for {words.span(slowest.seconds)}"
    return (
        Words(f"{slowest.info.group} is furthest behind", strong=True),
        Words(f" on {slowest.info.topic}: {waits}."),
    )


@PAGES.at("/groups/{group}/{topic}")
def group(site: Site, look: Look, asked: Asked) -> Page:
    name, topic = asked.names["group"], asked.names["topic"]
    info = site.app.log.group(name, topic)  # raises where there is none
    known = next((each for each in look.groups if each.info.group == name and each.info.topic == topic), None)
    found = GroupLook(
        info, sum(lag.records for lag in info.lag), max((lag.seconds for lag in info.lag), default=0.0),
        known.trend if known else (),
    )  # fmt: skip
    return Page("group.html", f"{name} on {topic}", {"group": found, "sentence": _one(found)})


def _one(found: GroupLook) -> Sentence:
    members = words.count(len(found.info.members), "member") if found.info.members else "nobody"
    reads = Words(f" {members.capitalize()} {'reads' if len(found.info.members) < 2 else 'read'} it now.")
    if not found.records:
        return Words("It has read everything.", strong=True), reads
    behind = f"{words.count(found.records, 'record')} behind"
    colour = "late" if found.seconds > LAG_S else ""
    return (
        Words(f"{behind}, the oldest waits for {words.span(found.seconds)}.", strong=True, colour=colour),
        reads,
    )
