"""Batches and checkpoints: what each read and wrote, and what took how long."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.app.status import Phases
from penstock.gateway.pages import words
from penstock.gateway.pages.batches import Batch
from penstock.gateway.pages.health import Sentence, Words
from penstock.gateway.pages.look import Look
from penstock.gateway.pages.page import PAGES, Asked, Page
from penstock.gateway.pages.site import Site

_SHOWN = 60


@dataclass(frozen=True, slots=True)
class Bar:
    """One phase, in hundredths of the longest batch."""

    x: float
    width: float
    kind: str
    said: str


@dataclass(frozen=True, slots=True)
class Timed:
    phases: Phases
    bars: tuple[Bar, ...]


@PAGES.at("/batches")
def batches(site: Site, look: Look, asked: Asked) -> Page:
    of = asked.get("of")
    names = [of] if of in look.views else list(look.views)
    found: list[tuple[str, Batch]] = [
        (name, batch)
        for name in names
        for batch in look.views[name].batches[-_SHOWN:]
        if batch.rows or batch.changes
    ]
    found.sort(key=lambda each: -each[1].at_us)
    told = look.published
    phases = {name: timed(each) for name, each in (told.phases if told else {}).items() if each}
    facts = {"sentence": _sentence(look), "batches": found[:_SHOWN], "phases": phases, "of": of}
    return Page("batches.html", "Batches", facts)


def timed(phases: tuple[Phases, ...], shown: int = 12) -> list[Timed]:
    """The newest batches of a query with their phases as bars, newest first."""
    newest = phases[-shown:][::-1]
    longest = max((each.took_ms for each in newest), default=1) or 1
    return [Timed(each, tuple(_bars(each, longest))) for each in newest]


def _bars(found: Phases, longest_ms: int) -> list[Bar]:
    x, bars = 0.0, []
    for kind, took in (
        ("plan", found.plan_ms), ("note", found.note_ms), ("compute", found.compute_ms),
        ("commit", found.commit_ms),
    ):  # fmt: skip
        width = round(100 * took / longest_ms, 2)
        bars.append(Bar(round(x, 2), width, kind, f"{kind} {took} ms"))
        x += width
    return bars


def _sentence(look: Look) -> Sentence:
    newest = [view.batch for view in look.views.values() if view.batch]
    if not newest:
        return (Words("No batch has been stored yet.", strong=True),)
    last = max(newest, key=lambda batch: batch.at_us)
    restarts = sum(query.restarts for query in look.published.status.queries) if look.published else 0
    again = f" {words.count(restarts, 'restart')} since the run began." if restarts else ""
    return (
        Words(f"The last batch was stored {words.ago(last.at_us, look.at_us)}", strong=True),
        Words(f", in {last.took_ms:,} ms. Each is one append: rows, late rows and position together.{again}"),
    )
