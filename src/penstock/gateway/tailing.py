"""Opening the tail of a topic for a client, and reading pages of it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from penstock.gateway.facts import records
from penstock.gateway.facts.records import Page, Wish
from penstock.gateway.filter import where
from penstock.gateway.topic_tail import TopicTail

if TYPE_CHECKING:
    from penstock.gateway.gateway import Gateway


async def opened(gateway: Gateway, name: str, text: str | None) -> Callable[[], TopicTail]:
    """What makes the tail of a topic; raises what is wrong with the wish before anything begins."""
    found = await gateway.read(gateway.app.log.topic, name)
    chosen = where(text, await gateway.read(records.columns_of, found))
    return lambda: TopicTail(found, chosen)


async def page(gateway: Gateway, topic: str, wish: Wish, *, size_bytes_max: int | None = None) -> Page:
    return await gateway.read(
        records.page, gateway.app, topic, wish, now=datetime.now(UTC),
        scanned_max=gateway.limits.scanned_rows, size_bytes_max=size_bytes_max or gateway.limits.page_bytes,
    )  # fmt: skip
