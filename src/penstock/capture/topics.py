"""The topics of a capture: for each table its rows and its changes, and one for the forms of the tables.

<capture>.<table>           compacted, one record for each row: a table for views and followers
<capture>.<table>.changes   every change, in the envelope
<capture>.schemas           every form of a table that was seen
<capture>.requests          snapshots that people asked for
<capture>.known             what the capture itself has to know of its tables
<capture>.dead              events of the outbox that fit no topic, changes that were put aside, and why
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from penstock.capture import envelope, outbox
from penstock.capture.progress import KNOWN_DDL
from penstock.capture.source import Table
from penstock.errors import BadOption, BadSchema, IncompatibleSchema, UnknownTopic
from penstock.log import versions
from penstock.log.log import Log
from penstock.log.settings import TopicSettings, keys_stay
from penstock.log.topic import Topic
from penstock.schema import RecordSchema

SCHEMAS_DDL = (
    "table STRING, schema_version INT, columns STRING, key ARRAY<STRING>, position STRING, seen_at TIMESTAMP"
)
REQUESTS_DDL = "tables ARRAY<STRING>"
_ROW_BYTES_MAX = 64 << 20  # a database may have larger rows than events are
OWN = ("schemas", "requests", "known", "dead")


@dataclass(frozen=True, slots=True)
class Pair:
    """Where a table goes."""

    rows: Topic
    changes: Topic


class Topics:
    """The topics of one capture in a log. They are created when something is first stored in them."""

    def __init__(self, log: Log, capture: str, *, retention: str | float | None = None) -> None:
        self._log, self._capture, self._retention = log, capture, retention
        self._pairs: dict[str, tuple[Table, Pair]] = {}
        self._taken: dict[str, str] = {}  # names of topics, and of which table they are

    def of(self, table: Table) -> Pair:
        """The topics of a table, with room for its columns as they are now."""
        found = self._pairs.get(table.name)
        if found is None or found[0] != table:
            self._take(table.name)
            self._pairs[table.name] = found = (table, self._fitting(table))
        return found[1]

    @property
    def schemas(self) -> Topic:
        return self._log.create_topic(f"{self._capture}.schemas", SCHEMAS_DDL, if_missing=True)

    @property
    def asked(self) -> int:
        """How many snapshots people have asked for."""
        try:
            return self._log.port.bounds(f"{self._capture}.requests", 0)[1]
        except UnknownTopic:
            return 0

    @property
    def requests(self) -> Topic:
        return self._log.create_topic(f"{self._capture}.requests", REQUESTS_DDL, if_missing=True)

    @property
    def known(self) -> Topic:
        name = f"{self._capture}.known"
        return self._log.create_topic(name, KNOWN_DDL, key="table", cleanup="compact", if_missing=True)

    def known_rows(self) -> list[dict[str, Any]]:
        try:
            topic = self._log.topic(f"{self._capture}.known")
        except UnknownTopic:
            return []
        rows: list[dict[str, Any]] = versions.fold(topic.read(), topic.settings).to_pylist()
        return rows

    @property
    def dead(self) -> Topic:
        return self._log.create_topic(
            f"{self._capture}.dead", outbox.DEAD_DDL, if_missing=True, record_bytes_max=2 * _ROW_BYTES_MAX
        )

    def fills(self, topic: str) -> bool:
        """Whether it is one of this capture's."""
        return topic in self._taken or topic in {f"{self._capture}.{own}" for own in OWN}

    def check(self, tables: list[Table]) -> None:
        """Raises BadOption where two tables would get one topic."""
        for table in tables:
            self._take(table.name)

    def check_unused(self, table: Table) -> None:
        """Of a table that this capture has never stored. Raises BadOption where its topics have records: they
        are another capture's, "shop" with "x.y" is where "shop.x" has "y", or a program's own."""
        for name in topic_names(self._capture, table.name):
            try:
                # Its end alone says little: what Kafka rolled back of a first append of ours counts too.
                is_used = any(batch.num_rows for batch in self._log.topic(name).read())
            except UnknownTopic:
                continue
            if is_used:
                raise BadOption(
                    f'table "{table.name}" would be in topic "{name}", which has records that capture '
                    f'"{self._capture}" has not stored.',
                    hint="give this capture another name, or leave that table out (tables=, --table); or, if "
                    f"nobody needs those records: penstock topic delete {name}",
                )

    def _take(self, table: str) -> None:
        for name in topic_names(self._capture, table):
            own = name.removeprefix(f"{self._capture}.")
            other = self._taken.setdefault(name, table) if own not in OWN else f"what is told of {own}"
            if other != table:
                raise BadOption(
                    f'"{table}" and "{other}" would both be in topic "{name}".',
                    hint="rename one of them, or capture it alone under another capture's name (tables=)",
                )

    def _fitting(self, table: Table) -> Pair:
        rows, changes = topic_names(self._capture, table.name)
        known, told = self._known(rows), self._known(changes)
        if known is not None and known.key != table.key:
            raise BadOption(
                f'"{table.name}" has another key than what is stored: ({", ".join(table.key)}) now, and '
                f"({', '.join(known.key)}) before.",
                hint=self._anew(rows, changes),
            )
        try:
            of_rows = merged(known and known.schema.arrow, table.columns)
            of_changes = merged(told and _told_columns(told), table.columns)
        except BadSchema as error:  # as of a column that was renamed, and differs only in case
            raise BadOption(
                f'"{table.name}" cannot be stored: {error.message}',
                hint=f"rename the column; or {self._anew(rows, changes)}",
            ) from error
        except IncompatibleSchema as error:
            raise BadOption(
                f'"{table.name}" has another form than what is stored: {error.message}',
                hint=self._anew(rows, changes),
            ) from error
        if known is not None and not keys_stay(known.schema, RecordSchema(of_rows), table.key):
            raise BadOption(
                f'"{table.name}" has a key of another type than what is stored.',
                hint=self._anew(rows, changes),
            )
        return Pair(
            self._topic(
                rows,
                _keyed(of_rows, table.key),
                key=table.key,
                cleanup="compact",
                record_bytes_max=_ROW_BYTES_MAX,
            ),
            self._topic(
                changes,
                envelope.schema_of(of_changes),
                event_time=envelope.COMMITTED_AT,
                retention=self._retention,
                record_bytes_max=2 * _ROW_BYTES_MAX,
            ),
        )

    def _anew(self, rows: str, changes: str) -> str:
        """Without the first of these, changes from before would still come in the form of before."""
        return (
            f"begin anew, with a new snapshot: penstock capture drop SOURCE --name {self._capture}; "
            f"penstock topic delete {rows}; penstock topic delete {changes}"
        )

    def _known(self, topic: str) -> TopicSettings | None:
        try:
            return self._log.topic(topic).settings
        except UnknownTopic:
            return None

    def _topic(self, name: str, columns: pa.Schema, **options: Any) -> Topic:
        schema = RecordSchema(columns)
        topic = self._log.create_topic(name, schema, if_missing=True, **options)
        if topic.settings.schema != schema:
            self._log.alter_topic(name, schema=topic.settings.schema.evolve_to(schema))
        return topic


