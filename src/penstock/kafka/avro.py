"""Records as Avro in Confluent's wire format: a zero, four bytes for the number of a schema, the record.

The schema of a topic is registered as `<topic>-value`. A record is read by the schema it was written with,
and its fields are taken by their names: those that the topic's schema does not have are left out, and those
that only the topic's schema has are null.
"""

from __future__ import annotations

import functools
import io
import json
import struct
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import fastavro
from fastavro.schema import SchemaParseException, UnknownType

from penstock.errors import BadOption, BadRecord, BadSchema
from penstock.kafka import avro_schema
from penstock.kafka.registry import Registered, Registry
from penstock.log.settings import TopicSettings
from penstock.schema import RecordSchema

_HEADER = struct.Struct(">bI")
_MAGIC = 0
_REFUSED_S, _REFUSED_MAX = 10.0, 10_000
_BYTES = RecordSchema.of(None)

Encode = Callable[[Mapping[str, Any]], bytes]


class Avro:
    """Thread-safe: two threads that ask for the same schema at once are given the same one."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._numbers: dict[tuple[str, str], int] = {}
        self._parsed: dict[int, Any] = {}
        self._refused: dict[int, tuple[float, str]] = {}  # when, and why

    # ---- topics ------------------------------------------------------------------------------------

    def created(self, wanted: TopicSettings) -> TopicSettings:
        """A new topic, with its schema registered, unless it shall be another format's."""
        if wanted.schema == _BYTES:
            if wanted.format == "avro":
                raise BadOption(f'topic "{wanted.name}" is one of bytes.', hint="Avro needs a schema")
            return replace(wanted, format="json")
        declared = replace(wanted, format=wanted.format or "avro")
        if declared.format == "avro":
            self._numbers.pop(_key(declared), None)  # of a topic that another process has deleted
            self._number(declared)
        return declared

    def adopted(self, wanted: TopicSettings) -> TopicSettings:
        """A topic of another program: Avro if the registry knows it. Nothing is registered for it."""
        if wanted.format == "json":
            return wanted
        found = self._registry.version(_subject(wanted.name))
        is_avro = found is not None and found.kind == "AVRO"
        declared = replace(wanted, format=wanted.format or ("avro" if is_avro else "json"))
        if declared.format == "json":
            return declared
        if declared.schema != _BYTES:
            _key(declared)  # raises where Avro does not take a name
            return declared
        if found is None or not is_avro:
            raise BadSchema(
                f'{self._registry} has no Avro schema "{_subject(wanted.name)}".',
                hint="declare the topic with a schema",
            )
        schema = avro_schema.schema_of(self._parse(found, {}, expand=True))
        return replace(declared, schema=schema, key=() if wanted.key == ("key",) else wanted.key)

    def altered(self, current: TopicSettings, wanted: TopicSettings) -> None:
        """Register the new schema of a topic. That of a topic of another program is its own business."""
        if self._is_ours(current):
            self._number(wanted)

    def deleted(self, settings: TopicSettings) -> None:
        """With a topic of ours goes its subject, or another topic of that name would have to be like it."""
        if self._is_ours(settings):
            self._registry.delete(_subject(settings.name))
        self._numbers.pop(_key(settings), None)

    def _is_ours(self, settings: TopicSettings) -> bool:
        return self._registry.number(*_key(settings)) is not None

    def _number(self, settings: TopicSettings) -> int:
        """Asked for first: many may look, and not everybody may register."""
        key = _key(settings)
        if key not in self._numbers:
            known = self._registry.number(*key)
            self._numbers[key] = self._registry.register(*key) if known is None else known
        return self._numbers[key]

    # ---- records -----------------------------------------------------------------------------------

    def encoder(self, settings: TopicSettings) -> Encode:
        header = _HEADER.pack(_MAGIC, self._number(settings))
        parsed = _own(_key(settings)[1])
        types = {field.name: field.type for field in settings.schema.arrow}

        def encode(row: Mapping[str, Any]) -> bytes:
            written = io.BytesIO(header)
            written.seek(len(header))
            found = {name: avro_schema.given(dtype, row[name]) for name, dtype in types.items()}
            fastavro.schemaless_writer(written, parsed, found)
            return written.getvalue()

        return encode

    def row(self, settings: TopicSettings, value: bytes) -> dict[str, object]:
        """Raises BadRecord for what is none."""
        if len(value) < _HEADER.size or value[0] != _MAGIC:
            raise BadRecord("it is not in the wire format of a schema registry.")
        number = _HEADER.unpack_from(value)[1]
        found = _decoded(self._schema(number), value, number)
        return {
            field.name: avro_schema.taken(field.type, found[field.name])
            for field in settings.schema.arrow
            if field.name in found
        }

    def _schema(self, number: int) -> Any:
        if number not in self._parsed:
            self._parsed[number] = self._fetched(number)
        return self._parsed[number]

    def _fetched(self, number: int) -> Any:
        """A topic full of records that nobody can read is no reason to ask for each of them."""
        when, reason = self._refused.get(number, (-_REFUSED_S, ""))
        if time.monotonic() - when < _REFUSED_S:
            raise BadRecord(reason)
        try:
            found = self._registry.schema(number)
            if found is None:
                raise BadSchema(f"{self._registry} does not have it.")
            return self._parse(found, {})
        except BadSchema as error:
            if len(self._refused) >= _REFUSED_MAX:
                self._refused.clear()
            self._refused[number] = time.monotonic(), f"schema {number}: {error.message}"
            raise BadRecord(self._refused[number][1]) from error

    def _parse(self, found: Registered, named: dict[str, Any], *, expand: bool = False) -> Any:
        """`named`: the types that were defined so far, to which the schemas it refers to are added."""
        if found.kind != "AVRO":
            raise BadSchema(f"it is {found.kind} and no Avro.")
        for each in found.references:
            referred = self._registry.version(each.subject, each.version)
            if referred is not None:
                self._parse(referred, named)
        try:
            plain = avro_schema.readable(json.loads(found.text))
            return fastavro.parse_schema(plain, named_schemas=named, expand=expand)
        except (SchemaParseException, UnknownType, ValueError, KeyError, TypeError) as error:
            raise BadSchema(f"it cannot be read as Avro ({error}).") from error


@functools.lru_cache(maxsize=1_000)
def _own(text: str) -> Any:
    return fastavro.parse_schema(json.loads(text))


def _decoded(schema: Any, value: bytes, number: int) -> Mapping[str, Any]:
    body = io.BytesIO(value)
    body.seek(_HEADER.size)
    try:
        found: Any = fastavro.schemaless_reader(body, schema, None)
    except Exception as error:  # whatever garbage makes of its reader
        raise BadRecord(f"its bytes are no record of schema {number}.") from error
    if body.tell() != len(value):
        raise BadRecord(f"{len(value) - body.tell()} bytes are left over after a record of schema {number}.")
    if not isinstance(found, Mapping):
        raise BadRecord(f"schema {number} is none of records.")
    return found


def _subject(topic: str) -> str:
    return f"{topic}-value"


def _key(settings: TopicSettings) -> tuple[str, str]:
    return _subject(settings.name), avro_schema.text_of(settings.name, settings.schema)
