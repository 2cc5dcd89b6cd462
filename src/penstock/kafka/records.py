"""Records as Kafka messages: a JSON object or Avro per record, or bytes as they are.

A topic of bytes (the default schema) is Kafka's own key, value and headers. Any other has JSON in the value,
as `penstock produce` reads it, or Avro where it is declared so, and the text of the key columns as its key. A
delete has no value.
"""

from __future__ import annotations

import datetime as dt
import decimal
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import BadOption, BadRecord
from penstock.log import keys, rows
from penstock.log.decode import decode
from penstock.log.json_rows import from_json, to_json
from penstock.log.settings import TopicSettings
from penstock.schema import ArrowArray, ArrowType, RecordSchema

if TYPE_CHECKING:
    from confluent_kafka import Message

    from penstock.kafka.avro import Avro

APPENDED = "penstock.appended"
"""A header: when a record was first appended, to the microsecond, where it was copied from another log."""

_REFUSALS = (BadRecord, ValueError, ArithmeticError)
_BYTES = RecordSchema.of(None)
_TIMESTAMP = pa.timestamp("us", tz="UTC")
_is = pa.types

Reader = Callable[[bytes], dict[str, object]]


@dataclass(frozen=True, slots=True)
class Outgoing:
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, str | bytes | None]] | None = None
    appended_us: int | None = None  # where that is not the moment at which it is sent


@dataclass(frozen=True, slots=True)
class Poison:
    """A message that is no record of its topic."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    reason: str


class Codec:
    """Between batches of records and the messages of one cluster. Thread-safe."""

    def __init__(self, avro: Avro | None = None) -> None:
        """Without `avro`, topics of Avro are refused."""
        self._avro = avro

    def outgoing(self, settings: TopicSettings, batch: pa.RecordBatch) -> Iterator[Outgoing]:
        if settings.schema == _BYTES:
            for row in decode(batch):
                yield _bytes_out(row)
            return
        texts = keys.key_bytes(batch, settings.key).to_pylist()
        deleted = batch.column("_deleted").to_pylist() if settings.compacted else [False] * batch.num_rows
        found, encode = self._rows(settings, batch.select(settings.schema.names))
        for key, gone, row in zip(texts, deleted, found, strict=True):
            yield Outgoing(key, None if gone else encode(row))

    def _rows(
        self, settings: TopicSettings, batch: pa.RecordBatch
    ) -> tuple[Iterator[dict[str, Any]], Callable[[Mapping[str, Any]], bytes]]:
        """Rows, and what makes bytes of one."""
        if settings.format == "avro":
            return iter(decode(batch)), self.avro(settings).encoder(settings)
        names = batch.schema.names
        columns = [_written(column) for column in batch.columns]
        return (dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)), orjson.dumps

    def avro(self, settings: TopicSettings) -> Avro:
        if self._avro is None:
            raise BadOption(
                f'topic "{settings.name}" is one of Avro, and no schema registry is named.',
                hint="add it to the address: kafka://host:port?schema.registry.url=http://host:port",
            )
        return self._avro

    def incoming(
        self, settings: TopicSettings, messages: Sequence[Message], poison: list[Poison]
    ) -> pa.RecordBatch | None:
        """Messages of one partition as records; those that are none are added to `poison`."""
        found, batch = messages, None
        try:
            batch = self._batch(settings, messages)
        except _REFUSALS:
            found = [message for message in messages if not self._refused(settings, message, poison)]
            batch = self._batch(settings, found) if found else None
        return None if batch is None else _placed(settings, found, batch)

    def _refused(self, settings: TopicSettings, message: Message, poison: list[Poison]) -> bool:
        try:
            self._batch(settings, [message])
        except _REFUSALS as error:
            place = message.partition() or 0, message.offset() or 0
            poison.append(Poison(*place, message.key(), message.value(), str(error).splitlines()[0]))
            return True
        return False

    def _batch(self, settings: TopicSettings, messages: Sequence[Message]) -> pa.RecordBatch:
        if settings.schema == _BYTES:
            found = [_bytes_in(message) for message in messages]
        else:
            read = self._reader(settings)
            found = [_row(settings, message, read) for message in messages]
        stored = settings.stored
        schema = RecordSchema(pa.schema([field for field in stored if field.name != "_deleted"]))
        batch = rows.encode(schema, found)
        if not settings.compacted:
            return batch
        deleted = pa.array([message.value() is None for message in messages], pa.bool_())
        return pa.RecordBatch.from_arrays([*batch.columns, deleted], schema=stored)

    def _reader(self, settings: TopicSettings) -> Reader:
        if settings.format != "avro":
            return _json_reader(settings.schema)
        avro = self.avro(settings)
        return lambda value: avro.row(settings, value)


def _row(settings: TopicSettings, message: Message, read: Reader) -> dict[str, object]:
    value = message.value()
    if value is not None:
        return read(value)
    if not settings.compacted:
        raise BadRecord("it has no value, and the topic keeps every record.")
    return key_columns(settings, message.key())


def _written(column: ArrowArray) -> list[Any]:
    """The values of a column as orjson takes them."""
    if _is_plain(column.type) or (_is.is_floating(column.type) and _all_finite(column)):
        return list(column.to_pylist())
    return [to_json(row["v"]) for row in decode(pa.record_batch({"v": column}))]


def _is_plain(dtype: ArrowType) -> bool:
    """Whether JSON has such values itself."""
    return bool(_is.is_integer(dtype) or _is.is_string(dtype) or _is.is_boolean(dtype))


def _all_finite(column: ArrowArray) -> bool:
    return pc.all(pc.is_finite(column)).as_py() is not False


def _bytes_out(row: dict[str, Any]) -> Outgoing:
    headers = list(row["headers"].items()) if row["headers"] else None
    return Outgoing(row["key"], None if row.get("_deleted") else row["value"], headers)


def _bytes_in(message: Message) -> dict[str, object]:
    found: Any = message.headers() or ()
    headers = {name: value for name, value in found if name != APPENDED}
    return {"key": message.key(), "value": message.value(), "headers": headers or None}


@functools.lru_cache(maxsize=1_000)
def _json_reader(schema: RecordSchema) -> Reader:
    """What makes a row of a JSON object's bytes. Made once: it runs for every message."""
    names = schema.names
    floating = [field.name for field in schema.arrow if _is.is_floating(field.type)]
    # Whose values JSON writes in a way of its own.
    special = [f for f in schema.arrow if f.name not in floating and not _is_plain(f.type)]
    others, theirs = RecordSchema(pa.schema(special)), [field.name for field in special]

    def read(value: bytes) -> dict[str, object]:
        parsed = orjson.loads(value)
        if not isinstance(parsed, dict):
            raise BadRecord("it is no JSON object.")
        # Of another program there may be columns that the schema does not name.
        row = {name: parsed[name] for name in names if name in parsed}
        for name in floating:
            if isinstance(row.get(name), str):  # "NaN"
                row |= from_json(schema, {name: row[name]})
        if theirs:
            row |= from_json(others, {name: row[name] for name in theirs if name in row})
        return row

    return read


