"""The followers that an app declares with `to=`: one for each target of a view, stream or table."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from penstock.follow.feed import Kind
from penstock.follow.follower import Follower
from penstock.follow.store import Sink
from penstock.follow.table import spec_of
from penstock.follow.target import Site

if TYPE_CHECKING:
    from penstock.app.app import App


def followers_of(app: App) -> Iterator[tuple[str, Follower, Sink]]:
    """Each with a name for people. Nothing connects before a follower's first step."""
    site = Site(app.name, app.home, app.log)
    names: set[str] = set()
    for source, targets in app.followed.items():
        topic = app.log.topic(source)
        spec = spec_of(topic.settings.schema.arrow, topic.settings.key, name=source)
        for target in targets:
            sink = target.open(site)
            name = _unique(f"{source} to {target.label}", names)
            yield name, Follower(topic, sink, spec, kind=_kind(app, source)), sink


def _kind(app: App, source: str) -> Kind:
    """What is no definition is a table, the app's own or a captured one."""
    return app.definitions[source].kind if source in app.definitions else "table"


def _unique(name: str, taken: set[str]) -> str:
    """Two webhooks of one server look alike without their paths."""
    number = 2
    wanted = name
    while wanted in taken:
        wanted, number = f"{name} ({number})", number + 1
    taken.add(wanted)
    return wanted
