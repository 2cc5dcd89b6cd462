"""Late rows: what came after its window had closed, and why it was left out."""

from __future__ import annotations

import json

from penstock.gateway.pages import words
from penstock.gateway.pages.health import Sentence, Words
from penstock.gateway.pages.look import Look
from penstock.gateway.pages.page import PAGES, Asked, Page
from penstock.gateway.pages.site import Site
from penstock.gateway.pages.tail import LateRow, late_rows
from penstock.log.json_rows import to_json

_SHOWN = 100


@PAGES.at("/late")
def late(site: Site, look: Look, asked: Asked) -> Page:
    of = asked.get("of")
    names = [of] if of in look.views else list(look.views)
    filter_ = asked.get("filter").lower()
    found = [(name, pair) for name in names for pair in late_rows(site.app, name, limit=1_000)]
    told = [(name, pair, _text(pair)) for name, pair in found]
    told = [each for each in told if filter_ in f"{each[0]} {each[2]} {each[1].reason}".lower()]
    told.sort(key=lambda each: -each[1].at_us)
    facts = {"sentence": _sentence(look), "pairs": told[:_SHOWN], "of": of, "filter": asked.get("filter")}
    return Page("late.html", "Late rows", facts)


def _sentence(look: Look) -> Sentence:
    total = sum(view.late for view in look.views.values())
    if not total:
        return Words("Nothing has come too late.", strong=True), Words(
            " Rows behind the watermark would be kept here."
        )
    worst = max(look.views.values(), key=lambda view: view.late)
    return (
        Words(f"{words.count(total, 'row')} came after their window had closed", strong=True, colour="late"),
        Words(f", {words.count(worst.late)} of them for {worst.name}. "),
        Words("None is lost: each is kept with the watermark it met."),
    )


def _text(pair: LateRow) -> str:
    return "(not kept)" if pair.row is None else json.dumps(to_json(pair.row), ensure_ascii=False)