def _placed(settings: TopicSettings, messages: Sequence[Message], batch: pa.RecordBatch) -> pa.RecordBatch:
    """With where and when they were appended."""
    times = np.array([_appended_us(message) for message in messages], np.int64)
    offsets = np.array([message.offset() for message in messages], np.int64)
    places = np.full(len(messages), messages[0].partition(), np.int32)
    system = [pa.array(places), pa.array(offsets), pa.array(times).cast(_TIMESTAMP)]
    return pa.RecordBatch.from_arrays([*system, *batch.columns], schema=settings.read_schema)


def _appended_us(message: Message) -> int:
    headers: Any = message.headers() or ()
    for name, value in headers:
        if name == APPENDED and value:
            return int(value)
    return message.timestamp()[1] * 1_000


# Keys back from their text ------------------------------------------------------------------------


def key_columns(settings: TopicSettings, key: bytes | None) -> dict[str, object]:
    """The key columns of a delete, which has nothing else."""
    texts = [key] if len(settings.key) == 1 else _netstrings(key or b"")
    if len(texts) != len(settings.key):
        raise BadRecord("its key is not the key of this topic.")
    types = [settings.schema.field(name).type for name in settings.key]
    return {
        name: None if text is None else _value(dtype, text)
        for name, dtype, text in zip(settings.key, types, texts, strict=True)
    }


def _netstrings(text: bytes) -> list[bytes | None]:
    found: list[bytes | None] = []
    while text:
        if text.startswith(b"-,"):
            found.append(None)
            text = text[2:]
            continue
        length, _, rest = text.partition(b":")
        end = int(length)
        found.append(rest[:end])
        text = rest[end + 1 :]
    return found


def _value(dtype: ArrowType, text: bytes) -> object:
    if _is.is_binary(dtype):
        return text
    plain = text.decode()
    if _is.is_timestamp(dtype):
        epoch = dt.datetime(1970, 1, 1, tzinfo=dt.UTC if dtype.tz else None)
        return epoch + dt.timedelta(microseconds=int(plain))
    if _is.is_date(dtype):
        return dt.date.fromisoformat(plain)
    if _is.is_decimal(dtype):
        return decimal.Decimal(plain)
    if _is.is_boolean(dtype):
        return plain == "true"
    return int(plain) if _is.is_integer(dtype) else plain
