"""Tables: their rows, and the versions of one."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from penstock.app.conditions import conditions
from penstock.gateway.pages import words
from penstock.gateway.pages.health import Words
from penstock.gateway.pages.look import Look
from penstock.gateway.pages.page import PAGES, Asked, Page
from penstock.gateway.pages.plans import documented
from penstock.gateway.pages.rowtable import conditions_in, plain_rows
from penstock.gateway.pages.site import Site
from penstock.gateway.pages.topics import example, is_writable
from penstock.gateway.pages.views import moment_of
from penstock.log import versions
from penstock.log.facts import PartitionFacts, facts_of
from penstock.log.port import to_us

_ROWS = 100
_RECORDS_MAX = 200_000
_BYTES_MAX = 128 << 20


@PAGES.at("/tables")
def tables(site: Site, look: Look, asked: Asked) -> Page:
    said = (
        Words(words.count(len(look.tables), "table"), strong=True),
        Words(": rows by key, and every version of them."),
    )
    return Page("tables.html", "Tables", {"sentence": said})


@PAGES.at("/tables/{name}")
def table(site: Site, look: Look, asked: Asked) -> Page:
    name = asked.names["name"]
    settings = site.app.log.port.settings(name)
    moment = moment_of(asked.get("at"))
    topic = site.app.log.topic(name)
    rows: Any = None
    total = 0
    if _is_small(facts_of(site.app.log, name)):
        at_us = to_us(moment) if moment else None
        found = versions.fold(topic.read(), settings, moment_us=at_us)
        for column, value in conditions(name, found.schema, conditions_in(asked.get("filter"))).items():
            found = found.filter(pa.array([row == value for row in found[column].to_pylist()], pa.bool_()))
        total = found.num_rows
        rows = plain_rows(found.schema, found.slice(0, _ROWS).to_pylist(), more=total > _ROWS)
    count = "Rows" if rows is None else words.count(total, "row")
    valid = f", as valid at {words.date(to_us(moment))}" if moment else ""
    said = (Words(count, strong=True), Words(f" by {', '.join(settings.key)}{valid}."))
    facts = {
        "name": name, "rows": rows, "sentence": said, "doc": documented(site.app, name),
        "filter": asked.get("filter"),
        "at": asked.get("at"), "example": example(site, name), "writable": is_writable(site, name),
        "history": settings.history_ms, "now": datetime.now(UTC).isoformat(timespec="seconds"),
    }  # fmt: skip
    return Page("table.html", name, facts, past=moment is not None)


def _is_small(parts: list[PartitionFacts]) -> bool:
    """Whether all its versions can be held while a page is made. Servers do not tell their size."""
    size = sum(part.bytes or 0 for part in parts)
    return sum(part.records for part in parts) <= _RECORDS_MAX and size <= _BYTES_MAX