def topic_names(capture: str, table: str) -> tuple[str, str]:
    """Of a table: the topic of its rows, and that of its changes."""
    rows = f"{capture}.{'.'.join(map(_plain, table.split('.')))}"
    return rows, f"{rows}.changes"


def _plain(name: str) -> str:
    """In the letters of a topic; other alphabets as in names of hosts, so that none is taken for another."""
    ascii_name = name if name.isascii() else f"xn--{name.encode('punycode').decode()}"
    return re.sub(r"[^a-zA-Z0-9._-]", "_", ascii_name)


def merged(old: pa.Schema | None, new: pa.Schema) -> pa.Schema:
    """The columns that hold both: what a table has lost stays, and the wider type holds.

    Raises IncompatibleSchema, or BadSchema.
    """
    types = {} if old is None else dict(zip(old.names, old.types, strict=True))
    for column in new:
        types[column.name] = _wider(column.name, types.get(column.name, column.type), column.type)
    return RecordSchema.of(pa.schema(list(types.items()))).arrow


def _wider(name: str, old: pa.DataType, new: pa.DataType) -> pa.DataType:
    def one(dtype: pa.DataType) -> RecordSchema:
        return RecordSchema(pa.schema([pa.field(name, dtype)]))

    try:
        return one(old).evolve_to(one(new)).arrow.field(0).type
    except IncompatibleSchema as error:
        try:
            return one(new).evolve_to(one(old)).arrow.field(0).type
        except IncompatibleSchema:
            raise error from None


def _told_columns(changes: TopicSettings) -> pa.Schema:
    return pa.schema(list(changes.schema.arrow.field("after").type))


def _keyed(columns: pa.Schema, key: tuple[str, ...]) -> pa.Schema:
    return pa.schema([column.with_nullable(column.name not in key) for column in columns])
