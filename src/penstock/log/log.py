"""A log as programs use it: topics, producers with a position, groups."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pyarrow as pa

from penstock.clock import CorrectedTime, duration_ms
from penstock.erasure import columns
from penstock.erasure.marks import check_sealed_anyway
from penstock.errors import BadOption, TopicExists
from penstock.log.port import AtomicResult, GroupInfo, LogPort, Parts, StaleAppend
from penstock.log.settings import Cleanup, Durability, TopicSettings
from penstock.log.topic import Topic
from penstock.schema import RecordSchema

Declared = str | type | RecordSchema | Any
HOME = ".penstock"
_DURATIONS = ("retention", "history", "lateness", "idle_after", "ahead")


def home_of(home: str | Path | None = None) -> Path:
    """Where data is kept: `home`, else $PENSTOCK_HOME, else ./.penstock."""
    return Path(home or os.environ.get("PENSTOCK_HOME") or HOME)


class Log:
    """Thread-safe; a context manager. `ps.open_log()` gives one."""

    def __init__(self, port: LogPort) -> None:
        self.port = port

    def create_topic(
        self,
        name: str,
        schema: Declared = None,
        *,
        key: str | tuple[str, ...] | list[str] = (),
        event_time: str | CorrectedTime | None = None,
        partitions: int = 1,
        cleanup: Cleanup = "delete",
        retention: str | float | None = None,
        retention_bytes: int | None = None,
        durability: Durability = "fsync",
        archive: bool = False,
        if_missing: bool = False,
        **limits: Any,
    ) -> Topic:
        """Create a topic. With `if_missing`, an existing one is returned as it is.

        `limits` are the finer ones: `lateness`, `idle_after` and `ahead` as durations; `segment_bytes`,
        `segment_ms`, `record_bytes_max`, `tombstone_ms` as numbers; on Kafka, `format` is "json" or "avro".
        `personal={"email": "customer_id"}`: columns that are stored sealed, by the column that names whose
        they are; `comparable` lists those of them whose equal values may look the same; `on_forgotten`
        is "refuse" or "blank".
        """
        settings = declared_settings(
            name, schema, key=key, event_time=event_time, partitions=partitions, cleanup=cleanup,
            retention=retention, retention_bytes=retention_bytes, durability=durability, archive=archive,
            **limits,
        )  # fmt: skip
        try:
            settings = self.port.create_topic(settings)
        except TopicExists:
            if not if_missing:
                raise
            settings = self.port.settings(name)
        return Topic(self.port, settings, record_type=RecordSchema.of(schema).record_type)

    def topic(self, name: str, *, record_type: type | None = None) -> Topic:
        """An existing topic. Raises UnknownTopic."""
        return Topic(self.port, self.port.settings(name), record_type=record_type)

    def topics(self) -> list[str]:
        return self.port.topics()

    def alter_topic(self, name: str, *, schema: Declared = None, **changes: Any) -> Topic:
        """Change a topic: a wider schema, more partitions, retention and the other limits."""
        current = self.port.settings(name)
        changes = with_personal(in_ms(changes))
        _check_options(changes)
        declared = RecordSchema.of(schema) if schema is not None else current.schema
        wanted = replace(current, schema=declared, **changes)
        check_sealed_anyway(declared.record_type, [each.column for each in wanted.personal])
        return Topic(self.port, self.port.alter_topic(name, wanted))

    def delete_topic(self, name: str) -> None:
        """Remove a topic with all its records and the commits of its groups."""
        self.port.delete_topic(name)

    def producer(self, id: str) -> AtomicProducer:
        """Take over the producer `id`: an older instance of it can write no more."""
        return AtomicProducer(self.port, id)

    def groups(self) -> list[tuple[str, str]]:
        """(group, topic) pairs."""
        return self.port.groups()

    def group(self, group: str, topic: str) -> GroupInfo:
        """Members and lag of a group."""
        return self.port.group(group, topic)

    def close(self) -> None:
        self.port.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class AtomicProducer:
    """Appends to several topics and stores its position with them, all or nothing.

    After any crash `position()` says what was stored last, so a program goes on exactly
    where it was. One thread at a time.
    """

    def __init__(self, port: LogPort, id: str) -> None:
        self.id = id
        self._port = port
        self._pid = os.getpid()
        opened = port.open_producer(id)
        self.epoch = opened.epoch
        self._sequence = opened.sequence

    def position(self) -> bytes | None:
        """The position of the last stored append; None before the first."""
        return self._port.producer_position(self.id).position

    def close(self) -> None:
        """Done with it; the position stays."""
        self._port.close_producer(self.id)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def next_sequence(self) -> int:
        return self._sequence + 1

    def append(
        self,
        records: Mapping[Topic | str, Any],
        *,
        position: bytes | None = None,
        sequence: int | None = None,
    ) -> AtomicResult:
        """Store `records` by topic and `position` together.

        A `sequence` that was stored before changes nothing and says so. Raises Fenced if
        a newer instance of this producer has started. After any other error that leaves open
        whether they were stored (StorageError, an interrupt) append the same again, or go on with
        another position. Other records with the same position, or with none, would be taken for a
        repetition: look at `position()` and open the producer anew.
        """
        if self._pid != os.getpid():
            raise BadOption(
                f'producer "{self.id}" belongs to the process that this one was forked from.',
                hint="open it again after the fork; the older instance is fenced then",
            )
        if not isinstance(position, bytes | None):
            raise BadOption(
                f"position {position!r} is no bytes.", hint="encode it, as str(position).encode()"
            )
        number = self.next_sequence if sequence is None else sequence
        topics = {_topic(self._port, name): data for name, data in records.items()}
        if len({topic.name for topic in topics}) < len(topics):
            raise BadOption("a topic is named twice in one append.", hint="put its records together")
        while True:
            parts = {topic.name: (topic.settings, _parts(topic, data)) for topic, data in topics.items()}
            try:
                result = self._port.append_atomically(self.id, self.epoch, number, parts, position)
            except StaleAppend:
                continue
            self._sequence = max(self._sequence, number)
            if result.duplicate and sequence is None and self._is_new(position):
                number = self.next_sequence
                continue
            return result

    def _is_new(self, position: bytes | None) -> bool:
        """Whether an append that was taken for a repetition is one of its own: it goes elsewhere.

        What was stored is then the one before it, which came back with an error.
        """
        return position is not None and position != self.position()


def declared_settings(
    name: str,
    schema: Declared = None,
    *,
    key: str | tuple[str, ...] | list[str] = (),
    event_time: str | CorrectedTime | None = None,
    **options: Any,
) -> TopicSettings:
    """Settings out of what `Log.create_topic` takes."""
    options = {**_time_columns(event_time), **with_personal(in_ms(options))}
    _check_options(options)
    default_key = ("key",) if schema is None and not key else ()
    declared = RecordSchema.of(schema)
    found = TopicSettings(name, declared, key=_columns(key) or default_key, **options)
    check_sealed_anyway(declared.record_type, [each.column for each in found.personal])
    return found


def _topic(port: LogPort, topic: Topic | str) -> Topic:
    return Topic(port, port.settings(topic)) if isinstance(topic, str) else topic


def _parts(topic: Topic, records: Any) -> Parts:
    parts: dict[int, list[pa.RecordBatch]] = {}
    for batch in topic.encode(records):
        for number, batches in topic.route(batch).items():
            parts.setdefault(number, []).extend(batches)
    return parts


def _check_options(given: Mapping[str, Any]) -> None:
    unknown = set(given) - (
        set(TopicSettings.__dataclass_fields__) - {"name", "schema", "version", "grown", "id"}
    )
    if unknown:
        raise BadOption(
            f"a topic has no {', '.join(sorted(unknown))}.", hint="see: penstock topic create --help"
        )


def _time_columns(event_time: str | CorrectedTime | None) -> dict[str, Any]:
    if not isinstance(event_time, CorrectedTime):
        return {"event_time": event_time}
    return {
        "event_time": event_time.occurred,
        "sent_time": event_time.sent,
        "received_time": event_time.received,
        "offline_ms": event_time.offline_ms,
    }


def in_ms(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options with durations under the names that the settings have for them."""
    return {
        f"{name}_ms" if name in _DURATIONS else name: (
            duration_ms(value) if name in _DURATIONS and value is not None else value
        )
        for name, value in options.items()
    }


def with_personal(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options with `personal` and `comparable` as the one that the settings have for them."""
    rest = {name: value for name, value in options.items() if name not in ("personal", "comparable")}
    if len(rest) == len(options):
        return rest
    return {**rest, "personal": columns.declared(options.get("personal", {}), options.get("comparable", ()))}


def _columns(key: str | tuple[str, ...] | list[str]) -> tuple[str, ...]:
    return (key,) if isinstance(key, str) else tuple(key)
