"""`ps.outbox`: events that are published if, and only if, the application's own transaction commits.

Writing to a database and then to a log goes wrong in two ways: one of the two fails, or two writers do it in
different orders. Here an event is a row of a table in the same database. Capture publishes it with the rows
of the tables, in the order of the commits, and removes it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from penstock.capture import alive, envelope
from penstock.errors import BadInput, BadOption, BadRecord, SubjectForgotten, UnknownTopic
from penstock.log import rows as log_rows
from penstock.log.decode import decode
from penstock.log.json_rows import from_json, to_json
from penstock.log.log import Log
from penstock.log.topic import Topic

TABLE = "penstock_outbox"
DEAD_DDL = "id BIGINT, topic STRING, event STRING, reason STRING"

_CREATE = {
    "sqlite3": f"CREATE TABLE IF NOT EXISTS {TABLE} "
    "(id INTEGER PRIMARY KEY AUTOINCREMENT, topic TEXT, event TEXT)",
    "psycopg": f"CREATE TABLE IF NOT EXISTS {TABLE} "
    "(id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, topic TEXT, event TEXT)",
    "pymysql": f"CREATE TABLE IF NOT EXISTS {TABLE} "
    "(id BIGINT AUTO_INCREMENT PRIMARY KEY, topic TEXT, event LONGTEXT)",
}
_CREATE["psycopg2"] = _CREATE["psycopg"]


class Outbox:
    """Made by `ps.outbox`. It uses the connection's transaction, and never commits it."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._driver = _driver_of(connection)

    def create(self) -> Outbox:
        """Make the table, where there is none: once, when the application is set up."""
        self._run(_CREATE[self._driver], ())
        return self

    def publish(self, topic: Topic | str, *events: Any) -> None:
        """Events of a topic, in the transaction that is under way.

        With a topic (not only its name) they are checked now: one that does not fit raises BadRecord.
        """
        name = topic if isinstance(topic, str) else topic.name
        mark = "?" if self._driver == "sqlite3" else "%s"
        for event in events:
            plain = event if isinstance(topic, str) else _checked(topic, event)
            text = json.dumps(to_json(plain), ensure_ascii=False)
            self._run(f"INSERT INTO {TABLE} (topic, event) VALUES ({mark}, {mark})", (name, text))

    def _run(self, statement: str, values: tuple[Any, ...]) -> None:
        cursor = self._connection.cursor()
        try:
            cursor.execute(statement, values)
        finally:
            cursor.close()


def outbox(connection: Any) -> Outbox:
    """Publish events in the transactions of a sqlite3, psycopg, psycopg2 or PyMySQL connection.

    >>> import sqlite3, penstock as ps
    >>> db = sqlite3.connect(":memory:")
    >>> events = ps.outbox(db).create()
    >>> with db:
    ...     events.publish("orders", {"order_id": 7})
    """
    return Outbox(connection)


@dataclass(frozen=True, slots=True)
class Published:
    """Rows of the outbox as records of their topics."""

    records: Mapping[str, list[pa.Table]]
    dead: pa.Table  # what cannot be published, and why
    ids: Sequence[int]


def is_outbox(table: str) -> bool:
    return table.rpartition(".")[2] == TABLE


def published(log: Log, own: Topic, rows: pa.RecordBatch, *, fills: Callable[[str], bool]) -> Published:
    """What new rows of the outbox say. `own`: the topic of its rows; `fills`: whether capture fills a topic.

    A row that a snapshot finds, and that was published before, is there already and not new.
    """
    found: dict[str, list[dict[str, Any]]] = {}
    dead, ids = [], []
    for row in _new(own, rows):
        ids.append(row["id"])
        topic = None
        try:
            if fills(row["topic"]):
                raise BadInput(f'topic "{row["topic"]}" is filled by the capture itself.')
            topic = log.topic(row["topic"])
            record = from_json(topic.schema, json.loads(row["event"]))
            list(topic.encode([record]))
        except (UnknownTopic, BadInput, ValueError, AttributeError, TypeError) as error:
            dead.append({**row, **_put_aside(topic, row["event"], error)})
        else:
            found.setdefault(row["topic"], []).append(record)
    records = {
        name: [pa.Table.from_batches([log_rows.encode(log.topic(name).schema, events)])]
        for name, events in found.items()
    }
    columns = [("id", pa.int64()), ("topic", pa.string()), ("event", pa.string()), ("reason", pa.string())]
    return Published(records, pa.Table.from_pylist(dead, schema=pa.schema(columns)), ids)


def without_events(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Changes of an outbox as they are captured: an event is in its topic, and sealed there; not here too."""
    for name in ("before", "after"):
        row = rows.column(name)
        fields = list(row.type)
        held = [
            pa.nulls(len(row), field.type) if field.name == "event" else values
            for field, values in zip(fields, row.flatten(), strict=True)
        ]
        blank = pa.StructArray.from_arrays(held, fields=fields, mask=row.is_null())
        at = rows.schema.get_field_index(name)
        rows = rows.set_column(at, rows.schema.field(at), blank)
    return rows


def _put_aside(topic: Topic | None, event: str, error: Exception) -> dict[str, str | None]:
    """An event that cannot be published, and why; of a topic with personal columns, nothing in clear."""
    personal = topic.settings.personal if topic else ()
    if topic is None or not personal:
        return {"event": event, "reason": str(error)}
    column = error.column if isinstance(error, BadRecord) else None
    reason = str(error)
    if column in {each.column for each in personal} and not isinstance(error, SubjectForgotten):
        reason = f'column "{column}" is personal, and does not fit.'
    try:
        found = json.loads(event)
    except ValueError:
        found = None
    known = {name: found.get(name) for name in topic.schema.names} if isinstance(found, dict) else None
    return {
        "event": json.dumps(topic.sealed_anyhow(known), ensure_ascii=False) if known else None,
        "reason": reason,
    }


def _new(own: Topic, rows: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    ops = rows.column("op").to_pylist()
    known = set(alive.keys(own)["id"].to_pylist()) if envelope.READ in ops else set()
    for op, row in zip(ops, rows.column("after").to_pylist(), strict=True):
        if op == envelope.INSERT or (op == envelope.READ and row["id"] not in known):
            yield {name: row[name] for name in ("id", "topic", "event")}


def _checked(topic: Topic, event: Any) -> dict[str, Any]:
    (batch,) = topic.encode([event])
    (row,) = decode(batch.select(list(topic.settings.schema.names)))
    return row


def _driver_of(connection: Any) -> str:
    for base in type(connection).__mro__:
        name = base.__module__.partition(".")[0]
        if name in _CREATE:
            return name
    raise BadOption(
        f"{type(connection).__name__} is no connection that an outbox knows.",
        hint="pass an open sqlite3, psycopg, psycopg2 or PyMySQL connection",
    )
