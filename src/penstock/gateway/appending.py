"""Records out of request bodies: JSON, JSON lines and Arrow streams, checked before anything is stored."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import Any

import orjson
import pyarrow as pa

from penstock.app.app import App
from penstock.errors import BadRecord, NotSupported
from penstock.gateway.facts.topics import kind_of
from penstock.log.json_rows import reader_of
from penstock.log.topic import Topic
from penstock.schema import RecordSchema

JSON, NDJSON = "application/json", "application/x-ndjson"
ARROW = "application/vnd.apache.arrow.stream"
TYPES = (JSON, NDJSON, ARROW)
_ROWS_MAX = 1_000_000
_PLAIN = (
    pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_string,
    pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary, pa.types.is_timestamp,
    pa.types.is_date, pa.types.is_decimal,
)  # fmt: skip


def writable(app: App, name: str) -> Topic:
    """A topic that clients may write to. Raises UnknownTopic, NotSupported."""
    topic = app.topics.get(name) or app.log.topic(name)
    kind = kind_of(app, name, compacted=topic.settings.compacted)
    if kind in ("view", "stream", "internal") or name.partition(".")[0] in app.captures:
        raise NotSupported(
            f'topic "{name}" is written by Penstock itself.', hint="append to what it is made from"
        )
    return topic


def records_of(kind: str, body: bytes, schema: RecordSchema) -> list[dict[str, object]] | pa.Table:
    """The records of a body. Raises BadRecord."""
    if kind == ARROW:
        return _table(body)
    objects = _lines(body) if kind == NDJSON else _values(body)
    return list(_rows(schema, objects))


def _values(body: bytes) -> Iterator[Any]:
    found = _parsed(body, "the body")
    yield from found if isinstance(found, list) else [found]


def _lines(body: bytes) -> Iterator[Any]:
    for at, line in enumerate(body.split(b"\n")):
        if line.strip():
            yield _parsed(line, f"line {at + 1}")


def _parsed(text: bytes, what: str) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise BadRecord(
            f"{what} is no JSON: {error}.", hint="send an object, a list, or a line each"
        ) from None


def _rows(schema: RecordSchema, objects: Iterable[Any]) -> Iterator[dict[str, object]]:
    read = reader_of(schema)
    for at, value in enumerate(objects):
        if not isinstance(value, dict):
            raise BadRecord(f"row {at} is no object.", row=at, hint='a record is like {"column": "value"}')
        try:
            yield read(value)
        except BadRecord as error:
            raise BadRecord(
                f"row {at}: {error.message}", row=at, column=error.column, hint=error.hint
            ) from None


# ---- Arrow ------------------------------------------------------------------------------------


def _table(body: bytes) -> pa.Table:
    """Only what cannot grow in memory beyond what was sent: no compression, no dictionaries."""
    try:
        _check_messages(body)
        with pa.ipc.open_stream(body) as stream:
            _check_schema(stream.schema)
            batches = list(_batches(stream))
            return pa.Table.from_batches(batches, schema=stream.schema)
    except (pa.ArrowException, struct.error, OSError, MemoryError, OverflowError, IndexError) as error:
        raise BadRecord(
            f"the body is no Arrow stream that can be read: {str(error)[:200]}.",
            hint="write it with pyarrow.ipc.new_stream",
        ) from None


def _batches(stream: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
    rows = 0
    for batch in stream:
        rows += batch.num_rows
        if rows > _ROWS_MAX:
            raise BadRecord(f"more than {_ROWS_MAX:,} rows.", hint="send them in several requests")
        batch.validate(full=True)  # offsets that lead outside of a buffer are found here
        yield batch


def _check_schema(schema: pa.Schema) -> None:
    for field in schema:
        if not _is_plain(field.type) and not pa.types.is_null(field.type):
            raise BadRecord(
                f'column "{field.name}": Arrow {field.type} is not taken over HTTP.',
                column=field.name,
                hint="cast it to the topic's type; decode dictionaries",
            )


def _is_plain(kind: pa.DataType) -> bool:
    if pa.types.is_struct(kind):
        return all(_is_plain(field.type) for field in kind)
    if pa.types.is_map(kind):
        return _is_plain(kind.key_type) and _is_plain(kind.item_type)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _is_plain(kind.value_type)
    return any(check(kind) for check in _PLAIN)


def _check_messages(body: bytes) -> None:
    reader = pa.ipc.MessageReader.open_stream(pa.py_buffer(body))
    while True:
        try:
            message = reader.read_next_message()
        except StopIteration:
            return
        if message.type == "record batch" and _is_compressed(message.metadata.to_pybytes()):
            raise BadRecord("the Arrow stream is compressed.", hint="write it without compression")


def _is_compressed(metadata: bytes) -> bool:
    """Whether a record batch has a `compression`: the fourth field of the table that is its header."""
    header = _field(metadata, struct.unpack_from("<I", metadata)[0], 2)
    if not header:
        return False
    return bool(_field(metadata, header + struct.unpack_from("<I", metadata, header)[0], 3))


def _field(data: bytes, table: int, number: int) -> int:
    """Where a field of a flatbuffers table is, 0 where it is left out."""
    vtable = table - struct.unpack_from("<i", data, table)[0]
    at = 4 + 2 * number
    if at >= struct.unpack_from("<H", data, vtable)[0]:
        return 0
    inside: int = struct.unpack_from("<H", data, vtable + at)[0]
    return table + inside if inside else 0
