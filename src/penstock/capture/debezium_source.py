"""Whatever Debezium supports as a source, through its engine in a process of its own.

The position is Debezium's own offsets, stored with the changes they lead to. Debezium is started from them,
and may tell its database to forget only what is stored: so nothing is lost. What it repeats is dropped by its
place in the order of the source, so nothing is there twice.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from penstock.capture import debezium_engine, envelope
from penstock.capture.debezium_child import HEARTBEAT, HISTORY_FILE
from penstock.capture.debezium_engine import Engine
from penstock.capture.debezium_json import Form, declared_tables, row_schema, short_name, table_of
from penstock.capture.debezium_steps import STEP_ROWS, Event, Progress, Steps
from penstock.capture.source import Position, Step, Table
from penstock.errors import BadOption
from penstock.schema import RecordSchema

_TELL_S = 0.2
_QUIET_S = 10.0  # so long without news means that everything is told; it looks for its place in the WAL first
_MISSED_S = 5.0  # Debezium finds its tables one after the other: so long it has found no other
_POSTGRES = "io.debezium.connector.postgresql.PostgresConnector"
_SHORT = {
    "postgresql": _POSTGRES,
    "mysql": "io.debezium.connector.mysql.MySqlConnector",
    "sqlserver": "io.debezium.connector.sqlserver.SqlServerConnector",
    "oracle": "io.debezium.connector.oracle.OracleConnector",
    "db2": "io.debezium.connector.db2.Db2Connector",
}
_DEFAULTS = {
    "snapshot.mode": "initial",
    "decimal.handling.mode": "string",
    "time.precision.mode": "isostring",
    "interval.handling.mode": "string",
    "column.propagate.source.type": ".*",  # the digits of decimals
    "provide.transaction.metadata": "true",
    "skipped.operations": "none",  # tables that are emptied are told, too
    "poll.interval.ms": "10",
    "heartbeat.interval.ms": "5000",
    "errors.max.retries": "0",  # the capture tries again, from what is stored
}
_OURS = {
    "tombstones.on.delete": "false",
    "offset.storage": "org.apache.kafka.connect.storage.FileOffsetBackingStore",
    "offset.flush.interval.ms": "0",
    "schema.history.internal": "io.debezium.storage.file.history.FileSchemaHistory",
    "schema.history.internal.file.filename": HISTORY_FILE,
}


class DebeziumSource:
    """`name` is the capture's. `tables`: names as Debezium has them, or with columns, NOT NULL for the key.

    `types`: the log's types of columns, as {"sales.orders.note": "STRING"}.
    """

    kind = "debezium"

    def __init__(
        self,
        connector: str,
        properties: Mapping[str, Any],
        *,
        name: str,
        tables: Sequence[str] | Mapping[str, str] | None = None,
        types: Mapping[str, str] | None = None,
        memory_mb: int = 512,
        step_rows: int = STEP_ROWS,
        quiet_s: float = _QUIET_S,
    ) -> None:
        debezium_engine.check_installed()
        self._name, self._wanted = name, list(tables or ())
        self._connector = _SHORT.get(connector.lower(), connector)
        self._properties = _all_properties(self._connector, properties, name, self._wanted)
        self._declared = declared_tables(tables if isinstance(tables, Mapping) else {})
        self._types, self._memory_mb, self._quiet_s = dict(types or {}), memory_mb, quiet_s
        self._step_rows = step_rows
        self.address = f"debezium://{_server(self._properties)}"
        self._engine: Engine | None = None
        self._known: dict[str, Table] = dict(self._declared)
        self._steps: Steps | None = None
        self._schemas: dict[int, Mapping[str, Any]] = {}
        self._forms: dict[int, Form | str] = {}
        self._idle_s = 0.0
        self._captured: tuple[list[str], float] = ([], 0.0)  # and since when it is these
        self._missed: list[str] = []  # tables that it has not found yet

    # ---- the port -----------------------------------------------------------------------------

    def tables(self) -> list[Table]:
        """Those whose columns were declared, and those of which something was told."""
        return list(self._known.values())

    def steps(self, position: Position | None, again: Sequence[str] = ()) -> Iterator[Step | None]:
        self.close()
        progress = Progress.of(position)
        if progress.reading or again:  # Debezium takes a snapshot from its begin, and of all its tables
            progress = progress.anew()
        self._known.update(
            {name: table for name, table in progress.tables.items() if name not in self._known}
        )
        self._engine = engine = self._started(progress)
        self._steps, self._idle_s = Steps(progress, step_rows=self._step_rows), 0.0
        self._captured, self._missed = ([], 0.0), []
        self._schemas, self._forms = {}, {}
        try:
            while True:
                told = engine.next(_TELL_S)
                yield from self._heard(told or {})
        finally:
            engine.close()
            self._engine = None if self._engine is engine else self._engine

    def stored(self, position: Position) -> None:
        if self._engine is not None and self._steps is not None:
            self._engine.stored(self._steps.stored_batch)

    def altered(self, old: Table, new: Table) -> bool:
        return False  # Debezium does not say what DDL did to rows: a new snapshot does

    def remove(self, table: str, ids: Sequence[int]) -> None:
        """Debezium only reads."""

    def mark(self) -> str:
        """Debezium does not say where its source is: see `passed`."""
        return "quiet"

    def passed(self, mark: Any) -> bool:
        """Whether it follows its source, all tables of it, and has had no news for a while."""
        return self._idle_s >= self._quiet_s and not self._missed

    def status(self, position: Position | None) -> Mapping[str, Any]:
        engine = self._engine
        return {
            "connector": self._connector.rpartition(".")[2],
            "streaming": bool(engine and engine.streaming),
        }

    def drop(self) -> None:
        """Of PostgreSQL, the slot and the publication. The other connectors leave nothing behind."""
        self.close()
        if self._connector == _POSTGRES:
            from penstock.capture.debezium_postgres import drop

            drop(self._properties)

    def close(self) -> None:
        engine, self._engine, self._idle_s = self._engine, None, 0.0
        if engine is not None:
            engine.close()

    # ---- what Debezium says -------------------------------------------------------------------

    def _started(self, progress: Progress) -> Engine:
        return Engine(
            self._properties, server=self.address, offsets=progress.offsets, history=progress.history,
            memory_mb=self._memory_mb,
        )  # fmt: skip

    def _heard(self, told: Mapping[str, Any]) -> Iterator[Step | None]:
        assert self._steps is not None
        if "schema" in told:
            self._schemas[told["schema"]] = told
        elif "batch" in told:
            self._idle_s = 0.0
            events = [self._event(told["batch"], *each) for each in told["events"]]
            yield from self._steps.add(events, told["batch"], told["history"])
        else:
            self._idle_s = told.get("idle_s", 0.0)
            if told.get("streaming"):
                self._check_captured(told["captured"])
            over = self._steps.ended() if self._idle_s >= min(1.0, self._quiet_s) else None
            yield over

    def _form(self, told: Mapping[str, Any], op: str | None) -> Form | str:
        """How events of a topic are read; a word for those that are no rows."""
        prefix = self._properties["topic.prefix"]
        topic, value = told["topic"], told["value"]
        if topic.startswith(HEARTBEAT):
            return "heartbeat"
        if topic == f"{prefix}.transaction":
            return "transaction"
        fields = {each.get("field") for each in (value or {}).get("fields", ())}
        if not {"before", "after", "op"} <= fields:
            return "other"  # a change of a table's form
        name = short_name(topic.removeprefix(f"{prefix}."))
        if told["key"] is None and name in self._known:  # "t" has none
            return Form(self._known[name], row_schema(value))
        if told["key"] is None and op == envelope.TRUNCATE:
            return "other"  # of a table of which nothing was told
        table = self._declared.get(name) or self._typed(table_of(name, value, told["key"]))
        self._known[name] = table
        return Form(table, row_schema(value))

    def _event(
        self, batch: int, schema: int, key: Any, value: Any, partition: Any, offset: Mapping[str, Any]
    ) -> Event:
        form, place = self._forms.get(schema), json.dumps(partition, sort_keys=True)
        if form is None:
            form = self._forms[schema] = self._form(self._schemas[schema], (value or {}).get("op"))
        if isinstance(form, Form):
            return Event(place, offset, batch, form, form.change(value) if value else None)
        mark = str((value or {}).get("status") or "") if form == "transaction" else ""
        return Event(place, offset, batch, mark=mark)

    def _typed(self, table: Table) -> Table:
        fields = []
        for column in table.columns:
            chosen = self._types.get(f"{table.name}.{column.name}")
            dtype = RecordSchema.of(f"v {chosen}").arrow.field(0).type if chosen else column.type
            fields.append(pa.field(column.name, dtype))
        return Table(table.name, RecordSchema.of(pa.schema(fields)).arrow, table.key)

    def _check_captured(self, captured: list[str]) -> None:
        now = time.monotonic()
        if captured != self._captured[0]:
            self._captured = (captured, now)
        self._missed = [table for table in self._wanted if captured and not _is_among(table, captured)]
        if self._missed and now - self._captured[1] >= _MISSED_S:
            raise BadOption(
                f'Debezium finds no table "{self._missed[0]}" in {self.address}.',
                hint=f"it captures: {', '.join(captured)}; names are like public.orders",
            )


def _is_among(table: str, captured: Sequence[str]) -> bool:
    return any(each == table or each.endswith(f".{table}") for each in captured)


def _all_properties(
    connector: str, given: Mapping[str, Any], name: str, tables: Sequence[str]
) -> dict[str, str]:
    taken = [key for key in given if key in _OURS or key.startswith(("offset.", "schema.history.internal"))]
    if taken:
        raise BadOption(f'Penstock sets "{taken[0]}" itself.', hint="leave it out")
    plain = re.sub(r"[^a-z0-9_]", "_", name.lower())
    defaults = {**_DEFAULTS, "topic.prefix": plain}
    if connector == _POSTGRES:
        defaults |= {
            "plugin.name": "pgoutput",
            "slot.name": f"penstock_{plain}",
            "publication.name": f"penstock_{plain}",
            "publication.autocreate.mode": "filtered",
        }
    if tables:
        defaults["table.include.list"] = ",".join(re.escape(table) for table in tables)
    chosen = {key: _text(value) for key, value in given.items()}
    return {**defaults, **chosen, **_OURS, "connector.class": connector}


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _server(properties: Mapping[str, str]) -> str:
    database = properties.get("database.dbname") or properties.get("database.names") or ""
    host = properties.get("database.hostname") or properties["connector.class"].rpartition(".")[2]
    return f"{host}:{properties.get('database.port', '')}/{database}".rstrip("/").rstrip(":")
