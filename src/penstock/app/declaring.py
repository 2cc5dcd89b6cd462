"""Topics in a log as an app declares them: created, or brought up to what is declared now."""

from __future__ import annotations

from dataclasses import replace

from penstock.errors import TopicExists
from penstock.log.log import Log
from penstock.log.settings import TopicSettings
from penstock.schema import RecordSchema


def create(log: Log, wanted: TopicSettings) -> None:
    try:
        log.port.create_topic(wanted)
    except TopicExists:
        known = log.port.settings(wanted.name)
        changed = _brought_up(known, wanted)
        if changed != known:
            log.port.alter_topic(wanted.name, changed)


def _brought_up(known: TopicSettings, wanted: TopicSettings) -> TopicSettings:
    """What is declared now, on what a topic has become."""
    if known.format == "avro" and wanted.schema == RecordSchema.of(None):  # it came from the registry
        wanted = replace(wanted, schema=known.schema, key=known.key)
    return replace(
        wanted,
        format=wanted.format or known.format,
        schema=known.schema.evolve_to(wanted.schema),
        partitions=max(known.partitions, wanted.partitions),
        version=known.version,
        id=known.id,
        grown=known.grown,
    )
