"""Captures: databases that are followed."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.app.status import CaptureStatus
from penstock.capture.engine import stored_progress
from penstock.gateway.pages import words
from penstock.gateway.pages.health import Sentence, Words
from penstock.gateway.pages.look import Look, TopicLook
from penstock.gateway.pages.page import PAGES, Asked, Page
from penstock.gateway.pages.site import Site


@dataclass(frozen=True, slots=True)
class Captured:
    """A database. `told`: what a run says of it, None while none does."""

    name: str
    kind: str
    place: str
    told: CaptureStatus | None
    topics: tuple[TopicLook, ...]
    begun: bool


@PAGES.at("/capture")
def capture(site: Site, look: Look, asked: Asked) -> Page:
    running = (
        {each.capture: each for each in look.published.status.captures}
        if look.published and look.running
        else {}
    )
    found = []
    for name, declared in site.app.captures.items():
        progress = stored_progress(site.app.log, name)
        topics = [topic for topic in look.topics.values() if topic.name.startswith(f"{name}.")]
        found.append(
            Captured(
                name, declared.source.kind, str(declared.source.place), running.get(name), tuple(topics),
                progress.source is not None,
            )
        )  # fmt: skip
    return Page("capture.html", "Capture", {"sentence": _sentence(site, len(running)), "captures": found})


def _sentence(site: Site, running: int) -> Sentence:
    if not site.app.captures:
        return (Words("No database is captured.", strong=True),)
    count = words.count(len(site.app.captures), "database")
    return (
        Words(
            f"{count} {'is' if len(site.app.captures) == 1 else 'are'} captured, {running} live.", strong=True
        ),
    )
