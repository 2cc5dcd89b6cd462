"""Debezium's JSON, the way other programs write and read changes of databases: in and out.

out    Values as Debezium's string modes have them, which say themselves what they are: decimals as "12.50",
       TIMESTAMP as "2026-01-31T12:00:00Z", TIMESTAMP_NTZ the same way, DATE as "2026-01-31Z" (isostring),
       bytes in base64. An update that changes the key becomes a delete and an insert, as Debezium has it,
       and a delete is followed by a tombstone.
in     With {"schema", "payload"} around it any of Debezium's modes. Without, what a column becomes decides:
       decimals have to be text or numbers then, and times without a unit are told by their size.
"""

from __future__ import annotations

import base64
import datetime as dt
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property
from typing import Any

import pyarrow as pa

from penstock.capture import debezium_types as types
from penstock.capture import envelope
from penstock.capture.source import Changes, Table
from penstock.errors import BadOption, BadRecord
from penstock.schema import RecordSchema, ddl_of

Json = Mapping[str, Any]
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_SNAPSHOTS = {"true", "first", "first_in_data_collection", "last_in_data_collection", "last"}
_MISFITS = (ValueError, TypeError, ArithmeticError, KeyError, AttributeError, LookupError)


@dataclass(frozen=True, slots=True)
class Origin:
    """Where changes come from, as the `source` of a message tells it."""

    connector: str  # "postgresql", "sqlite", …
    name: str  # the capture's; other programs say "the topic prefix"
    db: str
    table: str
    schema: str | None = None


@dataclass(frozen=True, slots=True)
class Change:
    """One change, read. `unchanged`: columns that it does not tell, since they are as they were."""

    op: str
    before: Json | None
    after: Json | None
    position: str
    transaction: str | None
    transaction_order: int | None
    committed_at: dt.datetime | None
    order: tuple[Any, ...] | None = None  # where it can be compared with others of the same source
    snapshot: str = ""  # "", or which part of one it is: "first", "true", "last", …
    unchanged: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Message:
    """Of Kafka's."""

    key: Json | None
    value: Json | None


# ---- out ------------------------------------------------------------------------------------------


def to_debezium(row: Json, *, source: Origin, collection_order: int | None = None) -> dict[str, Any]:
    """The value of a message, of one record of a topic of changes.

    `collection_order` counts the changes of this table within the transaction.
    """
    committed = _ms(row["committed_at"])
    stored = row.get("_timestamp") or row["committed_at"]
    transaction = row["transaction"] and {
        "id": row["transaction"],
        "total_order": row["transaction_order"],
        "data_collection_order": collection_order,
    }
    return {
        "before": _out(row["before"]),
        "after": _out(row["after"]),
        "source": {
            "version": "penstock",
            "connector": source.connector,
            "name": source.name,
            "ts_ms": committed,
            "snapshot": "true" if row["op"] == envelope.READ else "false",
            "db": source.db,
            "schema": source.schema,
            "table": source.table,
            "txId": row["transaction"],
            **_place(row["position"]),
        },
        "op": row["op"],
        "ts_ms": _ms(stored),
        "transaction": transaction or None,
    }


def messages(
    row: Json, key: Sequence[str], *, source: Origin, collection_order: int | None = None
) -> Iterator[Message]:
    """For a topic of Kafka's; a value of None is a tombstone."""
    before, after = (_key(row[side], key) for side in ("before", "after"))
    moved = row["op"] == envelope.UPDATE and before is not None and before != after
    gone, come = {"op": envelope.DELETE, "after": None}, {"op": envelope.INSERT, "before": None}
    for part in [{**row, **gone}, {**row, **come}] if moved else [row]:
        told = before if part["op"] == envelope.DELETE else after
        yield Message(told, to_debezium(part, source=source, collection_order=collection_order))
        if part["op"] == envelope.DELETE:
            yield Message(told, None)


