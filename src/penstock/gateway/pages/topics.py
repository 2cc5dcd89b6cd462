"""Topics, one topic, and its messages."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlencode

import pyarrow as pa

from penstock.gateway.facts import topics as topic_facts
from penstock.gateway.pages import messages, words
from penstock.gateway.pages.health import Sentence, Words, url
from penstock.gateway.pages.look import Look, TopicLook
from penstock.gateway.pages.page import PAGES, Asked, Page
from penstock.gateway.pages.plans import documented
from penstock.gateway.pages.site import Site


@PAGES.at("/topics")
def topics(site: Site, look: Look, asked: Asked) -> Page:
    shown = look.shown_topics if asked.get("all") != "1" else list(look.topics.values())
    silent = [topic for topic in look.shown_topics if not topic.facts.records]
    said = (
        Words(f"{words.count(len(look.shown_topics), 'topic')}", strong=True),
        Words(f", {words.rate(look.events.now)} coming in"),
        Words(f"; {words.count(len(silent), 'topic')} without a record." if silent else "."),
    )
    return Page("topics.html", "Topics", {"sentence": said, "topics": shown, "all": asked.get("all") == "1"})


@PAGES.at("/topics/{name}")
def topic(site: Site, look: Look, asked: Asked) -> Page:
    name = asked.names["name"]
    detail = topic_facts.one_of(site.app, name)
    found = look.topics.get(name)
    readers = [view for view in look.views.values() if name in view.topics]
    facts = {
        "detail": detail, "topic": found, "doc": documented(site.app, name), "readers": readers,
        "sentence": _sentence(detail.topic, found, len(readers) + len(detail.groups), look.at_us),
        "groups": [group for group in look.groups if group.info.topic == name],
        "settings": _settings(detail.settings), "example": example(site, name), "name": name,
    }  # fmt: skip
    return Page("topic.html", name, facts)


def _sentence(facts: topic_facts.TopicFacts, look: TopicLook | None, readers: int, now_us: int) -> Sentence:
    if facts.error:
        return (Words("It cannot be opened: ", strong=True, colour="fail"), Words(facts.error))
    if not facts.records:
        return (Words("It has no records yet.", strong=True),)
    rate = look.rate.now if look else 0.0
    flows = Words(f"{words.rate(rate)} coming in", strong=True)
    if not rate:
        flows = Words(
            f"Quiet: the last record came {words.ago(facts.last_us, now_us)}", strong=True, colour="open"
        )
    read = f"; {words.count(readers, 'reader')}." if readers else "; nobody reads it."
    return (flows, Words(f". {words.count(facts.records, 'record')}, {words.size(facts.bytes)}{read}"))


def _settings(plain: dict[str, object]) -> list[tuple[str, str]]:
    """Every setting in words, without what is shown elsewhere."""
    found = []
    for name, value in plain.items():
        if name in ("name", "schema", "grown", "id", "sum") or value in (None, [], ""):
            continue
        if name.endswith("_ms") and isinstance(value, int):
            found.append((name.removesuffix("_ms"), words.span(value / 1000)))
        elif name.endswith("_bytes") or name == "record_bytes_max":
            found.append(
                (name.replace("_bytes", "_size"), words.size(value if isinstance(value, int) else None))
            )
        elif isinstance(value, bool):
            found.append((name, words.cell(value)))
        else:
            found.append((name, ", ".join(value) if isinstance(value, list) else str(value)))
    return [(name.replace("_", " "), value) for name, value in found]


# ---- messages --------------------------------------------------------------------------------------


@PAGES.at("/topics/{name}/messages")
def browse(site: Site, look: Look, asked: Asked) -> Page:
    name = asked.names["name"]
    settings = site.app.log.port.settings(name)
    place, filter_ = asked.get("from", "latest") or "latest", asked.get("filter")
    text = asked.get("partition")
    partition = int(text) if text.isascii() and text.isdecimal() and len(text) < 6 else None
    if partition is not None and partition >= settings.partitions:
        partition = None
    found = find(site, name, place=place, after=asked.get("after"), partition=partition, filter_=filter_)
    query = {"from": place, "filter": filter_, **({"partition": text} if partition is not None else {})}
    facts = {
        "name": name, "found": found, "place": place, "filter": filter_, "partition": partition,
        "partitions": settings.partitions, "example": example(site, name), "doc": documented(site.app, name),
        "sentence": _browsing(found, filter_), "columns": settings.schema.names,
        "next": url("topics", name, "messages") + "?" + urlencode({**query, "after": found.after}),
        "export": url("topics", name, "export") + "?" + urlencode(query), "key": settings.key,
        "writable": is_writable(site, name),
    }  # fmt: skip
    return Page("messages.html", f"Messages of {name}", facts)


def find(
    site: Site, name: str, *, place: str, after: str, partition: int | None, filter_: str,
    limit: int = messages.SHOWN,
) -> messages.Found:  # fmt: skip
    if place == "latest" and not after:
        return messages.newest(site.app, name, partition=partition, filter_=filter_, limit=limit)
    return messages.onwards(
        site.app, name, place=place, after=after, partition=partition, filter_=filter_, limit=limit
    )


def _browsing(found: messages.Found, filter_: str) -> Sentence:
    shown = words.count(len(found.messages), "message")
    if filter_:
        more = ", more may match" if found.truncated else ""
        return (
            Words(f"{shown} with {filter_!r}", strong=True),
            Words(f" among {words.count(found.looked_at)} that were looked at{more}."),
        )
    if found.newest:
        return Words(f"The newest {shown}", strong=True), Words(", as they come in.")
    return Words(shown, strong=True), Words(
        ", from there on; there are more." if found.truncated else ", to the end."
    )


def is_writable(site: Site, name: str) -> bool:
    """Whether a person may append: not to what a view, a capture or Penstock itself writes."""
    kind = topic_facts.kind_of(site.app, name)
    captured = any(name.startswith(f"{capture}.") for capture in site.app.captures)
    return kind in ("topic", "table") and not captured


def example(site: Site, name: str) -> str:
    """A record that the topic would take, as JSON: the newest one, or one made up from its columns."""
    found = messages.newest(site.app, name, partition=None, filter_="", limit=1).messages
    if found and not found[0].deleted and not found[0].is_long:
        return json.dumps(json.loads(found[0].value), ensure_ascii=False, indent=2)
    schema = site.app.log.port.settings(name).schema.arrow
    return json.dumps({field.name: _made_up(field.type) for field in schema}, ensure_ascii=False, indent=2)


def _made_up(kind: Any) -> object:
    is_ = pa.types
    if is_.is_integer(kind):
        return 1
    if is_.is_floating(kind):
        return 1.5
    if is_.is_boolean(kind):
        return True
    if is_.is_timestamp(kind):
        return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    if is_.is_string(kind) or is_.is_binary(kind):
        return "text"
    return [] if is_.is_list(kind) else {} if is_.is_map(kind) or is_.is_struct(kind) else None
