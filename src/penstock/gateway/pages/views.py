"""Views and derived streams: what they hold now, and what they held at any moment."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from penstock.errors import BadOption
from penstock.gateway.pages import health, words
from penstock.gateway.pages.charts import chart_of
from penstock.gateway.pages.health import Sentence, Words
from penstock.gateway.pages.look import Look, ViewLook
from penstock.gateway.pages.page import PAGES, Asked, Page
from penstock.gateway.pages.plans import source_of
from penstock.gateway.pages.rowtable import RowTable, conditions_in, plain_rows, view_rows
from penstock.gateway.pages.site import Site
from penstock.gateway.pages.tail import late_rows, tail
from penstock.gateway.pages.windows import timeline
from penstock.log.port import to_us

_ROWS = 100
_ROWS_FIRST = 12


@PAGES.at("/views")
def views(site: Site, look: Look, asked: Asked) -> Page:
    return Page("views.html", "Views", {"sentence": health.overview(look)})


@PAGES.at("/views/{name}")
def view(site: Site, look: Look, asked: Asked) -> Page:
    name = asked.names["name"]
    site.app.definition(name)
    found = look.views[name]
    if found.kind == "stream" or name not in look.topics:
        facts = {"view": found, "sentence": _sentence(found, look), "source": source_of(site.app, name)}
        facts["newest"] = _newest(site, name)
        return Page("stream.html", name, {**facts, "verifying": site.verification(name)})
    moment = moment_of(asked.get("at"))
    shown = tail(site.app, name, moment=moment)
    now_us = to_us(moment) if moment else look.at_us
    late = late_rows(site.app, name, moment=moment)
    drawn = timeline(shown, late, event_time=_event_time(site, found))
    filter_ = asked.get("filter")
    limit = _ROWS if asked.get("rows") == "all" else _ROWS_FIRST
    rows = view_rows(shown, now_us=now_us, limit=limit, past=moment is not None)
    if filter_:
        rows = _filtered(site, name, filter_, moment)
    facts = {
        "view": found, "sentence": _sentence(found, look), "timeline": drawn, "rows": rows, "moment": moment,
        "moment_us": now_us, "source": source_of(site.app, name), "late": late[:50], "filter": filter_,
        "span": _span(site, name, look.at_us), "chart": chart_of(shown), "whole": shown.whole,
        "rows_known": len(shown.rows), "verifying": site.verification(name),
    }  # fmt: skip
    return Page("view.html", name, facts, past=moment is not None)


def _newest(site: Site, name: str) -> RowTable | None:
    """What a stream has given last, None where it was never run."""
    if name not in site.app.log.topics():
        return None
    topic = site.app.log.topic(name)
    batches = [
        batch
        for partition, (first, end) in topic.bounds().items()
        for batch in topic.read(partition=partition, start=max(first, end - _ROWS_FIRST), end=end)
    ]
    newest = pa.Table.from_batches(batches, schema=topic.settings.read_schema).sort_by(
        [("_timestamp", "descending"), ("_offset", "descending")]
    )
    own = topic.settings.schema.arrow
    return plain_rows(own, newest.slice(0, _ROWS_FIRST).select(own.names).to_pylist())


def moment_of(text: str) -> datetime | None:
    """A past moment in ISO 8601; None for now. Raises BadOption for anything else."""
    if not text:
        return None
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise BadOption(f"{text!r} is no moment.", hint="write 2026-01-31T12:00:00Z") from None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def _event_time(site: Site, found: ViewLook) -> str | None:
    for topic in found.topics:
        if topic in site.app.log.topics():
            return site.app.log.port.settings(topic).event_time
    return None


def _span(site: Site, name: str, now_us: int) -> tuple[int, int]:
    """From when to when the view can be seen, in milliseconds."""
    first_us = None
    start, end = site.app.log.port.bounds(name, 0)
    if start < end:
        for batch in site.app.log.port.read(name, 0, start, until=start + 1):
            first_us = to_us(batch.column("_timestamp")[0].as_py())
    first_ms = (first_us or now_us) // 1_000
    return first_ms, max(first_ms + 1, now_us // 1_000)


def _filtered(site: Site, name: str, text: str, moment: datetime | None) -> Any:
    """Rows by the values of columns: `page=/cart`. Reads the view itself, as programs do."""
    from penstock.app.conditions import conditions
    from penstock.app.reading import spec

    wanted = conditions(name, spec(site.app, name).columns, conditions_in(text))
    rows = site.app.read(name, where=wanted, as_of=moment, limit=_ROWS + 1)
    return plain_rows(rows.table.schema, list(rows)[:_ROWS], more=len(rows) > _ROWS)


def _sentence(found: ViewLook, look: Look) -> Sentence:
    said: list[Words] = []
    if found.doc:
        said.append(Words(f"{found.doc.rstrip('.')}. "))
    said += health.view(found, look.at_us)
    if found.topics and found.standing == "live":
        said[-1] = Words(f", {words.span(found.lag_s)} behind, fed by ")
        for at, topic in enumerate(found.topics):
            joint = "" if at == 0 else " and " if at == len(found.topics) - 1 else ", "
            said += [Words(joint), Words(topic, strong=True, href=health.url("topics", topic))]
        said.append(Words("."))
    said += _proof(found, look.at_us)
    return tuple(said)


def _proof(found: ViewLook, now_us: int) -> list[Words]:
    proof = found.proof
    if proof is None:
        return []
    when = f" Recomputed from the log {words.ago(proof.at_us, now_us)}: "
    match proof.verdict:
        case "equal":
            return [
                Words(when),
                Words(f"equal, {words.count(proof.rows, 'row')}", colour="final"),
                Words("."),
            ]
        case "different":
            return [
                Words(when),
                Words(f"{words.count(proof.differing, 'row')} differ", colour="fail"),
                Words("."),
            ]
    return [Words(f"{when}not verifiable, {proof.reason}.")]
