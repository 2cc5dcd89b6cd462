"""One record as a consumer sees it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa

from penstock.log.decode import decode, decode_as
from penstock.log.settings import SYSTEM_FIELDS

_PLACES = len(SYSTEM_FIELDS)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Event:
    """A record and its place in the log.

    `event["column"]` reads a column; `event.value` is the whole record, as a dict or as
    the dataclass the topic was declared with. `event.deleted` marks a delete in a
    compacted topic (then only the key columns are filled).
    """

    __slots__ = ("deleted", "group", "offset", "partition", "time_us", "topic", "topic_id", "value")

    def __init__(
        self,
        topic: str,
        partition: int,
        offset: int,
        time_us: int,
        value: Any,
        deleted: bool = False,
        group: str = "",
        topic_id: str = "",
    ) -> None:
        self.topic, self.partition, self.offset, self.time_us = topic, partition, offset, time_us
        self.value, self.deleted, self.group, self.topic_id = value, deleted, group, topic_id

    @property
    def timestamp(self) -> datetime:
        """When it was appended."""
        return _EPOCH + timedelta(microseconds=self.time_us)

    def __getitem__(self, column: str) -> Any:
        value = self.value
        return value[column] if isinstance(value, dict) else getattr(value, column)

    def __repr__(self) -> str:
        mark = " deleted" if self.deleted else ""
        return f"<Event {self.topic}[{self.partition}]@{self.offset}{mark} {self.value!r}>"


def events_of(
    topic: str,
    batch: pa.RecordBatch,
    *,
    record_type: type | None = None,
    group: str = "",
    topic_id: str = "",
) -> Iterator[Event]:
    """The records of a batch in the port's read form."""
    # By the batch alone: the topic may have been altered since it was read.
    names = batch.schema.names
    marked = names[-1] == "_deleted"
    user = batch.select(names[_PLACES : len(names) - marked])
    deleted = batch.column(len(names) - 1).to_pylist() if marked else [False] * batch.num_rows
    places = zip(
        batch.column(0).to_numpy().tolist(),
        batch.column(1).to_numpy().tolist(),
        batch.column(2).view(pa.int64()).to_numpy().tolist(),
        decode(user) if record_type is None else _instances(record_type, user, deleted),
        deleted,
        strict=True,
    )
    return (Event(topic, *place, group, topic_id) for place in places)


def _instances(record_type: type, user: pa.RecordBatch, deleted: list[bool]) -> list[Any]:
    """Dataclasses, but dicts for deletes: those have no record to build one from."""
    if not any(deleted):
        return decode_as(record_type, user)
    whole = iter(decode_as(record_type, user.filter(pa.array([not mark for mark in deleted]))))
    keys = iter(decode(user.filter(pa.array(deleted))))
    return [next(keys) if mark else next(whole) for mark in deleted]
