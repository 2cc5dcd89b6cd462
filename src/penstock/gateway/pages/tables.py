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
from penstock.log.port import to_us

_ROWS = 100
_RECORDS_MAX = 200_000


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
    records = sum(end - start for start, end in topic.bounds().values())
    rows: Any = None
    total = 0
    if records <= _RECORDS_MAX:
        at_us = to_us(moment) if moment else None
        found = versions.fold(topic.read(), settings, moment_us=at_us)
        for column, value in conditions(name, found.schema, conditions_in(asked.get("filter"))).items():
            found = found.filter(pa.array([row == value for row in found[column].to_pylist()], pa.bool_()))
        total = found.num_rows
        rows = plain_rows(found.schema, found.slice(0, _ROWS).to_pylist(), more=total > _ROWS)
    said = (
        Words(words.count(total, "row"), strong=True),
        Words(
            f" by {', '.join(settings.key)}"
            + (f", as valid at {words.date(to_us(moment))}." if moment else ".")
        ),
    )
    facts = {
        "name": name, "rows": rows, "sentence": said, "doc": documented(site.app, name),
        "filter": asked.get("filter"),
        "at": asked.get("at"), "example": example(site, name), "writable": is_writable(site, name),
        "history": settings.history_ms, "now": datetime.now(UTC).isoformat(timespec="seconds"),
    }  # fmt: skip
    return Page("table.html", name, facts, past=moment is not None)