def exported(rows: Iterator[Json], key: Sequence[str], *, source: Origin) -> Iterator[str]:
    """The changes of a table as lines of JSON: {"key", "value"}."""
    transaction, count = None, 0
    for row in rows:
        count = count + 1 if row["transaction"] == transaction else 1
        transaction = row["transaction"]
        for message in messages(row, key, source=source, collection_order=count):
            yield json.dumps({"key": message.key, "value": message.value}, ensure_ascii=False)


def _key(row: Json | None, key: Sequence[str]) -> dict[str, Any] | None:
    return None if row is None else {name: _out(row[name]) for name in key}


def _place(position: str | None) -> dict[str, Any]:
    """Ours as it is, and the number that readers look for where it has one."""
    text = position or ""
    lsn = re.match(r"([0-9A-F]+)/([0-9A-F]+)", text)  # PostgreSQL's way to write one
    if lsn:
        return {"lsn": (int(lsn[1], 16) << 32) + int(lsn[2], 16), "position": text}
    return {"pos": int(text) if text.isdigit() else None, "position": text}


def _ms(moment: dt.datetime | None) -> int | None:
    return None if moment is None else (moment - _EPOCH) // dt.timedelta(milliseconds=1)


def _out(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _out(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_out(inner) for inner in value]
    for kind, write in _WRITERS:
        if isinstance(value, kind):
            return write(value)
    return value


def _float_out(value: float) -> float | str:
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _moment_out(value: dt.datetime) -> str:
    utc = value.astimezone(dt.UTC).replace(tzinfo=None) if value.tzinfo else value
    return f"{utc.isoformat()}Z"


_WRITERS: tuple[tuple[type, Callable[[Any], Any]], ...] = (
    (float, _float_out),
    (bytes, lambda value: base64.b64encode(value).decode()),
    (Decimal, "{:f}".format),
    (dt.datetime, _moment_out),  # which is a date, too
    (dt.date, lambda value: f"{value.isoformat()}Z"),
)


# ---- in -------------------------------------------------------------------------------------------


def from_debezium(value: str | bytes | Json | None, table: Table, *, key: Any = None) -> Change | None:
    """One message. None: a tombstone, or something that is no change.

    A message without an envelope is the row itself, as Debezium's ExtractNewRecordState writes it; then a
    value of None with a `key` deletes.
    """
    schema, payload = unwrapped(value)
    if payload is None:
        return deleted(table, unwrapped(key)[1]) if key is not None else None
    rows = row_schema(schema)
    return Form(table, rows).change(payload)


def unwrapped(value: str | bytes | Json | None) -> tuple[types.Schema | None, Any]:
    """The schema part, where there is one, and what it describes. Raises BadRecord."""
    try:
        told = json.loads(value) if isinstance(value, str | bytes) else value
    except ValueError as error:
        raise BadRecord(
            f"a message is no JSON: {error}.", hint="Debezium has to write JSON, not Avro"
        ) from error
    if isinstance(told, Mapping) and set(told) == {"schema", "payload"}:
        return told["schema"], told["payload"]
    return None, told


def row_schema(schema: types.Schema | None) -> types.Schema | None:
    """Of the schema of a message, the part that describes a row."""
    if schema is None:
        return None
    sides = {each.get("field"): each for each in schema.get("fields", ())}
    found: types.Schema = sides.get("after") or sides.get("before") or schema
    return found


def table_of(name: str, value: types.Schema | None, key: types.Schema | None) -> Table:
    """A table as the schemas of its messages tell it. Raises BadOption where they do not."""
    rows = row_schema(value)
    if rows is None or rows.get("type") != "struct":
        raise BadOption(
            f'the messages of "{name}" do not say what columns it has.',
            hint=f'say it: tables={{"{name}": "id BIGINT NOT NULL, name STRING"}}, NOT NULL for the key',
        )
    if key is None or not key.get("fields"):
        raise BadOption(
            f'table "{name}" has no primary key: its rows cannot be told apart.',
            hint=f'give it one, or name columns: {{"message.key.columns": "{name}:id"}}',
        )
    columns = [pa.field(each["field"], types.type_of(each)) for each in rows["fields"]]
    return Table(name, pa.schema(columns), tuple(each["field"] for each in key["fields"]))


def short_name(table: str) -> str:
    return table.removeprefix("public.")


def declared_tables(given: Mapping[str, str]) -> dict[str, Table]:
    """Tables with their columns as DDL, NOT NULL for those of the key."""
    found = {}
    for name, ddl in given.items():
        columns = RecordSchema.of(ddl).arrow
        key = tuple(column.name for column in columns if not column.nullable)
        if not key:
            raise BadOption(
                f'the columns of "{name}" name no key.',
                hint='write NOT NULL after its columns: "id BIGINT NOT NULL"',
            )
        open_columns = pa.schema([column.with_nullable(True) for column in columns])
        found[short_name(name)] = Table(short_name(name), open_columns, key)
    return found


@dataclass(frozen=True)
class Form:
    """How the messages of a table are read."""

    table: Table
    schema: types.Schema | None = None

    @cached_property
    def readers(self) -> dict[str, types.Reader]:
        told = {each["field"]: each for each in (self.schema or {}).get("fields", ())}
        return {
            column.name: types.reader_of(told.get(column.name), column.type) for column in self.table.columns
        }

    def change(self, payload: Json) -> Change | None:
        """Raises BadRecord for a value that does not fit."""
        if "op" not in payload or not ("before" in payload or "after" in payload):
            return self._flat(payload)
        op, source = payload["op"], payload.get("source") or {}
        if op not in (envelope.INSERT, envelope.UPDATE, envelope.DELETE, envelope.READ, envelope.TRUNCATE):
            return None  # a message of the application's own
        after, unchanged = self._row(payload.get("after"))
        before, _ = self._row(payload.get("before"))
        snapshot = str(source.get("snapshot") or "").lower()
        snapshot = snapshot if snapshot in _SNAPSHOTS else ""
        order = None if snapshot else order_of(source)
        transaction = payload.get("transaction") or {}
        return Change(
            op,
            self._before(op, before, after, source),
            after,
            "snapshot" if snapshot else position_of(source, order),
            _transaction(transaction.get("id"), source),
            transaction.get("total_order"),
            moment(source.get("ts_us"), source.get("ts_ms") or payload.get("ts_ms")),
            order,
            snapshot,
            unchanged,
        )

    def _flat(self, row: Json) -> Change:
        gone = str(row.get("__deleted", "")).lower() == "true"
        told, unchanged = self._row({name: row[name] for name in row if not name.startswith("__")})
        op = envelope.DELETE if gone else str(row.get("__op") or envelope.UPDATE)
        when = moment(None, row.get("__source_ts_ms") or row.get("__ts_ms"))
        key = self._only_key(told)
        before = key if op in (envelope.DELETE, envelope.UPDATE) else None
        return Change(op, before, None if gone else told, "", None, None, when, unchanged=unchanged)

    def _row(self, told: Json | None) -> tuple[dict[str, Any] | None, tuple[str, ...]]:
        if told is None:
            return None, ()
        row: dict[str, Any] = {}
        unchanged = []
        for name, read in self.readers.items():
            value = told.get(name)
            if value in types.PLACEHOLDERS:
                unchanged.append(name)
                row[name] = None
                continue
            try:
                row[name] = read(value)
            except _MISFITS as error:
                raise self._misfit(name, value) from error
        return row, tuple(unchanged)

    def _misfit(self, name: str, value: Any) -> BadRecord:
        wanted = ddl_of(self.table.columns.field(name).type)
        return BadRecord(
            f'column "{name}" of "{self.table.name}" holds {str(value)[:60]!r}, which is no {wanted}.',
            column=name,
            hint=f'capture it as text: types={{"{self.table.name}.{name}": "STRING"}}; nothing is lost',
        )

    def _before(self, op: str, before: Any, after: Any, source: Json) -> Any:
        """At least the key, and nothing that is made up.

        PostgreSQL's own deletes tell the key only, and Debezium puts zeros where there may be no null.
        """
        if op == envelope.UPDATE and before is None:
            return self._only_key(after)
        if op != envelope.DELETE or before is None or source.get("connector") != "postgresql":
            return before
        rest = [value for name, value in before.items() if name not in self.table.key]
        return before if any(rest) else self._only_key(before)

    def _only_key(self, row: Any) -> Any:
        return {name: value if name in self.table.key else None for name, value in (row or {}).items()}


def deleted(table: Table, key: Any) -> Change:
    """What a tombstone of a flat topic says."""
    told = Form(table)._row(key)[0] or {}
    return Change(envelope.DELETE, told, None, "", None, None, None)


def order_of(source: Json) -> tuple[Any, ...] | None:
    """Where a change is in the order of its source, None where that cannot be told.

    PostgreSQL's changes have their own places in its log, but are told in the order of the commits: so the
    commit before comes first.
    """
    connector = source.get("connector")
    if connector == "postgresql" and source.get("sequence"):
        return tuple(int(part or 0) for part in json.loads(source["sequence"]))
    if connector in ("mysql", "mariadb") and source.get("file"):
        number = source["file"].rpartition(".")[2]
        return (int(number), int(source["pos"]), int(source.get("row") or 0)) if number.isdigit() else None
    if connector in ("sqlserver", "db2") and source.get("change_lsn"):
        return (source["commit_lsn"], source["change_lsn"], int(source.get("event_serial_no") or 0))
    return None


def position_of(source: Json, order: tuple[Any, ...] | None) -> str:
    if order is not None:
        return ":".join(map(str, order))
    told = (source.get(name) for name in ("lsn", "pos", "scn", "commit_lsn", "ord", "ts_us", "ts_ms"))
    return next((str(value) for value in told if value is not None), "")


def _transaction(told: Any, source: Json) -> str | None:
    if told is None:
        return None
    # PostgreSQL's is "id:lsn", another one for each change of the same transaction.
    return str(told).partition(":")[0] if source.get("connector") == "postgresql" else str(told)


def moment(us: int | None, ms: int | None) -> dt.datetime | None:
    found = us if us is not None else None if ms is None else ms * 1_000
    return None if found is None else _EPOCH + dt.timedelta(microseconds=found)


def changes_of(table: Table, told: Sequence[Change]) -> Changes:
    """As the engine stores them. Raises BadRecord for a value beyond its column's range."""
    schema = envelope.schema_of(table.columns)
    columns = {
        name: [getattr(change, name) for change in told]
        for name in schema.names
        if name not in ("schema_version", "before", "after")
    }
    unchanged: dict[str, list[int]] = {}
    for number, change in enumerate(told):
        for name in change.unchanged:
            unchanged.setdefault(name, []).append(number)
    rows = {side: _rows(table, [getattr(change, side) for change in told]) for side in ("before", "after")}
    batch = envelope.changes_of(
        table.columns,
        pa.array(columns["op"], pa.string()),
        rows["before"],
        rows["after"],
        positions=columns["position"],
        committed_at=columns["committed_at"],
        transactions=columns["transaction"],
        orders=columns["transaction_order"],
    )
    return Changes(table, batch, unchanged)


def _rows(table: Table, rows: list[Any]) -> Any:
    dtype = envelope.schema_of(table.columns).field("after").type
    try:
        return pa.array(rows, dtype)
    except (pa.ArrowException, OverflowError):
        for row in rows:
            for column in table.columns if row else ():
                try:
                    pa.array([row[column.name]], column.type)
                except (pa.ArrowException, OverflowError) as error:
                    raise Form(table)._misfit(column.name, row[column.name]) from error
        raise
