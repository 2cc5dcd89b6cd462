"""Events as records of a topic, and where in it a receipt is."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pyarrow.compute as pc

from penstock.erasure.cipher import sealed_length
from penstock.errors import BadRecord
from penstock.log import rows
from penstock.log.conform import check_sizes
from penstock.log.json_rows import from_json
from penstock.log.log import Log
from penstock.log.port import Position
from penstock.log.settings import TopicSettings
from penstock.log.topic import Topic
from penstock.sourcing.entry import Entry, Receipt

if TYPE_CHECKING:
    from eventsourcing.persistence import Notification

    from penstock.sourcing.kinds import Kinds
    from penstock.sourcing.mapper import EntryMapper

PRODUCER = "sourcing."
_TAIL = 200  # offsets at the end of a partition; some of them are records
_LOOK_S = 0.01
_LONGEST = 2**63 - 1


def record_of(mapper: EntryMapper, notification: Notification) -> dict[str, Any]:
    """The record of an event: its fields are columns, and what is sealed stays so."""
    found = mapper.stored(notification)
    return {
        **from_json(found.kind.form.schema, found.data),
        **_envelope(str(notification.originator_id), notification.originator_version, notification.id),
        "event": found.kind.name,
        "event_version": found.kind.version,
        "at": datetime.fromisoformat(found.at),
        "by": found.by,
        "command_id": found.command_id,
    }


def check_entries(kinds: Kinds, settings: TopicSettings, entries: Sequence[Entry]) -> None:
    """Raises BadRecord or RecordTooLarge for what could not be published: it must not be recorded either."""
    told = [_row(kinds, entry) for entry in entries]
    personal = {each.column for each in settings.personal}
    try:
        batch = rows.encode(settings.schema, told)
    except BadRecord as error:
        name = kinds.by_type[type(entries[error.row or 0].event)].name
        reason = "a value that is personal" if error.column in personal else error.message
        raise BadRecord(
            f'event "{name}" of "{entries[0].id}" does not fit its class: {reason}',
            column=error.column,
            hint=error.hint,
        ) from (None if error.column in personal else error)
    if personal:
        batch = rows.encode(settings.schema, [_as_sealed(settings.name, personal, row) for row in told])
    check_sizes(settings.name, batch, size_bytes_max=settings.record_bytes_max)


def _as_sealed(place: str, personal: set[str], row: dict[str, Any]) -> dict[str, Any]:
    """As long as it will be."""
    return {
        name: "x" * sealed_length(value, place, name) if name in personal and value is not None else value
        for name, value in row.items()
    }


def _row(kinds: Kinds, entry: Entry) -> dict[str, Any]:
    kind = kinds.by_type[type(entry.event)]
    own = {name: getattr(entry.event, name) for name in kind.fields}
    told = {"event": kind.name, "event_version": kind.version, "at": entry.at, "by": entry.by}
    return {**own, **_envelope(entry.id, entry.version, _LONGEST), **told, "command_id": entry.command_id}


def _envelope(id: str, version: int, sequence: int) -> dict[str, Any]:
    return {"aggregate_id": id, "version": version, "sequence": sequence}


def published(position: bytes | None) -> int:
    """The sequence of the last event that a publisher has stored, as its position says."""
    return int(json.loads(position)["sequence"]) if position else 0


def position_at(sequence: int, command_id: str) -> bytes:
    """What a publisher stores: the last event it has published, and the command that it is of."""
    return json.dumps({"sequence": sequence, "command": command_id}).encode()


def command_of(told: bytes | None) -> str | None:
    """The command in a position, or in an event as it is stored; older positions have none."""
    return json.loads(told).get("command") if told else None


def position_of(log: Log, producer: str, receipt: Receipt, *, timeout_s: float) -> Position | None:
    """Where the events of a receipt are in the topic; None when they are not there in time.

    It may be whoever publishes them: what is asked is the topic itself, and for one whose records retention
    has taken, how far its producer is.
    """
    deadline = time.monotonic() + timeout_s
    topic = log.topic(receipt.topic)
    while True:
        ends = _ends_past(log, topic, producer, receipt)
        if ends is not None:
            return Position(topic.name, ends)
        left = deadline - time.monotonic()
        if left <= 0:
            return None
        time.sleep(min(left, _LOOK_S))


def _ends_past(log: Log, topic: Topic, producer: str, receipt: Receipt) -> Mapping[int, int] | None:
    found = log.port.producer_position(producer)
    if published(found.position) < receipt.sequence:
        return None
    ends = {number: end for number, (_, end) in topic.bounds().items()}
    if not receipt.entries:
        return ends
    partition = _partition(topic, receipt.id)
    return {partition: ends[partition]} if _shows(log, topic, partition, receipt) else None


def _partition(topic: Topic, id: str) -> int:
    row = {**_envelope(id, 0, 0), "event": "", "event_version": 0, "at": datetime.min, "command_id": ""}
    (batch,) = topic.encode([{**row, "at": datetime.fromisoformat("1970-01-01T00:00:00+00:00")}])
    (partition,) = topic.route(batch)
    return partition


def _shows(log: Log, topic: Topic, partition: int, receipt: Receipt) -> bool:
    """Whether the end of the partition is past the receipt: on Kafka a moment later than its position."""
    start, end = log.port.bounds(topic.name, partition)
    seen = [
        pc.max(batch.column("sequence")).as_py()
        for batch in log.port.read(topic.name, partition, max(start, end - _TAIL), until=end)
        if batch.num_rows
    ]
    return max(seen, default=receipt.sequence) >= receipt.sequence
