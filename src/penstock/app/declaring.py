"""Topics in a log as an app declares them: created, or brought up to what is declared now."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa

from penstock.errors import TopicExists
from penstock.log.log import Log
from penstock.log.settings import TopicSettings
from penstock.schema import RecordSchema


def create(log: Log, wanted: TopicSettings, *, keeps_columns: bool = False) -> None:
    """`keeps_columns`: those that the topic has, and that are not declared any more, stay in it."""
    try:
        log.port.create_topic(wanted)
    except TopicExists:
        known = log.port.settings(wanted.name)
        if keeps_columns:
            wanted = replace(wanted, schema=_with_older(known.schema, wanted.schema))
        changed = _brought_up(known, wanted)
        if changed != known:
            log.port.alter_topic(wanted.name, changed)


def _with_older(known: RecordSchema, wanted: RecordSchema) -> RecordSchema:
    older = [column for column in known.arrow if column.name not in wanted.names]
    return RecordSchema(pa.schema([*wanted.arrow, *older]))


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
