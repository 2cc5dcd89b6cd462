"""Alerts: what needs somebody now, what did before, and who is told."""

from __future__ import annotations

from penstock.gateway.pages import health, words
from penstock.gateway.pages.health import Sentence, Words
from penstock.gateway.pages.look import Look
from penstock.gateway.pages.page import PAGES, Asked, Page
from penstock.gateway.pages.site import Site


@PAGES.at("/alerts")
def alerts(site: Site, look: Look, asked: Asked) -> Page:
    needs = health.needs(look)
    facts = {
        "needs": needs, "sentence": _sentence(sum(need.blocks for need in needs)),
        "told": site.alarms.history(),
        "places": site.alarms.places, "holding_s": site.alarms.holding_s,
    }  # fmt: skip
    return Page("alerts.html", "Alerts", facts)


def _sentence(count: int) -> Sentence:
    if not count:
        return (Words("Nothing needs you.", strong=True),)
    return (
        Words(
            f"{words.count(count, 'thing')} {'needs' if count == 1 else 'need'} you.",
            strong=True,
            colour="late",
        ),
    )
