"""A topic as programs use it, the same on every backend."""

from __future__ import annotations

import copy
import itertools
import random
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import pyarrow as pa

from penstock.erasure import columns
from penstock.errors import (
    BadOption,
    BadRecord,
    Contended,
    NotSupported,
    SealBroken,
    StorageError,
    TopicExists,
    UnknownTopic,
)
from penstock.log import keys, rows
from penstock.log.conform import check_sizes, conform
from penstock.log.decode import decode
from penstock.log.event import Event, events_of
from penstock.log.port import LogPort, Position, StaleAppend, to_us
from penstock.log.settings import TopicSettings
from penstock.schema import RecordSchema

if TYPE_CHECKING:
    from penstock.log.consumer import Consumer, Delivery, OnLost
    from penstock.log.producer import Overflow, Producer

_CHUNK_BYTES = 32 << 20
_SPREAD_ROWS = 1_024
WATERMARKS = ".watermarks"  # the topic of what producers declare about another topic's event times

Start = int | str | datetime | Mapping[int, int]
"""Where to begin: an offset, "earliest", "latest", a time, or an offset per partition."""


class Topic:
    """Thread-safe. Get one from `log.topic(name)` or `log.create_topic(...)`."""

    # Of the class: a topic that an app declares, or captures, describes itself in its own way.
    _reveals, _seals = False, True
    _forgotten: str | None = None

    def __init__(self, port: LogPort, settings: TopicSettings, *, record_type: type | None = None) -> None:
        self._port = port
        self._describe(settings, record_type)

    def _describe(self, settings: TopicSettings, record_type: type | None) -> None:
        self.name = settings.name
        self._settings = settings
        self._record_type = record_type or settings.schema.record_type
        self._turn = itertools.count(random.randrange(settings.partitions))
        self._turn_mutex = threading.Lock()

    @property
    def port(self) -> LogPort:
        return self._port

    @property
    def settings(self) -> TopicSettings:
        """As they are now, also when another process altered the topic."""
        self._settings = self._port.settings(self.name)
        return self._settings

    @property
    def schema(self) -> RecordSchema:
        return self.settings.schema

    def __repr__(self) -> str:
        return f"<Topic {self.name}: {self._settings.schema.ddl}>"

    # ---- writing ----------------------------------------------------------------------------

    def append(self, records: Any, *, partition: int | None = None) -> Position:
        """Store one record, many, or an Arrow batch or table; returns where they are.

        A record is a mapping or a dataclass instance. All of them are checked before
        any is stored. On return they survive power loss (with `durability="os"`: a crash
        of the process). Records go to partitions by their key, or evenly without one.
        """
        ends: dict[int, int] = {}
        firsts: dict[int, int] = {}
        for batch in self.encode(records):
            try:
                placed = self._append_batch(batch, partition)
            except (StorageError, Contended) as error:
                error.after_storing({number: (firsts[number], end) for number, end in ends.items()})
                raise
            ends.update(placed.ends)
            firsts = {**placed.firsts, **firsts}
        return Position(self.name, ends, firsts=firsts)

    def delete(self, *keys_: Mapping[str, object]) -> Position:
        """Mark keys of a compacted topic as deleted: `topic.delete({"id": 7})`."""
        settings = self.settings
        if not settings.compacted:
            raise NotSupported(
                f'topic "{self.name}" keeps every record.', hint='deletes need a topic with cleanup="compact"'
            )
        keyed = RecordSchema(pa.schema([f for f in settings.stored if f.name != "_deleted"]))
        batch = self._seal(settings, rows.encode(keyed, [dict(key) for key in keys_]))
        _check_keys(settings, batch)
        return self._append_batch(_marked(settings, batch, deleted=True), None)

    def watermark(self, until: datetime) -> Position:
        """Declare that nothing with an event time at or before `until` will come any more.

        Windows that end by then are final once a query has read this far; what comes all the same is late.
        """
        name = f"{self.name}{WATERMARKS}"
        try:
            declared = Topic(self._port, self._port.settings(name))
        except UnknownTopic:
            declared = Topic(self._port, self._declare(name))
        return declared.append({"until": until})

    def _declare(self, name: str) -> TopicSettings:
        try:
            schema = RecordSchema.of("until TIMESTAMP NOT NULL")
            return self._port.create_topic(TopicSettings(name, schema, format="json"))
        except TopicExists:  # another process was faster
            return self._port.settings(name)

    def encode(self, records: Any) -> Iterator[pa.RecordBatch]:
        """Records in the topic's stored form, checked and sealed, in pieces of bounded size."""
        settings = self.settings
        try:
            batches = _fitted(settings, records)
        except BadRecord as error:
            if error.column not in {each.column for each in settings.personal}:
                raise
            raise _untold(error) from None
        sealed = [self._seal(settings, batch) for batch in batches if batch.num_rows]
        checked = [self._checked(settings, batch) for batch in sealed]
        return itertools.chain.from_iterable(_pieces(batch) for batch in checked)

    def sealed_anyhow(self, record: Mapping[str, Any]) -> dict[str, Any]:
        """A record that does not fit the topic, as it may be put aside: nothing personal is in clear."""
        return columns.seal_anyhow(record, self.settings.personal, place=self.name, keys=self._port.keys)

    def _seal(self, settings: TopicSettings, batch: pa.RecordBatch) -> pa.RecordBatch:
        if not settings.personal:
            return batch
        if not self._seals:
            columns.check_sealed(batch, settings.personal, place=self.name)
            return batch
        return columns.seal(
            batch,
            settings.personal,
            place=self.name,
            keys=self._port.keys,
            on_forgotten=settings.on_forgotten,
        )

    def _checked(self, settings: TopicSettings, batch: pa.RecordBatch) -> pa.RecordBatch:
        check_sizes(self.name, batch, size_bytes_max=settings.record_bytes_max)
        if not settings.compacted:
            return batch
        _check_keys(settings, batch)
        return batch if "_deleted" in batch.schema.names else _marked(settings, batch, deleted=False)

    def _append_batch(self, batch: pa.RecordBatch, partition: int | None) -> Position:
        ends: dict[int, int] = {}
        firsts: dict[int, int] = {}
        parts = self.route(batch, partition=partition)
        while True:
            try:
                placed = self._port.append(self._settings, parts)
            except StaleAppend as stale:
                firsts = {**{n: first for n, (first, _) in stale.stored.items()}, **firsts}
                ends.update({n: end for n, (_, end) in stale.stored.items()})
                left = [b for n, batches in parts.items() if n not in stale.stored for b in batches]
                parts = self._route_again(left, partition)
                continue
            return Position(self.name, {**ends, **placed.ends}, firsts={**placed.firsts, **firsts})

    def _route_again(
        self, batches: list[pa.RecordBatch], partition: int | None
    ) -> dict[int, list[pa.RecordBatch]]:
        """The topic was altered meanwhile: the rest of an append under its new settings."""
        settings = self.settings
        parts: dict[int, list[pa.RecordBatch]] = {}
        for batch in batches:
            adopted = settings.schema.adopt(batch)
            if settings.compacted and "_deleted" not in batch.schema.names:
                adopted = _marked(settings, adopted, deleted=False)
            stored = pa.RecordBatch.from_arrays(adopted.columns, schema=settings.stored)
            for number, routed in self.route(stored, partition=partition).items():
                parts.setdefault(number, []).extend(routed)
        return parts

    def route(
        self, batch: pa.RecordBatch, *, partition: int | None = None
    ) -> dict[int, list[pa.RecordBatch]]:
        """Which partition each record goes to: the one asked for, its key's, or the next in turn."""
        count = self._settings.partitions
        if partition is not None:
            if not 0 <= partition < count:
                raise BadOption(
                    f'topic "{self.name}" has no partition {partition}.', hint=f"choose 0 to {count - 1}"
                )
            return {partition: [batch]}
        if count == 1:
            return {0: [batch]}
        if self._settings.key:
            return self._route_by_key(batch, count)
        return self._spread(batch, count)

    def _route_by_key(self, batch: pa.RecordBatch, count: int) -> dict[int, list[pa.RecordBatch]]:
        numbers = keys.partitions_of(batch, self._settings.key, count)
        without = numbers < 0
        if without.any():
            numbers = np.where(without, self._next_turn() % count, numbers)
        first = int(numbers[0])
        if (numbers == first).all():
            return {first: [batch]}
        order = np.argsort(numbers.astype(np.int16), kind="stable")  # 16 bits: a radix sort, 8 times as fast
        sorted_batch = batch.take(pa.array(order))
        edges = np.searchsorted(numbers[order], np.arange(count + 1))
        return {
            number: [sorted_batch.slice(int(edges[number]), int(edges[number + 1] - edges[number]))]
            for number in range(count)
            if edges[number + 1] > edges[number]
        }

    def _spread(self, batch: pa.RecordBatch, count: int) -> dict[int, list[pa.RecordBatch]]:
        """Contiguous slices over the partitions; small batches stay whole and take turns."""
        slices = min(count, -(-batch.num_rows // _SPREAD_ROWS))
        first = self._next_turn(slices)
        edges = np.linspace(0, batch.num_rows, slices + 1).astype(int)
        return {
            (first + number) % count: [
                batch.slice(int(edges[number]), int(edges[number + 1] - edges[number]))
            ]
            for number in range(slices)
        }

    def _next_turn(self, turns: int = 1) -> int:
        with self._turn_mutex:
            first = next(self._turn)
            for _ in range(turns - 1):
                next(self._turn)
            return first

    def producer(
        self,
        *,
        id: str | None = None,
        linger: str | float = "5 ms",
        batch_rows: int = 10_000,
        buffer_bytes: int = 32 << 20,
        overflow: Overflow = "block",
    ) -> Producer:
        """A buffered producer: `with topic.producer() as p: p.send(record)`."""
        from penstock.log.producer import Producer  # it builds on this module

        return Producer(
            self,
            self._port,
            id=id,
            linger=linger,
            batch_rows=batch_rows,
            buffer_bytes=buffer_bytes,
            overflow=overflow,
        )

    # ---- reading ------------------------------------------------------------------------------

    def revealed(self, *, forgotten: str | None = None) -> Self:
        """The same topic, whose readers get what is personal in clear, as far as there are keys for it.

        Where the subject was forgotten they get `forgotten`. A value that was not sealed in that column and
        for that subject raises SealBroken when it is read.
        """
        found = copy.copy(self)
        found._forgotten = forgotten
        found._reveals = True
        return found

    def presealed(self) -> Self:
        """The same topic, for records whose personal values are sealed for it already; others are refused."""
        found = copy.copy(self)
        found._seals = False
        return found

    def shown(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """What its readers get of a batch of the port's read form."""
        if not self._reveals:
            return batch

        def broken(row: int, column: str, reason: str) -> SealBroken:
            place = batch.column("_partition")[row].as_py(), batch.column("_offset")[row].as_py()
            return SealBroken(self.name, column=column, reason=reason, at=place)

        return columns.reveal(
            batch, self._settings.personal, place=self.name, keys=self._port.keys,
            forgotten=self._forgotten, broken=broken,
        )  # fmt: skip

    def bounds(self) -> dict[int, tuple[int, int]]:
        """For each partition, its first offset and one past its last."""
        return {n: self._port.bounds(self.name, n) for n in range(self.settings.partitions)}

    def read(
        self, *, partition: int | None = None, start: Start = "earliest", end: Start = "latest"
    ) -> Iterator[pa.RecordBatch]:
        """Arrow batches from `start` up to `end` as it is now, partition after partition.

        Columns `_partition`, `_offset`, `_timestamp` come first. Order holds within a partition.
        """
        numbers = range(self.settings.partitions) if partition is None else [partition]
        for number in numbers:
            first, last = self.offset_of(number, start), self.offset_of(number, end)
            if end != "latest":
                last = min(last, self._port.bounds(self.name, number)[1])
            yield from map(self.shown, self._port.read(self.name, number, first, until=last))

    def events(
        self, *, partition: int | None = None, start: Start = "earliest", end: Start = "latest"
    ) -> Iterator[Event]:
        """The same, record by record."""
        for batch in self.read(partition=partition, start=start, end=end):
            yield from events_of(self.name, batch, record_type=self._record_type, topic_id=self._settings.id)

    def rows(
        self, *, partition: int | None = None, start: Start = "earliest", end: Start = "latest"
    ) -> Iterator[dict[str, Any]]:
        """The same as plain dicts of the topic's own columns: the fastest way to read rows in Python."""
        names = list(self.settings.schema.names)
        for batch in self.read(partition=partition, start=start, end=end):
            yield from decode(batch.select(names))

    def offset_of(self, partition: int, start: Start) -> int:
        """The offset that an offset, a time, "earliest" or "latest" means in a partition."""
        if isinstance(start, int):
            return start
        if isinstance(start, Mapping):
            return start[partition] if partition in start else self._port.bounds(self.name, partition)[0]
        if isinstance(start, datetime):
            aware = start if start.tzinfo else start.replace(tzinfo=UTC)
            return self._port.offset_at(self.name, partition, to_us(aware))
        if start == "earliest":
            return self._port.bounds(self.name, partition)[0]
        if start == "latest":
            return self._port.bounds(self.name, partition)[1]
        raise BadOption(
            f"{start!r} is no place to start.", hint='use "earliest", "latest", an offset or a datetime'
        )

    def wait(self, ends: Mapping[int, int], timeout_s: float) -> bool:
        """Sleep until a partition reaches past `ends`; False when time is up."""
        return self._port.wait(self.name, ends, timeout_s)

    def latest(self) -> dict[Any, Any]:
        """The newest record of every key, deletes applied: the state that the log describes.

        Keys are values of the key column, or tuples where the key has several columns.
        """
        key = self.settings.key
        if not key:
            raise NotSupported(f'topic "{self.name}" has no key.', hint='declare one with key="column"')
        if self._reveals and {each.column for each in self._settings.personal} & set(key):
            raise NotSupported(
                f'the key of topic "{self.name}" is personal: those of forgotten subjects would be one.',
                hint="take latest() of the topic as it is stored",
            )
        state: dict[Any, tuple[int, Any]] = {}
        for event in self.events():
            found = tuple(event[column] for column in key) if len(key) > 1 else event[key[0]]
            # A key that moved when partitions were added: the later append wins.
            if found not in state or state[found][0] <= event.time_us:
                state[found] = (event.time_us, None if event.deleted else event.value)
        return {found: value for found, (_, value) in state.items() if value is not None}

    def consume(
        self,
        *,
        group: str,
        start: Start = "earliest",
        delivery: Delivery = "at_least_once",
        on_lost: OnLost = "error",
        lease: str | float = "30 seconds",
        commit_every: str | float = "1 second",
        follow: bool = True,
    ) -> Consumer:
        """Join a consumer group: `for event in topic.consume(group="mailer"): ...`

        `start` is where a group without commits begins; `follow=False` ends the loop at the
        end of the topic instead of waiting for more.
        """
        from penstock.log.consumer import Consumer  # it builds on this module

        return Consumer(
            self, self._port, group=group, start=start, delivery=delivery, on_lost=on_lost, lease=lease,
            commit_every=commit_every, follow=follow, record_type=self._record_type,
        )  # fmt: skip


def _as_rows(records: Any) -> Sequence[Any]:
    if isinstance(records, Mapping) or (is_dataclass(records) and not isinstance(records, type)):
        return [records]
    if isinstance(records, Sequence) and not isinstance(records, str | bytes):
        return records
    if isinstance(records, Iterable) and not isinstance(records, str | bytes):
        return list(records)
    raise BadRecord(
        f"{type(records).__name__} is no record.",
        hint="append a dict, a dataclass, a list of them, or an Arrow batch",
    )


def _fitted(settings: TopicSettings, records: Any) -> list[pa.RecordBatch]:
    """Records as columns of the topic, still in clear."""
    if isinstance(records, pa.RecordBatch | pa.Table):
        system = frozenset({"_deleted"}) if settings.compacted else frozenset[str]()
        return conform(settings.schema, records, system=system)
    return [rows.encode(settings.schema, _as_rows(records))]


def _untold(error: BadRecord) -> BadRecord:
    """The same without the value: who reads of errors need not know what is personal."""
    where = "" if error.row is None else f"row {error.row}, "
    return BadRecord(
        f'{where}column "{error.column}": a value does not fit, and is not shown because it is personal.',
        row=error.row,
        column=error.column,
        hint=error.hint,
    )


def _check_keys(settings: TopicSettings, batch: pa.RecordBatch) -> None:
    for column in settings.key:
        if batch.column(column).null_count:
            row = batch.column(column).is_null().to_pylist().index(True)
            raise BadRecord(
                f'row {row}, column "{column}": every record of a compacted topic needs its key.',
                row=row,
                column=column,
                hint="fill it, so that a later record can replace this one",
            )


def _marked(settings: TopicSettings, batch: pa.RecordBatch, *, deleted: bool) -> pa.RecordBatch:
    """The stored form of a compacted topic: the columns and a delete mark."""
    marks = pa.array(np.full(batch.num_rows, deleted))
    return pa.RecordBatch.from_arrays([*batch.columns, marks], schema=settings.stored)


def _pieces(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    rows_each = max(1, batch.num_rows * _CHUNK_BYTES // pa.ipc.get_record_batch_size(batch))
    for start in range(0, batch.num_rows, rows_each):
        yield batch.slice(start, rows_each)
