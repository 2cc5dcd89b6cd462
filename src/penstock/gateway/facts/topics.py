"""Topics and their partitions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from penstock.app.app import App
from penstock.capture.topics import OWN
from penstock.errors import PenstockError
from penstock.log.facts import PartitionFacts, facts_of
from penstock.log.settings import TopicSettings

Kind = Literal["topic", "table", "view", "stream", "internal"]
_INTERNAL = (".batches", ".late", ".watermarks", ".dead", ".schemas", ".requests")


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    type: str  # DDL
    nullable: bool


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """A topic. `kind`: what the app makes of it; "internal" is what Penstock keeps for itself."""

    name: str
    kind: Kind
    partitions: int
    records: int
    bytes: int | None  # None where the log cannot tell
    last_us: int | None  # the newest append
    schema: str  # DDL
    columns: tuple[Column, ...]
    key: tuple[str, ...]
    event_time: str | None
    cleanup: str
    retention_ms: int | None
    durability: str
    version: int  # of the settings: one more with every change
    error: str | None = None  # why it cannot be opened; the numbers are then 0


@dataclass(frozen=True, slots=True)
class TopicDetail:
    """A topic with each of its partitions and every setting."""

    topic: TopicFacts
    parts: tuple[PartitionFacts, ...]
    settings: dict[str, object]
    groups: tuple[str, ...]


def all_of(app: App) -> tuple[TopicFacts, ...]:
    """Every topic of the log, by name. One that cannot be opened does not hide the others."""
    return tuple(_facts(app, name) for name in sorted(app.log.topics()))


def one_of(app: App, name: str) -> TopicDetail:
    """Raises UnknownTopic."""
    settings = app.log.port.settings(name)
    parts = tuple(facts_of(app.log, name))
    groups = tuple(sorted(group for group, topic in app.log.groups() if topic == name))
    return TopicDetail(_told(app, settings, parts), parts, settings.to_json(), groups)


def kind_of(app: App, name: str, *, compacted: bool = False) -> Kind:
    definition = app.definitions.get(name)
    if definition is not None:
        return "view" if definition.kind == "view" else "stream"
    capture, _, rest = name.partition(".")
    if name.endswith(_INTERNAL) or name.startswith("_") or (capture in app.captures and rest in OWN):
        return "internal"
    return "table" if compacted else "topic"


def _facts(app: App, name: str) -> TopicFacts:
    try:
        return _told(app, app.log.port.settings(name), tuple(facts_of(app.log, name)))
    except PenstockError as error:
        kind = kind_of(app, name)
        return TopicFacts(
            name, kind, 0, 0, None, None, "", (), (), None, "delete", None, "", 0, error=error.message
        )


def _told(app: App, settings: TopicSettings, parts: tuple[PartitionFacts, ...]) -> TopicFacts:
    from penstock.schema import ddl_of

    sizes = [part.bytes for part in parts]
    columns = tuple(Column(f.name, ddl_of(f.type), f.nullable) for f in settings.schema.arrow)
    return TopicFacts(
        settings.name,
        kind_of(app, settings.name, compacted=settings.compacted),
        settings.partitions,
        sum(part.records for part in parts),
        None if None in sizes else sum(size or 0 for size in sizes),
        max((part.last_us for part in parts if part.last_us), default=None),
        settings.schema.ddl,
        columns,
        settings.key,
        settings.event_time,
        settings.cleanup,
        settings.retention_ms,
        settings.durability,
        settings.version,
    )
