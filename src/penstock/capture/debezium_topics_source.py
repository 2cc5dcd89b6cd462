"""Topics of Kafka that a Debezium server writes, as a source: the position is their offsets.

What the topics hold is told once each. A server that wrote a change twice, as it may after a crash, wrote two
messages: the changes have both, and the table of the log is the same.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from penstock.capture import debezium_json as messages
from penstock.capture.debezium_json import Change, Form
from penstock.capture.source import Changes, Position, Step, Table
from penstock.errors import BadOption, RecordsLost
from penstock.kafka.address import Address
from penstock.kafka.clients import ANSWER_S, Clients
from penstock.schema import did_you_mean

Place = tuple[str, int]
_TELL_S = 0.2
_LOOK_S = 5.0  # how often to look for new topics and partitions
_STEP_ROWS = 5_000
_NOT_ROWS = (".transaction", ".schema-changes")


@dataclass(slots=True)
class _Known:
    """How the messages of a topic were last read."""

    schema: Any
    key: Any
    form: Form


class DebeziumTopicsSource:
    """`declared`: the columns of tables whose messages do not tell them. `flat`: rows without an envelope."""

    kind = "debezium topics"

    def __init__(
        self,
        url: str,
        *,
        topics: Sequence[str] = (),
        prefix: str = "",
        declared: Mapping[str, Table] | None = None,
        flat: bool = False,
        step_rows: int = _STEP_ROWS,
    ) -> None:
        if bool(topics) == bool(prefix):
            raise BadOption(
                "topics of Debezium are named one by one, or by a prefix.",
                hint='write topics=["shop.public.orders"] or prefix="shop."',
            )
        self._topics, self._prefix = list(topics), prefix
        self._declared, self._flat, self._step_rows = dict(declared or {}), flat, step_rows
        self.address = Address.shown(url)
        self._clients = Clients(Address.parse(url))
        self._consumer: Consumer | None = None
        self._forms: dict[str, _Known] = {}
        self._told: dict[Place, int] = {}

    # ---- the port -----------------------------------------------------------------------------

    def tables(self) -> list[Table]:
        """Those whose columns were declared, and those of which something was told."""
        known = {each.form.table.name: each.form.table for each in self._forms.values()}
        return list({**self._declared, **known}.values())

    def steps(self, position: Position | None, again: Sequence[str] = ()) -> Iterator[Step | None]:
        stored = {} if position is None or again else _places(position)
        self._told = self._begun(stored)
        self._consumer = consumer = self._clients.consumer()
        try:
            with self._clients.translating():
                self._assign(consumer)
                yield from self._follow(consumer)
        finally:
            consumer.close()
            self._consumer = None

    def stored(self, position: Position) -> None:
        """The topics keep what they keep."""

    def altered(self, old: Table, new: Table) -> bool:
        return False  # whoever fills the topics is to tell it

    def remove(self, table: str, ids: Sequence[int]) -> None:
        """The database is somebody else's."""

    def mark(self) -> dict[Place, int]:
        return {place: end for place, (_, end) in self._bounds().items()}

    def passed(self, mark: Any) -> bool:
        return all(self._told.get(place, 0) >= end for place, end in mark.items())

    def status(self, position: Position | None) -> Mapping[str, Any]:
        told = _places(position) if position else {}
        behind = sum(max(end - told.get(place, start), 0) for place, (start, end) in self._bounds().items())
        return {"waiting": behind}

    def drop(self) -> None:
        """Nothing was made there."""

    def close(self) -> None:
        self._clients.close()
        self._clients = Clients(self._clients.address)

    # ---- following ----------------------------------------------------------------------------

    def _follow(self, consumer: Consumer) -> Iterator[Step | None]:
        looked = time.monotonic()
        while True:
            found = consumer.consume(self._step_rows, timeout=_TELL_S)
            rows = self._rows(found)
            yield Step(self._position(), rows) if any(each.error() is None for each in found) else None
            if not found and time.monotonic() - looked > _LOOK_S:
                looked = time.monotonic()
                fresh = self._begun(self._told)
                if fresh.keys() != self._told.keys():
                    self._told = fresh
                    self._assign(consumer)

    def _rows(self, found: Sequence[Any]) -> list[Changes]:
        rows: dict[int, tuple[Table, list[Change]]] = {}
        for message in found:
            place = (message.topic(), message.partition())
            error = message.error()
            if error is not None and error.code() != KafkaError._PARTITION_EOF:
                raise KafkaException(error)
            if error is None and (read := self._change(message)) is not None:
                form, change = read
                rows.setdefault(id(form), (form.table, []))[1].append(change)
            # At its end a partition says where that is: not all offsets have a message.
            self._told[place] = message.offset() + (error is None)
        return [messages.changes_of(table, told) for table, told in rows.values()]

    def _change(self, message: Any) -> tuple[Form, Change] | None:
        schema, value = messages.unwrapped(message.value())
        key_schema, key = messages.unwrapped(message.key())
        if value is None and not (self._flat and key is not None):
            return None
        form = self._form(message.topic(), schema, key_schema or _names(key))
        change = form.change(value) if value is not None else messages.deleted(form.table, key)
        if change is None:
            return None
        place = f"{message.topic()}/{message.partition()}/{message.offset()}"
        return form, replace(
            change,
            position=place,
            committed_at=change.committed_at or messages.moment(None, message.timestamp()[1]),
        )

    def _form(self, topic: str, schema: Any, key: Any) -> Form:
        known = self._forms.get(topic)
        if known is not None and (schema is None or (known.schema, known.key) == (schema, key)):
            return known.form
        name = self._table(topic)
        table = self._declared.get(name) or messages.table_of(name, schema, key)
        self._forms[topic] = _Known(schema, key, Form(table, messages.row_schema(schema)))
        return self._forms[topic].form

    def _table(self, topic: str) -> str:
        rest = topic.removeprefix(self._prefix) if self._prefix else topic.partition(".")[2] or topic
        return rest.removeprefix("public.")

    # ---- the topics ---------------------------------------------------------------------------

    def _assign(self, consumer: Consumer) -> None:
        consumer.assign([TopicPartition(*place, offset) for place, offset in self._told.items()])

    def _begun(self, stored: Mapping[Place, int]) -> dict[Place, int]:
        """Where to go on in each partition. Raises RecordsLost where that is gone."""
        places = {}
        for (topic, partition), (start, end) in self._bounds().items():
            at = stored.get((topic, partition), start)
            if at < start:
                raise RecordsLost(topic, partition, at, start=start, end=end)
            places[topic, partition] = at
        return places

    def _bounds(self) -> dict[Place, tuple[int, int]]:
        with self._clients.translating():
            there = self._clients.admin.list_topics(timeout=ANSWER_S).topics
        for topic in self._topics:
            if topic not in there:
                raise BadOption(
                    f'there is no topic "{topic}" on {self.address}.', hint=did_you_mean(topic, sorted(there))
                )
        wanted = self._topics or [
            topic for topic in there if topic.startswith(self._prefix) and not topic.endswith(_NOT_ROWS)
        ]
        with self._clients.reader() as reader:
            return {
                (topic, partition): self._clients.ends(reader, topic, partition)
                for topic in sorted(wanted)
                for partition in there[topic].partitions
            }

    def _position(self) -> dict[str, Any]:
        return {"offsets": [[topic, number, offset] for (topic, number), offset in self._told.items()]}


def _places(position: Position) -> dict[Place, int]:
    return {(topic, partition): offset for topic, partition, offset in position["offsets"]}


def _names(key: Any) -> Any:
    """A key without a schema names its columns all the same."""
    return {"fields": [{"field": name} for name in key]} if isinstance(key, Mapping) else None
